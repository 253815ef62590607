# SPDX-License-Identifier: Apache-2.0
"""What every program does alike as a process: closed descriptors, output that cannot be written,
signals, memory and threads that do not suffice, hostile names."""
import itertools
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from program_runs import SHORT, SMALL, contents, folder, full, run, start, text

# Closed descriptors. Each program writes what it writes with all of them open.
run(*SHORT, "--metrics", "run.jsonl", "--checkpoint-dir", "sound")
COMMANDS = [
    ("train", [*SMALL, "--log-level", "debug", "--metrics", "run.jsonl", "--checkpoint-dir",
                         "checkpoints", "--checkpoint-interval", 1, "--tensorboard", "board"]),
    # The first file that stays open, and so would get a closed descriptor, is here the metrics.
    ("train", [*SMALL, "--log-level", "debug", "--metrics", "run.jsonl"]),
    ("training_report", [folder / "run.jsonl", "-o", "page.html"]),
    ("compare_losses", [folder / "run.jsonl", folder / "run.jsonl", "--assert-equal"]),
    ("checkpoint_tool", ["export", folder / "sound", "exported"]),
    ("own_function", []),
    ("inspect_graph", ["--preset", "tiny", "--tokens", 3]),
    ("own_training_loop", [text, "own", 1]),
    ("train_loop", [text]),
    ("sampler_balance", ["--text", text, "--budget", 64]),
    ("fsdp_timeline", ["--steps", 1, "--batch", 1, "--seq-len", 8]),
    ("loss_parity", ["--help"]),
    ("nz_ablation", ["--help"]),
    ("check_golden", ["--help"]),
    ("fsdp_overlap", ["--help"]),
    ("fsdp_crossover", ["--help"]),
]
WRITING = {"train", "training_report", "checkpoint_tool", "own_training_loop", "fsdp_timeline"}
TIMED = {"fsdp_timeline.json", "fsdp_timeline.txt", "page.html"}  # durations and dates
closings = [closed for count in (1, 2, 3) for closed in itertools.combinations((0, 1, 2), count)]
runs = 0
for program, arguments in COMMANDS:
    written = []
    chosen = closings if full or program == "train" else [(0, 1, 2)] if "loop" in program else \
        [(1,), (2,), (0, 1, 2)]
    for closed in [(), *chosen]:
        place = Path(tempfile.mkdtemp(dir=folder))
        run(program, *arguments, cwd=place,
            preexec_fn=lambda closed=closed: [os.close(number) for number in closed])
        written.append({path: data[:30] if path.name in TIMED else data
                        for path, data in contents(place).items()})
        assert written[-1] == written[0], (program, closed)
        assert program not in WRITING or written[0], (program, closed)
        if "--checkpoint-dir" in arguments:
            out, _ = run("checkpoint_tool", "verify", place / "checkpoints")
            assert out.count(": sound, ") == 2, out
        shutil.rmtree(place)
        runs += 1
print(runs, "runs with closed descriptors, nothing damaged")

# Output that is not taken is an error; a reader who has left does not end a run.
for program, arguments in COMMANDS:
    if program == "train":
        arguments = SMALL
    with open("/dev/full", "w") as no_room:
        _, err = run(program, *arguments, stdout=no_room,
                     exit_code=2 if program == "compare_losses" else 1)
    assert err.endswith(f"{program}: standard output could not be written\n"), (program, err)
for option in ("--help",):
    with open("/dev/full", "w") as no_room:
        run("train", option, stdout=no_room, exit_code=1)
reader, writer = os.pipe()
os.close(reader)
_, err = run(*SHORT, "--metrics", "unread.jsonl", stdout=writer, exit_code=1)
os.close(writer)
assert err.endswith("train: standard output could not be written\n"), err
assert len((folder / "unread.jsonl").read_text().splitlines()) == 4

# Signals: noted at once, whatever the run is at; a second one ends it.
MAY_REPEAT = ("SIGUSR1", "SIGUSR2", "SIGXCPU")


