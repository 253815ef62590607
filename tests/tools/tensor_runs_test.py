# SPDX-License-Identifier: Apache-2.0
"""Runs of train under tensor parallelism: every optimizer, checkpoints resumed at other layouts, and files in
Hugging Face's form.

usage: tensor_runs_test.py TRAIN [--brief]

The model of the optimizers is wide enough for two ranks: losses are equal to the bit, and with experts, too, where
each rank has two parts of the tokens. The other one with experts is small, so a few of its sums have other last bits
than on one rank: losses agree within 1e-5.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

train = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv
SMALL = ["--batch", 2, "--sample-bytes", 0, "--validation-sequences", 4]
TINY = ["--preset", "tiny", "--token-parts", 2, "--seq-len", 32, *SMALL]
WIDE = {"model_type": "qwen3_moe", "num_experts": 0, "vocab_size": 256, "hidden_size": 256, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
MIXTURE = WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LAYOUTS = [["--tensor-parallel", 2],
           ["--tensor-parallel", 2, "--sequence-parallel", "--expert-parallel", 2],
           ["--world-size", 4, "--tensor-parallel", 2, "--sequence-parallel"]][:1 if brief else 3]


def losses(folder, *arguments):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    done = subprocess.run([train, *map(str, arguments), "--metrics", metrics], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


def expect_close(got, expected, what):
    assert len(got) == len(expected) > 0, (what, got, expected)
    worst = max(abs(a - b) / b for a, b in zip(got, expected))
    assert worst <= 1e-5, (what, worst)


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "config.json").write_text(json.dumps(WIDE))
    for optimizer in ["muon", "adafactor"][:1 if brief else 2] + (
            [] if brief else ["adamw", "adam", "sgd", "lion", "rmsprop", "adagrad"]):
        run = ["--config", folder / "config.json", *SMALL, "--seq-len", 128, "--steps", 3, "--optimizer", optimizer]
        expected = losses(folder, *run)
        for more in [[], ["--sequence-parallel"]]:
            assert losses(folder, *run, "--tensor-parallel", 2, *more) == expected, (optimizer, more)

    (folder / "config.json").write_text(json.dumps(MIXTURE))
    run = ["--config", folder / "config.json", *SMALL, "--seq-len", 256, "--steps", 2, "--token-parts", 4,
           "--z-loss-coef", 0.1]
    expected = losses(folder, *run)
    assert losses(folder, *run, "--tensor-parallel", 2) == expected

    # Half of the steps on two ranks that shard, the rest at another layout.
    run = [*TINY, "--steps", 4]
    whole = losses(folder, *run)
    for layout in LAYOUTS:
        checkpoints = folder / "checkpoints"
        losses(folder, *run, "--checkpoint-dir", checkpoints, "--checkpoint-interval", 2)
        newest = max(checkpoints.glob("step-*"))
        subprocess.run(["rm", "-r", newest, checkpoints / "latest"], check=True)
        resumed = losses(folder, *run, "--checkpoint-dir", checkpoints, "--resume", *layout)
        expect_close(resumed[-1:], whole[-1:], layout)
        subprocess.run(["rm", "-r", checkpoints], check=True)

    # Loaded and saved without a change.
    losses(folder, *TINY, "--steps", 1, "--export-hf", folder / "first")
    for layout in LAYOUTS:
        losses(folder, *TINY[2:], "--hf-model", folder / "first", "--steps", 1, "--lr", 1e-30, "--weight-decay", 0,
               "--export-hf", folder / "again", *layout)
        assert (folder / "first" / "model.safetensors").read_bytes() == (
            folder / "again" / "model.safetensors").read_bytes(), layout
        subprocess.run(["rm", "-r", folder / "again"], check=True)
print("tensor_runs_test: ok")
