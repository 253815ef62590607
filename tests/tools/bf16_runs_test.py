# SPDX-License-Identifier: Apache-2.0
"""Trains in bfloat16 in many ways that must give the same bits: few runs in which each pair of choices meets.

    bf16_runs_test.py TRAIN [--brief]

Choices are the kernels of this CPU, 1 to 8 ranks, threads or processes, experts on ranks of their own, recomputation,
and a run that is stopped and goes on with other kernels. Four runs, with all kernels among them, have 100 steps, the
others 10, and all begin alike.
"""
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

train = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv  # 10 steps at most, and each kind of choice instead of each pair
STEPS, LONG_STEPS, LONG_RUNS = 10, 10 if brief else 100, 4
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))

version = subprocess.run([train, "--version"], capture_output=True, text=True, check=True).stdout
KERNELS = re.search(r"kernels: ([\w, ]+);", version).group(1).split(", ")
CHOICES = {"kernels": KERNELS, "ranks": [1, 2, 4, 8], "experts": ["whole", "divided"], "recomputed": [0, 2],
           "resumed": [False, True], "as": ["threads", "processes"] if shutil.which("mpirun") else ["threads"]}


def is_possible(run):
    return run["experts"] == "whole" or run["ranks"] > 1


def covering(choices):
    """Few runs, in which all pairs of choices meet that can: each next run is one with the most pairs that are new."""
    runs = [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
    runs = [run for run in runs if is_possible(run)]
    size = 1 if brief else 2
    pairs_of = lambda run: set(itertools.combinations(sorted(run.items(), key=lambda item: item[0]), size))
    missing = set().union(*map(pairs_of, runs))
    taken = []
    while missing:
        taken.append(max(runs, key=lambda run: len(pairs_of(run) & missing)))
        missing -= pairs_of(taken[-1])
    return taken


def start(run, kernels, *arguments):
    command = [train, "--text", text, "--seq-len", 32, "--preset", "tiny", "--micro-batches", 8, "--batch", 1,
               "--sample-bytes", 0, "--validation-sequences", 8, "--dtype", "bf16", "--schedule", "constant",
               "--kernels", kernels, "--world-size", run["ranks"], "--recompute-layers", run["recomputed"],
               "--expert-parallel", min(run["ranks"], 4) if run["experts"] == "divided" else 1, *arguments]
    if run["as"] == "processes":
        command = ["mpirun", "--oversubscribe", "-n", run["ranks"], *command]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1200, env=environment)
    assert result.returncode == 0, (run, result)


def trained(run, steps):
    """Losses and gradient norms of each step, and the weights at the end."""
    own = Path(tempfile.mkdtemp(dir=folder))
    metrics, weights = own / "metrics.jsonl", own / "weights"
    common = ["--metrics", metrics, "--checkpoint-dir", own / "checkpoints", "--checkpoint-interval", steps // 2]
    if run["resumed"]:
        others = KERNELS[(KERNELS.index(run["kernels"]) + 1) % len(KERNELS)]
        start(run, others, *common, "--steps", steps // 2)
        common.append("--resume")
    start(run, run["kernels"], *common, "--steps", steps, "--export-hf", weights)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    history = [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]
    assert len(history) == steps, (run, len(history))
    files = {file.name: file.read_bytes() for file in sorted(weights.glob("*.safetensors"))}
    assert files, run
    shutil.rmtree(own)
    return history, files


runs = covering(CHOICES)
assert brief or len(runs) <= 20, runs
long_of = {name: next(run for run in runs if run["kernels"] == name) for name in KERNELS}
long_runs = [*long_of.values(), *(run for run in runs if run not in long_of.values())][:LONG_RUNS]
first = {}
for run in runs:
    steps = LONG_STEPS if run in long_runs else STEPS
    history, files = trained(run, steps)
    print(f"{steps} steps:", *(f"{name} {value}," for name, value in run.items()), "loss", history[-1][0], flush=True)
    expected, weights = first.setdefault(steps, (history, files))
    assert history == expected, (run, runs[0])
    assert files == weights, (run, runs[0])
short = first[STEPS][0]
assert first[LONG_STEPS][0][:STEPS] == short, "the first steps of the long runs differ"
assert short[-1][0] < short[0][0], short
print(f"{len(runs)} runs with the same bits")
