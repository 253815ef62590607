# SPDX-License-Identifier: Apache-2.0
"""What the tests of check_golden share: running it, and folders that are wrong in one place."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

SIZES = {"F64": 8, "F32": 4, "I64": 8}
FORMATS = {"F64": "<d", "F32": "<f", "I64": "<q"}
# Most of a run's time; copies of a folder that are wrong elsewhere are checked without.
TRAINING = ("train.json", "train_final.safetensors")
PATHS = ("plain", "optimised", "sharded")
full = os.environ.get("MOEGRAD_FULL") == "1"
temporary = tempfile.TemporaryDirectory()  # removed when the test ends


def new_folder():
    return Path(tempfile.mkdtemp(dir=temporary.name))


def check_golden(programs, *arguments, exit_code):
    """(stdout, stderr) of a run."""
    result = subprocess.run([programs / "check_golden", *map(str, arguments)], capture_output=True,
                            text=True, timeout=1700)
    assert result.returncode == exit_code, (arguments, result.returncode, result.stdout[-3000:],
                                            result.stderr)
    return result.stdout, result.stderr


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, values or their bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        packed = values if isinstance(values, bytes) else b"".join(
            struct.pack(FORMATS[dtype], value) for value in values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def header_of(data):
    """(header, where what follows it begins) of a safetensors file's bytes."""
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(bytes(data[8:start])), start


def change_tensor(path, name, index, change):
    """Applies `change` to one element of a tensor, in place."""
    data = bytearray(path.read_bytes())
    header, start = header_of(data)
    entry = header[name]
    at = start + entry["data_offsets"][0] + index * SIZES[entry["dtype"]]
    value = struct.unpack_from(FORMATS[entry["dtype"]], data, at)[0]
    struct.pack_into(FORMATS[entry["dtype"]], data, at, change(value))
    path.write_bytes(data)


def change_json(path, change):
    """Applies `change` to the parsed file, in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def rewrite_tensors(path, change):
    """Writes a safetensors file anew after `change` of its tensors, name -> (dtype, shape, bytes)."""
    data = path.read_bytes()
    header, start = header_of(data)
    header.pop("__metadata__", None)
    tensors = {name: (entry["dtype"], entry["shape"],
                      data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
               for name, entry in header.items()}
    change(tensors)
    write_safetensors(path, tensors)


def missing_in(out):
    """What a run reported as missing."""
    return [line.split(" | missing | ")[1] for line in out.splitlines() if " | missing | " in line]


def tensor_names(path):
    return header_of(path.read_bytes())[0]


def failed_in(out, where=""):
    """(path, quantity) of each line of a run that reports a failure and has `where` in it."""
    lines = [line.split(" | ") for line in out.split("\n\n")[0].splitlines()
             if " | FAIL" in line and where in line]
    return [(line[1].strip(), line[3].split(" (")[0].strip()) for line in lines]


def only_variant(folder, name):
    """Leaves one of the folder's trainings, for which a run takes a part of the time."""
    change_json(folder / "train.json", lambda value: value.update(variants={name: value["variants"][name]}))
    final = folder / "train_final.safetensors"
    if final.exists():
        rewrite_tensors(final, lambda tensors: [tensors.pop(tensor) for tensor in list(tensors)
                                                if not tensor.startswith(f"{name}/")])


class Copies:
    """Copies of a folder, which its caller may change."""

    def __init__(self, source):
        self.source = Path(source)
        self.root = new_folder()
        self.count = 0

    def __call__(self, without=()):
        self.count += 1
        folder = self.root / f"copy{self.count}"
        shutil.copytree(self.source, folder, copy_function=shutil.copyfile)
        for path in [folder, *folder.iterdir()]:
            os.chmod(path, 0o755)
        for name in without:
            (folder / name).unlink(missing_ok=True)
        return folder


