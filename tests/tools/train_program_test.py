# SPDX-License-Identifier: Apache-2.0
"""What train does besides training: options from a file, a dry run, one batch by heart,
weights from and to Hugging Face, the stop at NaN, the progress bar of a terminal.

    train_program_test.py PROGRAM [--brief]

--brief, for a program with sanitizers: without the bound on its memory.
"""
import json
import os
import pty
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

train = Path(sys.argv[1]).resolve()
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
SHORT = ["--text", text, "--preset", "tiny", "--micro-batches", 2, "--batch", 1, "--seq-len", 32,
         "--sample-bytes", 0, "--validation-sequences", 4]


def run(*arguments, exit_code=0, **keywords):
    result = subprocess.run([str(word) for word in (train, *arguments)], capture_output=True, text=True,
                            check=False, cwd=folder, timeout=600, **keywords)
    assert result.returncode == exit_code, (arguments, result)
    return result.stdout, result.stderr


# The parameter counts of the released models, exactly, in no memory to speak of.
RELEASED = {
    "qwen3-0.6b": ["596,049,920", "440,467,456", "596,049,920", "440,467,456"],
    "qwen3-30b-a3b": ["30,532,122,624", "29,909,792,768", "3,353,032,704", "2,730,702,848"],
    "qwen3-235b-a22b": ["235,093,634,560", "233,848,974,848", "22,190,763,520", "20,946,103,808"]}
NAMES = ["parameters", "without embeddings", "active per token", "active without embeddings"]
for preset, counts in RELEASED.items():
    out, _ = run("--dry-run", "--preset", preset, "--world-size", 512)
    for name, count in zip(NAMES, counts):
        assert re.search(rf"^{name} +{count}$", out, re.MULTILINE), (name, out)
if "--brief" not in sys.argv:  # a sanitizer has memory of its own
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 200 * 1024
# 235B on 512 ranks: 1024 x 3072 and 384 x 4096 rows of each layer's experts, and so on.
per_rank = 94 * (1024 * 3072 + 384 * 4096 + 16 * 4096 + 2 * 4096 + 8 * 8192 + 128 * 0 + 2 * 1 + 4096 +
                 2 * 8) + 2 * 297 * 4096 + 8
assert re.search(rf"^  parameters +{4 * per_rank:,} bytes$", out, re.MULTILINE), (per_rank * 4, out)
# And a count of steps per parameter: eleven of each layer, embedding, norm and head.
adamw = 8 * per_rank + 8 * (94 * 11 + 3)
assert re.search(rf"^  AdamW's state +{adamw:,} bytes$", out, re.MULTILINE), (adamw, out)
assert "model.layers.{0-93}.mlp.experts.gate_up_proj" in out


def by_ranks(out):
    """The table of memory: ranks -> GiB where experts are gathered, and where tokens travel."""
    rows = re.findall(r"^ +(\d+) +(\d+\.\d\d) +(\d+\.\d\d)$", out, re.MULTILINE)
    return {int(ranks): (float(gathered), float(divided)) for ranks, gathered, divided in rows}


# On devices of 80 GiB, 235B do without expert parallelism, 600B need it within a host.
table, larger = by_ranks(out), by_ranks(run("--dry-run", "--preset", "qwen3-moe-600b")[0])
assert list(table) == list(larger) == [16, 64, 256, 1024]
assert table[256][0] < 80 < larger[1024][0] and larger[256][1] < 80, (table, larger)
# A layer's experts take 128 x 3 x 4096 x 1536 float32 numbers. Two layers are gathered at a time, and
# seven eighths of them are not where eight ranks have the experts between them.
experts = 128 * 3 * 4096 * 1536 * 4 / 2 ** 30
assert table[1024][0] - table[1024][1] > 2 * experts * 7 / 8, table
assert not by_ranks(run("--dry-run", "--preset", "tiny-dense")[0])
out, _ = run("--dry-run", "--preset", "tiny", "--expert-weights", "hf", "--world-size", 1)
assert "[512, 64]" in out, out
kept, _ = run("--dry-run", "--preset", "tiny", "--expert-weights", "hf", "--world-size", 1, "--reshard", "false")
gathered = [int(re.search(r"^  gathered parameters +(\S+) bytes$", text, re.MULTILINE)[1].replace(",", ""))
            for text in (out, kept)]
