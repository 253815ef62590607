# SPDX-License-Identifier: Apache-2.0
"""Runs check_golden: on the golden data, on folders that are wrong in one place, and on what is no
golden folder. MOEGRAD_GOLDEN names further golden folders, separated by ':'.

    check_golden_test.py PROGRAMS [--brief]

--brief, for programs that are slow: the smallest folders of the golden data, as they are. With
MOEGRAD_FULL=1 all folders are checked at every number of ranks.
"""
import json
import os
import shutil
import sys
from pathlib import Path

import golden_tools as tools

programs = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv
source = Path(__file__).resolve().parents[3]

# --- what is no golden folder

CONFIG = {"vocab_size": 5, "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "num_experts": 2,
          "num_experts_per_tok": 1, "moe_intermediate_size": 3}
INPUT = {"input_ids": [[1, 2, 3]], "labels": [[1, 2, 3]], "attention_mask": None}
PACKED = {"input_ids": [1, 2, 3], "labels": [1, -100, 3], "cu_seqlens": [0, 1, 3]}
EXPECTED = {"logits_f64": ("F64", [1, 3, 5], [0.0] * 15), "loss_f64": ("F64", [1], [1.6])}
SPEC = {"optimizer": "torch.optim.AdamW", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8,
        "weight_decay": 0.1, "clip": None, "schedule": "constant", "warmup_steps": 0,
        "no_decay_1d": False, "missing_grad": "zeros"}
TRACE = {"loss": [1.0], "loss_ce": [1.0], "aux_loss": [1.0], "grad_norm": [1.0]}


def train(spec=None, **changes):
    variant = {"spec": SPEC | (spec or {}), "lr": [1e-3], "fp64": TRACE} | changes
    return {"steps": 1, "input_ids": [[[1, 2]]], "labels": [[[1, 2]]], "variants": {"v": variant}}


def folder_of(files, tensors=None):
    """Files in a new folder: JSON of their values, or text as it is."""
    folder = tools.new_folder() / "bad"
    folder.mkdir()
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    if tensors is not None:
        tools.write_safetensors(folder / "expected.safetensors", tensors)
    return folder


def expect_refused(message, files, tensors=None):
    folder = folder_of(files, tensors)
    _, err = tools.check_golden(programs, folder, exit_code=2)
    wanted = f"check_golden: {folder}: {message.replace('FOLDER', str(folder))}"
    assert err.startswith(wanted), (wanted, err)


good = {"config.json": CONFIG, "input.json": INPUT}
_, err = tools.check_golden(programs, "/nowhere/at/all", exit_code=2)
assert err == "check_golden: /nowhere/at/all: must be a folder\n", err
tools.check_golden(programs, exit_code=2)
out, _ = tools.check_golden(programs, "--help", exit_code=0)
assert "usage" in out.lower()

KINDS = ("must have config.json with input.json, expected.safetensors or block.safetensors, or "
         "after_20_steps.safetensors or schedules.json, got ")
expect_refused(KINDS + "none\n", {})
expect_refused(KINDS + "'notes', 'tokenizer.json'\n", {"tokenizer.json": "{}", "notes": ""})
expect_refused(KINDS + "'0', '1', '2', '3', '4', '5', '6', '7' and 2 more\n",
               {str(i): "" for i in range(10)})
expect_refused(KINDS + "'config.json'\n", {"config.json": CONFIG})
# Another model is refused by its name, whatever files its folder has.
TYPES = '"qwen3_moe", "qwen3", "qwen2_moe", "mixtral" or "glm4_moe"'
for model_type, why in [("llama", ""), ("deepseek_v3", ", whose latent attention does not exist here "
                                                       "(its mixture does: nn::MoE)")]:
    for files in [{}, {"input.json": INPUT}, {"expected.safetensors": ""}]:
        expect_refused(f"FOLDER/config.json: model config: model_type must be {TYPES}, got "
                       f"\"{model_type}\"{why}\n",
                       {"config.json": {"a_key": 0.0, "model_type": model_type}, **files})
expect_refused("FOLDER/config.json: qwen3_moe config: head_dim must be even and >= 2, got 3",
               {"config.json": CONFIG | {"head_dim": 3}})