def expect_tampering_to_fail(programs, source):
    """One value changed, by little: exit code 1, and that quantity alone is past its limit."""
    copies = Copies(source)

    def failures(folder):
        out, _ = check_golden(programs, folder, exit_code=1)
        assert all(what.startswith(TRAINING) for what in missing_in(out)), missing_in(out)
        failed = failed_in(out)
        assert f"{len(failed)} past their limits" in out and failed, out[-300:]
        return {quantity for _, quantity in failed}

    def expect(quantities, file, *change, without=TRAINING):
        folder = copies(without)
        if file in TRAINING:
            only_variant(folder, "adamw_const")
        (change_tensor if file.endswith(".safetensors") else change_json)(folder / file, *change)
        found = failures(folder)
        assert found == set(quantities), (file, change, found)

    def shift(amount):
        return lambda value: value + amount

    grads = [name for name in tensor_names(copies.source / "expected.safetensors")
             if name.startswith("grad.")]
    down = next(name for name in grads if ".mlp.experts." in name and "down" in name)
    expected, packed = "expected.safetensors", "expected_packed.safetensors"
    expect(["logits"], expected, "logits_f64", 17, shift(1e-11))
    expect(["gradients"], expected, down, 5, shift(1e-8))
    expect(["hidden states"], expected, "hidden_f64.1", 3, shift(-1e-9))
    expect(["loss"], expected, "loss_f64", 0, shift(1e-10))
    expect(["cross-entropy"], expected, "loss_ce_f64", 0, shift(-1e-10))
    expect(["auxiliary loss"], expected, "aux_loss_f64", 0, shift(1e-10))
    layer = next(name for name in tensor_names(copies.source / expected)
                 if name.startswith("router_logits_f64."))
    index = layer.split(".")[1]
    expect(["router logits"], expected, layer, 4, shift(1e-9))
    expect(["top-k weights"], expected, f"topk_weights_f64.{index}", 2, shift(1e-9))
    expect(["packed: logits"], packed, "logits_f64", 7, shift(1e-9))
    expect(["packed: gradients, rounded to fp32"], packed, down, 1,
           lambda value: value * 1.0001 + 1e-4)
    expect(["packed sequence 2 alone: loss"], packed, "seq2.loss_f64", 0, shift(1e-9))

    def figure(*keys, amount):
        def change(value):
            for key in keys[:-1]:
                value = value[key]
            value[keys[-1]] += amount
        return change

    name = down.removeprefix("grad.")
    expect(["gradients' figures"], "expected.json",
           figure("grad_stats_fp64", name, "dot_cos", amount=1e-7))
    expect(["cross-entropy gradients' figures"], "expected.json",
           figure("grad_ce_only_stats_fp64", name, "sum", amount=1e-7))
    expect(["gradients' norm"], "expected.json", figure("grad_global_l2", amount=1e-8))
    expect(["packed: gradients' figures"], "expected.json",
           figure("packed", "grad_stats_fp64", name, "l2", amount=1e-7))
    expect(["tokens per expert"], "expected.json",
           figure("tokens_per_expert", index, 0, amount=1))
    expect(["router margin"], "expected.json", figure("min_router_margin", amount=1e-9))

    def training(*keys, amount):
        return figure("variants", "adamw_const", *keys, amount=amount)

    train, final = "train.json", "train_final.safetensors"
    for quantity, keys, amount in [("loss", ("fp64", "loss", 4), 1e-7),
                                   ("gradient norm", ("fp64", "grad_norm", 2), 1e-7),
                                   ("learning rate", ("lr", 1), 1e-12),
                                   ("afterwards, loss", ("fp64", "final_eval", "loss"), 1e-7)]:
        expect([f"adamw_const: {quantity}"], train, training(*keys, amount=amount),
               without=(final,))
    expect(["adamw_const: afterwards, parameters' figures"], train,
           training("final_param_stats_fp64", name, "sum", amount=1e-3), without=(final,))
    expect(["adamw_const: afterwards, parameters"], final, f"adamw_const/{name}", 3, shift(1e-4),
           without=())

    # Where the model has no gradient at all, none may be expected.
    stats = json.loads((copies.source / "expected.json").read_text())["grad_stats_fp64"]
    for name in (name for name, figures in stats.items() if figures["l2"] == 0):
        expect(["gradients"], expected, f"grad.{name}", 0, shift(1e-9))
        break


