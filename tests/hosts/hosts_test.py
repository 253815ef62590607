# SPDX-License-Identifier: Apache-2.0
"""Three hosts: collectives give the bits of threads; a run trains across them, ends in time when one is
cut off, and its restart has the losses of a run that was not interrupted.

usage: hosts_test.py FOLDER-OF-TOOLS collective_matrix"""
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts import Hosts, why_not

tools, matrix = (Path(argument).resolve() for argument in sys.argv[1:3])
guard = Path(__file__).resolve().parent.parent.parent / "tools/mpirun_guard"
HOSTS, DEADLINE, STEPS, INTERVAL = 3, 5, 60, 5

reason = why_not()
if reason:
    print(f"skipped: {reason}")
    sys.exit(77)

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))


def train(name, *more):
    return [tools / "train", "--text", text, "--preset", "tiny", "--steps", STEPS,
            "--micro-batches", 3, "--batch", 1, "--seq-len", 64, "--sample-bytes", 0,
            "--validation-sequences", 3, "--collective-deadline", DEADLINE, "--checkpoint-dir",
            folder / name, "--checkpoint-interval", INTERVAL, "--checkpoint-keep", 0,
            "--metrics", folder / f"{name}.jsonl", *more]


def losses(name):
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return {line["step"]: [line["loss"], line["grad_norm"]] for line in lines if "loss" in line}


def threads(*command):
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


with Hosts(HOSTS, rate="1gbit") as hosts:
    expected = [line for line in subprocess.run(
        [matrix], check=True, capture_output=True, text=True).stdout.splitlines()
        if int(line.split()[1]) <= HOSTS]
    out, _ = hosts.job(matrix).run(timeout=600)
    assert out.splitlines() == expected, "collectives across hosts differ from those of threads"
    print(f"threads = processes of {HOSTS} hosts: {len(expected)} results of collectives")

    # Slow enough for a run to be cut off in the middle.
    for number in hosts.numbers:
        hosts.set_rate(number, "20mbit")
    threads(*train("threads", "--world-size", HOSTS))
    out, err = hosts.job(*train("whole")).run(timeout=300)
    assert losses("whole") == losses("threads"), (losses("whole"), losses("threads"))
    assert len(losses("whole")) == STEPS
    print(f"trained {STEPS} steps across {HOSTS} hosts, to the losses of threads")

    cut = HOSTS
    job = hosts.job(*train("cut"), guard=[guard, "--grace", 3])
    metrics = folder / "cut.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3 * INTERVAL:
        assert job.process.poll() is None, job.wait()
        time.sleep(0.05)
    hosts.cut_off(cut)
    cut_at = time.time()
    code, out, err = job.wait(timeout=120)
    took = job.end_of_all(timeout=30) - cut_at
    print(f"a host cut off: {took:.1f} s until the last process has ended, exit code {code}")
    assert code != 0 and took < DEADLINE + 5, (code, took, out, err)
    named = re.findall(rf"not (?:joined|executed) within {1000 * DEADLINE} ms by (ranks? [0-9, ]+)", err)
    said = "\n".join((folder / "cut" / f"last_operations.rank{rank}.txt").read_text()
                     for rank in range(HOSTS - 1))
    assert re.search(rf"rank {cut - 1}\b", err + said), (err, said)
    print(f"the others named: {sorted(set(named))}")

    hosts.reconnect(cut)
    out, err = hosts.job(*train("cut", "--resume")).run(timeout=300)
    assert "resumed from" in out, out
    assert losses("cut") == losses("whole"), (losses("cut"), losses("whole"))
    print("the restart has the losses of the run that was not interrupted")
print("hosts_test: ok")
