#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of the model of bench_train_step.cpp in PyTorch, eager, float32, on CPU.

Qwen3-MoE with experts over sorted tokens: one argsort, one slice of rows per expert. Prints
`loss N` (last step), `tokens/s N` (median step) and `peak RSS N MiB`. Runs on PyTorch 1.13 and newer;
an option that needs a newer one than it finds ends the program with a message.
"""
import argparse
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--moe", choices=["sorted"], default="sorted")
parser.add_argument("--sdpa", action="store_true",
                    help="attention by scaled_dot_product_attention, of PyTorch 2.0 and newer")
parser.add_argument("--fused-adamw", action="store_true",
                    help="AdamW in one kernel, of PyTorch 2.4 and newer")
parser.add_argument("--bf16-autocast", action="store_true",
                    help="forward under torch.autocast, products in bfloat16")
for name, value in {"hidden": 512, "layers": 4, "heads": 8, "kv-heads": 2, "head-dim": 64,
                    "experts": 32, "topk": 4, "moe-inter": 256, "vocab": 4096, "seq": 512,
                    "batch": 4, "steps": 5, "warmup": 2}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()
if options.sdpa and not hasattr(F, "scaled_dot_product_attention"):
    parser.error(f"--sdpa: needs PyTorch 2.0 or newer, got {torch.__version__}")
torch.set_num_threads(options.threads)
torch.manual_seed(0)


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        size, heads, groups = options.head_dim, options.heads, options.kv_heads
        self.q_proj = nn.Linear(options.hidden, heads * size, bias=False)
        self.k_proj = nn.Linear(options.hidden, groups * size, bias=False)
        self.v_proj = nn.Linear(options.hidden, groups * size, bias=False)
        self.o_proj = nn.Linear(heads * size, options.hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(size), RMSNorm(size)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape

        def heads(y):
            return y.view(batch, length, -1, options.head_dim)

        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        k, v = (y.repeat_interleave(options.heads // options.kv_heads, 1) for y in (k, v))
        if options.sdpa:
            out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * options.head_dim**-0.5 + mask
            out = scores.softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        inner, hidden = options.moe_inter, options.hidden
        self.gate = nn.Linear(hidden, options.experts, bias=False)
        self.gate_up = nn.ParameterList(
            nn.Parameter(torch.randn(2 * inner, hidden) * hidden**-0.5)
            for _ in range(options.experts))
        self.down = nn.ParameterList(
            nn.Parameter(torch.randn(hidden, inner) * inner**-0.5) for _ in range(options.experts))

    def forward(self, x):
        rows = x.reshape(-1, options.hidden)
        weights, chosen = self.gate(rows).float().softmax(-1).topk(options.topk, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        token = order // options.topk
        counts = chosen.bincount(minlength=options.experts).tolist()
        outputs = []
        for part, gate_up, down in zip(rows[token].split(counts), self.gate_up, self.down):
            gate, up = F.linear(part, gate_up).chunk(2, -1)
            outputs.append(F.linear(F.silu(gate) * up, down))
        outputs = torch.cat(outputs) * weights.flatten()[order, None]
        return torch.zeros_like(rows).index_add_(0, token, outputs).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = RMSNorm(options.hidden), RMSNorm(options.hidden)
        self.attention, self.experts = Attention(), Experts()

    def forward(self, x, *rope_and_mask):
        x = x + self.attention(self.norm_1(x), *rope_and_mask)
        return x + self.experts(self.norm_2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(options.vocab, options.hidden)
        self.layers = nn.ModuleList(Layer() for _ in range(options.layers))
        self.norm = RMSNorm(options.hidden)
        self.head = nn.Linear(options.hidden, options.vocab, bias=False)
        power = torch.arange(0, options.head_dim, 2) / options.head_dim
        angle = torch.arange(options.seq)[:, None] * 1e6**-power
        angle = torch.cat((angle, angle), -1)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.mask = torch.full((options.seq, options.seq), float("-inf")).triu(1)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(parameters):
    if not options.fused_adamw:
        return torch.optim.AdamW(parameters, lr=3e-4)
    try:
        return torch.optim.AdamW(parameters, lr=3e-4, fused=True)
    except (TypeError, RuntimeError):  # no such argument; a kernel for GPUs alone
        parser.error(f"--fused-adamw: needs PyTorch 2.4 or newer, got {torch.__version__}")


model = Model()
optimizer = adamw(model.parameters())
text = torch.randint(options.vocab, (options.batch, options.seq + 1))
tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
seconds = []
for _ in range(options.warmup + options.steps):
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16_autocast):
        loss = model(tokens, targets)
    loss.backward()
    optimizer.step()
    loss.item()
    seconds.append(time.perf_counter() - begin)
print(f"loss {loss.item():.4f}")
print(f"tokens/s {tokens.numel() / statistics.median(seconds[options.warmup:]):.0f}")
print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
