# SPDX-License-Identifier: Apache-2.0
"""Each --optimizer of train: the same bits on every number of ranks and after it has been resumed, by
which settings it changes, and what is refused.

    optimizers_test.py PROGRAM [--brief]

--brief, where programs are slow: each optimizer, but not each of its settings.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

train = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
STEPS = 4
SMALL = ["--text", text, "--preset", "tiny", "--steps", STEPS, "--micro-batches", 4, "--batch", 1, "--seq-len", 16,
         "--sample-bytes", 0, "--validation-sequences", 2, "--lr", 0.002]
# Another value of each setting than any optimizer's own, and what it needs besides.
SETTINGS = {"beta1": [0.5], "beta2": [0.7], "eps": [0.01], "amsgrad": ["true", "--beta2", 0.3], "momentum": [0.5],
            "nesterov": [], "alpha": [0.5], "centered": ["true"], "lr-decay": [0.5], "initial-accumulator-value": [0.5],
            "beta2-decay": [-0.5], "min-rms": [0.5], "clip-threshold": [9], "adjust": ["match_rms_adamw"]}


def run(*arguments, exit_code=0):
    words = [str(word) for word in (train, *SMALL, *arguments)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, timeout=600)
    assert result.returncode == exit_code, (arguments, result)
    return result.stdout, result.stderr


def losses(name):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [[line.get(key) for key in ("step", "loss", "grad_norm", "validation_loss")] for line in lines]


def refusal(*arguments, exit_code=2):
    """The first line that train prints of what is wrong."""
    return run(*arguments, exit_code=exit_code)[1].splitlines()[0]


help_text = run("--help")[0]
names = re.search(r"--optimizer \{([a-z,]+)\}", help_text)[1].split(",")
assert len(names) == 8, names

seen = []
for name in names:
    trained = ["--optimizer", name]
    for ranks in ([1], [2], [4, "--expert-parallel", 2]):
        run(*trained, "--world-size", *ranks, "--metrics", f"{name}{ranks[0]}.jsonl", "--export-hf", f"{name}{ranks[0]}")
    # As if it had been killed before the last checkpoint.
    saved = [*trained, "--metrics", f"{name}-again.jsonl", "--checkpoint-dir", f"{name}-checkpoints",
             "--checkpoint-interval", 2]
    run(*saved)
    shutil.rmtree(folder / f"{name}-checkpoints/step-{STEPS:08}")
    out, _ = run(*saved, "--resume", "--world-size", 1, "--export-hf", f"{name}-again")
    assert f"resumed from {name}-checkpoints/step-00000002, saved by 2 ranks\n" in out, out
    runs = [f"{name}{which}" for which in (1, 2, 4, "-again")]
    weights = [(folder / one / "model.safetensors").read_bytes() for one in runs]
    assert weights.count(weights[0]) == 4, name
    figures = [losses(f"{one}.jsonl") for one in runs]
    assert figures.count(figures[0]) == 4 and len(figures[0]) == STEPS + 1, (name, figures)
    assert figures[0][-2][1] < figures[0][0][1], (name, figures)
    assert weights[0] not in seen, f"{name} does what another does"
    seen.append(weights[0])

# AdamW's settings are named as little as before there were others.
assert "\\n  optimizer " not in (folder / "adamw1.jsonl").read_text()
assert not any(key in (folder / "adamw-checkpoints/step-00000002/manifest.json").read_text()
               for key in ('"optimizer"', '"beta1"'))
assert "\\n  optimizer                   sgd\\n  momentum                    0\\n" in (folder / "sgd1.jsonl").read_text()

# Every setting reaches its optimizers, and is refused for the others.
owners = {setting: re.findall(r"\w+", re.search(rf"^  --{setting} .*?\n?.*?; for ([a-z, ]+)$", help_text, re.MULTILINE)[1])
          for setting in SETTINGS}
for setting, (*value,) in SETTINGS.items():
    for name in names:
        if name not in owners[setting]:
            message = refusal("--optimizer", name, f"--{setting}", value[0] if value else "true")
            assert re.fullmatch(rf"train: --{setting}: must be given with --optimizer [a-z, ]+, got {name}", message), message
        elif not brief:
            needs = ["--momentum", 0.9] if name == "sgd" and setting == "nesterov" else []
            given = value or [str(name == "sgd").lower()]
            changes = []
            for arguments in ([], [f"--{setting}", given[0]]):
                run("--optimizer", name, *given[1:], *needs, *arguments, "--metrics", "setting.jsonl")
                changes.append(losses("setting.jsonl"))
            assert changes[0] != changes[1], (name, setting)
assert refusal("--momentum", 0.9) == "train: --momentum: must be given with --optimizer sgd, rmsprop or muon, got adamw"
assert refusal("--optimizer", "sgd", "--nesterov", "true") == "train: --nesterov: needs a --momentum above 0, got 0"
assert refusal("--optimizer", "adamax") == ("--optimizer: must be adamw, adam, sgd, rmsprop, adagrad, lion, adafactor or "
                                            "muon, got 'adamax'")
assert refusal("--optimizer", "sgd", "--momentum", -1) == "--momentum: must be a number from 0 to 1e+30, got -1"

# In an option file, too.
(folder / "run.toml").write_text("optimizer = 'sgd'\nmomentum = 0.5\nnesterov = true\n")
run("--config-file", "run.toml", "--metrics", "file.jsonl")
run("--optimizer", "sgd", "--momentum", 0.5, "--nesterov", "true", "--metrics", "line.jsonl")
assert losses("file.jsonl") == losses("line.jsonl") != losses("sgd1.jsonl")
assert refusal("--config-file", "run.toml", "--optimizer", "lion") == (
    "train: --momentum: must be given with --optimizer sgd, rmsprop or muon, got lion")
out, _ = run("--config-file", "run.toml", "--print-config")
assert '\noptimizer = "sgd"\n' in out and '\nnesterov = "true"\n' in out and "\n# beta1 = \n" in out, out

# A run goes on with its own optimizer and settings alone; it may spell its own out.
for saved, arguments, differs in [
        ("adamw", ["--optimizer", "lion"], "optimizer must be adamw{}lion"),
        ("adamw", ["--beta2", 0.99], "beta2 must be 0.95{}0.99"),
        ("lion", [], "optimizer must be lion{}adamw"),
        ("lion", ["--optimizer", "lion", "--beta1", 0.95], "beta1 must be 0.9{}0.95"),
        ("muon", ["--optimizer", "muon", "--adjust", "match_rms_adamw"], "adjust must be original{}match_rms_adamw"),
        ("sgd", ["--optimizer", "rmsprop"], "optimizer must be sgd{}rmsprop")]:
    resumed = ["--resume", "--checkpoint-dir", f"{saved}-checkpoints", "--checkpoint-interval", 2]
    newest = f" as in {saved}-checkpoints/step-{STEPS:08}, got "
    message = refusal(*resumed, *arguments, exit_code=1)
    assert message == "train: resume: " + differs.format(newest), message
run("--resume", "--checkpoint-dir", "adamw-checkpoints", "--optimizer", "adamw", "--beta1", 0.9, "--amsgrad", "false")
run("--resume", "--checkpoint-dir", "muon-checkpoints", "--optimizer", "muon", "--eps", 1e-7)

print("optimizers_test: ok")