def message(name):
    second = "SIGINT or SIGTERM ends" if name in MAY_REPEAT else "a second signal ends"
    return f"train: {name}: stopping after this step; {second} at once\n"


def exit_code(name):
    return 0 if name.startswith("SIGUSR") else 128 + getattr(signal, name)


for name, when in [("SIGTERM", "training"), ("SIGINT", "training"), ("SIGHUP", "training"),
                   ("SIGUSR1", "sample"), ("SIGUSR2", "training"), ("SIGXCPU", "training"),
                   ("SIGTERM", "validation"), ("SIGTERM", "sample")]:
    number = getattr(signal, name)
    place = folder / f"stopped {name} {when}"
    options = {"training": ["--steps", 100000], "sample": ["--sample-bytes", 100000],
               "validation": ["--validation-sequences", 100000, "--batch", 1]}[when]
    big = folder / "big.txt"
    if when == "validation" and not big.exists():
        big.write_text("sheep went to the water and came back again.\n" * 40000)
    data = ["--text", big] if when == "validation" else []
    process = start(*SHORT, *options, *data, "--metrics", f"{place}.jsonl", "--checkpoint-dir", place)
    metrics = Path(f"{place}.jsonl")
    wanted = {"training": 2, "sample": 4, "validation": 0}[when]
    while not metrics.exists() or metrics.read_text().count("\n") < wanted:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == exit_code(name) and err == message(name), (name, when, out, err)
    if when == "validation":
        assert "stopped before the first step\n" in out and not list(place.glob("step-*")), out
        continue
    stopped = int(re.search(r"^stopped after step (\d+)$", out, re.MULTILINE)[1])
    assert (place / f"step-{stopped + 1:08}").exists() and (when != "sample" or stopped == 2), out
# The system sends SIGXCPU every second, and mpirun may pass SIGUSR1 on to a rank that has it already:
# a second one ends nothing.
for name in ("SIGTERM", *MAY_REPEAT):
    ending = exit_code(name) if name in MAY_REPEAT else -signal.SIGTERM
    metrics = folder / f"slow {name}.jsonl"
    process = start(*SHORT, "--text", big, "--steps", 100000, "--seq-len", 4096, "--metrics", metrics)
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(getattr(signal, name))
    assert process.stderr.readline() == message(name)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == ending and ("stopped after step" in out) == (ending >= 0), (name, out)
# SIGUSR1 is heard before anything is printed: here to a pipe that is full.
reader, writer = os.pipe()
os.set_blocking(writer, False)
filled = 0
try:
    while True:
        filled += os.write(writer, b"." * 4096)
except BlockingIOError:
    os.set_blocking(writer, True)
process = start(*SHORT, "--steps", 100000, stdout=writer)
os.close(writer)
status = Path(f"/proc/{process.pid}/status")
until = time.time() + 60
while not int(re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.MULTILINE)[1], 16) >> (signal.SIGUSR1 - 1) & 1:
    assert time.time() < until and process.poll() is None, "SIGUSR1 would end the program"
    time.sleep(0.02)
process.send_signal(signal.SIGUSR1)
assert process.stderr.readline() == message("SIGUSR1")
with open(reader, encoding="utf-8") as output:
    out = output.read()[filled:]
