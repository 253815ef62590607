# SPDX-License-Identifier: Apache-2.0
"""Jobs of mpirun for tests. Each gets a mark in its environment, by which its processes are found."""
import atexit
import os
import shlex
import signal
import subprocess
import time
import uuid
from pathlib import Path

MARK = "MOEGRAD_TEST_JOB"


def by_rank(*commands):
    """Words of a command with which rank i runs commands[i], each in the words of a shell: mpirun's
    colons would be the way, but they are no use with Open MPI 5.0.7."""
    cases = " ".join(f"{rank}) {command} ;;" for rank, command in enumerate(commands))
    return ["sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {cases} esac"]


def execute(*command, cwd="."):
    """What by_rank takes for the program `command`."""
    return f"cd {shlex.quote(str(cwd))} && exec {shlex.join(map(str, command))}"


def marked(mark):
    """The processes of the job, mpirun included, but those that have ended and wait to be reaped."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended
            pass
    return found


class Job:
    """`processes` of a program under mpirun, which may run more of them than there are cores, as
    root, wherever the system puts them."""

    def __init__(self, processes, *command, cwd=None, guard=(), mpirun=(), **environment):
        self.mark = uuid.uuid4().hex
        words = [*guard, "mpirun", "--oversubscribe", "--bind-to", "none", *mpirun]
        if processes is not None:
            words += ["-n", processes]
        # A child of a test must not inherit that SIGINT is ignored.
        self.process = subprocess.Popen(
            [str(word) for word in [*words, *command]], cwd=cwd, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, errors="backslashreplace", start_new_session=True,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 MARK: self.mark, **environment})
        atexit.register(self.kill)

    def processes(self):
        """The ranks, by their ranks."""
        ranks = {}
        for pid in marked(self.mark):
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in variables:
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    ranks[int(variable.split(b"=")[1])] = pid
        return ranks

    def wait(self, timeout=120):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def run(self, exit_code=0, timeout=120):
        code, out, err = self.wait(timeout)
        assert code == exit_code, (self.process.args, code, out, err)
        return out, err

    def end_of_all(self, timeout):
        """The time at which no process of the job is left; fails after `timeout` seconds."""
        until = time.time() + timeout
        while marked(self.mark):
            assert time.time() < until, ("left behind", [
                Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(self.mark)])
            time.sleep(0.02)
        return time.time()

    def kill(self):
        for pid in marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
