# SPDX-License-Identifier: Apache-2.0
"""The ops of the op table in PyTorch."""
import math

import torch
import torch.nn.functional as F


def one(function):
    """An op of one result."""
    return lambda x, a: [function(x, a)]


def rms_norm(x, a):
    return x[0] * torch.rsqrt(x[0].pow(2).mean(-1, keepdim=True) + a["eps"]) * x[1]


def add_rms_norm(x, a):
    total = x[0] + x[1]
    return [total, rms_norm([total, x[2]], a)]


def swiglu(x, a):
    gate, up = x[0].chunk(2, -1)
    y = F.silu(gate) * up
    return y * x[1][:, None] if len(x) > 1 else y


def bias_swiglu(x, a):
    gate, up = (x[0] + x[1]).chunk(2, -1)
    return F.silu(gate) * up


def cross_entropy(x, a):
    ignored = a.get("ignore_index", -100)
    if a.get("per_token") or a.get("z_loss_coef"):
        valid = x[1] != ignored
        weights = valid * (x[2] if len(x) > 2 else 1.0)
        losses = F.cross_entropy(x[0], x[1], ignore_index=ignored, reduction="none",
                                 label_smoothing=a.get("smoothing", 0.0))
        losses = losses + a.get("z_loss_coef", 0.0) * torch.logsumexp(x[0], 1) ** 2
        return (weights * losses).sum() / a.get("denominator", weights.sum())
    weights = x[2] if len(x) > 2 else torch.ones(x[0].shape[1], dtype=x[0].dtype)
    total = F.cross_entropy(x[0], x[1], weights, ignore_index=ignored, reduction="sum",
                            label_smoothing=a.get("smoothing", 0.0))
    counted = weights[x[1][x[1] != ignored]].sum()
    return total / a.get("denominator", counted if counted > 0 else 1)


def nll_loss(x, a):
    return F.nll_loss(x[0], x[1], x[2] if len(x) > 2 else None, ignore_index=a.get("ignore_index", -100),
                      reduction=a["reduction"])


def layer_norm(x, a):
    return F.layer_norm(x[0], x[0].shape[-1:], x[1] if a["weight"] else None,
                        x[-1] if a["bias"] else None, a["eps"])


def fnv1a(text):
    result = 0xcbf29ce484222325
    for byte in text.encode():
        result = (result ^ byte) * 0x100000001b3 % 2**64
    return result