assert process.wait(timeout=60) == 0 and "\nstopped before the first step\n" in out, out
# Under nohup it goes on, whatever handler a library has put there as it was loaded.
process = start(*SHORT, "--steps", 100000, "--metrics", "nohup.jsonl", env={**os.environ, "LD_PRELOAD": sys.argv[2]},
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
while not (folder / "nohup.jsonl").exists() or not (folder / "nohup.jsonl").read_text():
    assert process.poll() is None, process.communicate()
    time.sleep(0.02)
process.send_signal(signal.SIGHUP)
time.sleep(0.3)
assert process.poll() is None
process.send_signal(signal.SIGTERM)
_, err = process.communicate(timeout=60)
assert process.returncode == 128 + signal.SIGTERM and err == message("SIGTERM"), err

# With the variables of a launcher, all processes but the first say that they do nothing. Output of a
# program that could have ranks is the first one's alone.
ONCE = [("checkpoint_tool", ["verify", "nonexistent"]), ("training_report", ["nonexistent.jsonl"]),
        ("compare_losses", ["nonexistent.jsonl", "absent.jsonl", "--assert-equal"]),
        ("inspect_graph", ["--preset", "tiny"]), ("sampler_balance", ["--text", "nonexistent"]),
        ("own_function", []), ("own_module", []), ("mixture", []), ("two_moons", []), ("char_gpt", [])]
for rank, size in [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", "SLURM_NTASKS")]:
    for program, arguments in ONCE:
        assert run(program, *arguments, env={**os.environ, rank: "3", size: "4"}) == ("", (
            f"{program}: does nothing, since rank 0 does the work and this is rank 3 of 4, as {rank} and {size} "
            "say; unset them where no launcher has started this program\n")), program
_, err = run("checkpoint_tool", "verify", "nonexistent", exit_code=1,
             env={**os.environ, "PMIX_RANK": "0", "SLURM_NTASKS": "4"})
assert "nonexistent" in err, err

# Memory and threads that do not suffice: what was asked for, and no signal.
def limited(kind, amount):
    return lambda: resource.setrlimit(kind, (amount, amount))


_, err = run(*SHORT, "--seq-len", 700, "--batch", 1000, "--micro-batches", 1, "--world-size", 1,
             exit_code=1, preexec_fn=limited(resource.RLIMIT_AS, 1 << 30))
assert re.fullmatch(r"train: arena: out of memory, \d+ bytes live and \d+ more asked for \w+\n",
                    err), err
_, err = run(*SHORT, "--threads-per-rank", 4000, "--world-size", 1, exit_code=1,
             preexec_fn=limited(resource.RLIMIT_AS, 1 << 30))
assert re.search(r"train: thread pool: needs 4000 threads, its caller's included, got \d+: "
                 r"Resource temporarily unavailable\n", err), err
_, err = run(*SHORT, "--world-size", 4000, exit_code=1, preexec_fn=limited(resource.RLIMIT_AS, 1 << 30))
assert re.search(r"train: launch: needs 4000 threads for (communication|ranks), got \d+: Resource "
                 r"temporarily unavailable\n", err), err
_, err = run(*SHORT, "--metrics", "m" * 300, exit_code=1)
assert err == f"train: --metrics: cannot write file '{'m' * 300}': File name too long\n", err
run(*SHORT, "--text", "t" * 5000, exit_code=1)
run(*SHORT, "--checkpoint-dir", "c" * 300, exit_code=1)

# Control characters never reach the terminal; other characters stay readable.
hostile = "a\x1b[2J\r\x07\u009bé€.txt"
_, err = run("train", "--text", hostile, exit_code=1)
assert err == ("train: text: a\\x1b[2J\\x0d\\x07\\xc2\\x9bé€.txt: must be a readable regular file, "
               "got No such file or directory\n"), err
_, err = run("train", "--no\x1bsuch", exit_code=2)
out, _ = run(*SHORT, "--prompt", "\x1b]0;title\x07")
assert "\x1b" not in out + err and "\x07" not in out and "sample: \\x1b]0;title\\x07" in out, out
shutil.copytree(folder / "sound", folder / "k\x1b[2J")
for command in (["verify", "k\x1b[2J"], ["diff", "k\x1b[2J", "sound"], ["verify", "none\x1b[2J"]):
    process = start("checkpoint_tool", *command)
    out, err = process.communicate(timeout=60)
    assert "\x1b" not in out + err and (command[0] == "diff" or "\\x1b[2J" in out + err), (out, err)

print("frame_test: ok")
