# SPDX-License-Identifier: Apache-2.0
"""The programs on ranks that are processes: the bits of threads, signals, resumption on the other kind of
ranks, wrong usage.

usage: programs_test.py FOLDER-OF-TOOLS own_training_loop [--brief]

--brief, for programs that are slow: shorter runs, and none of loss_parity."""
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

from mpirun import Job, by_rank, execute

tools, loop = (Path(argument).resolve() for argument in sys.argv[1:3])
full = os.environ.get("MOEGRAD_FULL") == "1"
brief = "--brief" in sys.argv
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
STEPS = 30 if brief else 60


def train(name, *more, steps=STEPS, interval=7):
    return [tools / "train", "--text", text, "--preset", "tiny", "--steps", steps,
            "--micro-batches", 4, "--batch", 1, "--seq-len", 64, "--sample-bytes", 8,
            "--validation-sequences", 4, "--checkpoint-dir", folder / name, "--checkpoint-interval",
            interval, "--metrics", folder / f"{name}.jsonl", *more]


def losses(name):
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return {(line["step"], kind): [line[kind], line["grad_norm"] if kind == "loss" else None]
            for line in lines for kind in ("loss", "validation_loss") if kind in line}


def threads(*command, exit_code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)
    assert done.returncode == exit_code, (command, done)
    return done.stdout


def job(processes, *command, **keywords):
    return Job(processes, *command, cwd=folder, **keywords)


def after_steps(job, name, steps):
    metrics = folder / f"{name}.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < steps + 1:
        assert job.process.poll() is None, job.wait()
        time.sleep(0.02)


# Losses, norms and parameters of every way to spread a run over up to 8 ranks.
if not brief:
    steps = 10 if full else 2  # the second has what the optimizer changed
    small = ["--steps", steps, "--batch", 1, "--seq-len", 16]
    threads(tools / "loss_parity", *small, "--json", "threads.json", "--svg", "threads.svg")
    out, _ = job(8, tools / "loss_parity", *small, "--json", "mpi.json", "--svg", "mpi.svg").run(timeout=1200)
    ours, theirs = (json.loads((folder / f"{name}.json").read_text()) for name in ("mpi", "threads"))
    for kind in ["runs", "checks"]:  # a run that is resumed needs a launch of its own
        theirs[kind] = [one for one in theirs[kind] if "resumed" not in str(one)]
    assert ours == theirs and len(ours["runs"]) == 43 and "BROKEN" not in out, out
    print(f"loss_parity: {len(ours['runs'])} runs of {steps} steps, threads = processes")
    if full:  # each run against the plain one
        out, _ = job(8, tools / "loss_parity", "--steps", 100).run(timeout=1700)
        assert "BROKEN" not in out and out.count("bits of loss") == 37, out
        print("loss_parity: 100 steps on processes, every bit as without ranks")

# A dry run counts what processes stage.
def said(report):
    return {name: int(figure.replace(",", "")) for name, figure
            in re.findall(r"^  +(\S.*?) +([\d,]+) bytes$", report, re.MULTILINE)}


measured = train("memory", steps=4, interval=2)
report, _ = job(4, *measured, "--dry-run").run()
assert "\nmemory of rank 0 of 4 processes, the largest, without activations\n" in report, report
bounds = said(report)
job(4, *measured).run()
lines = [json.loads(line) for line in (folder / "memory.jsonl").read_text().splitlines()]
peaks = [line["peak_bytes"] for line in lines if "peak_bytes" in line]
held = {tag: max(peak[tag] for peak in peaks) for tag in peaks[0]}
assert 0 < held["communication"] <= bounds["communication, at most"] < 2 * held["communication"], (held, report)
assert held["total"] - held["activations"] <= bounds["together, at most"], (held, report)
assert " of 4, the largest" in threads(*measured, "--world-size", 4, "--dry-run")
print(f"4 processes: {held['communication']} bytes of communication, said {bounds['communication, at most']}")

# SIGUSR1 to mpirun: all ranks save after the step, and that is a success. Threads go on from there.
threads(*train("whole", "--world-size", 2))
stopped = job(4, *train("a", "--expert-parallel", 2))
after_steps(stopped, "a", 10)
stopped.process.send_signal(signal.SIGUSR1)
out, err = stopped.run()
step = int(re.search(r"^stopped after step (\d+)$", out, re.MULTILINE)[1])
assert out.count("configuration\n") == 1 and out.count("stopped after") == 1, out
assert (folder / "a" / f"step-{step + 1:08}").exists() and step + 1 < STEPS, (step, out)
for rank in range(4):
    assert f"train (rank {rank}): SIGUSR1: stopping after this step" in err, err
