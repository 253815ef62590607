# SPDX-License-Identifier: Apache-2.0
"""Makes golden folders (weights, inputs and what Qwen3-MoE must give for them) with torch alone, and
proves that given folders hold what this oracle computes.

    /usr/bin/python3 tests/models/causal_lm/make_golden.py make OUT [CASE...]
    /usr/bin/python3 tests/models/causal_lm/make_golden.py verify DIR...

`verify` exits with 1 when a float64 value differs by more than 1e-11 (over training: 1e-9).
"""
import argparse
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch

import golden_cases
import torch_qwen3_moe as oracle

DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64}
LIMIT, TRAINING_LIMIT, ROUNDED_TO_F32 = 1e-11, 1e-9, 6e-8


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: torch.from_numpy(np.frombuffer(
                data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]],
                DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy())
            for name, entry in header.items()}


def write_safetensors(path, tensors, metadata):
    arrays = {name: np.ascontiguousarray(t.detach().numpy()) for name, t in tensors.items()}
    spelling = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, offset = {"__metadata__": metadata}, 0
    for name in order:
        array = arrays[name]
        header[name] = {"dtype": spelling[array.dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(arrays[name].tobytes() for name in order))


def stats(tensors):
    result = {}
    for name, t in tensors.items():
        flat = t.detach().double().flatten()
        result[name] = {"l2": float(flat.norm()), "sum": float(flat.sum()),
                        "max_abs": float(flat.abs().max()),
                        "dot_cos": float(flat @ torch.arange(len(flat)).double().cos())}
    return result


def scalars(loss):
    return {"loss": float(loss.total), "loss_ce": float(loss.ce), "aux_loss": float(loss.aux)}


class Realisations:
    """The same model in float64, in float64 with rotary tables in float32, and in float32."""
    KINDS = {"f64": (torch.float64, None), "f64_rope32": (torch.float64, torch.float32),
             "f32": (torch.float32, None)}

    def __init__(self, config, weights, row):
        self.weights, self.outputs, self.losses = {}, {}, {}
        for kind, (dtype, rope_dtype) in self.KINDS.items():
            w = oracle.leaves(weights, dtype)
            self.weights[kind] = w
            self.outputs[kind] = oracle.forward(config, w, row, rope_dtype)
            self.losses[kind] = oracle.loss_of(config, self.outputs[kind], row)

    def gradients(self):
        return oracle.gradients(self.losses["f64"].total, self.weights["f64"])

    def ce_gradients(self):
        return oracle.gradients(self.losses["f64"].ce, self.weights["f64"])

    def loss_tensors(self, prefix="", kinds=tuple(KINDS)):
        return {f"{prefix}{key}_{kind}": torch.tensor([value], dtype=self.KINDS[kind][0])
                for kind in kinds for key, value in scalars(self.losses[kind]).items()}

    def loss_scalars(self):
        return {key: scalars(self.losses[kind]) for kind, key in
                (("f64", "fp64"), ("f32", "fp32"), ("f64_rope32", "fp64_rope32"))}


def counts(config, output):
    return {str(layer): torch.bincount(chosen.flatten(), minlength=config.num_experts).tolist()
            for layer, chosen in output.indices.items()}


def batch_values(config, weights, ids, labels):
    """(tensors of expected.safetensors, expected.json) of a batch [B][S]."""
    row = oracle.Row.of(ids, labels)
    runs = Realisations(config, weights, row)
    output, shape = runs.outputs["f64"], (len(ids), len(ids[0]))
    tensors = runs.loss_tensors()
    for kind, run in runs.outputs.items():
        tensors[f"logits_{kind}"] = run.logits.view(*shape, -1)
    for i, hidden in enumerate(output.hidden):
        tensors[f"hidden_f64.{i}"] = hidden.view(*shape, -1)
    for layer, chosen in output.indices.items():
        tensors[f"router_logits_f64.{layer}"] = output.router_logits[layer]
        tensors[f"router_logits_f32.{layer}"] = runs.outputs["f32"].router_logits[layer]
        tensors[f"topk_indices.{layer}"] = chosen
        tensors[f"topk_weights_f64.{layer}"] = output.weights[layer]
    grads, ce_grads = runs.gradients(), runs.ce_gradients()
    tensors |= {f"grad.{name}": grad for name, grad in grads.items()}
    skipped = oracle.gradients(runs.losses["f64"].total, runs.weights["f64"], "skip")
    values = {"num_params": sum(t.numel() for t in weights.values()), **runs.loss_scalars(),
              "moe_layers": config.moe_layers(), "tokens_per_expert": counts(config, output),
              "min_router_margin": oracle.router_margin(config, output),
              "params_without_grad_in_hf_4.55": [n for n, g in skipped.items() if g is None],
              "grad_global_l2": oracle.global_norm(grads),
              "grad_ce_global_l2": oracle.global_norm(ce_grads),
              "grad_stats_fp64": stats(grads), "grad_ce_only_stats_fp64": stats(ce_grads)}
    return tensors, values


def packed_values(config, weights, packed):
    """The same of one row that holds several sequences, each also run alone."""
    bounds = packed["cu_seqlens"]

    def cut(begin, end):
        return oracle.Row.of([packed["input_ids"][begin:end]], [packed["labels"][begin:end]])

    parts = [cut(begin, end) for begin, end in zip(bounds, bounds[1:])]
    row = oracle.Row(torch.tensor(packed["input_ids"]), torch.tensor(packed["labels"]),
                     torch.tensor(packed["position_ids"]), bounds)
    runs = Realisations(config, weights, row)
    output = runs.outputs["f64"]
    tensors = runs.loss_tensors(kinds=("f64", "f32"))
    tensors |= {"logits_f64": output.logits, "logits_f32": runs.outputs["f32"].logits}
    for layer, logits in output.router_logits.items():
        tensors[f"router_logits_f64.{layer}"] = logits
    alone = []
    for i, part in enumerate(parts, 1):
        run = Realisations(config, weights, part)
        tensors |= run.loss_tensors(f"seq{i}.", ("f64", "f32"))
        alone.append(scalars(run.losses["f64"]))
    grads = runs.gradients()
    tensors |= {f"grad.{name}": grad.float() for name, grad in grads.items()}
    mixed_up = oracle.Row.of([packed["input_ids"]], [packed["labels"]])
    w = runs.weights["f64"]
    wrong = oracle.loss_of(config, oracle.forward(config, w, mixed_up), mixed_up)
    both = runs.loss_scalars()
    values = {"fp64": both["fp64"], "fp32": both["fp32"], "seq_fp64": alone,
              "grad_global_l2": oracle.global_norm(grads), "grad_stats_fp64": stats(grads),
              "min_router_margin": oracle.router_margin(config, output),
              "wrong_loss_if_sequences_attend_to_each_other": float(wrong.total)}
    return tensors, values


def permuted(config, weights, order):
    """The same function with hidden channels in another order: other sums in float32."""
    axis = {"o_proj": 0, "down_proj": 0, "layernorm": 0, "norm": 0}
    result = {}
    for name, t in weights.items():
        kind = next((key for key in axis if name.endswith(f"{key}.weight")), None)
        per_head = "q_norm" in name or "k_norm" in name
        result[name] = t if per_head else t.index_select(axis.get(kind, t.ndim - 1), order)
    return result


def distances(trace, final, other_trace, other_final):
    """How far another run went, as tolerance_measurements says it."""
    differences = {name: other_final[name].double() - t for name, t in final.items()}
    return {"aux_max_abs": max(abs(a - b) for a, b in
                               zip(trace["aux_loss"], other_trace["aux_loss"])),
            "final_param_max_abs": max(float(t.abs().max()) for t in differences.values()),
            "final_param_rel_l2": oracle.global_norm(differences) / oracle.global_norm(final)}


def training_values(config, weights, train, spec, full):
    """(values of one variant in train.json, float64 parameters afterwards). Without `full`, only
    what float64 gives."""
    def rows(reverse=False):
        step = -1 if reverse else 1
        return [oracle.Row.of(ids[::step], labels[::step])
                for ids, labels in zip(train["input_ids"], train["labels"])]

    trace, rates, final = oracle.train(config, weights, rows(), spec, torch.float64)
    values = {"spec": spec, "lr": rates, "fp64": trace, "final_param_stats_fp64": stats(final)}
    if not full:
        return values, final
    values["fp32"], _, final32 = oracle.train(config, weights, rows(), spec, torch.float32)
    del values["fp32"]["min_router_margin"]
    values["fp32"]["final_eval"] = final32  # evaluated by the caller, as float64's
    order = torch.randperm(config.hidden_size, generator=torch.Generator().manual_seed(1))
    other, _, other_final = oracle.train(config, permuted(config, weights, order),
                                         rows(reverse=True), spec, torch.float32)
    values["other_run"] = distances(trace, final, other,
                                    permuted(config, other_final, order.argsort()))
    rope32 = oracle.train(config, weights, rows(), spec, torch.float64, torch.float32)[0]
    for key, run in (("fp32_alt_order", other), ("fp64_rope32", rope32)):
        values[key] = {name: run[name] for name in ("loss", "grad_norm")}
    return values, final


def evaluate(config, weights, row):
    return scalars(oracle.loss_of(config, oracle.forward(config, weights, row), row))


def read_case(folder):
    def read(name):
        return json.loads((folder / name).read_text())
    config, stored = oracle.Config(read("config.json")), read_safetensors(folder / "model.safetensors")
    shapes = oracle.parameter_shapes(config)
    assert {name: tuple(t.shape) for name, t in stored.items()} == shapes, folder
    return config, {name: stored[name] for name in shapes}, read("input.json")


def make(folder, name):
    case = golden_cases.CASES[name]
    folder.mkdir(parents=True, exist_ok=True)

    def write(file, value):
        (folder / file).write_text(json.dumps({"case": name, **value}, indent=1))

    config, weights, inputs, train = golden_cases.draw(case)
    (folder / "config.json").write_text(json.dumps(config.keys, indent=1))
    write_safetensors(folder / "model.safetensors", weights, {"format": "pt"})
    write("input.json", inputs)
    tensors, values = batch_values(config, weights, inputs["input_ids"], inputs["labels"])
    packed_tensors, values["packed"] = packed_values(config, weights, inputs["packed"])
    row = oracle.Row.of(inputs["input_ids"], inputs["labels"])
    finals, others, train["variants"] = {}, {}, {}
    for variant, spec in case["variants"].items():
        run, final = training_values(config, weights, train, spec, full=True)
        run["fp64"]["final_eval"] = evaluate(config, final, row)
        run["fp32"]["final_eval"] = evaluate(config, run["fp32"]["final_eval"], row)
        others[variant] = run.pop("other_run")
        train["variants"][variant] = run
        if variant in golden_cases.STORED_FINALS:
            finals |= {f"{variant}/{key}": t.float() for key, t in final.items()}
    if case["compact"]:
        golden_cases.leave_out(config, tensors, packed_tensors)
    values["tolerance_measurements"] = {"fp32alt_vs_fp64_hf": {"train": others}}
    values["grad_tensors_not_stored"] = [n for n in weights if f"grad.{n}" not in tensors]
    write("expected.json", values)
    write("train.json", train)
    write_safetensors(folder / "expected.safetensors", tensors, {"case": name})
    write_safetensors(folder / "expected_packed.safetensors", packed_tensors, {"case": name})
    if not case["compact"]:
        write_safetensors(folder / "train_final.safetensors", finals, {"case": name})


class Differences:
    """The largest differences from a folder's values, by kind."""

    def __init__(self):
        self.worst = {}

    def note(self, kind, limit, value):
        self.worst[kind] = max(self.worst.get(kind, (0.0, limit)), (value, limit))

    def tensors(self, expected, ours):
        for name, t in expected.items():
            kind = name.split(".")[0]
            if "f32" in kind or "rope32" in kind or ".aux_loss_f32" in name or "_f32" in name:
                continue
            mine = ours[name].to(t.dtype).reshape(t.shape)
            if t.dtype == torch.int64:
                same = torch.equal(mine.sort(-1).values, t.sort(-1).values)
                self.note(kind, 0.0, float(not same))
            elif kind == "grad" or "/" in kind:
                norm = float(t.double().norm())
                limit = LIMIT if t.dtype == torch.float64 else ROUNDED_TO_F32
                self.note(f"{kind} {t.dtype}", limit,
                          float((mine.double() - t.double()).norm()) / (norm or 1.0))
            else:
                self.note(name.rstrip("0123456789."), LIMIT, float((mine - t).abs().max()))

    def values(self, kind, limit, expected, ours):
        """Numbers anywhere in `expected`, relative to max(1, |x|)."""
        if isinstance(expected, dict):
            for key, value in expected.items():
                if key in ours:
                    self.values(kind, limit, value, ours[key])
        elif isinstance(expected, list):
            for value, mine in zip(expected, ours, strict=True):
                self.values(kind, limit, value, mine)
        elif expected is None or isinstance(expected, str):
            self.note(kind, 0.0, float(expected != ours))
        else:
            self.note(kind, limit, abs(expected - ours) / max(1.0, abs(expected)))


def verify(folder):
    config, weights, inputs = read_case(folder)
    train = json.loads((folder / "train.json").read_text())
    expected = json.loads((folder / "expected.json").read_text())
    differences = Differences()
    tensors, values = batch_values(config, weights, inputs["input_ids"], inputs["labels"])
    packed_tensors, values["packed"] = packed_values(config, weights, inputs["packed"])
    differences.tensors(read_safetensors(folder / "expected.safetensors"), tensors)
    differences.tensors(read_safetensors(folder / "expected_packed.safetensors"), packed_tensors)
    for part in (expected, expected["packed"], values["packed"]):
        for key in ("fp32", "fp64_rope32"):
            part.pop(key, None)
    differences.values("expected.json", LIMIT, expected, values)
    row = oracle.Row.of(inputs["input_ids"], inputs["labels"])
    finals = {}
    for variant, run in train["variants"].items():
        ours, final = training_values(config, weights, train, run["spec"], full=False)
        ours["fp64"]["final_eval"] = evaluate(config, final, row)
        finals |= {f"{variant}/{name}": t for name, t in final.items()}
        assert len(run["fp64"]["loss"]) == train["steps"]
        for key in ("lr", "fp64", "final_param_stats_fp64"):
            differences.values(f"{variant} {key}", TRAINING_LIMIT, run[key], ours[key])
    if (folder / "train_final.safetensors").exists():
        differences.tensors(read_safetensors(folder / "train_final.safetensors"), finals)
    good = True
    for kind, (value, limit) in sorted(differences.worst.items()):
        good = good and value <= limit
        print(f"{folder.name}  {kind:46} {value:8.1e} {limit:8.1e} {'ok' if value <= limit else 'FAIL'}")
    return good


def main():
    torch.set_num_threads(1)  # small tensors: faster, and the same sums everywhere
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("cases", nargs="*", choices=[*golden_cases.CASES, []])
    commands.add_parser("verify").add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "verify":
        sys.exit(0 if all([verify(folder) for folder in arguments.folders]) else 1)
    for name in arguments.cases or golden_cases.CASES:
        make(arguments.out / name, name)


if __name__ == "__main__":
    main()
