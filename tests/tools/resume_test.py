# SPDX-License-Identifier: Apache-2.0
"""Kills training runs and resumes them: the losses must be those of a run that was left alone."""
import atexit
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What a parent ignores is inherited, and shells ignore SIGINT for background jobs.
signal.signal(signal.SIGINT, signal.default_int_handler)

train = Path(sys.argv[1]).resolve()
killed_run = Path(sys.argv[2]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
brief = "--brief" in sys.argv  # where programs are slow: each kind of case, not each case

STEPS, INTERVAL = (8, 2) if brief else (12, 3)
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
documents = folder / "documents.txt"
documents.write_text("".join(f"{i} sheep went to the water" + i * 7 % 50 * " and back" + ".\n\n"
                             for i in range(40)))
WINDOWS = ["--text", text, "--seq-len", 16]
PACKED = ["--text", documents, "--seq-len", 384, "--pack"]

# CheckpointPoint, and whether ranks but the first pass it.
POINTS = [("copy", True), ("copied", True), ("folder made", True), ("tensor written", True),
          ("file written", True), ("files agreed", True), ("manifest written", False),
          ("folder flushed", False), ("folder renamed", False), ("root flushed", False),
          ("latest moved", False), ("older removed", False), ("saved", True)]
RENAMED = 8


class Run:
    """A training run in a folder of its own; it may be started many times."""

    def __init__(self, micro_batches=8, steps=STEPS, interval=INTERVAL, dtype="fp32", data=WINDOWS):
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.checkpoints = self.folder / "checkpoints"
        self.metrics = self.folder / "metrics.jsonl"
        self.options = [
            *data, "--preset", "tiny", "--steps", steps, "--micro-batches", micro_batches,
            "--batch", 1, "--sample-bytes", 0, "--validation-sequences", 2,
            "--log-every", 1000, "--dtype", dtype, "--metrics", self.metrics,
            "--checkpoint-dir", self.checkpoints, "--checkpoint-interval", interval]

    def start(self, world_size, *more, command=(train,), without=(), **keywords):
        options = [word for name, word in zip([None, *self.options], self.options)
                   if name not in without and word not in without]
        arguments = [*command, *options, "--world-size", world_size, *more]
        process = subprocess.Popen([str(argument) for argument in arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **keywords)
        atexit.register(process.kill)  # for a test that fails; nothing where the run has ended
        return process

    def run(self, world_size, *more, exit_code=0, **keywords):
        process = self.start(world_size, *more, **keywords)
        out, err = process.communicate(timeout=600)
        assert process.returncode == exit_code, (process.args, process.returncode, out, err)
        return out, err

    def newest(self):
        """Step of the newest folder that has a checkpoint's name; -1 without."""
        if not self.checkpoints.exists():
            return -1
        return max([int(path.name[5:]) for path in self.checkpoints.glob("step-*")], default=-1)

    def resume(self, world_size, **keywords):
        """To the end, from the newest folder; it must be complete whatever has happened."""
        newest = self.newest()
        out, err = self.run(world_size, "--resume", **keywords)
        assert not err, err
        expected = "no checkpoint yet" if newest < 0 else f"resumed from {self.checkpoints}/step-{newest:08}"
        assert expected in out, (expected, out)

    def losses(self):
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        keys = ["step", "loss", "ce", "grad_norm", "lr", "expert_load"]
        return [[line["step"], *[None] * 5, line["validation_loss"]] if "validation_loss" in line
                else [*(line[key] for key in keys), None] for line in lines]


def reference(world_size, **keywords):
    run = Run(**keywords)
    run.run(world_size)
    return run.losses()


undisturbed = reference(1)
assert len(undisturbed) == STEPS + 1 and undisturbed[STEPS - 1][1] < undisturbed[0][1]
assert reference(4) == undisturbed

# Experts on several ranks, and on others after a kill.
divided = Run()
divided.run(4, "--expert-parallel", 2)
assert divided.losses() == undisturbed
divided = Run()
divided.run(4, "--expert-parallel", 4, exit_code=-signal.SIGKILL,
            command=(killed_run, len(POINTS) - 1, 0, 2))
divided.run(2, "--expert-parallel", 2, "--resume")
assert divided.losses() == undisturbed

# A kill at every point of the second save, and at some of the first; --full: at every one of both.
cases = [(point, 0, 2, save) for point in range(len(POINTS)) for save in (1, 2)
         if save == 2 or POINTS[point][0] in ("tensor written", "manifest written", "folder renamed")]
cases += [(point, 1, 2, 2) for point in (1, 3, 4)]
if brief:
    cases = [(3, 1, 2, 1), (7, 0, 2, 2), (11, 0, 2, 2)]
if full:
    cases = [(point, rank, world, save) for point, (_, all_ranks) in enumerate(POINTS)
             for world in (1, 2, 4) for rank in (0, world - 1) for save in (1, 2)
             if rank == 0 or (world > 1 and all_ranks)]
for point, rank, world_size, save in sorted(set(cases)):
    run = Run()
    run.run(world_size, exit_code=-signal.SIGKILL, command=(killed_run, point, rank, save))
    case = (POINTS[point][0], rank, world_size, save)
    done = save if point >= RENAMED else save - 1
    # Ranks but the first may be anywhere in between when it is they who are killed.
    if rank == 0 or point == len(POINTS) - 1:
        assert run.newest() == (INTERVAL * done if done else -1), (case, run.newest())
    run.resume(world_size)
    assert run.losses() == undisturbed, case
    assert run.newest() == STEPS and (run.checkpoints / "latest").resolve().name == f"step-{STEPS:08}"
    left = sorted(path.name for path in run.checkpoints.iterdir())
    assert left == ["latest", f"step-{STEPS - INTERVAL:08}", f"step-{STEPS:08}"], (case, left)
    shutil.rmtree(run.folder)
print(len(set(cases)), "kills at named points")

# Kills at random instants, one after the other until a run comes to its end; a save after each step.
seed = random.randrange(1 << 32)
print("seed of the random instants", seed)
randomness = random.Random(seed)
undisturbed_often = reference(1, steps=STEPS, interval=1)
run, kills, endings = Run(interval=1), 0, 0
wanted_kills = 200 if full else 1 if brief else 8
while kills < wanted_kills or endings < 1:
    newest = run.newest()
    process = run.start(randomness.choice([1, 2, 4]), "--resume")
    left = randomness.uniform(0.02, 0.5) if kills < wanted_kills else 600
    try:
        out, err = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        kills += 1
    assert not err, err
    if newest >= 0 and "esumed" in out:
        assert f"step-{newest:08}," in out, (newest, out)
    if process.returncode == 0:
        assert run.losses() == undisturbed_often, seed
        endings += 1
        shutil.rmtree(run.folder)
        run = Run(interval=1)
    else:
        assert process.returncode == -signal.SIGKILL, (process.returncode, out, err)
print(kills, "kills at random instants,", endings, "runs to the end")

# Another world size, the next 20 losses: bit for bit where the ranks divide the micro-batches and
# both are powers of two, else to rounding.
largest = 0.0
for micro_batches in (8,) if brief else (8, 12):
    keywords = {"micro_batches": micro_batches, "steps": 2 * INTERVAL + 20, "dtype": "fp64"}
    saved = Run(**keywords)
    saved.run(4, exit_code=-signal.SIGKILL, command=(killed_run, len(POINTS) - 1, 0, 2))
    expected = reference(4, **keywords)
    for world_size in (3,) if brief else (1, 2, 3, 8):
        run = Run(**keywords)
        shutil.copytree(saved.checkpoints, run.checkpoints, symlinks=True)
        shutil.copy(saved.metrics, run.metrics)
        run.resume(world_size)
        got = run.losses()
        if micro_batches == 8 and world_size != 3:
            assert got == expected, world_size
            continue
        assert got != expected and len(got) == len(expected)
        for ours, theirs in zip(got, expected):
            assert (ours[0], ours[4]) == (theirs[0], theirs[4])
            for i in (1, 2, 3, 6):
                if ours[i] is not None:
                    largest = max(largest, abs(ours[i] - theirs[i]) / abs(theirs[i]))
print(f"other world sizes: losses within {largest:.1e}")
assert 0 < largest < 1e-12

# Packed documents go on where they were, in the middle of an epoch, at another world size.
whole = reference(1, data=PACKED)
assert whole != undisturbed and reference(4, data=PACKED) == whole
for save in (3,) if brief else (1, 2, 3):
    saved = Run(data=PACKED)
    saved.run(4, exit_code=-signal.SIGKILL, command=(killed_run, len(POINTS) - 1, 0, save))
    for world_size in (1,) if brief else (1, 2, 8):
        run = Run(data=PACKED)
        shutil.copytree(saved.checkpoints, run.checkpoints, symlinks=True)
        shutil.copy(saved.metrics, run.metrics)
        run.resume(world_size)
        assert run.losses() == whole, (save, world_size)
run = Run(data=PACKED[:-1])
shutil.copytree(saved.checkpoints, run.checkpoints, symlinks=True)
_, err = run.run(2, "--resume", exit_code=1)
assert re.fullmatch(r"train: resume: batches must be 40 documents, ends with CRC-32C "
                    rf"\d+ as in {run.checkpoints}/step-{3 * INTERVAL:08}, got windows anywhere\n",
                    err), err

# A run that is complete goes on to more steps where its learning rates are the same so far: with a constant
# rate, and with one that has not begun to decay. The losses are those of a run of as many steps, and the metrics
# go on in the same file.
more = 20
for schedule, first, steps in [(["constant"], STEPS, more), (["constant", "--warmup", 3], STEPS, more),
                               (["wsd", "--warmup", 2], more, 2 * more)]:
    longer = Run(steps=steps)
    longer.options += ["--schedule", *schedule]
    longer.run(1)
    parts = Run(steps=first)
    parts.options += ["--schedule", *schedule]
    if schedule[0] == "wsd":  # it decays for the last fifth of its steps
        parts.run(2, "--checkpoint-keep", 0)
        for path in parts.checkpoints.glob("step-*"):
            if int(path.name[5:]) > first - first // 5:
                shutil.rmtree(path)
    else:
        parts.run(2)
    done = parts.newest()
    assert done >= first - first // 5 - INTERVAL, done
    out, err = parts.run(2, "--resume", "--steps", steps, without=["--steps"])
    assert not err and f"resumed from {parts.checkpoints}/step-{done:08}" in out, (out, err)
    # The validation loss at the end of the first part stays where the second one begins there.
    between = [line for line in parts.losses() if line[0] == done and line[-1] is not None]
    assert len(between) == (done == first), (schedule, between)
    assert [line for line in parts.losses() if line not in between] == longer.losses(), schedule
    weights = [run.checkpoints / f"step-{steps:08}" for run in (longer, parts)]
    assert all(path.exists() for path in weights), schedule
for schedule in ("cosine", "wsd"):  # a cosine is shaped by its end; this other one has decayed
    run = Run(steps=more)
    run.options += ["--schedule", schedule]
    run.run(2)
    _, err = run.run(2, "--resume", "--steps", 2 * more, without=["--steps"], exit_code=1)
    assert err == (f"train: resume: steps must be {more} as in {run.checkpoints}/step-{more:08}, "
                   f"got {2 * more}\n"), err

# A signal saves and ends the run, which is said.
for number in (signal.SIGTERM, signal.SIGINT):
    run = Run(steps=100000, interval=0)
    process = run.start(2)
    while not run.metrics.exists() or run.metrics.read_text().count("\n") < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (out, err)
    assert err == (f"train: {number.name}: stopping after this step; a second signal ends at "
                   "once\n"), err
    stopped = int(re.search(r"^stopped after step (\d+)$", out, re.MULTILINE)[1])
    assert run.newest() == stopped + 1
    assert run.losses()[-1][0] == stopped

# A damaged checkpoint is passed over and the reason said.
run = Run()
run.run(2, exit_code=-signal.SIGKILL, command=(killed_run, len(POINTS) - 1, 0, 3))
assert run.newest() == 3 * INTERVAL
path = run.checkpoints / f"step-{3 * INTERVAL:08}" / "rank-00001.safetensors"
flipped = bytearray(path.read_bytes())
flipped[len(flipped) // 2] ^= 1
path.write_bytes(flipped)
out, err = run.run(2, "--resume")
assert re.search(rf"passed over: checkpoint: {re.escape(str(path))}: must be of \d+ bytes with CRC-32C "
                 r"\d+, got \d+ with \d+", err), err
assert f"resumed from {run.checkpoints}/step-{2 * INTERVAL:08}" in out
assert run.losses() == undisturbed

# Where all are damaged nothing is begun anew, and nothing is removed or emptied.
run = Run()
run.run(2, exit_code=-signal.SIGKILL, command=(killed_run, len(POINTS) - 1, 0, 2))
metrics = run.metrics.read_bytes()
reasons = []
for step in (2 * INTERVAL, INTERVAL):
    path = run.checkpoints / f"step-{step:08}" / "rank-00001.safetensors"
    os.truncate(path, 100)
    reasons.append(rf"\n  checkpoint: {re.escape(str(path))}: must be of \d+ bytes, got 100")
def visible_files():
    return sorted(path for path in run.checkpoints.rglob("*") if not path.name.startswith("."))


before = visible_files()
for world_size in (1, 2):
    _, err = run.run(world_size, "--resume", exit_code=1)
    assert re.search(rf"^train: checkpoint: {run.checkpoints} must have a sound checkpoint or "
                     rf"none at all, got none that could be read:{''.join(reasons)}\n\Z", err, re.M), err
assert run.metrics.read_bytes() == metrics and visible_files() == before

# Where files cannot grow, as on a full disk, a run goes on, says why nothing is saved, and fails at
# its end.
run = Run()


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


out, err = run.run(2, exit_code=1, preexec_fn=limit_file_size)
for step in range(INTERVAL, STEPS + 1, INTERVAL):
    path = run.checkpoints / f".step-{step:08}.tmp" / "rank-00000.safetensors"
    message = (f"checkpoint: saving step {step} failed on rank 0: atomic_file: cannot write {path}: "
               "File too large")
    assert err.count(message) == 1, err
assert run.losses() == undisturbed and list(run.checkpoints.iterdir()) == []
run.checkpoints.rmdir()
run.checkpoints.write_text("not a folder")
_, err = run.run(2, exit_code=1)
assert err == f"train: --checkpoint-dir: cannot write to {run.checkpoints}: Not a directory\n", err

# What is not this run's is refused.
run = Run()
run.run(2)
for arguments, message in [
        ([], f"checkpoints: '{run.checkpoints}' must have no checkpoints where a run does not "
             f"resume, got step-{STEPS:08}"),
        (["--resume", "--seed", 7], f"resume: seed must be 1 as in {run.checkpoints}/step-{STEPS:08}, "
                                    "got 7"),
        (["--resume", "--overfit"], "resume: overfit must be false as in "
                                    f"{run.checkpoints}/step-{STEPS:08}, got true"),
        (["--resume", "--lr", 0.125], "resume: lr must be 0.004 as in "
                                      f"{run.checkpoints}/step-{STEPS:08}, got 0.125")]:
    _, err = run.run(2, *arguments, exit_code=1)
    assert err == f"train: {message}\n", err
assert run.losses() == undisturbed
run.resume(2)  # nothing is left to do, and nothing is written twice
assert run.losses() == undisturbed

print("resume_test: ok")
