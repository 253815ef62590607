# SPDX-License-Identifier: Apache-2.0
"""Three hosts: collectives give the bits of threads; a run trains across them, ends in time when one is
cut off, and its restart has the losses of a run that was not interrupted. Tokens that travel to experts
in two levels take fewer messages between hosts than directly, as many bytes, and no other bits.

usage: hosts_test.py FOLDER-OF-TOOLS collective_matrix bench_exchange"""
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts import Hosts, why_not

tools, matrix, bench_exchange = (Path(argument).resolve() for argument in sys.argv[1:4])
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


def train(name, *more, preset="tiny", steps=STEPS, micro_batches=HOSTS, deadline=DEADLINE):
    return [tools / "train", "--text", text, "--preset", preset, "--steps", steps,
            "--micro-batches", micro_batches, "--batch", 1, "--seq-len", 64, "--sample-bytes", 0,
            "--validation-sequences", 3, "--collective-deadline", deadline, "--checkpoint-dir",
            folder / name, "--checkpoint-interval", INTERVAL, "--checkpoint-keep", 0,
            "--metrics", folder / f"{name}.jsonl", *more]


def losses(name):
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return {line["step"]: [line["loss"], line["grad_norm"]] for line in lines if "loss" in line}


def traffic(text):
    """Messages and bytes between hosts: directly, in two levels."""
    found = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) messages, (\d+) bytes", text)]
    assert len(found) == 2 and "the bits are equal" in text, text
    return found


def threads(*command):
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


with Hosts(HOSTS, rate="1gbit") as hosts:
    expected = [line for line in subprocess.run(
        [matrix], check=True, capture_output=True, text=True).stdout.splitlines()
        if int(line.split()[1]) <= HOSTS]
    out, _ = hosts.job(matrix).run(timeout=600)
    assert out.splitlines() == expected, "collectives across hosts differ from those of threads"
    print(f"threads = processes of {HOSTS} hosts: {len(expected)} results of collectives")

    # Each of 6 ranks sends to 4 on other hosts directly, and to 2 in two levels.
    for tokens, hidden in [(64, 16), (3, 5), (600, 128)]:
        out, _ = hosts.job(bench_exchange, 2, tokens, hidden, slots=2).run(timeout=300)
        direct, levels = traffic(out)
        assert f"6 ranks on {HOSTS} hosts" in out, out
        assert direct[1] == levels[1] > 0 and direct[0] > levels[0] > 0, (direct, levels)
        print(f"{tokens} x {hidden}: {levels[0]} messages between hosts, directly {direct[0]}; "
              f"{levels[1]} bytes")

    # With 8 ranks on each host tokens travel in two levels.
    shape = {"preset": "small", "steps": 3, "micro_batches": 16, "deadline": 60}
    threads(*train("threads16", "--world-size", 16, **shape))
    hosts.job(*train("experts", "--expert-parallel", 16, **shape), slots=8, on=2).run(timeout=300)
    assert losses("experts") == losses("threads16"), (losses("experts"), losses("threads16"))
    assert len(losses("experts")) == 3
    print("trained with experts on 16 ranks of 2 hosts, to the losses of threads without")

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
    assert code != 0 and took < DEADLINE + 10, (code, took, out, err)
    named = re.findall(rf"not (?:joined|executed) within {1000 * DEADLINE} ms by (ranks? [0-9, ]+)", err)
    said = "\n".join((folder / "cut" / f"last_operations.rank{rank}.txt").read_text()
                     for rank in range(HOSTS - 1))
    lost = str(cut - 1)
    assert any(lost in re.findall(r"\d+", ranks) for ranks in named) or \
        re.search(rf"not (?:joined|executed) within \d+ ms by ranks? [0-9, ]*\b{lost}\b", said), (err, said)
    print(f"the others named: {sorted(set(named))}")

    hosts.reconnect(cut)
    out, err = hosts.job(*train("cut", "--resume")).run(timeout=300)
    assert "resumed from" in out, out
    assert losses("cut") == losses("whole"), (losses("cut"), losses("whole"))
    print("the restart has the losses of the run that was not interrupted")
print("hosts_test: ok")
