# SPDX-License-Identifier: Apache-2.0
"""tools/mpirun_guard with stand-ins for mpirun: exit codes, signals, and commands that do not end."""
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from mpirun import MARK, marked

GUARD = Path(__file__).resolve().parents[4] / "tools/mpirun_guard"
SAID = "mpirun_guard: mpirun does not end; ending what it has started on this host\n"


# What a parent ignores is inherited, and shells ignore SIGINT for background jobs.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Guarded:
    def __init__(self, *command, options=(), closed=(), alone=False):
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [str(GUARD), *options, *command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, MARK: self.mark}, start_new_session=alone,
            preexec_fn=lambda: [os.close(number) for number in closed])

    def end(self, timeout=300):
        out, err = self.process.communicate(timeout=timeout)
        assert not marked(self.mark), "processes are left behind"
        return self.process.returncode, out, err


def guarded(*command, **keywords):
    return Guarded(*command, **keywords).end()


def wait_for(path):
    until = time.time() + 300
    while not path.exists():
        assert time.time() < until, path
        time.sleep(0.02)


# Ranks that come again: what counts is the time since the last has ended, and not what was before it. It
# runs beside the others.
again = Guarded("bash", "-c", "for i in 1 2 3 4 5; do OMPI_COMM_WORLD_RANK=0 sleep 2.2; sleep 1.1; done; exit 6",
                options=["--grace", "4"])
assert guarded("true") == (0, "", "")
assert guarded("bash", "-c", "exit 3") == (3, "", "")
assert guarded("bash", "-c", "sleep 1.5; exit 4") == (4, "", "")
code, _, err = guarded()
assert code == 2 and err.startswith("usage: mpirun_guard"), err
for options in (["--grace", "0"], ["--grace", "1000000"], ["--help"]):
    code, _, err = guarded("true", options=options)
    assert code == 2 and err.startswith("usage: mpirun_guard"), (options, err)
reader = Guarded("cat")
assert reader.process.communicate("passed on", timeout=10)[0] == "passed on"

with tempfile.TemporaryDirectory() as folder:
    # Signals are passed on, and a command that heeds them ends with its own exit code.
    for name, arrives in [("USR1", "USR1"), ("USR2", "USR2"), ("TERM", "TERM"), ("INT", "TERM"),
                          ("HUP", "TERM")]:
        ready = Path(folder) / name
        job = Guarded("bash", "-c", f"trap 'echo got {arrives}; exit 5' {arrives}; touch {ready}; "
                                    "while :; do sleep 0.05; done")
        wait_for(ready)
        job.process.send_signal(getattr(signal, f"SIG{name}"))
        assert job.end() == (5, f"got {arrives}\n", ""), name
    # One that does not is killed, with all that it has started.
    ready = Path(folder) / "deaf"
    job = Guarded("bash", "-c", f"trap '' TERM; sleep 1000 & touch {ready}; wait; sleep 1000",
                  options=["--grace", "1"])
    wait_for(ready)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == (137, "", SAID)
    # What one that ends by itself has left behind is ended, too, whatever its name.
    left, name = Path(folder) / "left", Path(folder) / "of) S 1 1"
    shutil.copy(shutil.which("sleep"), name)
    code, out, err = guarded("bash", "-c", f"'{name}' 1000 >/dev/null 2>&1 & echo $! > {left}; exit 3")
    assert (code, out, err) == (3, "", "")
    state = Path(f"/proc/{left.read_text().strip()}/stat")
    until = time.time() + 10  # it has been killed, and may have to wait for a core to end
    while state.exists() and state.read_text().rpartition(") ")[2][0] != "Z":
        assert time.time() < until, state.read_text()
        time.sleep(0.02)
    # SIGUSR1 and SIGUSR2 alone end nothing.
    for name in ("USR1", "USR2"):
        ready = Path(folder) / f"goes_on {name}"
        job = Guarded("bash", "-c", f"trap : {name}; touch '{ready}'; for i in $(seq 30); do sleep 0.1; done",
                      options=["--grace", "1"])
        wait_for(ready)
        job.process.send_signal(getattr(signal, f"SIG{name}"))
        assert job.end() == (0, "", ""), name
    # Closed descriptors are open for what it starts, on /dev/null.
    seen = Path(folder) / "descriptors"
    look = (f"import os; names = [os.readlink(f'/proc/self/fd/{{number}}') for number in (0, 1, 2)]\n"
            f"open({str(seen)!r}, 'w').write(' '.join(names)); raise SystemExit(3)")
    for closed in [(), *(some for count in (1, 2, 3) for some in itertools.combinations((0, 1, 2), count))]:
        assert guarded(sys.executable, "-c", look, closed=closed) == (3, "", ""), closed
        names = seen.read_text().split()
        assert [number for number in (0, 1, 2) if names[number] == "/dev/null"] == list(closed), (closed, names)
# Its ranks have ended, and it waits for others that it cannot reach. Before, all of the guard's process group
# gets SIGUSR1, as by timeout(1).
begin = time.time()
job = Guarded("bash", "-c", "trap : USR1; OMPI_COMM_WORLD_RANK=0 sleep 8; trap '' TERM; sleep 1000; sleep 1000",
              options=["--grace", "2"], alone=True)
time.sleep(1)
os.killpg(job.process.pid, signal.SIGUSR1)
ended = job.end()
assert ended == (137, "", SAID), ended
assert time.time() - begin > 9
assert again.end() == (6, "", "")
print("mpirun_guard_test: ok")
