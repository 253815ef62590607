# SPDX-License-Identifier: Apache-2.0
"""What checkpoint_tool prints of sound, damaged, equal and different checkpoints, and exports."""
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

programs = Path(sys.argv[1]).resolve()
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))


def run(program, *arguments, exit_code=0):
    result = subprocess.run([programs / program, *map(str, arguments)], capture_output=True, text=True,
                            check=False, timeout=600)
    assert result.returncode == exit_code, (program, arguments, result)
    return result.stdout, result.stderr


def train(name, *arguments):
    root = folder / name
    run("train", "--text", text, "--preset", "tiny", "--steps", 4, "--micro-batches", 4,
        "--batch", 1, "--seq-len", 16, "--sample-bytes", 0, "--validation-sequences", 2,
        "--checkpoint-dir", root, "--checkpoint-interval", 2, *arguments)
    return root


def tensors_of(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {name: (entry["dtype"], entry["shape"],
                   data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


first, second = train("first"), train("second", "--world-size", 4)
out, _ = run("checkpoint_tool", "list", first)
assert re.fullmatch(r" +step +ranks +tokens +tensors +MB\n"
                    r" +4 +2 +256 +188 +3\.4\n +2 +2 +128 +188 +3\.4\n", out), out
out, _ = run("checkpoint_tool", "list", second / "latest")
assert re.search(r"^ +4 +4 +256 ", out, re.MULTILINE), out

# The same run on other ranks has the same parameters; two steps are not the same.
out, _ = run("checkpoint_tool", "diff", first, second)
assert out == "47 parameters compared, 0 differ\n", out
out, _ = run("checkpoint_tool", "diff", first / "step-00000002", second, exit_code=1)
assert out.endswith("47 parameters compared, 47 differ\n"), out
line = re.search(r"^model.norm.weight: (\d+) of 64 elements, largest difference (\S+) at (\d+): (\S+) "
                 r"and (\S+)$", out, re.MULTILINE)
pieces = [[value for rank in range(2) for value in struct.iter_unpack("<f", tensors_of(
    first / f"step-{step:08}" / f"rank-{rank:05}.safetensors")["model.norm.weight"][2])]
          for step in (2, 4)]
differences = [abs(a[0] - b[0]) for a, b in zip(*pieces)]
at = int(line[3])
assert int(line[1]) == sum(difference > 0 for difference in differences)
assert differences[at] == max(differences) and abs(float(line[2]) - max(differences)) < 1e-8
assert abs(float(line[4]) - pieces[0][at][0]) < 1e-8 and abs(float(line[5]) - pieces[1][at][0]) < 1e-8
other = train("other", "--expert-weights", "hf")
out, _ = run("checkpoint_tool", "diff", first, other, exit_code=1)
assert re.search(r"^model.layers.0.mlp.experts.down_proj: float32 \[.*\] and float32 \[.*\]$", out,
                 re.MULTILINE), out

# What is damaged or absent is said.
out, _ = run("checkpoint_tool", "verify", first)
assert out == "".join(f"{first}/step-{step:08}: sound, 2 files\n" for step in (4, 2)), out
path = first / "step-00000004" / "rank-00001.safetensors"
data = bytearray(path.read_bytes())
data[-1] ^= 128
path.write_bytes(data)
out, _ = run("checkpoint_tool", "verify", first, exit_code=1)
lines = out.splitlines()
assert re.fullmatch(rf"checkpoint: {re.escape(str(path))}: must be of {len(data)} bytes with CRC-32C "
                    rf"\d+, got {len(data)} with \d+", lines[0]), out
assert lines[1] == f"{first}/step-00000002: sound, 2 files", out
_, err = run("checkpoint_tool", "export", first, folder / "none", exit_code=1)
assert err.startswith(f"checkpoint_tool: checkpoint: {path}: must be of "), err
(second / "step-00000004" / "manifest.json").write_text("{}")
out, _ = run("checkpoint_tool", "list", second, exit_code=1)
assert f"checkpoint: {second}/step-00000004/manifest.json: must have format, got none" in out
empty = folder / "empty"
empty.mkdir()
for command in ("list", "verify"):
    _, err = run("checkpoint_tool", command, empty, exit_code=1)
    assert err == f"checkpoint_tool: {empty}: must be a checkpoint or hold some, got none\n", err
run("checkpoint_tool", exit_code=2)
run("checkpoint_tool", "diff", first, exit_code=2)

# Exported weights are Hugging Face's, whatever way they stand in the checkpoint.
exported = {}
for root in (second / "step-00000002", other / "step-00000002"):
    target = folder / f"hf of {root.parent.name}"
    out, _ = run("checkpoint_tool", "export", root, target)
    assert out == f"step 2 written to {target}\n"
    exported[root.parent.name] = tensors_of(target / "model.safetensors")
    assert json.loads((target / "config.json").read_text())["num_experts"] == 8
assert exported["second"] == exported["other"]
dtype, shape, values = exported["second"]["model.embed_tokens.weight"]
assert (dtype, shape) == ("F32", [256, 64])
assert values == b"".join(tensors_of(second / "step-00000002" / f"rank-{rank:05}.safetensors")
                          ["model.embed_tokens.weight"][2] for rank in range(4))
assert exported["second"]["model.layers.3.mlp.experts.7.gate_proj.weight"][1] == [32, 64]

# The same files as the run itself exports, buffers included, for every kind of model.
for preset in ["tiny", "tiny-dense", "tiny-qwen2-moe", "tiny-mixtral", "tiny-glm4-moe"]:
    root, own, target = folder / f"runs {preset}", folder / f"own {preset}", folder / f"hf {preset}"
    run("train", "--text", text, "--preset", preset, "--micro-batches", 2, "--batch", 1, "--seq-len", 16,
        "--sample-bytes", 0, "--validation-sequences", 2, "--steps", 3, "--checkpoint-dir", root, "--export-hf", own)
    run("checkpoint_tool", "export", root, target)
    assert (own / "model.safetensors").read_bytes() == (target / "model.safetensors").read_bytes(), preset
    assert (own / "config.json").read_text() == (target / "config.json").read_text(), preset

# What a run has read of a model besides, it exports with it; the tool says what else there is.
hub, blobs = folder / "hub", folder / "blobs"
target = folder / "hf tiny-mixtral"
config = json.loads((target / "config.json").read_text()) | {
    "eos_token_id": 2, "bos_token_id": None, "output_router_logits": False}
(target / "config.json").write_text(json.dumps(config))
for name in ("tokenizer.json", "generation_config.json"):
    (target / name).write_text(f'{{"name": "{name}"}}')
root, own = folder / "runs from hf", folder / "own from hf"
FROM = ["--text", text, "--hf-model", target, "--micro-batches", 2, "--batch", 1, "--seq-len", 16,
        "--sample-bytes", 0, "--validation-sequences", 2, "--steps", 2]
run("train", *FROM, "--checkpoint-dir", root, "--export-hf", own)
out, _ = run("checkpoint_tool", "export", root, folder / "tool")
assert out == (f"step 2 written to {folder}/tool\nnot written: generation_config.json and the tokenizer; "
               "copy them from the model that the run began from\n"), out
for exported in (own, folder / "tool"):
    assert json.loads((exported / "config.json").read_text()) == config, exported
assert sorted(path.name for path in own.iterdir()) == [
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
assert (own / "tokenizer.json").read_text() == (target / "tokenizer.json").read_text()
run("train", *FROM, "--export-hf", own, "--export-dtype", "bf16")
assert tensors_of(own / "model.safetensors")["lm_head.weight"][0] == "BF16"
assert json.loads((own / "config.json").read_text())["torch_dtype"] == "bfloat16"

# A snapshot of the Hub's cache, and a folder of links beside a model, are another model's files.
blobs.mkdir()
snapshot = hub / "snapshots" / "2"
snapshot.mkdir(parents=True)
linked = folder / "linked"
linked.mkdir()
before = {}
for name in ("config.json", "model.safetensors"):
    shutil.copy(target / name, blobs / name)
    (snapshot / name).symlink_to(Path("../../../blobs") / name)
    (linked / name).symlink_to(target / name)
    before[name] = (blobs / name).read_bytes()
for place, program in [(snapshot, "checkpoint_tool"), (snapshot, "train"), (linked, "train")]:
    if program == "train":
        out, err = run("train", *FROM, "--export-hf", place, exit_code=1)
        assert "training, from" not in out, out  # before there is anything to write
        said = "train: --export-hf: save_pretrained"
    else:
        _, err = run("checkpoint_tool", "export", root, place, exit_code=1)
        said = "checkpoint_tool: save_pretrained"
    assert re.fullmatch(rf"{said}: {place}/(config.json|model.safetensors) must be a file of this folder alone, "
                        r"got a link to \S.*\n", err), err
    for name, data in before.items():
        assert (blobs / name).read_bytes() == data == (target / name).read_bytes(), (place, name)
        assert (place / name).is_symlink()
(folder / "again").symlink_to(target)
_, err = run("train", *FROM, "--export-hf", folder / "again", exit_code=2)
assert err.startswith("train: --export-hf: must not be what --hf-model names, got "), err

print("checkpoint_tool_test: ok")