assert gathered[0] < gathered[1], gathered

# A decoder without experts trains too, exported as Hugging Face's Qwen3, and has no loads to report.
DENSE = ["tiny-dense" if word == "tiny" else word for word in SHORT]
out, _ = run(*DENSE, "--steps", 2, "--export-hf", "dense")
assert "  intermediate_size           192\n" in out and "experts" not in out, out
assert re.search(r"^step +1 \| loss .* \| TGS \d+$", out, re.MULTILINE), out
assert json.loads((folder / "dense/config.json").read_text())["model_type"] == "qwen3"
loss = re.search(r"^validation loss (\S+) nats", out, re.MULTILINE)[1]
hf_model = DENSE[:2] + ["--hf-model", "dense"] + DENSE[4:]
assert f"training, from validation loss {loss}\n" in run(*hf_model, "--steps", 1)[0]

# Options as a file: what is printed means the same when it is read; the command line outranks it.
out, _ = run("--print-config", *SHORT, "--lr", 0.125, "--overfit")
assert "\nlr = 0.125\n" in out and "\noverfit = true\n" in out and "\n# layout = \n" in out, out
(folder / "run.toml").write_text(out)
assert run("--config-file", "run.toml", "--print-config")[0] == out
again, _ = run("--config-file", "run.toml", "--print-config", "--lr", 0.25)
assert again == out.replace("lr = 0.125", "lr = 0.25")
packed, _ = run("--print-config", "--data", "x.bin", "--data-dtype", "uint32", "--end-of-document", 3, "--pack")
(folder / "packed.toml").write_text(packed)
assert "\npack = true\n" in packed and run("--config-file", "packed.toml", "--print-config")[0] == packed
(folder / "bad.toml").write_text(out + "learning_rate = 1\n")
_, err = run("--config-file", "bad.toml", exit_code=2)
assert "learning_rate" in err, err
_, err = run("--config-file", "absent.toml", exit_code=2)
assert "absent.toml: must be a readable regular file" in err, err
run("--config", "x.json", "--hf-model", "y", exit_code=2)
run("--text", "x.txt", "--data", "x.bin", exit_code=2)
run("--data", "x.bin", "--end-of-document", 3, exit_code=2)