def expect_incomplete_to_fail(programs, source):
    """What is missing is named and fails; what is unknown, or of another length, is refused."""
    copies = Copies(source)
    expected, packed, final = ("expected.safetensors", "expected_packed.safetensors",
                               "train_final.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"

    def changed(file, change, training=False):
        folder = copies(() if training or file in TRAINING else TRAINING)
        (rewrite_tensors if file.endswith(".safetensors") else change_json)(folder / file, change)
        return folder

    def without(*keys):
        def change(value):
            for key in keys[:-1]:
                value = value[key]
            del value[keys[-1]]
        return change

    def renamed(old, new, *keys):
        def change(value):
            for key in keys:
                value = value[key]
            value[new] = value.pop(old)
        return change

    def expect_missing(whats, folder):
        out, _ = check_golden(programs, folder, exit_code=1)
        if not (folder / "train.json").exists():
            whats = [*whats, "train.json"]
        assert sorted(missing_in(out)) == sorted(whats), (whats, missing_in(out))
        assert f"1 folders, {len(whats)} expectations missing, " in out, out[-300:]
        assert " | FAIL" not in out, out[-300:]

    def all_without(folder, file, *keys):
        for key in keys:
            (rewrite_tensors if file.endswith(".safetensors") else change_json)(
                folder / file, without(*key))
        return [f"{file}: {'.'.join(key)}" for key in keys]

    # All that can be missing beside each other, and one alone of each file but those of the trainings;
    # --full: each alone.
    variant = "adamw_clip_cosine_nodecay1d"
    needed = {
        expected: [(f"grad.{name}",), ("hidden_f64.1",), ("router_logits_f64.1",), ("topk_indices.0",),
                   ("topk_weights_f64.0",), ("loss_ce_f64",), ("aux_loss_f64",)],
        packed: [("logits_f64",), (f"grad.{name}",), ("router_logits_f64.0",), ("loss_f64",),
                 ("seq2.loss_ce_f64",)],
        "expected.json": [("grad_global_l2",), ("grad_stats_fp64", name), ("grad_ce_only_stats_fp64", name),
                          ("grad_ce_global_l2",), ("min_router_margin",), ("tokens_per_expert", "1"),
                          ("fp64", "loss"), ("packed", "grad_stats_fp64", name),
                          ("packed", "fp64", "aux_loss"), ("packed", "grad_global_l2")]}
    of_trainings = {
        final: [(f"adamw_const/{name}",)],
        "train.json": [("variants", variant, "final_param_stats_fp64", name),
                       ("variants", variant, "fp64", "final_eval", "loss_ce"),
                       ("variants", "adamw_const_skip_missing_grad")]}
    for group, left_out, alone in [(needed, TRAINING, 1), (of_trainings, (), 0)]:
        for file, keys in group.items():
            for key in keys[:None if full else alone]:
                expect_missing([f"{file}: {'.'.join(key)}"], changed(file, without(*key)))
        folder = copies(left_out)
        expect_missing([what for file, keys in group.items() for what in all_without(folder, file, *keys)], folder)
    folder = changed("expected.json", lambda value: value["packed"]["seq_fp64"].pop())
    expect_missing([f"expected.json: packed.seq_fp64[1].{key}"
                    for key in ("loss", "loss_ce", "aux_loss")], folder)
    folder = changed("train.json", lambda value: value["variants"].clear())
    (folder / final).unlink()
    out, _ = check_golden(programs, folder, exit_code=1)
    assert "train.json: variants" in missing_in(out), missing_in(out)
    for file, what in [("train.json", "train.json"), ("expected.json", "expected.json"),
                       (packed, "the packed row")]:
        out, _ = check_golden(programs, copies([file, *TRAINING]), exit_code=1)
        assert what in missing_in(out), (what, missing_in(out))
    folder = copies([final])
    only_variant(folder, "adamw_clip_cosine")
    out, _ = check_golden(programs, folder, exit_code=1)
    assert f"{final}: adamw_clip_cosine/{name}" in missing_in(out), missing_in(out)

    def expect_refused(message, folder, ran=False):
        out, err = check_golden(programs, folder, exit_code=2)
        assert err.startswith(f"check_golden: {folder}: {message}"), (message, err)
        assert ran or "\n1 folders, 0 expectations missing, 0 quantities, " in out, out

    unknown_to_model = "the folder expects something of 'model.nrom.weight', which its model does " \
        "not have"
    for file, prefix in [(expected, "grad."), (packed, "grad."), (final, "adamw_const/")]:
        expect_refused(unknown_to_model, changed(file, renamed(f"{prefix}model.norm.weight",
                                                               f"{prefix}model.nrom.weight")))
    for keys in ["grad_stats_fp64"], ["grad_ce_only_stats_fp64"], ["packed", "grad_stats_fp64"]:
        expect_refused(unknown_to_model, changed(
            "expected.json", renamed("model.norm.weight", "model.nrom.weight", *keys)))
    for file, old, new in [(expected, "hidden_f64.2", "hiden_f64.2"),
                           (expected, "hidden_f64.2", "hidden_f64.3"),
                           (expected, "router_logits_f64.1", "router_logits_f64.7"),
                           (expected, "loss_ce_f64", "loss_ec_f64"),
                           (packed, "seq2.loss_f64", "seq3.loss_f64"),
                           (final, f"adamw_const/{name}", f"adamw_cosnt/{name}")]:
        expect_refused(f"{file}: '{new}' is unknown", changed(file, renamed(old, new)))
    for file, old, new, keys in [
            ("expected.json", "grad_stats_fp64", "grad_stat_fp64", []),
            ("expected.json", "loss", "lss", ["fp64"]),
            ("expected.json", "fp64", "f64", ["packed"]),
            ("train.json", "final_eval", "final_evl", ["variants", "adamw_const", "fp64"]),
            ("train.json", "final_param_stats_fp64", "final_stats", ["variants", "adamw_const"]),
            ("input.json", "position_ids", "postion_ids", [])]:
        place = f" {'.'.join(keys)}".replace(".adamw_const", " 'adamw_const'") if keys else ""
        expect_refused(f"{file}:{place} must have known keys alone, got '{new}'",
                       changed(file, renamed(old, new, *keys)))
    expect_refused("train.json: variants.adamw_cosnt is unknown to tolerance_measurements in "
                   "expected.json",
                   changed("train.json", renamed("adamw_const", "adamw_cosnt", "variants")))

    for place, key, wrong, count in [("", "seq_lens", [16, 15], "[16, 16]"),
                                     ("", "num_target_tokens", 31, "30"),
                                     ("packed.", "seq_lens", [9, 7], "[7, 9]")]:
        def miscount(value):
            (value["packed"] if place else value)[key] = wrong
        expect_refused(f"input.json: {place}{key} must be {count}, got ",
                       changed("input.json", miscount))
    # What says that less is expected.
    for bad in ["bogus", name]:
        expect_refused("expected.json: grad_tensors_not_stored must name weights of the model's "
                       f"experts, got '{bad}'", changed("expected.json", lambda value: value.update(
                           grad_tensors_not_stored=[bad])))
    folder = changed("expected.json", lambda value: value["tolerance_measurements"][
        "fp32alt_vs_fp64_hf"].update(train={}), training=True)
    change_json(folder / "train.json", lambda value: value.update(variants={}))
    (folder / final).unlink()
    expect_missing(["train.json: variants"], folder)

    def shortened(key):
        def change(tensors):
            dtype, shape, raw = tensors[key]
            tensors[key] = (dtype, [shape[0] - 1, *shape[1:]],
                            raw[:len(raw) // shape[0] * (shape[0] - 1)])
        return change

    expect_refused(f"{expected}: 'router_logits_f64.0' must be [32, 8], got [31, 8]",
                   changed(expected, shortened("router_logits_f64.0")))
    for file in (expected, packed):
        expect_refused("the folder expects [31] where its model gives [32]",
                       changed(file, shortened("grad.model.norm.weight")), ran=True)
    expect_refused("train.json: variants 'adamw_const'.fp64.loss must be one number for each of 30 "
                   "steps, got [", changed("train.json", lambda value: value["variants"][
                       "adamw_const"]["fp64"]["loss"].pop()))

    def other_run(value):
        runs = value["tolerance_measurements"]["fp32alt_vs_fp64_hf"]["train"]
        runs["adamw_const"]["aux_max_abs"] = 1e9
    expect_refused("adamw_const: another float32 run must be within 0.001 of the float64 run, got "
                   "1e+09", changed("expected.json", other_run, training=True), ran=True)


def expect_changed_pretrained_to_fail(programs, source):
    """A folder of a model that transformers 5 saved, wrong in one place: exit code 1."""
    copies = Copies(source)

    def failures(file, change):
        folder = copies()
        change(folder / file)
        out, _ = check_golden(programs, folder, exit_code=1)
        assert missing_in(out) == [], missing_in(out)
        return {quantity for _, quantity in failed_in(out)}

    def shifted(name, index, amount):
        return lambda path: change_tensor(path, name, index, lambda value: value + amount)

    expected, generation = "expected.safetensors", "generate.json"
    down = next(name for name in tensor_names(copies.source / expected)
                if name.startswith("grad_f64.") and name.endswith("experts.down_proj"))
    for quantity, change in [
            ("logits", shifted("logits_f64", 17, 1e-5)),
            ("loss", shifted("loss_f64", 0, 1e-5)),
            ("gradients", shifted(down, 5, 1e-3)),
            ("fp32: logits", shifted("logits_f32", 17, -1e-4)),
            ("fp32: loss", shifted("loss_f32", 0, -1e-4)),
            ("fp32: gradients", shifted(down.replace("f64", "f32"), 5, 1e-3))]:
        assert failures(expected, change) == {quantity}, quantity

    def other_token(path):
        def change(value):
            tokens = next(iter(value.values()))["greedy"]
            tokens[-1] = 0 if tokens[-1] != 0 else 1
        change_json(path, change)

    def other_margin(path):
        def change(value):
            next(iter(value.values()))["smallest_margin"] += 1e-4
        change_json(path, change)
    assert failures(generation, other_token) == {"greedy generation, other tokens"}
    assert failures(generation, other_margin) == {"greedy generation, smallest margin"}

    # Another model than the one that was run.
    for keys, quantities in [
            ({"rms_norm_eps": 1e-5}, {"logits", "gradients"}),
            ({"norm_topk_prob": False}, {"logits", "gradients"}),
            ({"rope_parameters": {"rope_theta": 11000.0, "rope_type": "default"}},
             {"logits", "gradients"}),
            ({"output_router_logits": True}, {"loss", "gradients"})]:
        found = failures("config.json", lambda path, keys=keys: change_json(
            path, lambda value: value.update(keys)))
        assert found >= quantities, (keys, found)
    folder = copies()
    change_json(folder / "config.json", lambda value: value.update(tie_word_embeddings=True))
    _, err = check_golden(programs, folder, exit_code=2)
    assert "load_pretrained: 'lm_head.weight' must equal 'model.embed_tokens.weight'" in err, err

    folder = copies([generation])
    gone = ["logits_f64", "loss_f32", down]
    rewrite_tensors(folder / expected, lambda tensors: [tensors.pop(name) for name in gone])
    out, _ = check_golden(programs, folder, exit_code=1)
    assert missing_in(out) == [f"{expected}: logits_f64", f"{expected}: {down}",
                               f"{expected}: loss_f32", generation], missing_in(out)


def expect_other_configurations_to_fail(programs, source, configurations):
    """A folder of a model whose configuration is another than the one that was run."""
    for keys in configurations:
        folder = Copies(source)()
        change_json(folder / "config.json", lambda value, keys=keys: value.update(keys))
        out, _ = check_golden(programs, folder, exit_code=1)
        failed = set(failed_in(out, " | fp64 | "))
        assert failed >= {(path, quantity) for path in PATHS for quantity in ["logits", "gradients"]}, \
            (keys, failed)


def expect_changed_dense_to_fail(programs, untied, tied):
    """Dense decoders whose configuration is another than the one that was run."""
    def check(source, keys, exit_code):
        folder = Copies(source)()
        change_json(folder / "config.json", lambda value: value.update(keys))
        return check_golden(programs, folder, exit_code=exit_code)

    for source, keys in [(untied, {"rms_norm_eps": 1e-5}), (tied, {"rms_norm_eps": 1e-6}),
                         (tied, {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}})]:
        out, _ = check(source, keys, 1)
        assert " | logits " in out.split("\n\n")[1], (keys, out)
    # The gradient of a tied parameter may be there under both names.
    folder, expected = Copies(tied)(), "expected.safetensors"
    name, second = "grad_f64.model.embed_tokens.weight", "grad_f64.lm_head.weight"
    rewrite_tensors(folder / expected, lambda tensors: tensors.update({second: tensors[name]}))
    check_golden(programs, folder, exit_code=0)
    change_tensor(folder / expected, second, 3, lambda value: value + 1e-3)
    check_golden(programs, folder, exit_code=1)
    # Without head_dim it is what Hugging Face's class has.
    for source, keys, message in [
            (tied, {"tie_word_embeddings": False}, "must have tensor 'lm_head.weight', got none"),
            (untied, {"head_dim": None}, "q_proj.weight' must be [512, 24], got [24, 24]"),
            (untied, {"attention_bias": True}, "config: attention_bias must be false, got true"),
            (untied, {"use_sliding_window": True}, "config: use_sliding_window must be false, got true"),
            (untied, {"partial_rotary_factor": 0.5}, "config: partial_rotary_factor must be 1.0, got 0.5"),
            (untied, {"rope_scaling": {"rope_type": "linear"}},
             'config: rope_scaling.rope_type must be "default", got "linear"'),
            (untied, {"num_experts": 4}, "config: num_experts must be absent or null, ")]:
        _, err = check(source, keys, 2)
        assert message in err, (keys, err)


def expect_changed_block_to_fail(programs, source):
    """A mixture block with one value changed, left out or added, and with another configuration."""
    copies = Copies(source)
    config = json.loads((source / "config.json").read_text())

    def failures(*change):
        folder = copies()
        change_tensor(folder / "block.safetensors", *change)
        out, _ = check_golden(programs, folder, exit_code=1)
        failed = failed_in(out)
        assert f"{len(failed)} past their limits" in out, out
        return set(failed)

    for name, quantity in [("grad.x", "grad.x"), ("grad.gate.weight", "grad.gate.weight"),
                           ("grad.experts.down_proj", "gradients"),
                           ("grad.shared_experts.up_proj.weight", "gradients")]:
        found = failures(name, 1, lambda value: value + 1e-3)
        assert found == {(path, quantity) for path in PATHS}, (name, found)
    # The routing weights follow from y, and all from them.
    assert failures("y", 1, lambda value: value + 1e-9) >= {(path, "y") for path in PATHS}
    assert failures("y", 1, lambda value: value + 1e-3) >= {
        (path, quantity) for path in PATHS for quantity in ["y", "routing weights"]}
    for name in ["x", "cotangent", "param.experts.gate_up_proj", "param.shared_experts.down_proj.weight"]:
        assert failures(name, 1, lambda value: value + 1e-3), name
    # The bias moves the choice of experts.
    assert {(path, "y") for path in PATHS} <= failures("buffer.gate.e_score_correction_bias", 0,
                                                            lambda value: value - 9)

    folder = copies()
    lost = ["y", "grad.x", "grad.experts.gate_up_proj", "param.gate.weight",
            "buffer.gate.e_score_correction_bias"]
    rewrite_tensors(folder / "block.safetensors", lambda tensors: [tensors.pop(name) for name in lost])
    out, _ = check_golden(programs, folder, exit_code=1)
    assert missing_in(out) == [f"block.safetensors: {name}" for name in sorted(lost)], out

    def expect_refused(message, tensors=lambda tensors: None, **keys):
        folder = copies()
        rewrite_tensors(folder / "block.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(config | keys))
        _, err = check_golden(programs, folder, exit_code=2)
        assert f"check_golden: {folder}: {message}" in err, (message, err)

    expect_refused("block.safetensors: 'grad.z' is unknown",
                   lambda tensors: tensors.update({"grad.z": tensors["grad.x"]}))
    expect_refused("block.safetensors: 'x' must be [1, tokens, hidden_size], got [32, 20]",
                   lambda tensors: tensors.update(
                       {"x": tensors["param.shared_experts.down_proj.weight"]}))
    expect_refused("block.safetensors: 'param.gate.weight' must be [8, 16], got [8, 32]",
                   hidden_size=16)
    for message, keys in [
            ("model_type must be \"deepseek_v3\" beside block.safetensors, got \"glm4_moe\"",
             {"model_type": "glm4_moe"}),
            ("scoring_func must be \"sigmoid\", got \"softmax\"", {"scoring_func": "softmax"}),
            ("topk_method must be \"noaux_tc\", got \"greedy\"", {"topk_method": "greedy"}),
            ("n_shared_experts must be an integer, got 1.5", {"n_shared_experts": 1.5})]:
        expect_refused("config.json: " + message, **keys)
    expect_refused("Router: num_groups must divide the 8 experts, got 3", n_group=3)
    expect_refused("Router: topk_groups must be in [1, 4] (num_groups), got 5", topk_group=5)
    expect_refused("Router: k must be in [1, 4], the experts of 2 of 4 groups, got 5",
                   num_experts_per_tok=5)