irregular = folder_of({"config.json": CONFIG})
(irregular / "input.json").mkdir()
_, err = tools.check_golden(programs, irregular, exit_code=2)
assert f"input.json: {irregular}/input.json: must be a readable regular file, got " in err, err
expect_refused("input.json: ", {**good, "input.json": "{"})
for message, changes in [
        ("input_ids must be an array, got 7", {"input_ids": 7}),
        ("input_ids[0][1] must be an integer, got 2.5", {"input_ids": [[1, 2.5, 3]]}),
        ("input_ids must be in [0, 5) (vocab_size), got 5", {"input_ids": [[1, 2, 5]]}),
        ("labels must be in [0, 5) (vocab_size), got -1", {"labels": [[1, 2, -1]]}),
        ("labels must score a token, got none that does", {"labels": [[1, -100, -100]]}),
        ("rows of a batch must be of 3 tokens, got 2",
         {"input_ids": [[1, 2, 3], [1, 2]], "labels": [[1, 2, 3], [1, 2]]}),
        ("input_ids, labels and position_ids must have as many rows, got 1, 2 and 1",
         {"labels": [[1, 2, 3], [1, 2, 3]]}),
        ("a sequence must have as many input_ids, labels and position_ids, at least one, got 3, 3 "
         "and 2", {"position_ids": [[0, 1]]}),
        ("must have a sequence, got none", {"input_ids": [], "labels": []}),
        ("attention_mask must be null, got [[1,1,1]]", {"attention_mask": [[1, 1, 1]]})]:
    expect_refused(f"input.json: {message}", {**good, "input.json": INPUT | changes})
expect_refused("input.json: must have labels, got none", {**good, "input.json": {"input_ids": [[1, 2]]}})

expect_refused("safetensors: FOLDER/expected.safetensors: ", good)
expect_refused("expected.safetensors: must have logits_f64 and loss_f64", good, {})
expect_refused("expected.safetensors: 'logits_f64' must be [1, 3, 5], got [1, 5, 3]", good,
               EXPECTED | {"logits_f64": ("F64", [1, 5, 3], [0.0] * 15)})
expect_refused("expected.safetensors: 'loss_f64' must be float64, got float32", good,
               EXPECTED | {"loss_f64": ("F32", [1], [0.0])})
expect_refused("expected.safetensors: 'grad.x' must be float32 or float64, got int64", good,
               EXPECTED | {"grad.x": ("I64", [1], [0])})
expect_refused("expected.json: grad_stats_fp64 'x' must have sum, got none",
               {**good, "expected.json": {"grad_stats_fp64": {"x": {"l2": 1.0}}}}, EXPECTED)
for message, spec in [("optimizer must be torch.optim.AdamW, got \"Muon\"", {"optimizer": "Muon"}),
                      ("betas must be two numbers, got [0.9]", {"betas": [0.9]}),
                      ("lr must be a number, got \"high\"", {"lr": "high"}),
                      ("schedule must be \"constant\" or \"cosine\", got \"wsd\"",
                       {"schedule": "wsd"}),
                      ("missing_grad must be \"zeros\" or \"skip\", got \"drop\"",
                       {"missing_grad": "drop"})]:
    expect_refused(f"train.json: variants 'v'.spec.{message}", {**good, "train.json": train(spec)},
                   EXPECTED)
expect_refused("train.json: input_ids and labels must be batches of 2 steps, got 1 and 1",
               {**good, "train.json": train() | {"steps": 2}}, EXPECTED)
expect_refused("train.json: variants 'v'.fp64.loss must be one number for each of 1 steps, got []",
               {**good, "train.json": train(fp64=TRACE | {"loss": []})}, EXPECTED)
folder = folder_of({**good, "input.json": INPUT | {"packed": PACKED | {"cu_seqlens": [0, 2]}}},
                   EXPECTED)
tools.write_safetensors(folder / "expected_packed.safetensors", {})
_, err = tools.check_golden(programs, folder, exit_code=2)
assert "input.json: packed.cu_seqlens must be rising from 0 to 3, got [0,2]" in err, err
# Read in full, but the model is not there.
expect_refused("safetensors: FOLDER/model.safetensors: ", good, EXPECTED)

