# SPDX-License-Identifier: Apache-2.0
"""Qwen3-MoE in plain torch operations, from Hugging Face's description of the model: an oracle that
shares no code with the C++ library. Weights carry Hugging Face's names.

Shapes: T tokens, H hidden size, N heads of D, E experts, K experts per token.
"""
import math
from dataclasses import dataclass, field

import torch
from torch.nn.functional import linear, silu

IGNORED = -100


@dataclass
class Config:
    """What config.json says, in the spelling of transformers 4 or 5."""
    keys: dict

    def __getattr__(self, name):
        return self.keys[name]

    @property
    def rope_theta(self):
        return self.keys.get("rope_parameters", self.keys)["rope_theta"]

    @property
    def num_experts(self):
        return self.keys.get("num_experts", self.keys.get("num_local_experts"))

    def is_moe(self, layer):
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    def moe_layers(self):
        return [layer for layer in range(self.num_hidden_layers) if self.is_moe(layer)]


@dataclass
class Row:
    """Sequences one after the other: sequence i is tokens [bounds[i], bounds[i + 1])."""
    ids: torch.Tensor
    labels: torch.Tensor  # unshifted, as in Hugging Face
    positions: torch.Tensor
    bounds: list

    @staticmethod
    def of(sequences, labels):
        bounds = [0]
        for sequence in sequences:
            bounds.append(bounds[-1] + len(sequence))
        flat = [torch.tensor(sum(lists, [])) for lists in (sequences, labels)]
        positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])
        return Row(*flat, positions, bounds)

    def targets(self):
        """The label after each token; none at the end of a sequence."""
        shifted = torch.cat([self.labels[1:], torch.tensor([IGNORED])])
        shifted[torch.tensor(self.bounds[1:]) - 1] = IGNORED
        return shifted


@dataclass
class Output:
    logits: torch.Tensor = None  # [T, V]
    hidden: list = field(default_factory=list)  # layers + 1 of [T, H], the last one normed
    router_logits: dict = field(default_factory=dict)  # layer -> [T, E]
    indices: dict = field(default_factory=dict)  # layer -> [T, K]
    weights: dict = field(default_factory=dict)  # layer -> [T, K]


@dataclass
class Loss:
    total: torch.Tensor
    ce: torch.Tensor
    aux: torch.Tensor


def parameter_shapes(config):
    """Name -> shape, in the order of Hugging Face's named_parameters()."""
    hidden, dim = config.hidden_size, config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}

    def mlp(prefix, inner):
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)),
                            ("down", (hidden, inner))):
            shapes[f"{prefix}.{name}_proj.weight"] = shape

    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for name, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads),
                            ("v", config.num_key_value_heads)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (heads * dim, hidden)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, config.num_attention_heads * dim)
        shapes[f"{prefix}.self_attn.q_norm.weight"] = (dim,)
        shapes[f"{prefix}.self_attn.k_norm.weight"] = (dim,)
        if config.is_moe(layer):
            shapes[f"{prefix}.mlp.gate.weight"] = (config.num_experts, hidden)
            for expert in range(config.num_experts):
                mlp(f"{prefix}.mlp.experts.{expert}", config.moe_intermediate_size)
        else:
            mlp(f"{prefix}.mlp", config.intermediate_size)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def rope_tables(config, positions, dtype, rope_dtype):
    """cos and sin [T, 1, D]; frequency theta^(-2i/D) in both halves."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(rope_dtype)
    frequencies = 1.0 / (config.rope_theta ** (steps / config.head_dim))
    angles = torch.outer(positions.to(rope_dtype), frequencies)
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rms_norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def attention(config, w, prefix, x, rope, bounds):
    """Causal within each sequence; query head n reads key/value head n // (Nq / Nkv)."""
    def heads(name):
        return linear(x, w[f"{prefix}.{name}_proj.weight"]).view(len(x), -1, config.head_dim)

    q = rotate(rms_norm(heads("q"), w[f"{prefix}.q_norm.weight"], config.rms_norm_eps), *rope)
    k = rotate(rms_norm(heads("k"), w[f"{prefix}.k_norm.weight"], config.rms_norm_eps), *rope)
    v = heads("v")
    group = config.num_attention_heads // config.num_key_value_heads
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    mixed = []
    for begin, end in zip(bounds, bounds[1:]):
        qs, ks, vs = (t[begin:end].transpose(0, 1) for t in (q, k, v))  # [N, L, D]
        scores = qs @ ks.transpose(1, 2) * config.head_dim ** -0.5
        future = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        p = scores.masked_fill(future, -math.inf).softmax(-1)
        mixed.append((p @ vs).transpose(0, 1).reshape(end - begin, -1))
    return linear(torch.cat(mixed), w[f"{prefix}.o_proj.weight"])


def swiglu(w, prefix, x):
    gate, up = (linear(x, w[f"{prefix}.{name}_proj.weight"]) for name in ("gate", "up"))
    return linear(silu(gate) * up, w[f"{prefix}.down_proj.weight"])


