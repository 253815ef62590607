# SPDX-License-Identifier: Apache-2.0
"""The models that make_golden.py makes folders of: small, each odd in another way."""
import torch

import torch_qwen3_moe as oracle

BASE_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
    "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False,
    "rope_scaling": None, "use_cache": False, "output_router_logits": True,
    "vocab_size": 53, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "max_position_embeddings": 128, "initializer_range": 0.15, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "moe_intermediate_size": 10, "num_experts": 6, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "router_aux_loss_coef": 0.01, "torch_dtype": "float32"}

CONSTANT = {"optimizer": "torch.optim.AdamW", "lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8,
            "weight_decay": 0.1, "clip": None, "schedule": "constant", "warmup_steps": 0,
            "no_decay_1d": False, "missing_grad": "zeros"}
COSINE = CONSTANT | {"clip": 1.0, "schedule": "cosine", "warmup_steps": 5}
VARIANTS = {"adamw_const": CONSTANT, "adamw_clip_cosine": COSINE,
            "adamw_clip_cosine_nodecay1d": COSINE | {"no_decay_1d": True},
            "adamw_const_skip_missing_grad": CONSTANT | {"missing_grad": "skip"}}
# Others than Hugging Face's own runs have: every number of the specification matters.
OTHER_VARIANTS = {
    "slow": CONSTANT | {"lr": 1e-3, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.02,
                        "no_decay_1d": True},
    "skip_clipped": COSINE | {"lr": 5e-3, "clip": 0.5, "warmup_steps": 2, "missing_grad": "skip"}}
STORED_FINALS = ("adamw_const", "adamw_clip_cosine", "slow")


def case(seed, config=None, batch=(2, 12), packed=(5, 7), train=(2, 10), steps=30, ignored=0.0,
         router=None, twins=None, variants=None, compact=False, transformers5=False):
    """`router`: expert -> how strongly the router favours it for every token. `twins`: how far the
    first layer's router is from confusing experts 0 and 1, for the tokens of the vocabulary's lower
    half; training has those of the upper half alone, whose choice no rounding changes. `compact`: leave out what the format
    allows to be absent."""
    return {"seed": seed, "config": BASE_CONFIG | (config or {}), "batch": batch, "packed": packed,
            "train": train, "steps": steps, "ignored": ignored, "router": router or {}, "twins": twins,
            "variants": variants or VARIANTS, "compact": compact, "transformers5": transformers5}


