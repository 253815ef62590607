# SPDX-License-Identifier: Apache-2.0
"""How large the terms are whose sums are results and gradients: rounding errors are relative to them."""
import math

import torch

from torch_ops import run_op

# Sums of products of inputs: the same op on absolute values gives the sizes of the terms.
SUMS_OF_PRODUCTS = {
    "add(Tensor, Tensor)", "sub", "mul(Tensor, Tensor)", "div", "operator+(Tensor, Tensor)",
    "operator-(Tensor, Tensor)", "operator*(Tensor, Tensor)", "operator/(Tensor, Tensor)",
    "expand", "index_select", "index_add", "gather", "scatter_add", "cumsum",
    "repeat_interleave(Tensor, int64, int64)", "repeat_interleave(Tensor, Tensor, int64)", "sum(Tensor)",
    "mean(Tensor)", "sum(Tensor, int64, bool)", "mean(Tensor, int64, bool)",
    "sum(Tensor, vector<int64>, bool)", "mean(Tensor, vector<int64>, bool)", "bmm", "outer", "einsum",
    "embedding", "matmul", "linear", "grouped_matmul(Tensor, Tensor, vector<int64>, bool)",
    "npu_gmm(Tensor, Tensor, vector<int64>)",
    "npu_grouped_matmul", "permute_rows", "unpermute_rows",
}


def row_mean(x):
    return x.mean(-1, keepdim=True)


def sigmoid(case, x, y, c):
    """c y (1 - y)"""
    return [c[0].abs() * y[0]]


def tanh(case, x, y, c):
    """c (1 - y^2)"""
    return [c[0].abs()]


def silu(case, x, y, c):
    """c s (1 + x (1 - s))"""
    return [c[0].abs() * torch.sigmoid(x[0]) * (1 + x[0].abs())]


def softmax(case, x, y, c):
    """y_i (c_i - <c, y>)"""
    dim = case["args"]["dim"]
    return [y[0] * (c[0].abs() + (c[0].abs() * y[0]).sum(dim, keepdim=True))]


def log_softmax(case, x, y, c):
    """c_i - exp(y_i) sum c"""
    return [c[0].abs() + y[0].exp() * c[0].abs().sum(case["args"]["dim"], keepdim=True)]


def summed_to(terms, x):
    """The gradient of an input that was broadcast."""
    return terms.sum_to_size(x.shape)


def pow(case, x, y, c):
    """c b a^(b - 1) and c a^b log a"""
    a, b = x
    return [summed_to((c[0] * b * a.pow(b - 1)).abs(), a), summed_to((c[0] * y[0] * a.log()).abs(), b)]


def picked(case, x, y, c):
    """The sum of c over what an input was broadcast to; exactly c or a part of it otherwise"""
    return [summed_to(c[0].abs(), t) if t.shape != c[0].shape else 0.0 for t in x]


def normalised(case, x, y):
    """w (x - mean) r + b"""
    r = torch.rsqrt(x[0].var(-1, unbiased=False, keepdim=True) + case["args"]["eps"])
    weights = [t.abs() for t in x[1:]]
    scaled = (x[0].abs() + row_mean(x[0].abs())) * r * (weights[0] if case["args"]["weight"] else 1)
    return [scaled + (weights[-1] if case["args"]["bias"] else 0)]


def layer_norm(case, x, y, c):
    """r (g - mean(g) - n mean(g n)) with g = c w, n = (x - mean) r; the gradient of w sums c n."""
    r = torch.rsqrt(x[0].var(-1, unbiased=False, keepdim=True) + case["args"]["eps"])
    g = c[0].abs() * (x[1].abs() if case["args"]["weight"] else 1)
    n = (x[0].abs() + row_mean(x[0].abs())) * r
    grad_x = r * (g + row_mean(g) + n * row_mean(g * n))
    rows = [(c[0].abs() * n).reshape(-1, n.shape[-1]).sum(0), 0.0]
    return [grad_x] + rows[:1 if case["args"]["weight"] else 0] + rows[1:] * case["args"]["bias"]


def variance(case, x, y, c):
    """k c (a - mean) with k = 2 / (n - correction), that of std 1 / ((n - correction) std): where the
    elements of a row are close, a and the rounded mean cancel."""
    dims = [case["args"]["dim"]] if "dim" in case["args"] else list(range(x[0].dim()))
    a = x[0].abs()
    terms = a + a.mean(dims, keepdim=True)
    row = terms.sum(dims, keepdim=True).shape
    n = math.prod(a.shape[dim] for dim in dims)
    k = (2 if case["op"].startswith("var") else 1 / y[0].reshape(row)) * c[0].abs().reshape(row)
    return [k * terms / torch.tensor(n - case["args"].get("correction", 1))]


