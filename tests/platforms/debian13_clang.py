# SPDX-License-Identifier: Apache-2.0
"""README's two commands on Debian 13 with clang 19.

usage: debian13_clang.py [FOLDER]      FOLDER is kept, and used again"""
from debian_root import DebianRoot, folder_argument

with DebianRoot("trixie", folder_argument(), packages=["clang"]) as root:
    root.run("./tests/run.sh", CXX="clang++")
    root.run("./examples/train.sh --steps 20", CXX="clang++")