def philox(seed, purpose, index):
    """Philox4x32-10 of Salmon et al. (2011), with the counter (index, purpose) and the key seed."""
    key = [seed % 2**32, seed >> 32]
    counter = [index % 2**32, index >> 32, fnv1a(purpose) % 2**32, fnv1a(purpose) >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b % 2**32, (a >> 32) ^ counter[3] ^ key[1], a % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def ids_of(x, position, n):
    return x[position].tolist() if len(x) > position else list(range(n))


def keep(x, kept, p):
    return torch.where(kept, x / (1 - p), torch.zeros_like(x))


def words_of(x, a):
    """A word for each element of x[0]."""
    rows = x[0].shape[0]
    width = x[0].numel() // max(1, rows)
    draws = (width + 3) // 4
    words = [[word for d in range(draws)
              for word in philox(a["seed"], a["purpose"], (i * draws + d) % 2**64)][:width]
             for i in ids_of(x, 1, rows)]
    return torch.tensor(words, dtype=torch.float64).reshape(x[0].shape)


def dropout(x, a):
    return keep(x[0], words_of(x, a) >= a["p"] * 2**32, a["p"])


def jitter(x, a):
    return x[0] * (1 + a["noise"] * (words_of(x, a) / 2**31 - 1)).to(x[0].dtype)


def kept_pairs(a, heads, ids):
    words = {}

    def is_kept(head, query, key):
        draw = (head, query, key // 4)
        if draw not in words:
            words[draw] = philox(a["seed"], f"{a['purpose']} head {head}", (query << 32) + key // 4)
        return words[draw][key % 4] >= a["p"] * 2**32

    kept = [[[is_kept(h, q, k) for k in ids] for q in ids] for h in range(heads)]
    return torch.tensor(kept, dtype=torch.bool).reshape(heads, len(ids), len(ids))


def attention_dropout(x, a):
    return keep(x[0], kept_pairs(a, x[0].shape[0], ids_of(x, 1, x[0].shape[1])), a["p"])


def attention(x, a):
    q, k, v = x[:3]
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    has_allowed = a.get("allowed", False)
    ids = ids_of(x, 4 if has_allowed else 3, q.shape[0])
    out = []
    for begin, end in zip(a["cu_seqlens"], a["cu_seqlens"][1:]):
        scores = torch.einsum("thd,jhd->htj", q[begin:end], k[begin:end]) * a["scale"]
        everywhere = torch.ones(end - begin, end - begin, dtype=torch.bool)
        hidden = everywhere.triu(1) & (a.get("mask") != "full")
        if "window" in a:
            hidden = hidden | everywhere.tril(-a["window"])
        if has_allowed:
            hidden = hidden | ~x[3][..., begin:end, begin:end]
        p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1).masked_fill(hidden, 0)
        if "p" in a:
            p = keep(p, kept_pairs(a, q.shape[1], ids[begin:end]), a["p"])
        out.append(torch.einsum("htj,jhd->thd", p, v[begin:end]))
    return torch.cat(out)


def rope_table(x, a):
    inv_freq = 1.0 / a["theta"] ** (torch.arange(0, a["head_dim"], 2).double() / a["head_dim"])
    angles = torch.outer(x[0].double(), inv_freq)
    dtype = getattr(torch, a["dtype"])
    return [angles.cos().to(dtype), angles.sin().to(dtype)]


def rope(x, a):
    """apply_rotary_pos_emb of Hugging Face, whose tables hold each angle twice."""
    cos, sin = (torch.cat([t, t], -1)[:, None] for t in x[1:])
    left, right = x[0].chunk(2, -1)
    return x[0] * cos + torch.cat([-right, left], -1) * sin


def partial_rope(x, a):
    rotated = 2 * x[1].shape[1]
    return torch.cat([rope([x[0][..., :rotated], *x[1:]], a), x[0][..., rotated:]], -1)


def rms_norm_rope(x, a):
    return rope([rms_norm(x, a), *x[2:]], a)


def grouped(x, weights, ends):
    begins = [0, *ends]
    return torch.cat([x[b:e] @ w for b, e, w in zip(begins, ends, weights)])


def grouped_matmul(x, a):
    weights = x[1].transpose(1, 2) if a["transpose_weight"] else x[1]
    return grouped(x[0], weights, a["offsets"][1:])


def npu_gmm(x, a):
    counts = a["tokens_per_expert"]
    weights = x[0].reshape(len(counts), x[1].shape[1], -1)
    return grouped(x[1], weights, torch.tensor(counts).cumsum(0).tolist())


def npu_grouped_matmul(x, a):
    tensors, rest = x[:a["x"]], x[a["x"]:]
    weights, rest = rest[:a["weights"]], rest[a["weights"]:]
    if weights[0].dim() == 3:
        weights = list(weights[0])
    if a["transpose_weight"]:
        weights = [w.T for w in weights]
    groups = torch.tensor(a["group_list"]) if "group_list" in a else rest[0] if rest else None
    if groups is not None and a["group_list_type"] == 2:
        weights = [weights[e] for e in groups[:, 0].tolist()]
        groups = groups[:, 1]
    if groups is not None:
        ends = (groups if a["group_list_type"] == 0 else groups.cumsum(0)).tolist()
    if a["group_type"] == 2:
        begins = [0, *ends]
        return [torch.stack([tensors[0][b:e].T @ weights[0][b:e] for b, e in zip(begins, ends)])]
    if a["x"] > 1 or a["group_type"] == -1:
        products = [t @ w for t, w in zip(tensors, weights)]
        return products if a["group_type"] == -1 else [torch.cat(products)]
    return [grouped(tensors[0], weights, ends)]


def topk_softmax(x, a):
    # A stable sort: torch.topk says nothing of ties.
    best = torch.sort(x[0], dim=-1, descending=True, stable=True)[1][:, :a["k"]]
    indices = x[1] if len(x) > 1 else best
    weights = torch.softmax(x[0], -1).gather(1, indices)
    return [weights / weights.sum(-1, keepdim=True) if a["normalize"] else weights, indices]


def choose_experts(x, a):
    choice = x[0] + (x[1] if a["bias"] else 0)
    tokens, experts, groups = *choice.shape, a["groups"]
    by_group = choice.reshape(tokens, groups, experts // groups)
    group_scores = by_group.topk(min(2, experts // groups), -1)[0].sum(-1)
    best = torch.sort(group_scores, dim=-1, descending=True, stable=True)[1][:, :a["topk_groups"]]
    masked = torch.full_like(by_group, -torch.inf)
    rows = torch.arange(tokens)[:, None]
    masked[rows, best] = by_group[rows, best]
    return torch.sort(masked.reshape(tokens, experts), dim=-1, descending=True, stable=True)[1][:, :a["k"]]


def topk_sigmoid(x, a):
    scores = torch.sigmoid(x[0])
    indices = x[-1] if a["replay"] else choose_experts([scores.detach(), *x[1:]], a)
    weights = scores.gather(1, indices)
    return [weights / weights.sum(-1, keepdim=True) if a["normalize"] else weights, indices]


def plan_routing(x, a):
    slot_of_row = torch.sort(x[0].flatten(), stable=True)[1]
    counts = torch.bincount(x[0].flatten(), minlength=a["experts"])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return [torch.sort(slot_of_row)[1], slot_of_row, offsets, counts, torch.tensor(x[0].shape)]


def permute_rows(x, a):
    return x[0][plan_routing(x[1:], a)[1] // x[1].shape[1]]


def unpermute_rows(x, a):
    return x[0][plan_routing(x[1:], a)[0]].reshape(*x[1].shape, x[0].shape[1]).sum(1)


def load_balancing_loss(x, a):
    """load_balancing_loss_func of Hugging Face, with weights for a mask."""
    layers = a["layers"]
    p = torch.softmax(torch.cat(x[:layers]), -1)
    chosen = F.one_hot(torch.cat(x[layers:2 * layers]), p.shape[1]).to(p.dtype)
    weights = x[2 * layers].repeat(layers) if len(x) > 2 * layers else torch.ones_like(p[:, 0])
    if weights.sum() == 0:
        return (p * 0).sum()
    weights = weights / weights.sum()
    tokens_per_expert = (chosen * weights[:, None, None]).sum(0)
    return (tokens_per_expert * (p * weights[:, None]).sum(0)).sum() * p.shape[1]


def expert_load(x, a):
    layers = a["layers"]
    chosen = F.one_hot(torch.cat(x[:layers]), a["experts"]).double()
    if len(x) > layers:
        chosen = chosen * x[layers].double().repeat(layers)[:, None, None]
    return chosen.sum((0, 1))


def balance_share(x, a):
    if a["total"] == 0:
        return (x[0] * 0).sum()
    p = torch.softmax(x[0], -1)
    if len(x) > 1:
        p = p * x[1][:, None]
    load = torch.tensor(a["load"], dtype=p.dtype)
    return (p.sum(0) * load).sum() * x[0].shape[1] / a["total"] ** 2


def z_loss(x, a):
    squares = torch.logsumexp(x[0], -1) ** 2
    return squares.mean() if len(squares) else squares.sum()


def fractal_nz(matrices):
    """[B, K, N] as padded columns of 16 x 16 blocks, flat."""
    batch, k, n = matrices.shape
    padded = matrices.new_zeros(batch, k + -k % 16, n + -n % 16)
    padded[:, :k, :n] = matrices
    blocks = padded.reshape(batch, padded.shape[1], padded.shape[2] // 16, 16)
    return blocks.permute(0, 2, 1, 3).flatten()


def slice_to_nz(x, a):
    return fractal_nz(x[0].narrow(a["dim"], a["start"], a["end"] - a["start"]).reshape(a["blocks"]))


def cast(x, a):
    result = x[0]
    for name in a["dtypes"]:
        result = result.to(getattr(torch, name))
    return result


def einsum(x, a):
    return torch.einsum(a["equation"].replace(" ", ""), x[0], x[1])


def limit(value):
    return {"inf": math.inf, "-inf": -math.inf}.get(value, value)


def stable_order(x, dim, descending):
    """torch.topk and torch.max say nothing of ties, which this order settles."""
    return torch.sort(x, dim=dim, descending=descending, stable=True)[1]


def picked(x, dim, indices):
    return [x.gather(dim, indices), indices]


def has_ties(x, dim):
    return bool((torch.sort(x, dim=dim)[0].diff(dim=dim) == 0).any())


def extreme(name):
    def run(x, a):
        if has_ties(x[0], a["dim"]):
            first = stable_order(x[0], a["dim"], name == "max").narrow(a["dim"], 0, 1)
            both = picked(x[0], a["dim"], first)
            return both if a["keepdim"] else [y.squeeze(a["dim"]) for y in both]
        return list(getattr(torch, name)(x[0], dim=a["dim"], keepdim=a["keepdim"]))
    return run


def arg_extreme(name):
    def run(x, a):
        if has_ties(x[0], a["dim"]):
            return extreme(name)(x, a)[1:]
        return [getattr(torch, "arg" + name)(x[0], dim=a["dim"], keepdim=a["keepdim"])]
    return run


def whole_extreme(name, of):
    """PyTorch divides the gradient among equal ones; argmax says nothing of ties."""
    def run(x, a):
        if has_ties(x[0].flatten(), 0):
            return of(name)([x[0].flatten()], {"dim": 0, "keepdim": False})[:1]
        return [getattr(torch, name if of is extreme else "arg" + name)(x[0])]
    return run


def topk(x, a):
    if has_ties(x[0], a["dim"]):
        return picked(x[0], a["dim"],
                      stable_order(x[0], a["dim"], a["largest"]).narrow(a["dim"], 0, a["k"]))
    return list(torch.topk(x[0], a["k"], dim=a["dim"], largest=a["largest"]))


def std(x, a):
    n = x[0].shape[a["dim"]]
    whole = torch.std(x[0], dim=a["dim"], correction=0, keepdim=a["keepdim"])
    return whole * math.sqrt(n / (n - a["correction"])) if n != a["correction"] else whole * math.nan


def var(x, a):
    n = x[0].shape[a["dim"]]
    whole = torch.var(x[0], dim=a["dim"], correction=0, keepdim=a["keepdim"])
    return whole * (n / (n - a["correction"])) if n != a["correction"] else whole * math.nan


def reduction(function):
    return one(lambda x, a: function(x[0], dim=a["dim"], keepdim=a["keepdim"]))


# f(inputs, args) -> results, by the key of the entry
OPS = {
    # elementwise
    **{name: one(lambda x, a, f=getattr(torch, name): f(x[0])) for name in (
        "neg", "abs", "exp", "log", "log1p", "sin", "cos", "sqrt", "rsqrt", "square", "sigmoid", "tanh",
        "relu")},
    "gelu": one(lambda x, a: F.gelu(x[0])),
    "softplus": one(lambda x, a: -F.logsigmoid(-x[0])),
    "gelu_tanh": one(lambda x, a: F.gelu(x[0], approximate="tanh")),
    "clamp": one(lambda x, a: torch.clamp(x[0], limit(a["least"]), limit(a["most"]))),
    "maximum(Tensor, Tensor)": one(lambda x, a: torch.maximum(x[0], x[1])),
    "minimum(Tensor, Tensor)": one(lambda x, a: torch.minimum(x[0], x[1])),
    "maximum(Tensor, double)": one(lambda x, a: torch.maximum(x[0], x[0].new_tensor(a["number"]))),
    "minimum(Tensor, double)": one(lambda x, a: torch.minimum(x[0], x[0].new_tensor(a["number"]))),
    "pow(Tensor, Tensor)": one(lambda x, a: torch.pow(x[0], x[1])),
    "pow(Tensor, double)": one(lambda x, a: torch.pow(x[0], a["number"])),
    "pow(double, Tensor)": one(lambda x, a: torch.pow(a["number"], x[0])),
    "silu": one(lambda x, a: F.silu(x[0])),
    "sub": one(lambda x, a: torch.sub(x[0], x[1])),
    "div": one(lambda x, a: torch.div(x[0], x[1])),
    "add(Tensor, Tensor)": one(lambda x, a: torch.add(x[0], x[1])),
    "mul(Tensor, Tensor)": one(lambda x, a: torch.mul(x[0], x[1])),
    "add(Tensor, double)": one(lambda x, a: torch.add(x[0], a["number"])),
    "mul(Tensor, double)": one(lambda x, a: torch.mul(x[0], a["number"])),
    "operator+(Tensor, Tensor)": one(lambda x, a: x[0] + x[1]),
    "operator-(Tensor, Tensor)": one(lambda x, a: x[0] - x[1]),
    "operator*(Tensor, Tensor)": one(lambda x, a: x[0] * x[1]),
    "operator/(Tensor, Tensor)": one(lambda x, a: x[0] / x[1]),
    "operator+(Tensor, double)": one(lambda x, a: x[0] + a["number"]),
    "operator-(Tensor, double)": one(lambda x, a: x[0] - a["number"]),
    "operator*(Tensor, double)": one(lambda x, a: x[0] * a["number"]),
    "operator/(Tensor, double)": one(lambda x, a: x[0] / a["number"]),
    "operator+(double, Tensor)": one(lambda x, a: a["number"] + x[0]),
    "operator-(double, Tensor)": one(lambda x, a: a["number"] - x[0]),
    "operator*(double, Tensor)": one(lambda x, a: a["number"] * x[0]),
    "operator/(double, Tensor)": one(lambda x, a: a["number"] / x[0]),
    "operator-(Tensor)": one(lambda x, a: -x[0]),
    # shapes
    "view": one(lambda x, a: x[0].view(a["shape"])),
    "reshape": one(lambda x, a: x[0].reshape(a["shape"])),
    "transpose": one(lambda x, a: x[0].transpose(a["dim0"], a["dim1"])),
    "permute": one(lambda x, a: x[0].permute(a["dims"])),
    "narrow": one(lambda x, a: x[0].narrow(a["dim"], a["start"], a["length"])),
    "split(Tensor, int64, int64)": lambda x, a: x[0].split(a["size"], a["dim"]),
    "split(Tensor, vector<int64>, int64)": lambda x, a: x[0].split(a["sizes"], a["dim"]),
    "chunk": lambda x, a: x[0].chunk(a["n"], a["dim"]),
    "select": one(lambda x, a: x[0].select(a["dim"], a["i"])),
    "flatten": one(lambda x, a: x[0].flatten(a["start_dim"], a["end_dim"])),
    "unsqueeze": one(lambda x, a: x[0].unsqueeze(a["dim"])),
    "squeeze": one(lambda x, a: x[0].squeeze(a["dim"])),
    "expand": one(lambda x, a: x[0].expand(a["shape"])),
    "contiguous": one(lambda x, a: x[0].transpose(0, -1) if a["transposed"] else x[0]),
    "clone": one(lambda x, a: x[0].clone()),
    "cat": one(lambda x, a: torch.cat(x, a["dim"])),
    "stack": one(lambda x, a: torch.stack(x, a["dim"])),
    # masks; torch_oracle.py looks for the names in this text
    "eq(Tensor, Tensor)": one(lambda x, a: torch.eq(x[0], x[1])),
    "ne(Tensor, Tensor)": one(lambda x, a: torch.ne(x[0], x[1])),
    "lt(Tensor, Tensor)": one(lambda x, a: torch.lt(x[0], x[1])),
    "le(Tensor, Tensor)": one(lambda x, a: torch.le(x[0], x[1])),
    "gt(Tensor, Tensor)": one(lambda x, a: torch.gt(x[0], x[1])),
    "ge(Tensor, Tensor)": one(lambda x, a: torch.ge(x[0], x[1])),
    "eq(Tensor, double)": one(lambda x, a: torch.eq(x[0], a["number"])),
    "ne(Tensor, double)": one(lambda x, a: torch.ne(x[0], a["number"])),
    "lt(Tensor, double)": one(lambda x, a: torch.lt(x[0], a["number"])),
    "le(Tensor, double)": one(lambda x, a: torch.le(x[0], a["number"])),
    "gt(Tensor, double)": one(lambda x, a: torch.gt(x[0], a["number"])),
    "ge(Tensor, double)": one(lambda x, a: torch.ge(x[0], a["number"])),
    "logical_and": one(lambda x, a: torch.logical_and(x[0], x[1])),
    "logical_or": one(lambda x, a: torch.logical_or(x[0], x[1])),
    "logical_not": one(lambda x, a: torch.logical_not(x[0])),
    "isnan": one(lambda x, a: torch.isnan(x[0])),
    "any(Tensor)": one(lambda x, a: torch.any(x[0])),
    "all(Tensor)": one(lambda x, a: torch.all(x[0])),
    "any(Tensor, int64, bool)": reduction(torch.any),
    "all(Tensor, int64, bool)": reduction(torch.all),
    "nonzero": one(lambda x, a: torch.nonzero(x[0])),
    "where(Tensor, Tensor, Tensor)": one(lambda x, a: torch.where(x[0], x[1], x[2])),
    "where(Tensor, double, Tensor)": one(
        lambda x, a: torch.where(x[0], torch.tensor(a["number"]).to(x[1].dtype), x[1])),
    "where(Tensor, Tensor, double)": one(
        lambda x, a: torch.where(x[0], x[1], torch.tensor(a["number"]).to(x[1].dtype))),
    "masked_fill": one(lambda x, a: x[0].masked_fill(x[1], a["value"])),
    # by index
    "index_select": one(lambda x, a: torch.index_select(x[0], a["dim"], x[1])),
    "index_add": one(lambda x, a: x[0].index_add(a["dim"], x[1], x[2])),
    "gather": one(lambda x, a: x[0].gather(a["dim"], x[1])),
    "scatter_add": one(lambda x, a: x[0].scatter_add(a["dim"], x[1], x[2])),
    "repeat_interleave(Tensor, int64, int64)": one(
        lambda x, a: x[0].repeat_interleave(a["n"], a["dim"])),
    "repeat_interleave(Tensor, Tensor, int64)": one(
        lambda x, a: x[0].repeat_interleave(x[1], a["dim"])),
    "one_hot": one(lambda x, a: F.one_hot(x[0], a["num_classes"])),
    "flip": one(lambda x, a: x[0].flip(a["dims"])),
    "max(Tensor, int64, bool)": extreme("max"),
    "min(Tensor, int64, bool)": extreme("min"),
    "argmax(Tensor, int64, bool)": arg_extreme("max"),
    "argmin(Tensor, int64, bool)": arg_extreme("min"),
    "max(Tensor)": whole_extreme("max", extreme),
    "min(Tensor)": whole_extreme("min", extreme),
    "argmax(Tensor)": whole_extreme("max", arg_extreme),
    "argmin(Tensor)": whole_extreme("min", arg_extreme),
    "topk": topk,
    "sort": lambda x, a: picked(x[0], a["dim"], stable_order(x[0], a["dim"], a["descending"])),
    "cast": one(cast),
    # reductions and rows
    "sum(Tensor)": one(lambda x, a: torch.sum(x[0])),
    "mean(Tensor)": one(lambda x, a: torch.mean(x[0])),
    "sum(Tensor, int64, bool)": reduction(torch.sum),
    "mean(Tensor, int64, bool)": reduction(torch.mean),
    "sum(Tensor, vector<int64>, bool)": reduction(torch.sum),
    "mean(Tensor, vector<int64>, bool)": reduction(torch.mean),
    "var(Tensor, int64, double, bool)": one(var),
    "std(Tensor, int64, double, bool)": one(std),
    "var(Tensor)": one(lambda x, a: torch.var(x[0])),
    "std(Tensor)": one(lambda x, a: torch.std(x[0])),
    "logsumexp": reduction(torch.logsumexp),
    "cumsum": one(lambda x, a: torch.cumsum(x[0], a["dim"])),
    "softmax": one(lambda x, a: torch.softmax(x[0], a["dim"])),
    "log_softmax": one(lambda x, a: torch.log_softmax(x[0], a["dim"])),
    "layer_norm": one(layer_norm),
    "mse_loss": one(lambda x, a: F.mse_loss(x[0], x[1], reduction=a["reduction"])),
    "binary_cross_entropy_with_logits": one(lambda x, a: F.binary_cross_entropy_with_logits(
        x[0], x[1], pos_weight=x[2] if len(x) > 2 else None, reduction=a["reduction"])),
    "nll_loss": one(nll_loss),
    "kl_div": one(lambda x, a: F.kl_div(
        x[0], x[1], reduction=a["reduction"], log_target=a.get("log_target", False))),
    "rms_norm": one(rms_norm),
    "add_rms_norm": add_rms_norm,
    "swiglu": one(swiglu),
    # tokens
    "embedding": one(lambda x, a: F.embedding(x[0], x[1])),
    "attention": one(attention),
    "dropout": one(dropout),
    "jitter": one(jitter),
    "attention_dropout": one(attention_dropout),
    "bias_gelu": one(lambda x, a: F.gelu(x[0] + x[1])),
    "bias_swiglu": one(bias_swiglu),
    "rope_table": rope_table,
    "rope": one(rope),
    "partial_rope": one(partial_rope),
    "rms_norm_rope": one(rms_norm_rope),
    # products
    "matmul": one(lambda x, a: torch.matmul(x[0], x[1])),
    "bmm": one(lambda x, a: torch.bmm(x[0], x[1])),
    "outer": one(lambda x, a: torch.outer(x[0], x[1])),
    "einsum": one(einsum),
    "matmul_reference": one(lambda x, a: torch.matmul(x[0], x[1])),
    "linear": one(lambda x, a: F.linear(x[0], x[1])),
    "grouped_matmul(Tensor, Tensor, vector<int64>, bool)": one(grouped_matmul),
    "npu_gmm(Tensor, Tensor, vector<int64>)": one(npu_gmm),
    "npu_grouped_matmul": npu_grouped_matmul,
    # experts and losses
    "topk_softmax": topk_softmax,
    "choose_experts": one(choose_experts),
    "topk_sigmoid": topk_sigmoid,
    "plan_routing": plan_routing,
    "permute_rows": one(permute_rows),
    "unpermute_rows": one(unpermute_rows),
    "load_balancing_loss": one(load_balancing_loss),
    "expert_load": one(expert_load),
    "balance_share": one(balance_share),
    "z_loss": one(z_loss),
    "cross_entropy": one(cross_entropy),
    "linear_cross_entropy": one(lambda x, a: cross_entropy([F.linear(x[0], x[1]), *x[2:]], a)),
    "router_entropy": one(lambda x, a: torch.special.entr(torch.softmax(x[0], -1)).sum()),
    "count_targets": one(lambda x, a: (x[0] != a["ignore_index"]).sum()),
    # FRACTAL_NZ
    "nd_to_nz": one(lambda x, a: fractal_nz(x[0] if x[0].dim() == 3 else x[0][None])),
    "nz_to_nd": one(lambda x, a: x[0]),
    "slice_to_nz": one(slice_to_nz),
}


def run_op(case, inputs, needs, cotangents):
    """The results, and the gradients of the inputs that need one."""
    leaves = [x.detach().clone().requires_grad_(need) for x, need in zip(inputs, needs)]
    outputs = list(OPS[case["op"]](leaves, case["args"]))
    roots = [(y, c) for y, c in zip(outputs, cotangents) if y.requires_grad]
    if roots:
        torch.autograd.backward(*zip(*roots))
    grads = [torch.zeros_like(x) if need and x.grad is None else x.grad
             for x, need in zip(leaves, needs)]
    return [y.detach() for y in outputs], grads
