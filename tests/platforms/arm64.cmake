# SPDX-License-Identifier: Apache-2.0
# For Debian's cross compiler, with arm64's libraries from the same root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
