# SPDX-License-Identifier: Apache-2.0
"""README's two commands on Debian 12 with clang 14.

usage: debian12_clang.py [FOLDER]      FOLDER is kept, and used again"""
from debian_root import DebianRoot, folder_argument

with DebianRoot("bookworm", folder_argument(), packages=["clang"]) as root:
    root.run("./tests/run.sh", CXX="clang++")
    root.run("./examples/train.sh --steps 20", CXX="clang++")