def mixture(config, w, layer, x, output):
    """Softmax over all experts, then the K largest. Experts without tokens are not touched."""
    prefix = f"model.layers.{layer}.mlp"
    logits = linear(x, w[f"{prefix}.gate.weight"])
    weights, indices = logits.softmax(-1).topk(config.num_experts_per_tok, dim=-1)
    if config.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    output.router_logits[layer], output.indices[layer], output.weights[layer] = (
        logits, indices, weights)
    result = torch.zeros_like(x)
    for expert in indices.unique().tolist():
        tokens, slots = torch.where(indices == expert)
        y = swiglu(w, f"{prefix}.experts.{expert}", x[tokens]) * weights[tokens, slots, None]
        result = result.index_add(0, tokens, y)
    return result


def forward(config, w, row, rope_dtype=None):
    output = Output()
    x = w["model.embed_tokens.weight"][row.ids]  # [T, H]
    rope = rope_tables(config, row.positions, x.dtype, rope_dtype or x.dtype)
    output.hidden.append(x)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        normed = rms_norm(x, w[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        x = x + attention(config, w, f"{prefix}.self_attn", normed, rope, row.bounds)
        normed = rms_norm(x, w[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        x = x + (mixture(config, w, layer, normed, output) if config.is_moe(layer)
                 else swiglu(w, f"{prefix}.mlp", normed))
        output.hidden.append(x)
    output.hidden[-1] = rms_norm(x, w["model.norm.weight"], config.rms_norm_eps)
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    output.logits = linear(output.hidden[-1], w[f"{head}.weight"])
    return output


def load_balancing_loss(config, output):
    """E sum_slots sum_e f P over the rows of all layers together; f, the share of rows whose slot
    is e, carries no gradient."""
    p = torch.cat(list(output.router_logits.values())).softmax(-1)
    chosen = torch.cat(list(output.indices.values()))
    one_hot = torch.nn.functional.one_hot(chosen, config.num_experts).to(p.dtype)  # [rows, K, E]
    return config.num_experts * (one_hot.mean(0) * p.mean(0)).sum()


def loss_of(config, output, row):
    ce = torch.nn.functional.cross_entropy(output.logits, row.targets(), ignore_index=IGNORED)
    aux = load_balancing_loss(config, output)
    return Loss(ce + config.router_aux_loss_coef * aux, ce, aux)


def leaves(weights, dtype):
    return {name: t.detach().to(dtype, copy=True).requires_grad_() for name, t in weights.items()}


def gradients(scalar, w, missing="zeros"):
    """Name -> gradient. Parameters that the graph does not reach get zeros, or None for "skip"."""
    found = torch.autograd.grad(scalar, list(w.values()), retain_graph=True, allow_unused=True)
    return {name: torch.zeros_like(t) if g is None and missing == "zeros" else g
            for (name, t), g in zip(w.items(), found)}


def global_norm(grads):
    return math.sqrt(sum(float(g.double().pow(2).sum()) for g in grads.values() if g is not None))


def learning_rate(spec, step, steps):
    """Hugging Face's get_cosine_schedule_with_warmup, or the constant."""
    warmup = spec["warmup_steps"]
    if spec["schedule"] == "constant":
        return spec["lr"]
    if step < warmup:
        return spec["lr"] * step / warmup
    return spec["lr"] * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def router_margin(config, output):
    """Smallest gap between the k-th and the next router logit over all tokens and layers; None when
    every expert is chosen."""
    k = config.num_experts_per_tok
    if k == config.num_experts:
        return None
    gaps = []
    for logits in output.router_logits.values():
        ordered = logits.sort(-1, descending=True).values
        gaps.append(float((ordered[:, k - 1] - ordered[:, k]).min()))
    return min(gaps)


def train(config, weights, rows, spec, dtype, rope_dtype=None):
    """torch.optim.AdamW along `rows`: (trace, parameters afterwards)."""
    w = leaves(weights, dtype)
    decay = [t for t in w.values() if t.ndim >= 2 or not spec["no_decay_1d"]]
    rest = [t for t in w.values() if t.ndim < 2 and spec["no_decay_1d"]]
    groups = [{"params": decay, "weight_decay": spec["weight_decay"]}]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=spec["lr"], betas=tuple(spec["betas"]),
                                  eps=spec["eps"], foreach=False)
    trace = {key: [] for key in ("loss", "loss_ce", "aux_loss", "grad_norm", "min_router_margin")}
    rates = [learning_rate(spec, step, len(rows)) for step in range(len(rows))]
    for row, rate in zip(rows, rates):
        output = forward(config, w, row, rope_dtype)
        loss = loss_of(config, output, row)
        grads = gradients(loss.total, w, spec["missing_grad"])
        norm = global_norm(grads)
        scale = 1.0 if spec["clip"] is None else min(1.0, spec["clip"] / (norm + 1e-6))
        for name, t in w.items():
            t.grad = None if grads[name] is None else grads[name] * scale
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        for key, value in (("loss", loss.total), ("loss_ce", loss.ce), ("aux_loss", loss.aux)):
            trace[key].append(float(value))
        trace["grad_norm"].append(norm)
        trace["min_router_margin"].append(router_margin(config, output))
    return trace, rates, {name: t.detach() for name, t in w.items()}