CASES = {
    "top_1": case(1, {"num_experts_per_tok": 1, "norm_topk_prob": False}),
    "top_1_normalized": case(2, {"num_experts_per_tok": 1}, steps=8),
    "top_all": case(3, {"num_experts": 4, "num_experts_per_tok": 4}, steps=8),
    "top_8_of_16": case(4, {"num_experts": 16, "num_experts_per_tok": 8}),
    "multi_head": case(5, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "narrow_heads": case(6, {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4}),
    "wide_heads": case(7, {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 14,
                           "rope_theta": 1e6}),
    "idle_expert": case(8, router={3: -4.0}),
    "busy_expert": case(9, {"num_experts_per_tok": 1}, router={1: 0.3}),
    "sparse_experts": case(10, {"num_experts": 24, "num_experts_per_tok": 1}, batch=(2, 9),
                           train=(1, 11), ignored=0.4),
    "one_row": case(11, {"vocab_size": 61}, batch=(1, 19), train=(1, 13)),
    "four_rows": case(12, {"vocab_size": 37}, batch=(4, 7), train=(4, 5), ignored=0.3),
    "short_rows": case(13, batch=(3, 2), packed=(2, 2), train=(5, 2), steps=8),
    "mostly_dense": case(14, {"num_hidden_layers": 4, "decoder_sparse_step": 3,
                              "tie_word_embeddings": True}),
    "listed_dense": case(15, {"num_hidden_layers": 3, "mlp_only_layers": [0, 2]}, ignored=0.2),
    "transformers_5": case(16, {"rope_theta": 5e5, "tie_word_embeddings": True}, steps=8,
                           transformers5=True),
    "three_packed": case(17, packed=(4, 2, 9), steps=7, variants=OTHER_VARIANTS),
    "near_ties": case(21, {"num_experts_per_tok": 1, "norm_topk_prob": False}, router={0: 0.6},
                      twins=3e-8, steps=8),
    "compact": case(18, {"num_hidden_layers": 3}, steps=8, compact=True),
}


def transformers5_keys(keys):
    """The spelling of transformers 5."""
    renamed = {"torch_dtype": "dtype", "num_experts": "num_local_experts"}
    result = {renamed.get(key, key): value for key, value in keys.items()
              if key not in ("rope_theta", "rope_scaling")}
    return result | {"rope_parameters": {"rope_theta": keys["rope_theta"], "rope_type": "default"},
                     "transformers_version": "5.8.0"}


def draw_weights(config, router, twins, generator):
    """float32; norm weights jittered so that a norm left out shows."""
    weights = {}
    for name, shape in oracle.parameter_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = 1 + 0.25 * noise if len(shape) == 1 else config.initializer_range * noise
    if router:  # a channel that every token has, and that the experts' router rows read
        weights["model.embed_tokens.weight"][:, 0] = 2.0
        for layer in config.moe_layers():
            weights[f"model.layers.{layer}.post_attention_layernorm.weight"][0] = 1.0
            for expert, strength in router.items():
                weights[f"model.layers.{layer}.mlp.gate.weight"][expert, 0] = strength
    if twins is not None:
        gate = weights[f"model.layers.{config.moe_layers()[0]}.mlp.gate.weight"]
        gate[1] = gate[0]
        gate[1, 1:] += twins * torch.randn(gate[0, 1:].shape, generator=generator)
        # Channel 1 of the residual stream tells the halves apart: attention adds nothing to it.
        gate[1, 1] -= 0.6
        embedding = weights["model.embed_tokens.weight"]
        embedding[:len(embedding) // 2, 1], embedding[len(embedding) // 2:, 1] = 0.0, 2.0
        weights["model.layers.0.self_attn.o_proj.weight"][1] = 0.0
        weights["model.layers.0.post_attention_layernorm.weight"][1] = 1.0
    return weights


def draw_batch(shape, vocabulary, ignored, generator, lowest=0):
    """(ids, labels) [B][S]: labels are the ids, some of them ignored, after a masked beginning."""
    ids = torch.randint(lowest, vocabulary, shape, generator=generator)
    labels = ids.clone()
    if ignored > 0:
        labels[torch.rand(shape, generator=generator) < ignored] = oracle.IGNORED
        labels[0, :2] = oracle.IGNORED
        labels[-1, -1] = ids[-1, -1]
    return ids.tolist(), labels.tolist()


def count_targets(labels):
    return sum(label != oracle.IGNORED for row in labels for label in row[1:])


def draw(case):
    """(config, weights, input.json, train.json) of a case."""
    generator = torch.Generator().manual_seed(case["seed"])
    keys = case["config"]
    config = oracle.Config(transformers5_keys(keys) if case["transformers5"] else keys)
    weights = draw_weights(config, case["router"], case["twins"], generator)
    (rows, length), lengths = case["batch"], case["packed"]
    ids, labels = draw_batch((rows, length), config.vocab_size, case["ignored"], generator)
    row, _ = draw_batch((1, sum(lengths)), config.vocab_size, 0.0, generator)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    targets = list(row[0])
    for bound in bounds[1:-1]:
        targets[bound] = oracle.IGNORED
    inputs = {
        "seed": case["seed"], "input_ids": ids, "labels": labels,
        "position_ids": [list(range(length))] * rows, "seq_lens": [length] * rows,
        "attention_mask": None, "num_target_tokens": count_targets(labels),
        "packed": {"input_ids": row[0], "labels": targets, "seq_lens": list(lengths),
                   "cu_seqlens": bounds,
                   "position_ids": [i for each in lengths for i in range(each)],
                   "num_target_tokens_per_seq": [each - 1 for each in lengths]}}
    lowest = 0 if case["twins"] is None else config.vocab_size // 2
    batches = [draw_batch(case["train"], config.vocab_size, case["ignored"], generator, lowest)
               for _ in range(case["steps"])]
    train = {"steps": case["steps"], "input_ids": [batch[0] for batch in batches],
             "labels": [batch[1] for batch in batches]}
    return config, weights, inputs, train


def leave_out(config, tensors, packed_tensors):
    """As d_larger: expert gradients in float32 and of the first layer alone, none of the packed row;
    no hidden states, no float32 router logits."""
    first = f".layers.{config.moe_layers()[0]}."
    for name in list(tensors):
        if ".experts." in name and first not in name:
            del tensors[name]
        elif ".experts." in name:
            tensors[name] = tensors[name].float()
        elif name.startswith(("hidden_f64", "router_logits_f32", "logits_f64_rope32")):
            del tensors[name]
    for name in list(packed_tensors):
        if ".experts." in name:
            del packed_tensors[name]
