# SPDX-License-Identifier: Apache-2.0
"""Makes golden folders of the form in which transformers 5 leaves a model, with torch alone, for models
that the golden data do not have.

    /usr/bin/python3 tests/models/causal_lm/make_pretrained.py OUT
"""
import json
import sys
from pathlib import Path

import torch

import golden_cases
import torch_qwen3_moe as oracle
from make_golden import write_safetensors

MIXTURE_KEYS = ("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "num_experts",
                "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef", "output_router_logits")
# Each: what differs from the base configuration, and whether it is a dense decoder.
CASES = {
    "dense": ({}, True),
    "dense_tied": ({"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1,
                    "head_dim": 10, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_hidden_layers": 3},
                   True),
    "mixture_balanced": ({"num_experts": 5, "num_experts_per_tok": 3, "mlp_only_layers": [0],
                          "num_hidden_layers": 3, "router_aux_loss_coef": 0.1}, False),
    "mixture_tied": ({"tie_word_embeddings": True, "norm_topk_prob": False,
                      "output_router_logits": False, "router_aux_loss_coef": 0.1}, False),
    # The router's exact gradient is zero.
    "mixture_top_1": ({"num_experts_per_tok": 1, "output_router_logits": False}, False),
}


def fused(config, grads):
    """Experts as transformers 5 keeps them: gate_up_proj [E, 2I, H], down_proj [E, H, I]."""
    result = {name: grad for name, grad in grads.items() if ".experts." not in name}
    for layer in config.moe_layers():
        prefix = f"model.layers.{layer}.mlp.experts"
        of = [{part: grads[f"{prefix}.{e}.{part}_proj.weight"] for part in ("gate", "up", "down")}
              for e in range(config.num_experts)]
        result[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat([e["gate"], e["up"]]) for e in of])
        result[f"{prefix}.down_proj"] = torch.stack([e["down"] for e in of])
    return result


def generate(config, weights, prompt, count):
    tokens, margins = list(prompt), []
    for _ in range(count):
        with torch.no_grad():
            logits = oracle.forward(config, weights, oracle.Row.of([tokens], [tokens])).logits[-1]
        best = logits.topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
    return {"prompt": list(prompt), "greedy": tokens[len(prompt):], "smallest_margin": min(margins)}


def make(folder, seed, changes, dense):
    generator = torch.Generator().manual_seed(seed)
    keys = golden_cases.BASE_CONFIG | changes
    if dense:  # to the oracle, a mixture without mixture layers
        keys |= {"mlp_only_layers": list(range(keys["num_hidden_layers"])), "model_type": "qwen3",
                 "output_router_logits": False}
    config = oracle.Config(keys)
    weights = golden_cases.draw_weights(config, {}, None, generator)
    ids = torch.randint(config.vocab_size, (2, 9), generator=generator)
    tensors = {"input_ids": ids}
    for kind, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        w = oracle.leaves(weights, dtype)
        row = oracle.Row.of(ids.tolist(), ids.tolist())
        output = oracle.forward(config, w, row)
        if keys["output_router_logits"]:
            loss = oracle.loss_of(config, output, row).total
        else:
            loss = torch.nn.functional.cross_entropy(output.logits, row.targets(),
                                                     ignore_index=oracle.IGNORED)
        tensors[f"logits_{kind}"] = output.logits.view(*ids.shape, -1)
        tensors[f"loss_{kind}"] = loss.detach().float().view(1)
        grads = fused(config, oracle.gradients(loss, w))
        tensors |= {f"grad_{kind}.{name}": grad for name, grad in grads.items()}
    prompts = [ids[0, :n].tolist() for n in (1, 5)]
    generations = {str(len(p)): generate(config, oracle.leaves(weights, torch.float32), p, 12)
                   for p in prompts}
    folder.mkdir(parents=True)
    saved = golden_cases.transformers5_keys(keys)
    if dense:
        dropped = (*MIXTURE_KEYS, "num_local_experts")
        saved = {key: value for key, value in saved.items() if key not in dropped}
        saved["architectures"] = ["Qwen3ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(saved, indent=1))
    (folder / "generate.json").write_text(json.dumps(generations))
    write_safetensors(folder / "model.safetensors", weights, {"format": "pt"})
    write_safetensors(folder / "expected.safetensors", tensors, {})


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, (changes, dense)) in enumerate(CASES.items()):
        make(Path(sys.argv[1]) / name, seed, changes, dense)
