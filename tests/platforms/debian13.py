# SPDX-License-Identifier: Apache-2.0
"""README's two commands on Debian 13: g++ 14, fmt 10, GoogleTest 1.16, CLI11 2.4, Open MPI 5.0."""
from debian_root import DebianRoot, arguments

with DebianRoot("trixie", arguments(__doc__).folder) as root:
    root.run("./tests/run.sh")
    root.run("./examples/train.sh --steps 20")