# The other folders are checked although one cannot be read.
loop = tools.new_folder() / "loop"
loop.symlink_to(loop)
out, err = tools.check_golden(programs, loop, folder_of({"notes.txt": ""}), exit_code=2)
assert "Too many levels of symbolic links" in err and out.startswith("\n2 folders, "), (out, err)

# --- what is no folder of a model that transformers 5 saved

IDS = {"input_ids": ("I64", [1, 3], [1, 2, 3])}
config_alone = {"config.json": CONFIG}
for message, tensors in [
        ("expected.safetensors: must have input_ids", {}),
        ("expected.safetensors: 'input_ids' must be a matrix of tokens, got [3]",
         {"input_ids": ("I64", [3], [1, 2, 3])}),
        ("expected.safetensors: 'input_ids' must be a matrix of tokens, got [0, 3]",
         {"input_ids": ("I64", [0, 3], [])}),
        ("expected.safetensors: 'input_ids' must be int64, got float32",
         {"input_ids": ("F32", [1, 3], [1, 2, 3])}),
        ("expected.safetensors: input_ids must be in [0, 5) (vocab_size), got 5",
         {"input_ids": ("I64", [1, 2], [1, 5])}),
        ("expected.safetensors: labels must score a token, got none that does",
         {"input_ids": ("I64", [2, 1], [1, 2])}),
        ("expected.safetensors: 'logits_f32' must be [1, 3, 5], got [3, 5]",
         IDS | {"logits_f32": ("F32", [3, 5], [0.0] * 15)}),
        ("expected.safetensors: 'loss_f64' must be float64, got int64",
         IDS | {"loss_f64": ("I64", [1], [1])}),
        ("expected.safetensors: 'grad_f64.x' must be float32 or float64, got int64",
         IDS | {"grad_f64.x": ("I64", [1], [1])}),
        ("expected.safetensors: 'grad.x' is unknown", IDS | {"grad.x": ("F64", [1], [1])}),
        ("the folder expects something of 'x', which its model does not have",
         IDS | {"grad_f32.x": ("F32", [1], [1])})]:
    expect_refused(message, config_alone, tensors)
for message, generation in [
        ("greedy must be in [0, 5) (vocab_size), got 5", {"greedy": [1, 5]}),
        ("prompt must have a token, got none", {"prompt": []}),
        ("smallest_margin must be a number, got \"small\"", {"smallest_margin": "small"}),
        ("must have known keys alone, got 'sampled'", {"sampled": [1]})]:
    generation = {"prompt": [1], "greedy": [2], "smallest_margin": 0.1} | generation
    place = " '1'." if "known keys" not in message else " '1' "
    expect_refused(f"generate.json:{place}{message}",
                   {**config_alone, "generate.json": {"1": generation}}, IDS)

# --- the golden data

golden = source / "tests" / "golden"
smallest = golden / "a_minimal"
saved = golden / "v5" / "qwen3_moe_v5"
other_types = [golden / "v5" / name for name in ["qwen2_moe", "mixtral", "glm4_moe"]]
folders = [smallest, saved, golden / "b_tied_dense_nonorm", golden / "c_mlponly_odd_ignore"]
folders += other_types
folders += [Path(name) for name in os.environ.get("MOEGRAD_GOLDEN", "").split(":") if name]
if brief:
    folders = [smallest, saved]
out, _ = tools.check_golden(programs, *folders, exit_code=0)
assert f"\n{len(folders)} folders, " in out and ", 0 past their limits\n" in out
for folder in folders:
    for path in ["plain    ", "optimised", "sharded  "]:
        for dtype in ["fp64", "fp32"]:
            assert f"{folder.name} | {path} | {dtype} | logits " in out, (folder, path, dtype)
if not brief:
    tools.expect_tampering_to_fail(programs, smallest)
    tools.expect_incomplete_to_fail(programs, smallest)
    tools.expect_changed_pretrained_to_fail(programs, saved)
    for folder, configurations in zip(other_types, [
            [{"norm_topk_prob": True}, {"num_experts_per_tok": 2}],
            [{"rms_norm_eps": 1e-4}, {"num_experts_per_tok": 1}],
            [{"routed_scaling_factor": 1.0}, {"topk_group": 1}, {"n_group": 1, "topk_group": 1},
             {"norm_topk_prob": False},
             {"partial_rotary_factor": 1.0, "rope_parameters": {"rope_theta": 10000.0}}]]):
        tools.expect_other_configurations_to_fail(programs, folder, configurations)

