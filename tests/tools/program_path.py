# SPDX-License-Identifier: Apache-2.0
"""Where a build tree has its programs."""


def program_path(tools, name):
    """`tools`: the folder of the tools; the examples' folder is next to it."""
    found = tools / name
    return found if found.exists() else tools.parent / "examples" / name