def rms_norm(case, x, y, c):
    """r (c w - x r^2 <c w, x> / D); the gradient of the weight sums c x r."""
    r = torch.rsqrt(row_mean(x[0].pow(2)) + case["args"]["eps"])
    cw = (c[0] * x[1]).abs()
    grad_weight = (c[0] * x[0] * r).abs().reshape(-1, x[0].shape[-1]).sum(0)
    return [r * (cw + x[0].abs() * r.pow(2) * row_mean(cw * x[0].abs())), grad_weight]


def add_rms_norm(case, x, y, c):
    """The terms of the sum, and those of rms_norm."""
    grad_x, grad_weight = rms_norm(case, [y[0], x[2]], y[1:], c[1:])
    return [c[0].abs() + grad_x, c[0].abs() + grad_x, grad_weight]


def rms_norm_rope(case, x, y, c):
    """The terms of rms_norm for c rotated back."""
    cos, sin = (torch.cat([t, t], -1)[:, None].abs() for t in x[2:])
    left, right = c[0].abs().chunk(2, -1)
    rotated = c[0].abs() * cos + torch.cat([right, left], -1) * sin
    return [*rms_norm(case, x, y, [rotated]), 0.0, 0.0]


def attention(case, x, y, c):
    """scale sum_j p_j (c.v_j - c.o) k_j, and sum_t p_t c_t with the weights of a key, which are 1
    on average: of the means of their factors."""
    q, k, v = (t.abs().mean() for t in x[:3])
    score = case["args"]["scale"] * x[0].shape[2] * c[0].abs().mean() * v
    return [score * k, score * q, c[0].abs().mean()] + [0.0] * (len(x) - 3)


def topk_softmax(case, x, y, c):
    """w_j (c_j - <c, w>): nothing is left for a single normalised expert."""
    return [c[0].abs().mean(), 0.0]


def load_balancing_loss(case, x, y, c):
    """c / (layers T) p_e (load_e - <load, p>), the loads being K on average and p_e 1 / E."""
    layers = case["args"]["layers"]
    return [c[0].abs() / layers / max(1, x[0].numel()) * x[layers].shape[1]] * len(x)


def swiglu(case, x, y, c):
    """c up s (1 + a (1 - s)), c a s, times the weights; their gradients sum c a s up"""
    gate, up = x[0].chunk(2, -1)
    s = torch.sigmoid(gate)
    grad = torch.cat([(c[0] * up).abs() * s * (1 + gate.abs()), (c[0] * gate).abs() * s], -1)
    if len(x) == 1:
        return [grad]
    return [grad * x[1][:, None].abs(), ((c[0] * gate * up).abs() * s).sum(-1)]


GRADIENTS = {f.__name__: f for f in (
    sigmoid, tanh, silu, softmax, log_softmax, layer_norm, rms_norm, add_rms_norm, rms_norm_rope,
    attention, topk_softmax, load_balancing_loss, swiglu)}
GRADIENTS |= {"pow(Tensor, Tensor)": pow} | dict.fromkeys(
    ("var(Tensor)", "var(Tensor, int64, double, bool)", "std(Tensor)", "std(Tensor, int64, double, bool)"),
    variance) | dict.fromkeys(
    ("maximum(Tensor, Tensor)", "minimum(Tensor, Tensor)", "where(Tensor, Tensor, Tensor)",
     "where(Tensor, Tensor, double)", "where(Tensor, double, Tensor)"), picked)
RESULTS = {"layer_norm": normalised}


def sizes_of_terms(case, inputs, needs, outputs, cotangents):
    """For each result and for each input's gradient; 0 says nothing."""
    def wide(tensors):
        return [None if t is None else t.double() if t.is_floating_point() else t for t in tensors]

    x, y, c = wide(inputs), wide(outputs), wide(cotangents)
    if case["op"] in SUMS_OF_PRODUCTS:
        outputs, grads = run_op(case, [t.abs() for t in x], needs, [t.abs() for t in c])
        return ([t.abs() for t in outputs], [0.0 if t is None else t.abs() for t in grads])
    results, gradients = RESULTS.get(case["op"]), GRADIENTS.get(case["op"])
    return (results(case, x, y) if results else [0.0] * len(outputs),
            gradients(case, x, y, c) if gradients else [0.0] * len(inputs))
