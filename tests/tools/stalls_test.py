# SPDX-License-Identifier: Apache-2.0
"""Runs whose disk stalls for longer than a collective's deadline, whose process is stopped for
longer, and whose file system refuses what a checkpoint can do without: they go on, to the same
losses."""
import atexit
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

train, shim = (Path(argument).resolve() for argument in sys.argv[1:3])
full = os.environ.get("MOEGRAD_FULL") == "1"

STEPS, INTERVAL = 9, 3
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))


class Run:
    """A training run in a folder of its own, with a deadline in seconds; none: the program's own."""

    def __init__(self, deadline, steps=STEPS, interval=INTERVAL, data=("--text", text)):
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.checkpoints, self.metrics = self.folder / "checkpoints", self.folder / "metrics.jsonl"
        self.options = [*data, "--seq-len", 16, "--preset", "tiny", "--steps", steps,
                        "--micro-batches", 2, "--batch", 1, "--sample-bytes", 0,
                        "--validation-sequences", 2, "--log-every", 1000, "--metrics", self.metrics,
                        "--checkpoint-dir", self.checkpoints, "--checkpoint-interval", interval]
        if deadline is not None:
            self.options += ["--collective-deadline", deadline]

    def start(self, *more, **environment):
        process = subprocess.Popen(
            [str(argument) for argument in [train, *self.options, *more]], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "LD_PRELOAD": str(shim), **environment})
        atexit.register(process.kill)  # for a test that fails; nothing where the run has ended
        return process

    def run(self, *more, exit_code=0, **environment):
        process = self.start(*more, **environment)
        out, err = process.communicate(timeout=600)
        assert process.returncode == exit_code, (process.args, process.returncode, out, err)
        return out, err

    def losses(self):
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        return [[line.get(key) for key in ["step", "loss", "ce", "grad_norm", "validation_loss"]]
                for line in lines]

    def steps_saved(self):
        return sorted(int(path.name[5:]) for path in self.checkpoints.glob("step-*"))


def warned(err, rank, what, seconds):
    """That it was said while it went on and at the end, with the rank (a pattern) and at least the
    seconds."""
    assert re.search(rf"warning \[rank \d+\] rank {rank}: {what} has taken [\d.]+ s and goes on\n",
                     err), (what, err)
    took = re.search(rf"warning \[rank \d+\] rank {rank}: {what} took ([\d.]+) s\n", err)
    assert took and float(took[1]) >= seconds, err


usual = Run(None)
usual.run()
undisturbed = usual.losses()
assert len(undisturbed) == STEPS + 1

# A deadline of one second and stalls of three; in the full suite those of a run with the deadline
# that it has by itself.
for deadline, seconds in [(1, 3)] + ([(None, 65)] if full else []):
    # The disk of either rank, while a checkpoint is saved: once, and each time.
    for rank in (0, 1):
        run = Run(deadline)
        _, err = run.run(STALL=f"fsync rank-0000{rank} {seconds} {1 if deadline is None else 2}")
        warned(err, rank, f"checkpoint: saving step {INTERVAL}", seconds)
        assert run.losses() == undisturbed and run.steps_saved() == [2 * INTERVAL, STEPS]
    # While the manifest is written, on rank 0 alone.
    run = Run(deadline)
    _, err = run.run(STALL=f"fsync manifest.json {seconds} 1")
    warned(err, 0, f"checkpoint: saving step {INTERVAL}", seconds)
    assert run.losses() == undisturbed

    # While batches are read: the first two calls check the file, the next two are of the held-out
    # batches of two ranks.
    tokens = folder / "tokens.bin"
    tokens.write_bytes(text.read_text().encode("utf-16-le"))
    data = ("--data", tokens)
    expected = Run(None, data=data)
    expected.run()
    for after, what in [(2, "reading held-out batches"), (4, "reading the batches of step 0")]:
        run = Run(deadline, data=data)
        _, err = run.run(STALL=f"pread tokens.bin {seconds} 1 {after}")
        warned(err, "[01]", what, seconds)
        assert run.losses() == expected.losses()

    # While a run is resumed: the files that are verified, and the metrics that are cut.
    last = f"step-{STEPS - INTERVAL:08}"
    for call, path, rank, what in [
            ("read", f"{last}/rank-00001", 1, f"reading {run.checkpoints}/{last}"),
            ("read", "metrics.jsonl", 0, "opening the logs")]:
        shutil.rmtree(run.checkpoints / f"step-{STEPS:08}", ignore_errors=True)
        out, err = run.run("--resume", STALL=f"{call} {path} {seconds} 1")
        assert f"resumed from {run.checkpoints}/{last}" in out, out
        warned(err, rank, re.escape(what), seconds)
        assert run.losses() == undisturbed

    # The whole process is stopped, as by Ctrl-Z.
    run = Run(deadline, steps=200, interval=0)
    process = run.start()
    while not run.metrics.exists() or run.metrics.read_text().count("\n") < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    assert process.poll() is None
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and not err, (out, err)

# What the file system refuses is said once, and costs nothing else: older checkpoints go.
for error in (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
    for call, message in [
            ("fsync", "checkpoint: folders in {} cannot be flushed: {}; a power failure may lose the "
                      "newest checkpoints"),
            ("symlink", "checkpoint: latest is not moved: checkpoint: cannot create "
                        "{}/.step-latest.tmp: {}")]:
        run = Run(None)
        _, err = run.run(REFUSE=f"{call} {error}")
        expected = message.format(run.checkpoints, os.strerror(error))
        assert re.fullmatch(rf"[\d:.]+ warning \[rank 0\] {re.escape(expected)}\n", err), err
        assert run.losses() == undisturbed and run.steps_saved() == [2 * INTERVAL, STEPS]
        assert (run.checkpoints / "latest").is_symlink() == (call == "fsync")

print("stalls_test: ok")
