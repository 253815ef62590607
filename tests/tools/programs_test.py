# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs as a user would: what they print, write, refuse, and exit with.

    programs_test.py PROGRAMS [--brief]

--brief, for programs that are slow: each kind of run, not each run, and no training of many steps.
"""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

from program_path import program_path

programs = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def run(program, *arguments, exit_code=0, environment=None, **keywords):
    result = subprocess.run(
        [program_path(programs, program), *map(str, arguments)], capture_output=True, text=True, errors="replace",
        cwd=folder, timeout=600, env={**os.environ, **(environment or {})}, **keywords)
    assert result.returncode == exit_code, (program, arguments, result)
    return result.stdout, result.stderr


def losses(*arguments, data=None, **keywords):
    """The metrics of a short run, per step."""
    path = folder / "metrics.jsonl"
    others = zip(SMALL[::2], SMALL[1::2])
    small = [word for name, value in others if name not in arguments for word in (name, value)]
    run("train", *(data or WINDOWS), *small, "--metrics", path, *arguments, **keywords)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "validation_loss" in lines[-1]
    return [(line["loss"], line["grad_norm"]) for line in lines if "validation_loss" not in line]


text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
SMALL = ["--preset", "tiny", "--steps", 4, "--micro-batches", 4, "--batch", 1, "--sample-bytes", 4,
         "--validation-sequences", 4]
WINDOWS = ["--text", text, "--seq-len", 32]
SHORT = [*WINDOWS, *SMALL]

# Help and unknown options.
for program in ["train", "loss_parity", "train_loop", "inspect_graph",
                "compare_losses", "fsdp_timeline", "nz_ablation", "sampler_balance", "schedule", "training_report",
                "fsdp_crossover", "fsdp_overlap"]:
    out, err = run(program, "--help")
    assert "usage" in (out + err).lower(), program
    run(program, "--no-such-option", exit_code=2)

# A run prints its configuration, one line a step, the validation loss and a sample.
out, _ = run("train", *SHORT)
assert re.search(r"world_size +2\n", out) and re.search(r"compute threads +2\n", out)
steps = re.findall(r"^step +(\d+) \| loss [\d.]+ \| grad norm [\d.]+ \| lr \S+ \| \d+ tokens/s "
                   r"\| TGS \d+ \| load( [\d.]+){4}$", out, re.MULTILINE)
assert [int(step) for step, _ in steps] == [0, 1, 2, 3], out
assert "validation loss" in out and "sample: And God said, " in out
ends = {"".join(re.findall(r"^(?:validation loss|sample: |words ).*\n", run("train", *SHORT, *more)[0], re.M))
        for more in [[], ["--world-size", 1], ["--threads-per-rank", 2], ["--layout", "nd"]][2 * brief:]}
assert len(ends) == 1 and "sample: And God said, " in "".join(ends), ends

# The same losses whatever the layout, orientation, grouping and rank count.
base = losses()
assert len(base) == 4 and base[3][0] < base[0][0]
SAME_LOSSES = [["--tensorboard", "board"], ["--profile-steps", "1:3"], ["--world-size", 4],
               ["--expert-weights", "hf", "--layout", "nd"], ["--recompute-layers", 2],
               ["--layout", "nd"], ["--expert-weights", "hf"], ["--linear-only-shard", 1],
               ["--world-size", 1], ["--threads-per-rank", 2], ["--reshard", "false"],
               ["--prefetch", 0], ["--validation-interval", 1]]
for arguments in SAME_LOSSES[:5] if brief else SAME_LOSSES:
    assert losses(*arguments) == base, arguments
# So do all kernels that the CPU has; a metrics file names those of its run.
version, _ = run("train", "--version")
kernels, fastest = re.fullmatch(r"moegrad [\d.]+\nkernels: ([\w, ]+); default: (\w+)\n", version).groups()
assert fastest in kernels.split(", "), version
for name in [None, *kernels.split(", ")][3 * brief:]:
    assert losses(*(["--kernels", name] if name else [])) == base, name
    header = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["run"]
    assert header["kernels"] == (name or fastest), header
_, err = run("train", *SHORT, "--kernels", "sse2", exit_code=2)
assert "--kernels: must be " in err and "got 'sse2'" in err and all(name in err for name in kernels.split(", ")), err
# Ranks that do not divide the micro-batches, and more ranks than there are: another order of sums.
for ranks in [7] if brief else [3, 7]:
    assert all(abs(a - b) < 1e-4 for step, expected in zip(losses("--world-size", ranks), base)
               for a, b in zip(step, expected)), ranks
# Cut into other micro-batches, the same sequences have the same cross-entropy and another balance
# loss, which is the larger the fewer tokens it is pooled over.
balance = []
for count in [1, 2, 4]:
    losses("--micro-batches", count, "--batch", 4 // count, "--world-size", 1)
    balance.append(json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]))
assert all(abs(step["ce"] - balance[0]["ce"]) < 1e-5 for step in balance), balance
pooled = [step["loss"] - step["ce"] for step in balance]
assert pooled[0] + 1e-5 < pooled[1] and pooled[1] + 1e-5 < pooled[2], pooled
assert losses("--seed", 2) != base
assert losses("--wire-dtype", "bf16", "--reduce-dtype", "bf16") != base
narrow = losses("--wire-dtype", "bf16", "--reduce-dtype", "bf16", "--world-size", 1)
assert losses("--wire-dtype", "bf16", "--reduce-dtype", "bf16", "--world-size", 4) == narrow
# Products in bfloat16: other bits, the same on all ranks and whatever travels (bf16_runs_test.py has more).
computed = losses("--dtype", "bf16")
assert computed != base and all(abs(a - b) < 0.01 * b for (a, _), (b, _) in zip(computed, base)), computed
header = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["run"]
assert header["kernels"] == fastest, header
for arguments in [["--wire-dtype", "fp32"], ["--world-size", 1], ["--layout", "nd"], ["--expert-weights", "hf"],
                  ["--linear-only-shard", 1], ["--reshard", "false"], ["--expert-parallel", 2]][4 * brief:]:
    assert losses("--dtype", "bf16", *arguments) == computed, arguments
_, err = run("train", *SHORT, "--dtype", "bf16", "--wire-dtype", "fp64", exit_code=2)
assert err.endswith("--wire-dtype: must be bf16 or what the parameters are, fp32, got fp64\n"), err
assert losses("--schedule", "wsd") != base and losses("--schedule", "constant") != base
assert abs(losses("--dtype", "fp64")[0][0] - base[0][0]) < 1e-5

# Whole documents in packs: the same losses at every rank count, fewer tokens than would fit.
verses = folder / "verses.txt"
verses.write_text("".join(f"{i} sheep went to the water" + i * 7 % 50 * " and back" + ".\n\n"
                          for i in range(60)))
packed = losses(data=["--text", verses, "--pack", "--seq-len", 384])
lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
tokens = {line["tokens"] for line in lines[:-1]}
assert len(tokens) > 1 and max(tokens) < 4 * 384, tokens
for arguments in [["--world-size", 1], ["--world-size", 4], ["--linear-cross-entropy"]]:
    assert losses(*arguments, data=["--text", verses, "--pack", "--seq-len", 384]) == packed, arguments

# A file of token ids: those of a text's bytes give its losses, whole or in packs.
for dtype, width in [("uint16", 2), ("uint32", 4)]:
    ids = folder / f"{dtype}.bin"
    ids.write_bytes(b"".join(byte.to_bytes(width, "little") for byte in text.read_bytes()))
    assert losses(data=["--data", ids, "--data-dtype", dtype, "--seq-len", 32]) == base, dtype
joined = folder / "joined.txt"
joined.write_bytes(verses.read_bytes().replace(b".\n\n", b"\0"))
ids.write_bytes(b"".join(byte.to_bytes(4, "little") for byte in joined.read_bytes()))
DATA = ["--data", ids, "--data-dtype", "uint32", "--end-of-document", 0, "--pack", "--seq-len", 384]
base_of_data = losses(data=DATA)
assert base_of_data == losses("--world-size", 4, data=DATA) != packed
# Targets that a mask leaves out, and weights of the others by their documents.
count = joined.stat().st_size
mask = folder / "mask.bin"
mask.write_bytes(b"\1" * count)
assert losses("--target-mask", mask, data=DATA) == base_of_data
mask.write_bytes(bytes(i % 3 for i in range(count)))
changed = {"token": base_of_data}
for name, arguments in [("mask", ["--target-mask", mask]), ("sequence", ["--loss-weights", "sequence"]),
                        ("sqrt", ["--loss-weights", "sqrt"])]:
    changed[name] = losses(*arguments, data=DATA)
    for more in [["--world-size", 4], ["--linear-cross-entropy"]]:
        assert losses(*arguments, *more, data=DATA) == changed[name], (name, more)
assert len({tuple(each) for each in changed.values()}) == 4, changed
mask.write_bytes(b"\1" * (count - 1))
_, err = run("train", *DATA, *SMALL, "--target-mask", mask, exit_code=1)
assert err == (f"train: target mask: '{mask}' must have a byte for each of the {count} tokens of '{ids}', "
               f"got {count - 1}\n"), err
# Ids of four bytes below 65536, of which the option says nothing: refused, and warned of where it says two.
wide = folder / "wide.bin"
wide.write_bytes(b"".join(byte.to_bytes(4, "little") for byte in text.read_bytes()))
_, err = run("train", "--data", wide, "--seq-len", 32, *SMALL, exit_code=1)
WIDER = "got 0 at every second position, as if each took 4 bytes"
assert err == (f"train: data: ids in '{wide}' must be uint16, {WIDER}; say which they are with "
               "--data-dtype uint32 or uint16\n"), err
_, err = run("train", "--data", wide, "--data-dtype", "uint16", "--seq-len", 32, *SMALL)
assert err.endswith(f" data: ids in '{wide}' must be uint16 as --data-dtype says, {WIDER}\n"), err
assert err.count("\n") == 1, err
# A model with another vocabulary than bytes reads no text, and says in which option that stands.
config = {"vocab_size": 50304, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 2,
          "num_experts_per_tok": 1, "moe_intermediate_size": 8, "model_type": "qwen3_moe"}
ARGUMENTS = ["--seq-len", 32, *SMALL[2:]]
for vocabulary in (50304, 151936):
    (folder / f"{vocabulary}.json").write_text(json.dumps(config | {"vocab_size": vocabulary}))
    for source in ([], ["--text", text]):
        _, err = run("train", "--config", f"{vocabulary}.json", *source, *ARGUMENTS, exit_code=2)
        assert err == ("train: --config: a text is read by bytes, which are the ids of a vocab_size of 256, got "
                       f"{vocabulary}; name a file of the model's own ids with --data\n"), err
ids_of_model = folder / "ids.bin"
ids_of_model.write_bytes(b"".join((i * 7919 % 50304).to_bytes(2, "little") for i in range(4000)))
out, err = run("train", "--config", "50304.json", "--data", ids_of_model, "--export-hf", "bpe", *ARGUMENTS)
assert " nats per token after " in out and "sample:" not in out and not err, (out, err)
_, err = run("train", "--hf-model", "bpe", *ARGUMENTS, exit_code=2)
assert err.startswith("train: --hf-model: a text is read by bytes, "), err
run("train", "--hf-model", "bpe", "--data", ids_of_model, *ARGUMENTS)
_, err = run("train", "--config", "151936.json", "--data", ids_of_model, *ARGUMENTS, exit_code=2)
assert err == ("train: --data-dtype: must be given for a vocab_size above 65536, most of which uint16 does not "
               "hold, got none for 151936\n"), err
out, _ = run("train", *DATA, *SMALL)
assert " nats per token after " in out and "sample:" not in out, out

# Packs that are grouped leave less waiting than packs in random order, at every rank count.
out, _ = run("sampler_balance", "--text", verses, "--budget", 384)
assert out.startswith(f"{verses}: 60 documents, "), out
random, grouped = ([float(waiting) for waiting in re.findall(rf"^ +[248]  {order} .* (\S+)$", out, re.M)]
                   for order in ("random", "grouped"))
assert len(random) == len(grouped) == 6, out
assert all(10 * after < before for before, after in zip(random[3:], grouped[3:])), out
for budget in (1, 19):  # packs of one token would take a minute
    _, err = run("sampler_balance", "--budget", budget, exit_code=2)
    least, tokens, got = map(int, re.fullmatch(
        r"sampler_balance: --budget: must be at least (\d+) for (\d+) tokens, got (\d+)\n", err).groups())
    assert got == budget < least == -(-tokens // 1_000_000), err
_, err = run("sampler_balance", "--text", "missing.txt", exit_code=1)
assert err == ("sampler_balance: text: missing.txt: must be a readable regular file, got No such file "
               "or directory\n"), err

# Two runs are compared, bit for bit or within a tolerance, from their metrics.
for name, arguments in [("one.jsonl", ["--world-size", 1]), ("four.jsonl", ["--world-size", 4]),
                        ("seed.jsonl", ["--seed", 2])]:
    losses(*arguments)
    (folder / "metrics.jsonl").rename(folder / name)
out, _ = run("compare_losses", "one.jsonl", "four.jsonl", "--assert-equal")
assert "4 steps compared, bit for bit\n" in out and out.endswith("\nequal\n"), out
out, _ = run("compare_losses", "one.jsonl", "seed.jsonl", "--assert-equal", exit_code=1)
assert re.search(r"^first to differ: loss at step 0, a \d\.\d+, b \d\.\d+$", out, re.M), out
assert out.endswith("\nDIFFERENT\n"), out
out, _ = run("compare_losses", "one.jsonl", "seed.jsonl", "--rtol", 0.5, "--atol", 1)
assert out.endswith("\nwithin the tolerance\n"), out
run("compare_losses", "one.jsonl", "seed.jsonl", "--rtol", 1e-9, exit_code=1)
_, err = run("compare_losses", "one.jsonl", "no.jsonl", "--assert-equal", exit_code=2)
assert err == ("compare_losses: metrics: no.jsonl: must be a readable regular file, got No such "
               "file or directory\n"), err
for arguments in [[], ["--common"], ["--assert-equal", "--rtol", 1], ["--atol", -1]]:
    run("compare_losses", "one.jsonl", "four.jsonl", *arguments, exit_code=2)

# The switches' original names are read from the environment, as defaults, and reported.
out, err = run("train", *SHORT,
               environment={"GROUPED_MATMUL_NZ_TRANSPOSE": "0", "LINEAR_ONLY_SHARD": "1"})
assert "GROUPED_MATMUL_NZ_TRANSPOSE=0 taken as off" in err
assert re.search(r"layout +nd\n", out) and re.search(r"linear_only_shard +true\n", out)
out, err = run("train", *SHORT, "--dry-run",
               environment={"GROUPED_MATMUL_NZ_TRANSPOSE": "true", "LINEAR_ONLY_SHARD": "false"})
assert err == ("environment: GROUPED_MATMUL_NZ_TRANSPOSE=true taken as on\n"
               "environment: LINEAR_ONLY_SHARD=false taken as off\n"), err
for name in ("GROUPED_MATMUL_NZ_TRANSPOSE", "LINEAR_ONLY_SHARD"):
    for value in ("", "yes", "2", "on"):
        _, err = run("train", *SHORT, "--dry-run", environment={name: value}, exit_code=2)
        assert err == f"train: {name}: must be true or false, got '{value}'\n", err

# Programs whose ranks are always threads say so, and do not start under mpirun.
MPIRUN = {"PMIX_RANK": "0", "SLURM_NTASKS": "2"}
for program, arguments in [("nz_ablation", []), ("check_golden", ["."])]:
    for environment in ({}, MPIRUN):
        out, _ = run(program, "--help", environment=environment)
        assert re.search(r"ranks: threads of this\s+process\s+--", out), out
    _, err = run(program, *arguments, environment=MPIRUN, exit_code=2)
    assert err == (f"{program} (rank 0): the ranks of this program are threads of one process, so it must be "
                   "started without mpirun, got 2 processes\n"), err

# Debug shows what the ranks gather and free.
_, err = run("train", *SHORT, "--log-level", "debug")
for event in ["unshard", "prefetch", "reshard", "reduce"]:
    assert re.search(rf"\[rank [01]\] {event} \S*layers\.\d", err), (event, err[:2000])

# A trace of chosen steps and event files for TensorBoard. Where the folder of those is full, a run
# says so once and goes on.
names = [event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
         if event["ph"] == "X" and event["pid"] == 1]
assert names.count("optimizer") == 2, names
board, = (folder / "board").iterdir()
assert re.fullmatch(r"events\.out\.tfevents\.\d+\.moegrad\.0", board.name)


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))


out, err = run("train", *SHORT, "--tensorboard", "full", preexec_fn=limit_file_size, exit_code=1)
assert re.fullmatch(r".*--tensorboard: event_file: cannot write full/events\S+: File too large; the run goes "
                    r"on\n.*--tensorboard: \d+ records could not be written\n", err), err
assert out.count("\nstep ") == 4, out
out, _ = run("train", *SHORT, "--validation-interval", 3)
assert re.findall(r"^validation loss [\d.]+ nats per byte after (\d) steps$", out, re.M) == ["0", "3", "4"]
run("train", "--validation-interval", -1, exit_code=2)

# Bad input: one line that names the program and the option, what is required and what was got.
empty = folder / "empty.txt"
empty.touch()
short = folder / "short.txt"
short.write_text("too short")
pair = folder / "pair.bin"
pair.write_bytes(b"a\0b\0")
MISSING = "text: missing.txt: must be a readable regular file, got No such file or directory"
for arguments, message in [
        (["--text", "missing.txt"], MISSING),
        (["--text", empty], f"text: '{empty}' is empty"),
        (["--text", short], "text: sequences of 128 tokens need at least 2580 bytes, "
                            f"'{short}' has 9"),
        (["--text", short, "--pack"],
         f"--pack: '{short}' must have a document of 2 tokens or more to train on and one in its "
         "last twentieth, got 9 bytes"),
        (["--data", "missing.bin"], "data: missing.bin: must be a readable regular file, got No "
                                    "such file or directory"),
        (["--data", empty], f"data: '{empty}' is empty"),
        (["--data", short], f"data: '{short}' must be a multiple of 2 bytes long, the size of an "
                            "id, got 9"),
        (["--data", pair], f"data: sequences of 128 tokens need at least 2580 tokens, '{pair}' has 2"),
        (["--data", pair, "--data-dtype", "uint32"],
         f"data: ids in '{pair}' must be below the model's vocab_size 256, got 6422625 at position 0"),
        (["--data", ids, "--data-dtype", "uint32", "--end-of-document", 7, "--pack"],
         f"data: '{ids}' must end with the end-of-document id 7, got 0"),
        (["--metrics", "/nowhere/m", "--text", text, "--steps", 1, "--preset", "tiny"],
         "--metrics: cannot write file '/nowhere/m': No such file or directory"),
        (["--profile-steps", "0:1", "--profile", "/nowhere/t", *SHORT],
         "--profile: cannot write file '/nowhere/t': No such file or directory"),
        (["--tensorboard", "empty.txt", *SHORT],
         "--tensorboard: cannot write to empty.txt: Not a directory"),
        (["--checkpoint-dir", "empty.txt/at", *SHORT],
         "--checkpoint-dir: cannot write to empty.txt/at: Not a directory")]:
    _, err = run("train", *arguments, exit_code=1)
    assert err == f"train: {message}\n", err
# Options that cannot be, or not together.
for arguments, message in [
        (["--data", ids, "--pack"], "--pack: the documents of --data need --end-of-document"),
        (["--resume"], "--resume: needs --checkpoint-dir"),
        (["--profile-steps", "0:501"], "--profile-steps: must end within 500 steps, got 501"),
        (["--profile", "trace.json"], "--profile: needs --profile-steps"),
        (["--metrics", "same", "--profile-steps", "0:1", "--profile", "same"],
         "--profile: must not be what --metrics names, got 'same'"),
        (["--seq-len", 5000], "--seq-len: the model has positions for documents of 4096 tokens "
                              "(max_position_embeddings), got 5000"),
        (["--steps", 4, "--warmup", 5], "--warmup: must leave room in 4 steps, got 5")]:
    _, err = run("train", *arguments, exit_code=2)
    assert err == f"train: {message}\n", err
for arguments, message in [
        (["--preset", "Tiny"], "--preset: must be tiny, small, medium, qwen3-30b-a3b, qwen3-235b-a22b, "
                               "qwen3-moe-600b, tiny-dense, qwen3-0.6b, tiny-qwen2-moe, tiny-mixtral or tiny-glm4-moe, "
                               "got 'Tiny'"),
        (["--preset", "tiny", "--config", "config.json"], "--config excludes --preset"),
        (["--preset", "tiny", "--hf-model", "hf"], "--hf-model excludes --preset"),
        (["--data-dtype", "uint32"], "--data-dtype requires --data"),
        (["--checkpoint-interval", 5], "--checkpoint-interval requires --checkpoint-dir"),
        (["--checkpoint-keep", 5], "--checkpoint-keep requires --checkpoint-dir")]:
    _, err = run("train", *arguments, exit_code=2)
    assert err.startswith(f"{message}\n"), err
# A number that a double cannot hold, from each source.
_, err = run("train", "--lr", "1e-400", exit_code=2)
assert err.startswith("--lr: must be a number from 0 to 1e+30, got 1e-400\n"), err
(folder / "small.toml").write_text("lr = 1e-400\n")
_, err = run("train", "--config-file", "small.toml", exit_code=2)
assert err.startswith("--config-file: small.toml:1: --lr: must be a number that a double can hold, got 1e-400\n"), err
(folder / "small.json").write_text(json.dumps(config).replace("50304", '256, "rms_norm_eps": 1e-400'))
_, err = run("train", "--config", "small.json", exit_code=1)
assert err.startswith("train: --config: ") and "numbers must fit in a double, got 1e-400\n" in err, err
for size in (0, -1):
    _, err = run("train", "--world-size", size, exit_code=2)
    assert err.startswith(f"--world-size: must be an integer from 1 to 65536, got {size}\n"), err
_, err = run("train_loop", "missing.txt", exit_code=1)
assert err == f"train_loop: {MISSING}\n", err
out, err = run("loss_parity", "--text", text, "--svg", folder / "none" / "plot.svg", exit_code=1)
assert "running" not in out and "none/plot.svg" in err, (out, err)
for target, reason in [("empty.txt", "Not a directory"), ("empty.txt/hf", "Not a directory")]:
    out, err = run("train", *SHORT, "--export-hf", target, exit_code=1)
    assert err == f"train: --export-hf: cannot write to {target}: {reason}\n", err
    assert "step     0" not in out, out
# An option that was left without a value does not swallow the next one.
for name, given in [("--checkpoint-dir", ["--resume"]), ("--metrics", ["--overfit"]),
                    ("--steps", ["--micro-batches", "4"]), ("--prompt", ["--resume", "--dry-run"])]:
    _, err = run("train", name, *given, exit_code=2)
    assert err.startswith(f"{name}: must be given a value, got the option {given[0]}\n"), err
assert not (folder / "--resume").exists()
_, err = run("train", "--checkpoint-dir=", "--resume", exit_code=2)
assert err.startswith("--checkpoint-dir: must "), err
_, err = run("train", "--steps=", "--micro-batches", 4, exit_code=2)
assert "--steps: must be an integer" in err, err
for given, message in [(["--overfit=7"], "--overfit: must be true or false, got '7'"),
                       (["--pack", "--pack"], "--pack: must be given once"),
                       (["--steps", 1, "--steps=2"], "--steps: must be given once"),
                       (["--config-file", "a.toml", "--config-file", "b.toml"],
                        "--config-file: must be given once"),
                       (["--config-file", "--resume"],
                        "--config-file: must be given a value, got the option --resume"),
                       (["--metrics", "--help"],
                        "--metrics: must be given a value, got the option --help")]:
    _, err = run("train", *given, exit_code=2)
    assert err.startswith(f"{message}\n"), err
for program, presets in [("loss_parity", "tiny, small, medium, tiny-qwen2-moe, tiny-mixtral, tiny-glm4-moe, wide or memory"),
                         ("fsdp_timeline", "tiny, small or medium")]:
    _, err = run(program, "--preset", "qwen3-30b-a3b", exit_code=2)
    assert f"--preset: must be {presets}, got 'qwen3-30b-a3b'" in err, err
_, err = run("loss_parity", "--text", empty, exit_code=1)
assert err == f"loss_parity: text: '{empty}' is empty\n", err
for count in [4, 12]:
    _, err = run("loss_parity", "--micro-batches", count, exit_code=2)
    assert err == ("loss_parity: --micro-batches: must be a power of two, and at least 8 (ranks), "
                   f"got {count}\n"), err

_, err = run("train", "--profile-steps", "3:3", exit_code=2)
assert err.startswith("--profile-steps: must be a:b with 0 <= a < b, got '3:3'\n"), err

# The examples do what they say, and the tutorial's code is theirs.
out, _ = run("linear_regression")
assert out.startswith("dloss/dweight = -17\ntensor([[2.0000]], shape=[1, 1], dtype=float32"), out
assert "\ntensor([1.0000], shape=[1], dtype=float32" in out, out
out, _ = run("two_moons")
values = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", out, re.MULTILINE)]
assert len(values) == 5 and values[-1] < 0.1 < 0.6 < values[0], out
assert float(re.search(r"^accuracy (\S+)$", out, re.MULTILINE)[1]) > 0.95, out
out, _ = run("mixture")
lines = re.findall(r"^step \d+ loss (\S+) tokens (.*)$", out, re.MULTILINE)
assert len(lines) == 6 and float(lines[-1][0]) < 0.15 < 0.5 < float(lines[0][0]), out
assert all(int(tokens) > 0 for tokens in lines[-1][1].split()), out
out, _ = run("own_module")
assert out.startswith("""Perceptron(
  (hidden): Affine(weight [32, 1], bias [32])
  (output): Affine(weight [1, 32], bias [1])
)
97 parameters
"""), out
values = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", out, re.MULTILINE)]
assert len(values) == 6 and values[-1] < 0.001 < 0.15 < values[0], out
sines = re.findall(r"^sin \S+ = (\S+), exactly (\S+)$", out, re.MULTILINE)
assert len(sines) == 4 and all(abs(float(y) - float(sine)) < 0.1 for y, sine in sines), out
if not brief:
    out, _ = run("char_gpt", text)
    values = [float(line.split()[1]) for line in out.splitlines()[:6]]
    assert values[-1] < 2.6 < 5 < values[0] and "\nAnd" in out, out
    out, _ = run("train_loop", text)
    values = [float(line.split()[1]) for line in out.splitlines()]
    assert len(values) == 30 and values[-1] < 0.8 * values[0]
root = Path(__file__).resolve().parent.parent.parent
tutorial = (root / "docs/tutorial.md").read_text()
sources = [path.read_text() for path in (root / "examples").glob("*.cpp")]
blocks = re.findall(r"^```cpp\n(.*?)^```", tutorial, re.MULTILINE | re.DOTALL)
assert len(blocks) >= 10, len(blocks)
for block in blocks:
    assert any(block in source for source in sources), f"tutorial.md: in no example:\n{block}"
# It starts with six of them, in this order, each at most 80 lines long.
first = ["linear_regression", "two_moons", "char_gpt", "mixture", "own_function", "own_module"]
run_by_tutorial = re.findall(r"^build/release/examples/(\w+)", tutorial, re.MULTILINE)
assert list(dict.fromkeys(run_by_tutorial))[:6] == first, run_by_tutorial
for name in first:
    lines = (root / f"examples/{name}.cpp").read_text().splitlines()
    assert len(lines) <= 80, (name, len(lines))
if not brief:
    checkpoints = folder / "own checkpoints"
    out, _ = run("own_training_loop", text, checkpoints)
    values = re.findall(r"^step (\d+) loss (\S+)$", out, re.MULTILINE)
    assert len(values) == 60 and float(values[-1][1]) < 3 < 5 < float(values[0][1]), out
    for ranks in [4, 1]:
        shutil.rmtree(checkpoints / "step-00000060")
        resumed, _ = run("own_training_loop", text, checkpoints, ranks)
        assert resumed.splitlines() == out.splitlines()[50:]
    # Experts on several ranks, and a run that was saved so.
    divided = folder / "checkpoints of divided experts"
    assert run("own_training_loop", text, divided, 4, 2)[0] == out
    shutil.rmtree(divided / "step-00000060")
    resumed, _ = run("own_training_loop", text, divided, 2, 1)
    assert resumed.splitlines() == out.splitlines()[50:]
    # A number of ranks that does not divide the micro-batches, or is more than they are, leaves none
    # out.
    for ranks in [3, 16]:
        odd, _ = run("own_training_loop", text, folder / f"checkpoints of {ranks}", ranks)
        odd = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", odd, re.MULTILINE)]
        assert len(odd) == 60 and all(abs(loss - float(value)) < 1e-3
                                      for loss, (_, value) in zip(odd, values)), (ranks, odd)
    # A signal ends it after a step, and it goes on from there.
    stopped = subprocess.Popen([program_path(programs, "own_training_loop"), text, folder / "stopped"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = stopped.stdout.readline()
    stopped.send_signal(signal.SIGTERM)
    rest, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM and "SIGTERM: stopping after this step" in err, err
    assert first + rest + run("own_training_loop", text, folder / "stopped")[0] == out
_, err = run("own_training_loop", exit_code=1)
assert err == "own_training_loop: usage: own_training_loop TEXT CHECKPOINTS [RANKS [EXPERT_RANKS]]\n", err
for ranks in ("two", "2x", "0", "1e3", "99999999999999999999"):
    _, err = run("own_training_loop", text, "nowhere", ranks, exit_code=1)
    assert err == f"own_training_loop: RANKS: must be an integer from 1 to 64, got {ranks}\n", err
_, err = run("own_training_loop", text, "nowhere", 2, 3, exit_code=1)
assert err == "own_training_loop: EXPERT_RANKS: must be an integer from 1 to 2, got 3\n", err
out, err = run("own_function")
assert err == "gradients agree\n" and out.startswith("digraph")
# The second step has what the optimizer changed in the first. recorded_run has more of tiny, --full of all.
for preset in ["tiny"] if brief else ["tiny-mixtral", "tiny-qwen2-moe", "tiny-glm4-moe", "tiny"]:
    out, _ = run("loss_parity", "--preset", preset, "--text", text,
                 "--steps", 2 if preset == "tiny" and not brief else 1, "--batch", 1, "--seq-len", 16)
    assert out.count("holds") == 44 and out.count("bits of loss") == 40 and "BROKEN" not in out, out
assert len(json.loads((folder / "loss_parity.json").read_text())["runs"]) == 46
assert all(check["holds"] for check in json.loads((folder / "loss_parity.json").read_text())["checks"])
xml.etree.ElementTree.parse(folder / "loss_parity.svg")
if not brief:
    out, _ = run("loss_parity", "--preset", "wide", "--text", text, "--steps", 1, "--seq-len", 16)
    assert out.count("holds") == 15 and "BROKEN" not in out, out
    out, _ = run("loss_parity", "--preset", "memory", "--text", text, "--steps", 1)
    assert out.count("holds") == 93 and "BROKEN" not in out, out

# A timeline: a process per rank with its lanes, and a summary that says what is modelled.
out, _ = run("fsdp_timeline", "--world-size", 2, "--steps", 2, "--batch", 1, "--seq-len", 16)
assert "MODELLED" in out and re.search(r"^gather +\S+ ms a step, exposed \S+ % \(modelled", out, re.M)
assert re.search(r"^gathered bytes +[1-9]\d+ received", out, re.M) and re.search(r"^spans +[1-9]\d+$", out, re.M)
summary = (folder / "fsdp_timeline.txt").read_text()
assert summary and out.startswith(summary), (summary, out)
events = json.loads((folder / "fsdp_timeline.json").read_text())["traceEvents"]
lanes = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
assert lanes >= {(rank, lane) for rank in (0, 1)
                 for lane in ("compute", "gather", "reduce", "optimizer")}, lanes
names = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 0]
for name in ["forward", "loss", "backward", "optimizer"]:
    assert names.count(name) == 2, name
assert "all_gather model.layers.3" in names and "backward model.layers.0.mlp" in names
_, err = run("fsdp_timeline", "--slow-rank", 2, exit_code=2)
assert err == "fsdp_timeline: --slow-rank: must be below the 2 ranks, got 2\n", err
_, err = run("fsdp_timeline", "--world-size", 1, "--slow-rank", 0, exit_code=2)
assert err == "fsdp_timeline: --slow-rank: --world-size must be at least 2, got 1\n", err
_, err = run("fsdp_timeline", "--world-size", 4, "--steps", 95, "--slow-rank", 1, exit_code=2)
assert err == ("fsdp_timeline: --slow-rank: --steps must be at least 3 windows of 32, "
               "got 95\n"), err

# A slow rank is named while the run goes on.
if not brief:
    out, _ = run("fsdp_timeline", "--world-size", 4, "--steps", 16, "--window", 2, "--batch", 1,
                 "--slow-rank", 2, "--slow-by", 20)
    assert re.search(r"^after step \d+: rank 2 is slow in compute, \d+\.\d\d times", out, re.M), out

# The ladder, with training steps and with one layer, the two ways to NZ, and the gains.
out, _ = run("nz_ablation", "--preset", "tiny", "--rounds", 1, "--json", "ablation.json")
assert len(re.findall(r"^.{20} +[\d. ]+  0 \(bitwise\)$", out, re.M)) == 16, out
GAIN = r"^tiny: '\+ linear_only_shard' is (\S+) times \(quartiles \1 to \1\) as fast as '"
for baseline in ("loop over experts'", "grouped matmul'", "[^']*', the fastest row-major rung$",
                 "\\+ pre-transposed', the rung before it$"):
    assert re.search(GAIN + baseline, out, re.M), (baseline, out)
ladder, layer, ways = json.loads((folder / "ablation.json").read_text())["ladders"]
assert [rung["nz_conversions"] for rung in ladder["rungs"]] == [0, 0, 0, 16, 0, 0, 0]
assert [rung["nz_copy_outs"] for rung in layer["rungs"]] == [0, 0, 0, 0, 2, 2, 2]
assert [rung["nz_copy_outs"] for rung in ways["rungs"]] == [0, 2]
assert [gain["over"] for gain in layer["rungs"][6]["gains"][:2]] == ["loop over experts", "grouped matmul"]
assert all(rung["bitwise"] and rung["moved_bytes"] > 0 and rung["tgs"] > 0
           for rung in ladder["rungs"] + layer["rungs"] + ways["rungs"])
_, err = run("nz_ablation", "--world-size", 3, "--preset", "main", exit_code=1)
assert err == "nz_ablation: --world-size: must divide the 4 sequences of main, got 3\n", err
run("nz_ablation", "--preset", "long", exit_code=2)

# The measurements refuse what they cannot measure.
_, err = run("fsdp_overlap", "--tokens", 100, exit_code=2)
assert err == "fsdp_overlap: --tokens: must be a multiple of 64, got 100\n", err
run("fsdp_overlap", "--layers", 0, exit_code=2)
run("fsdp_crossover", "--steps", 0, exit_code=2)

# The tape: Graphviz draws it, the longest chain adds up, and memory has two entries per Function.
out, _ = run("inspect_graph", "--preset", "tiny", "--tokens", 17)
functions, edges, leaves, saved = map(int, re.match(
    r"(\d+) Functions, (\d+) edges, (\d+) leaves; (\d+) bytes in saved tensors\n", out).groups())
svg = subprocess.run(["dot", "-Tsvg", folder / "graph.dot"], capture_output=True, text=True)
assert svg.returncode == 0 and svg.stderr == "", svg.stderr
assert svg.stdout.count('class="node"') == functions + leaves
assert svg.stdout.count('class="edge"') == edges
for label in ["npu_gmm", "model.layers.3.mlp.experts", "[17, 256]", "lm_head.weight"]:
    assert label in svg.stdout, label
assert sum(map(int, re.findall(r"saves (\d+) bytes", svg.stdout))) == saved


def table(name):
    header, *rows = (line.split("\t") for line in (folder / name).read_text().splitlines())
    return [dict(zip(header, row)) for row in rows]


chain = table("critical_path.tsv")
total, along = map(float, re.search(r"forward: (\S+) MFLOP, (\S+) of them along", out).groups())
assert abs(sum(float(step["flops"]) for step in chain) / 1e6 - along) <= 1e-3 * along < total
assert chain[0]["op"] == "embedding" and chain[-1]["op"] != "embedding"
live = table("live_bytes.tsv")
assert [row["phase"] for row in live] == ["forward"] * functions + ["backward"] * functions
assert f"peak: {max(int(row['total']) for row in live)} bytes in the backward" in out
assert int(live[-1]["saved"]) < int(live[functions]["saved"])
jitter = json.loads((Path(__file__).parents[1] / "golden/v5/mixtral/config.json").read_text())
(folder / "jitter.json").write_text(json.dumps(jitter | {"router_jitter_noise": 0.1}))
out, _ = run("inspect_graph", "--config", "jitter.json", "--tokens", 3)
assert "along the critical path" in out, out
_, err = run("inspect_graph", "--preset", "tiny", "--dot", "/nowhere/graph.dot", exit_code=1)
assert err == "inspect_graph: cannot write file '/nowhere/graph.dot': No such file or directory\n", err
_, err = run("inspect_graph", "--preset", "huge", exit_code=2)
assert err.startswith("--preset: must be tiny, small, medium, tiny-qwen2-moe, tiny-mixtral or tiny-glm4-moe, "
                      "got 'huge'\n"), err
run("inspect_graph", "--preset", "tiny", "--config", "config.json", exit_code=2)
print("programs_test: ok")
