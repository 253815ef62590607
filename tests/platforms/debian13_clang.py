# SPDX-License-Identifier: Apache-2.0
"""README's two commands on Debian 13 with clang 19."""
from debian_root import DebianRoot, arguments

with DebianRoot("trixie", arguments(__doc__).folder, packages=["clang"]) as root:
    root.run("./tests/run.sh", CXX="clang++")
    root.run("./examples/train.sh --steps 20", CXX="clang++")