threads(*train("a", "--world-size", 2, "--resume"))
assert losses("a") == losses("whole") and len(losses("a")) == STEPS + 1, (losses("a"), losses("whole"))
assert "0 differ" in threads(tools / "checkpoint_tool", "diff", folder / "a", folder / "whole")
print(f"saved by 4 processes after step {step}, experts on 2, resumed by 2 threads: the bits of one run")

# The other way round.
process = subprocess.Popen([str(word) for word in train("b", "--world-size", 2)],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
while not (folder / "b.jsonl").exists() or (folder / "b.jsonl").read_text().count("\n") < 10:
    assert process.poll() is None, process.communicate()
    time.sleep(0.02)
process.send_signal(signal.SIGUSR1)
out, err = process.communicate(timeout=60)
assert process.returncode == 0 and "stopped after step" in out, (process.returncode, out, err)
out, _ = job(4, *train("b", "--resume", "--expert-parallel", 4)).run()
assert out.count("resumed from") == 1 and "saved by 2 ranks" in out, out
assert losses("b") == losses("whole"), (losses("b"), losses("whole"))
print("saved by 2 threads, resumed by 4 processes: the bits of one run")

# SIGTERM to one rank ends all after a step. It has said at once what it was doing.
stopped = job(2, *train("c"))
after_steps(stopped, "c", 10)
os.kill(stopped.processes()[1], signal.SIGTERM)
code, out, err = stopped.wait()
assert code == 128 + signal.SIGTERM and "stopped after step" in out, (code, out, err)
said = (folder / "c" / "last_operations.rank1.txt").read_text()
assert re.match(r"rank 1 on host \S+ \(process \d+, [-\d]+T[:\d]+Z\): SIGTERM ", said) and said in err, (said, err)
assert "train (rank 1): SIGTERM: stopping after this step" in err, err
assert not (folder / "c" / "last_operations.rank0.txt").exists(), err

# SIGTERM to mpirun, which kills a second later: the last checkpoint that was finished is sound.
stopped = job(2, *train("d", steps=100_000, interval=3))
after_steps(stopped, "d", 20)
stopped.process.send_signal(signal.SIGTERM)
code, out, err = stopped.wait()
stopped.end_of_all(timeout=5)
assert code != 0, (code, out, err)
for rank in range(2):
    assert "SIGTERM" in (folder / "d" / f"last_operations.rank{rank}.txt").read_text(), err
assert list((folder / "d").glob("step-*")), out
threads(tools / "checkpoint_tool", "verify", folder / "d")

# Two hosts that do not see the same files: here two working directories.
here, there = folder / "here", folder / "there"
SHORT = ["--text", text, "--micro-batches", 2, "--batch", 1, "--seq-len", 16, "--sample-bytes", 0,
         "--validation-sequences", 2]


def on_two_hosts(*options):
    command = [tools / "train", *SHORT, *options]
    return Job(2, *by_rank(*(execute(*command, cwd=host) for host in (here, there))))


for seed, host in enumerate([here, there]):
    host.mkdir()
    threads(tools / "train", *SHORT, "--preset", "tiny", "--seed", seed, "--steps", 1, "--export-hf", host / "hf")
    threads(tools / "train", *SHORT, "--hf-model", host / "hf", "--steps", 4, "--checkpoint-interval", 2,
            "--checkpoint-dir", host / "run")
    shutil.rmtree(host / "run/step-00000004")
for options in ([], ["--expert-parallel", 2]):
    code, _, err = on_two_hosts("--hf-model", "hf", "--steps", 2, *options).wait()
    assert code == 1 and ("--hf-model: all ranks must read the same 'model.safetensors', got others than rank "
                          "0's on rank 1") in err, (code, err)
shutil.rmtree(there / "hf")
shutil.copytree(here / "hf", there / "hf")  # a copy is as good
RESUME = ["--hf-model", "hf", "--steps", 4, "--checkpoint-interval", 0, "--checkpoint-dir", "run", "--resume"]
for options in ([], ["--expert-parallel", 2]):
    code, _, err = on_two_hosts(*RESUME, *options).wait()
    assert code == 1 and ("checkpoint: run/step-00000002/manifest.json must be the same on all ranks, got "
                          "another on rank 1 than on rank 0; all ranks must see one folder") in err, (code, err)
# What a killed run has left on one of the hosts.
(there / "saved/.step-00000002.tmp").mkdir(parents=True)
code, _, err = on_two_hosts("--hf-model", "hf", "--steps", 2, "--checkpoint-interval", 2, "--checkpoint-dir",
                            "saved").wait()
assert code == 1 and ("checkpoint: saving step 2 failed on rank 0: checkpoint: saved/.step-00000002.tmp/"
                      "rank-00001.safetensors: must be readable, got No such file") in err, (code, err)
assert not list((here / "saved").glob("*step-*")), list((here / "saved").iterdir())
print("hosts with other weights, another checkpoint or a folder of their own are named")

# Ranks that were not started alike.
def timeline(steps, program=tools / "fsdp_timeline"):
    return execute(program, "--steps", steps)


code, out, err = job(2, *by_rank(timeline(2), timeline(3))).wait()
assert code == 1 and not list(folder.glob("fsdp_timeline.json")), (code, out, err)
assert ("launch_mpi: all ranks must run the same program in the same way; rank 0 has command line "
        "--steps 2, rank 1 has command line --steps 3") in err, err
# Another build on one of them.
copy = folder / "fsdp_timeline"
copy.write_bytes((tools / "fsdp_timeline").read_bytes() + b"\0")
copy.chmod(0o755)
code, out, err = job(2, *by_rank(timeline(2), timeline(2, copy))).wait()
assert code == 1 and "rank 0 has program with checksum " in err, (code, out, err)
# A host file with one host too few; mpirun says so, and starts nothing.
(folder / "hosts").write_text("localhost slots=1\n")
few = subprocess.run(["mpirun", "--hostfile", folder / "hosts", "-n", "2", "true"], capture_output=True,
                     text=True, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
assert few.returncode != 0 and "not enough slots available" in few.stderr, few

# As mpirun starts one of two processes. Nothing of this comes to MPI but the last, where MPI knows of one
# process only, as it does where mpirun is another Open MPI's, or MPICH's.
def one_of_two(*command, launcher="OMPI_COMM_WORLD"):
    variables = {**os.environ, f"{launcher}_RANK": "0", f"{launcher}_SIZE": "2"}
    return subprocess.run([str(word) for word in command], env=variables, capture_output=True, text=True,
                          timeout=60)


other = one_of_two(*train("e", "--world-size", 3))
assert other.returncode == 2 and ("--world-size: must be 2, the processes that mpirun has started, or left "
                                  "out, got 3") in other.stderr, other
plain = one_of_two(tools / "nz_ablation")
assert plain.returncode == 2 and (
    "the ranks of this program are threads of one process, so it must be started without mpirun, got 2 "
    "processes") in plain.stderr, plain
for launcher in ("OMPI_COMM_WORLD", "PMI"):
    alone = one_of_two(*train("e"), launcher=launcher)
    assert alone.returncode == 1 and (
        "launch_mpi: this is one of 2 processes, but MPI knows of 1; the program must be started by the mpirun "
        "of the Open MPI that it was built with") in alone.stderr, alone

if full:
    out, _ = job(3, loop, text, folder / "loop").run()
    assert out == threads(loop, text, folder / "loop of threads", 3), out
    out, _ = job(3, loop, text, folder / "loop").run()  # nothing is left to do
    assert out == "", out
    out, _ = job(2, tools / "checkpoint_tool", "list", folder / "loop").run()
    assert out == threads(tools / "checkpoint_tool", "list", folder / "loop"), out
    out, _ = job(3, tools / "fsdp_timeline", "--steps", 2).run()
    traced = json.loads((folder / "fsdp_timeline.json").read_text())
    assert {event["pid"] for event in traced["traceEvents"]} == {0, 1, 2}, out
    # SIGUSR1 to a user's program; threads go on from there.
    stopped = job(4, loop, text, folder / "stopped")
    while not (folder / "stopped" / "latest").exists():
        assert stopped.process.poll() is None, stopped.wait()
        time.sleep(0.02)
    stopped.process.send_signal(signal.SIGUSR1)
    out, _ = stopped.run()
    out += threads(loop, text, folder / "stopped", 2)
    assert out == threads(loop, text, folder / "whole of threads", 2), out
    # Ranks whose environments differ.
    one_step = tools / "train", "--steps", 1
    other = execute("env", "GROUPED_MATMUL_NZ_TRANSPOSE=0", *one_step)
    code, out, err = job(2, *by_rank(execute(*one_step), other)).wait()
    assert code == 1 and 'rank 0 has "expert_weights": "pretransposed", rank 1 has ' in err, (code, out, err)
    # A process that does not come to its first launch.
    late = job(2, *by_rank(execute(*one_step), execute("sleep", 65)))
    code, out, err = late.wait(timeout=90)
    assert code != 0 and "launch_mpi: MPI has not started after 60 s; it waits" in err, (code, out, err)
    code, out, err = job(2, tools / "train", "--steps", "none").wait()
    assert code == 2, (code, out, err)
print("programs_test: ok")
