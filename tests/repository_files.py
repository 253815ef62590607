# SPDX-License-Identifier: Apache-2.0
"""Which files belong to the repository: what a user leaves in his checkout is no business of a test.

usage: repository_files.py [FOLDER...]      prints those in these folders, one a line
"""
import os
import subprocess
import sys
from pathlib import Path


def git(root, *arguments):
    """Output of a git command; None where git is absent or refuses."""
    # A hook of git's sets variables such as GIT_DIR, which would name another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(["git", "-C", root, *arguments], env=environment, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def tracked_files(root):
    """Paths relative to `root` that git knows; None where `root` is not the top of a checkout."""
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(os.fsdecode(top.rstrip(b"\n"))).resolve() != root.resolve():
        return None
    names = git(root, "ls-files", "-z").split(b"\0")
    paths = [Path(os.fsdecode(name)) for name in names if name]
    return sorted(path for path in paths if (root / path).is_file())


def repository_files(root, top_level):
    """Paths relative to `root` of the repository's files: what git knows or, where there is no
    checkout, everything below the entries `top_level`."""
    tracked = tracked_files(root)
    if tracked is not None:
        return tracked
    walked = [path for name in top_level for path in [root / name, *(root / name).rglob("*")]]
    return sorted(path.relative_to(root) for path in walked if path.is_file())


if __name__ == "__main__":
    folders = sys.argv[1:]
    for file in repository_files(Path(__file__).resolve().parent.parent, folders):
        if file.parts[0] in folders:
            print(file)
