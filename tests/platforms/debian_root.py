# SPDX-License-Identifier: Apache-2.0
"""Another Debian in a folder, made by mmdebstrap: what is in it runs by chroot, on the kernel of the host."""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
# Mounted for the command alone: in a namespace of mounts of its own.
ENTER = """
cd "$1"
for folder in proc sys dev; do mount --rbind "/$folder" "$folder"; done
exec chroot . /bin/bash -c "cd /moegrad && $2"
"""


def why_not(foreign):
    """Why no root can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for chroot"
    for tool in ("mmdebstrap", "unshare", "git", "tar"):
        if not shutil.which(tool):
            return f"{tool} is not installed"
    if os.uname().machine != "x86_64":
        return "the host is no amd64"
    if foreign and not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        return "needs qemu-user-static and binfmt-support, which run programs of arm64"
    return ""


class DebianRoot:
    """A root of `suite` with `packages`, which may be those of `foreign`, a second architecture, and with
    the project in /moegrad. In a folder that is kept, if one is given: there the script has a root of its
    own, made once; the project is copied anew, and what it has built stays."""

    def __init__(self, suite, folder=None, packages=(), foreign=None):
        reason = why_not(foreign)
        if reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        self.kept = folder is not None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="moegrad-root-")).resolve()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(str(error))
        self.root = self.folder / Path(sys.argv[0]).stem
        self.suite, self.packages, self.foreign = suite, packages, foreign

    def __enter__(self):
        # So that the folder is removed then, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            if not (self.root / "moegrad").exists():
                self.make()
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
            self.copy_project()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if not self.kept:
            shutil.rmtree(self.folder)

    def make(self):
        if self.root.exists():
            sys.exit(f"{self.root} is not a root that this script has made; remove it")
        architectures = "amd64" + (f",{self.foreign}" if self.foreign else "")
        made = subprocess.run(
            ["mmdebstrap", "--mode=root", "--variant=apt", f"--architectures={architectures}",
             "--include=" + ",".join(("ca-certificates", "git", *self.packages)), self.suite, self.root],
            check=False, text=True, stderr=subprocess.PIPE)
        if made.returncode == 0:
            return
        shutil.rmtree(self.root, ignore_errors=True)
        print(made.stderr)
        if re.search("Could not (resolve|connect)|Unable to fetch|Failed to fetch", made.stderr):
            print("skipped: Debian's archive is out of reach")
            sys.exit(77)
        sys.exit(f"mmdebstrap could not make a root of {self.suite}")

    def copy_project(self):
        project = self.root / "moegrad"
        project.mkdir(exist_ok=True)
        for entry in project.iterdir():
            if entry.name != "build":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        listed = subprocess.run(["git", "-C", PROJECT, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], check=True, stdout=subprocess.PIPE).stdout
        names = b"\0".join(name for name in listed.split(b"\0") if name and (PROJECT / os.fsdecode(name)).exists())
        packed = subprocess.run(["tar", "-C", PROJECT, "--null", "--files-from=-", "--create"], input=names,
                                check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-C", project, "--no-same-owner", "--extract"], input=packed, check=True)
        # Tests ask git for the files of the repository.
        for command in (["init", "--quiet"], ["add", "--all"]):
            subprocess.run(["git", "-C", project, *command], check=True)

    def run(self, command, check=True, **environment):
        """A line of bash in the folder of the project."""
        print(f"== {self.suite}: {command}", flush=True)
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", ENTER, "sh", self.root, command], check=check,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
                 "CCACHE_DIR": "/ccache", **environment}).returncode


def arguments(description, *names):
    """The command line: arguments of these names, and perhaps a folder."""
    parser = argparse.ArgumentParser(description=description)
    for name in names:
        parser.add_argument(name)
    parser.add_argument("folder", nargs="?", help="is kept, and used again")
    return parser.parse_args()