out, _ = tools.check_golden(programs, golden / "v5" / "optim", exit_code=0)
assert ", 0 past their limits\n" in out
for name in ["adamw_amsgrad", "adafactor", "hf_cosine_w10_60"]:
    assert name in out, name

# Expected values have no random numbers in them, and so runs have none.
noisy = tools.new_folder() / "mixtral"
shutil.copytree(golden / "v5" / "mixtral", noisy)
tools.change_json(noisy / "config.json", lambda value: value.update(router_jitter_noise=0.1))
out, _ = tools.check_golden(programs, noisy, exit_code=0)
assert ", 0 past their limits\n" in out

block = golden / "v5" / "deepseek_v3_block"
for ranks in [1, 2, 3, 5]:
    out, _ = tools.check_golden(programs, "--world-size", ranks, block, exit_code=0)
    assert "15 quantities, 0 past their limits" in out and "0 expectations missing" in out, out
tools.expect_changed_block_to_fail(programs, block)

# The sequences over other numbers of ranks: one, as many as there are, some ranks with none.
for ranks in [3] if brief else [1, 3, 4]:
    out, _ = tools.check_golden(programs, "--world-size", ranks,
                                *folders[:1 if brief else 4 if tools.full else 2], exit_code=0)
    assert ", 0 past their limits\n" in out
# Experts on several ranks: all that they divide evenly.
even = [smallest, block] if brief else [golden / "a_minimal", golden / "b_tied_dense_nonorm", block] + [
    golden / "v5" / name for name in ["glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe_v5"]]
out, _ = tools.check_golden(programs, "--expert-parallel", 2, *even, exit_code=0)
assert ", 0 past their limits\n" in out and f"\n{len(even)} folders, 0 expectations missing" in out, out
if not brief:
    for ranks, folders_of in [(4, [golden / "a_minimal", block]), (3, [golden / "b_tied_dense_nonorm"])]:
        out, _ = tools.check_golden(programs, "--world-size", ranks, "--expert-parallel", ranks,
                                    *folders_of, exit_code=0)
        assert ", 0 past their limits\n" in out, out
    odd = golden / "c_mlponly_odd_ignore"
    _, err = tools.check_golden(programs, "--expert-parallel", 2, odd, exit_code=2)
    assert err == (f"check_golden: {odd}: expert_parallel: the 2 ranks of axis 'ep' must divide the "
                   "experts of model.layers.0.mlp, got 5\n"), err
# Matrices on several ranks; what they do not divide is refused by its name.
if not brief:
    divided = [golden / "a_minimal", *([golden / "v5" / name for name in
                                        ["glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe_v5", "qwen3_dense"]]
                                       if tools.full else [golden / "v5" / "qwen2_moe"])]
    for more in [[], ["--world-size", 1, "--expert-parallel", 2]][:2 if tools.full else 1]:
        out, _ = tools.check_golden(programs, "--tensor-parallel", 2, *more, *divided, exit_code=0)
        assert ", 0 past their limits\n" in out and f"\n{len(divided)} folders, 0 exp" in out, out
    for name, refusal in [
            ("b_tied_dense_nonorm", "the 2 ranks of axis 'tp' must divide the 3 blocks of "
                                    "'model.layers.0.self_attn.k_proj', or these the ranks"),
            ("c_mlponly_odd_ignore", "the 2 ranks of axis 'tp' must divide dimension 0 of "
                                     "'model.embed_tokens.weight', got [53, 40]")]:
        _, err = tools.check_golden(programs, "--tensor-parallel", 2, golden / name, exit_code=2)
        assert err == f"check_golden: {golden / name}: parallelize_module: {refusal}\n", err
_, err = tools.check_golden(programs, "--expert-parallel", 3, smallest, exit_code=2)
assert err == "check_golden: --expert-parallel: must divide the ranks (--world-size), 2, got 3\n", err
for ranks in [0, 65, "two"]:
    _, err = tools.check_golden(programs, "--world-size", ranks, smallest, exit_code=2)
    assert "--world-size" in err, err
print("check_golden_test: ok")