# Half of a text is none.
(folder / "bin").mkdir()
(folder / "bin" / "bible").write_text("#!/bin/sh\nyes 'Ge1:1 In the beginning' | head -n 9999\nkill -9 $$\n")
(folder / "bin" / "bible").chmod(0o755)
_, err = run("--preset", "tiny", "--steps", 1, exit_code=1,
             env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"})
assert "it could not be run, failed or printed nothing" in err, err

# A checkpoint folder may hold a folder of any other name.
(folder / "own" / "written").mkdir(parents=True)
run(*SHORT, "--steps", 1, "--checkpoint-dir", "own")

# One batch by heart.
out, _ = run(*SHORT, "--steps", 120, "--overfit", "--schedule", "constant")
losses = [float(loss) for loss in re.findall(r"^step +\d+ \| loss (\S+)", out, re.MULTILINE)]
assert len(losses) == 120 and losses[-1] < 0.1 < 4 < losses[0], losses
assert "\nsample:" not in out and re.search(r"^  warmup +0$", out, re.MULTILINE), out

# A constant learning rate has the warmup that is asked for, and no other.
for warmup, rates in [([], [8, 8, 8]), (["--warmup", 2], [0, 4, 8])]:
    out, _ = run(*SHORT, "--steps", 3, "--lr", 8e-3, "--schedule", "constant", *warmup)
    shown = [float(rate) for rate in re.findall(r"^step .* \| lr (\S+) ", out, re.MULTILINE)]
    assert shown == [rate / 1000 for rate in rates], (warmup, shown)

# Weights to Hugging Face's form and back: the loss goes on where it was.
out, _ = run(*SHORT, "--steps", 8, "--export-hf", "hf")
after = re.search(r"^validation loss (\S+) nats", out, re.MULTILINE)[1]
assert json.loads((folder / "hf" / "config.json").read_text())["model_type"] == "qwen3_moe"
without_preset = [word for word in SHORT if word not in ("--preset", "tiny")]
for arguments in ([], ["--world-size", 4], ["--expert-weights", "hf"],
                  ["--world-size", 2, "--expert-parallel", 2], ["--world-size", 4, "--replicas", 2],
                  ["--world-size", 4, "--replicas", 2, "--expert-parallel", 2]):
    out, _ = run(*without_preset, "--steps", 1, "--hf-model", "hf", *arguments)
    assert f"training, from validation loss {after}\n" in out, (after, out)
    idle = re.findall(r"^.* no micro-batch.*$", out, re.MULTILINE)
    assert idle == ["2 of 4 ranks run no micro-batch: --micro-batches is 2"] * (4 in arguments), idle
run(*SHORT, "--steps", 8, "--export-hf", "hf-of-two", "--world-size", 2, "--expert-parallel", 2)
one, two = ((folder / name / "model.safetensors").read_bytes() for name in ("hf", "hf-of-two"))
assert one == two, (len(one), len(two))
_, err = run(*without_preset, "--hf-model", "nowhere", exit_code=1)
assert err == ("train: --hf-model: model config: nowhere/config.json: must be a readable "
               "regular file, got No such file or directory\n"), err

# So do models of the other types: packed, recomputed, row-major, saved and resumed on other ranks.
documents = folder / "documents.txt"
documents.write_text("".join(f"{i} sheep went to the water.\n\n" for i in range(300)))
PACK = ["--pack", "--recompute-layers", 2, "--grouped-matmul-nz-transpose", 0]
for preset, model_type in [("tiny-qwen2-moe", "qwen2_moe"), ("tiny-mixtral", "mixtral"),
                           ("tiny-glm4-moe", "glm4_moe")]:
    own = [preset if word == "tiny" else word for word in SHORT]
    out, _ = run("--dry-run", *own)
    assert re.search(r"^parameters +\d\d\d,\d\d\d$", out, re.MULTILINE), out
    out, _ = run(*own, "--steps", 4, "--export-hf", preset, "--metrics", f"{preset}.jsonl")
    assert re.search(rf"^  model_type +{model_type}$", out, re.MULTILINE), out
    after = re.search(r"^validation loss (\S+) nats", out, re.MULTILINE)[1]
    assert json.loads((folder / preset / "config.json").read_text())["model_type"] == model_type
    out, _ = run(*without_preset, "--steps", 1, "--hf-model", preset, "--world-size", 4)
    assert f"training, from validation loss {after}\n" in out, (after, out)
    saved = ["--checkpoint-dir", f"{preset}-runs", "--checkpoint-interval", 2]
    packed = [documents if word == text else word for word in own] + PACK
    whole, _ = run(*packed, "--steps", 4)
    run(*packed, "--steps", 4, *saved)
    shutil.rmtree(sorted((folder / f"{preset}-runs").glob("*4"))[0])  # as if it had been killed
    resumed, _ = run(*packed, "--steps", 4, *saved, "--resume", "--world-size", 1)
    assert "resumed from" in resumed, resumed
    last = [re.search(r"^validation loss \S+", text, re.MULTILINE)[0] for text in (whole, resumed)]
    assert last[0] == last[1], last

# Jitter of what routers see, which needs random numbers in training alone.
config = json.loads((folder / "tiny-mixtral" / "config.json").read_text())
losses = []
for noise in (0, 0.2, 0.2):
    (folder / "jitter.json").write_text(json.dumps(config | {"router_jitter_noise": noise}))
    out, _ = run(*without_preset, "--config", "jitter.json", "--steps", 4)
    losses.append(re.search(r"^validation loss (\S+)", out, re.MULTILINE)[1])
assert losses[0] != losses[1] == losses[2], losses

# What keeps loads alike.
_, err = run(*SHORT, "--bias-update-rate", 0.1, exit_code=2)
assert "--bias-update-rate: needs routers with a correction bias, as a glm4_moe has, got a qwen3_moe" in err, err
run(*SHORT, "--bias-update-rate", 0, "--steps", 1)
for option in [["--aux-loss-coef", 1], ["--aux-loss-layers", "pooled"], ["--aux-loss-tokens", "ranks"],
               ["--z-loss-coef", 1], ["--bias-update-rate", 1]]:
    _, err = run(*DENSE, *option, exit_code=2)
    assert f"{option[0]}: the model has no experts to balance" in err, err
# What the options come to is compared at resume, not whether they were given.
glm4 = ["tiny-glm4-moe" if word == "tiny" else word for word in SHORT] + ["--checkpoint-dir", "glm4-runs"]
out, _ = run(*glm4, "--steps", 2)
assert re.search(r"^  bias_update_rate +0.001$", out, re.MULTILINE), out
run(*glm4, "--steps", 2, "--resume", "--bias-update-rate", 0.001, "--aux-loss-coef", 0)
_, err = run(*glm4, "--steps", 2, "--resume", "--bias-update-rate", 0.002, exit_code=1)
assert "resume: bias_update_rate must be 0.001 as in" in err, err
first = {}
for name, arguments in [("own", []), ("none", ["--aux-loss-coef", 0]),
                        ("other", ["--aux-loss-layers", "pooled"]),
                        ("each", ["--aux-loss-layers", "each"]),
                        ("ranks", ["--aux-loss-tokens", "ranks"]), ("z", ["--z-loss-coef", 0.1])]:
    out, _ = run(*SHORT, "--steps", 1, *arguments)
    first[name] = float(re.search(r"^step +0 \| loss (\S+)", out, re.MULTILINE)[1])
assert first["none"] < first["own"] < first["z"] and first["ranks"] < first["own"], first
assert first["other"] != first["each"] and first["own"] in (first["other"], first["each"]), first

# A learning rate beyond all bounds: the step, the numbers, the op, its module and where it stands.
metrics = folder / "metrics.jsonl"
_, err = run(*SHORT, "--steps", 5, "--lr", 1e20, "--schedule", "constant", "--warmup", 0, "--metrics",
             metrics, exit_code=1)
line = err.splitlines()[0]
assert re.fullmatch(r"train: step 1: loss and gradient norm must be finite, got -?nan and "
                    r"\S+; anomaly: \w+ made (-?inf|nan) in output \d \[.*\] at element \d+; in module "
                    r"model\.layers\.0\.\S+; called from", line), line
assert [json.loads(entry)["step"] for entry in metrics.read_text().splitlines()] == [0]

# On a terminal a bar, otherwise lines.
primary, secondary = pty.openpty()
process = subprocess.Popen([str(word) for word in (train, *SHORT, "--steps", 30)], stdout=secondary,
                           stderr=subprocess.PIPE, cwd=folder,
                           env={**os.environ, "TERM": "xterm", "COLUMNS": "120"})
os.close(secondary)
shown = b""
while True:
    try:
        block = os.read(primary, 65536)
    except OSError:  # the program has ended
        break
    if not block:
        break
    shown += block
assert process.wait() == 0, process.stderr.read()
bars = re.findall(r"\r\[(=* *)\] (\d+)/30 ETA (\d+:\d\d) \| loss", shown.decode())
assert bars and all(len(bar) == 20 for bar, _, _ in bars), shown
assert (bars[0][1], bars[-1][1:3]) == ("1", ("30", "0:00")) and bars[-1][0] == "=" * 20
assert "\nstep" not in shown.decode()

print("train_program_test: ok")
