# SPDX-License-Identifier: Apache-2.0
"""The numbers of three short runs, as they were recorded.

usage: recorded_run_test.py TOOLS [--tolerance] [--train-alone]   compares
       recorded_run_test.py TOOLS --record                        writes tests/recorded/run.json anew

A release build gives the recorded bits on every x86-64-v3 CPU, whatever its vectors and matrix units, and on
arm64. With --tolerance, for the portable build, losses and gradient norms are compared within 2e-3, in bfloat16
5e-2, and the weights are not. --train-alone, where programs are slow, leaves loss_parity out.
"""
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

RECORD = Path(__file__).resolve().parent.parent / "recorded/run.json"
TOLERANCE = 2e-3
WIDER = {"/train in bf16": 5e-2}  # one result that is rounded otherwise is off by 2^-8
STEPS = 30
tools, *options = sys.argv[1:]


def run(folder, *command):
    """A tool, named by its first word."""
    program = Path(tools).resolve() / command[0]
    subprocess.run([program, *command[1:]], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def trained(dtype):
    """What train.sh trains, for STEPS steps."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        run(folder, "train", "--steps", str(STEPS), "--sample-bytes", "0", "--metrics",
            "m.jsonl", "--export-hf", "model", "--dtype", dtype)
        lines = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
        weights = hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest()
    return {"loss": [step["loss"] for step in steps],
            "grad_norm": [step["grad_norm"] for step in steps],
            "validation_loss": lines[-1]["validation_loss"],
            "sha256 of the weights": weights}


def figures():
    """Training in both arithmetics, and a few steps of all paths of loss_parity."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        parity = []
        if "--train-alone" not in options:
            run(folder, "loss_parity", "--steps", "6")
            parity = json.loads((folder / "loss_parity.json").read_text())["runs"]
    return {
        "train": trained("fp32"),
        "train in bf16": trained("bf16"),
        "loss_parity": {one["name"]: {"loss": one["loss"], "grad_norm": one["grad_norm"]}
                        for one in parity},
    }


def differences(recorded, got, tolerance, path=""):
    """A line for each value that is not as recorded."""
    if isinstance(recorded, dict) and isinstance(got, dict):
        for key in sorted(recorded.keys() | got.keys()):
            yield from differences(recorded.get(key), got.get(key), tolerance, f"{path}/{key}")
    elif isinstance(recorded, list) and isinstance(got, list) and len(recorded) == len(got):
        for i, pair in enumerate(zip(recorded, got)):
            yield from differences(*pair, tolerance, f"{path}[{i}]")
    elif isinstance(recorded, float) and isinstance(got, float) and tolerance:
        wider = (bound for prefix, bound in WIDER.items() if path.startswith(prefix + "/"))
        if not math.isclose(recorded, got, rel_tol=next(wider, tolerance)):
            yield f"{path}: recorded {recorded!r}, got {got!r}"
    elif recorded != got and not (isinstance(recorded, str) and tolerance):
        yield f"{path}: recorded {recorded!r}, got {got!r}"


def self_test(recorded):
    """Finds one changed bit, a missing path and another hash."""
    assert not list(differences(recorded, recorded, 0)) and len(recorded["train"]["loss"]) == STEPS
    for change in (lambda r: r["train"]["loss"].__setitem__(7, math.nextafter(r["train"]["loss"][7], 9)),
                   lambda r: r["train"].__setitem__("sha256 of the weights", "0"),
                   lambda r: r["loss_parity"].popitem(),
                   lambda r: r["train"]["grad_norm"].pop()):
        changed = json.loads(json.dumps(recorded))
        change(changed)
        assert len(list(differences(recorded, changed, 0))) == 1
    changed = json.loads(json.dumps(recorded))
    changed["train"]["loss"][3] *= 1.01
    assert len(list(differences(recorded, changed, TOLERANCE))) == 1


if "--record" in options:
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(figures(), indent=1, sort_keys=True) + "\n")
    sys.exit()
record = json.loads(RECORD.read_text())
self_test(record)
if "--train-alone" in options:
    record["loss_parity"] = {}
found = list(differences(record, figures(), TOLERANCE if "--tolerance" in options else 0))
print("\n".join(found) or "recorded_run_test: ok")
sys.exit(bool(found))
