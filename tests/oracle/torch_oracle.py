# SPDX-License-Identifier: Apache-2.0
"""Compares ops, gradients, optimizers, gradient clipping and schedules with PyTorch on random numbers.

    torch_oracle.py path/to/oracle_dump

Each run draws fresh numbers; MOEGRAD_ORACLE_SEED repeats a run. Where there is no PyTorch, it only
checks that the cases are made and that torch_ops.py has each op, and exits with 77.
"""
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path


def make_cases(program, seed, folder):
    subprocess.run([program, seed, folder], check=True)


def check_names(program):
    """That torch_ops.py names each op of the cases."""
    with tempfile.TemporaryDirectory() as folder:
        make_cases(program, "1", folder)
        cases = json.loads((Path(folder) / "cases.json").read_text())["ops"]
    named = Path(__file__).with_name("torch_ops.py").read_text()
    missing = {case["op"] for case in cases if f'"{case["op"]}"' not in named}
    assert cases and not missing, missing


try:
    import numpy as np
    import torch
except ImportError:
    check_names(sys.argv[1])
    print("skipped: python3-torch is not installed; ./tests/run.sh --with-oracle installs it")
    sys.exit(77)

from torch_ops import OPS, run_op
from torch_terms import sizes_of_terms

# Relative to the element, to the mean size of all elements (tests/ops/op_table_test.h) and to the
# terms of which an element is the sum, since on some random numbers they cancel (torch_terms.py).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.int64: 0, torch.bool: 0}
DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "BOOL": np.bool_}


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[start + begin:start + end], DTYPES[entry["dtype"]])
        tensors[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return tensors


class Oracle:
    def __init__(self, folder):
        self.cases = json.loads((folder / "cases.json").read_text())
        self.tensors = read_safetensors(folder / "tensors.safetensors")
        self.comparisons = 0
        self.failures = []
        self.worst = {dtype: (0.0, "nothing") for dtype in TOLERANCE}

    def list(self, name, count):
        """The tensors name/0, name/1, ...; None for those that are not there."""
        return [self.tensors.get(f"{name}/{i}") for i in range(count)]

    def fail(self, what, text):
        self.failures.append(f"{what}: {text}")

    def compare(self, what, got, want, terms=0.0):
        """`got` is moegrad's, `want` PyTorch's."""
        self.comparisons += 1
        if got.shape != want.shape or got.dtype != want.dtype:
            return self.fail(what, f"{got.shape} {got.dtype}, PyTorch has {want.shape} {want.dtype}")
        if got.numel() == 0:
            return
        a, b = got.double(), want.detach().double()
        nan = a.isnan() & b.isnan()
        size = b.abs() + b.abs()[~nan].mean().nan_to_num(0)
        terms = torch.as_tensor(terms, dtype=torch.float64)
        size = torch.where(terms.isfinite(), torch.maximum(size, terms), size)
        error = torch.where(nan, 0.0, (a - b).abs() / torch.where(size == 0, 1.0, size))
        worst = float(error.max()) if not error.isnan().any() else math.inf
        self.worst[got.dtype] = max(self.worst[got.dtype], (worst, what))
        if worst > TOLERANCE[got.dtype]:
            at = int(error.nan_to_num(math.inf).argmax())
            self.fail(what, f"element {at} is {float(a.flatten()[at])}, PyTorch has "
                            f"{float(b.flatten()[at])}; relative error {worst:.2e}")

    # --- ops

    def check_op(self, case):
        what = f"{case['op']}, {case['what']}, {case['dtype']}"
        if case["op"] not in OPS:
            return self.fail(what, "torch_ops.py has no such op")
        needs = case["needs"]
        inputs, grads = (self.list(f"{case['id']}/{name}", len(needs)) for name in ("input", "grad"))
        outputs = self.list(f"{case['id']}/output", case["outputs"])
        cotangents = self.list(f"{case['id']}/cotangent", case["outputs"])
        wanted, wanted_grads = run_op(case, inputs, needs, cotangents)
        if len(wanted) != len(outputs):
            return self.fail(what, f"{len(outputs)} results, PyTorch has {len(wanted)}")
        terms, grad_terms = sizes_of_terms(case, inputs, needs, wanted, cotangents)
        for i, (got, want, size) in enumerate(zip(outputs, wanted, terms)):
            self.compare(f"{what}, output {i}", got, want, size)
        if [grad is not None for grad in grads] != needs:
            return self.fail(what, f"gradients should be there for {needs}")
        for i, (got, want, size) in enumerate(zip(grads, wanted_grads, grad_terms)):
            if got is not None:
                self.compare(f"{what}, gradient {i}", got, want, size)

    # --- optimizers

    def check_optimizer(self, case):
        start = self.list(f"{case['id']}/start", 5)
        parameters = [torch.nn.Parameter(p) for p in start]
        later_lr = case["later_lr"]
        groups = [{"params": parameters[:2], **case["groups"][0]},
                  {"params": parameters[2:], **case["groups"][1]}]
        # Adagrad takes this one from its arguments alone, which its groups share.
        shared = {key: value for key, value in case["groups"][0].items()
                  if key == "initial_accumulator_value"}
        optimizer = getattr(torch.optim, case["name"])(groups, lr=case["groups"][0]["lr"], **shared)
        largest = [torch.zeros_like(p, dtype=torch.float64) for p in start]
        for step in range(case["steps"]):
            largest = [torch.maximum(m, p.detach().abs()) for m, p in zip(largest, parameters)]
            if step == case["steps"] // 2 and later_lr is not None:
                for group in optimizer.param_groups:
                    group["lr"] = later_lr
            for parameter, grad in zip(parameters, self.list(f"{case['id']}/{step}/grad", 5)):
                parameter.grad = grad
            optimizer.step()
            for i, got in enumerate(self.list(f"{case['id']}/{step}/parameter", 5)):
                what = f"{case['name']} {case['groups']}, {case['dtype']}, step {step}"
                self.compare(f"{what}, parameter {i}", got, parameters[i], largest[i])

    def check_clip(self, case):
        what = f"clip_grad_norm {case['norm_type']} to {case['max_norm']}, {case['dtype']}"
        grads, clipped = (self.list(f"{case['id']}/{name}", 5) for name in ("grad", "clipped"))
        parameters = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
        for parameter, grad, after in zip(parameters, grads, clipped):
            parameter.grad = None if after is None else grad.clone()
        # Its maximum norm takes no empty gradients.
        taken = [p for p in parameters if p.grad is None or p.grad.numel() > 0]
        norm = torch.nn.utils.clip_grad_norm_(
            taken, case["max_norm"], norm_type=float(case["norm_type"]))
        self.compare(f"{what}, norm", torch.tensor(case["norm"], dtype=torch.float64).to(norm.dtype), norm)
        for i, (got, parameter) in enumerate(zip(clipped, parameters)):
            if got is not None:
                self.compare(f"{what}, gradient {i}", got, parameter.grad)

    # --- schedules

    def check_schedule(self, case):
        want = [self.rate(case["name"], case["args"], step) for step in range(len(case["rates"]))]
        got, want = (torch.tensor(rates, dtype=torch.float64) for rates in (case["rates"], want))
        self.compare(f"{case['name']} {case['args']}", got, want)

    def rate(self, name, args, step):
        """By the closed forms of torch.optim.lr_scheduler, one after the other."""
        schedulers = torch.optim.lr_scheduler

        def closed_form(make, at):
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=args["lr"])
            scheduler = make(optimizer)
            scheduler.last_epoch = at
            return scheduler._get_closed_form_lr()[0]

        if name == "constant":
            return closed_form(lambda o: schedulers.ConstantLR(o, 1.0), step)
        if step < args["warmup"]:
            return closed_form(lambda o: schedulers.LinearLR(o, 0.0, 1.0, args["warmup"]), step)
        step -= args["warmup"]
        if name == "constant_with_warmup":
            return closed_form(lambda o: schedulers.ConstantLR(o, 1.0), step)
        rest = args["total"] - args["warmup"] if "total" in args else None
        if name == "linear_with_warmup":
            return closed_form(lambda o: schedulers.LinearLR(o, 1.0, 0.0, rest), step)
        if name == "polynomial_with_warmup":
            return closed_form(lambda o: schedulers.PolynomialLR(o, rest, args["power"]), step)
        if name.startswith("cosine"):
            lowest = args["lr"] * args.get("min_lr_rate", 0)
            return closed_form(lambda o: schedulers.CosineAnnealingLR(o, rest, lowest), step)
        step = max(0, step - args["stable"])
        return closed_form(lambda o: schedulers.LinearLR(o, 1.0, 0.0, args["decay"]), step)

    def run(self):
        checks = {"ops": self.check_op, "optimizers": self.check_optimizer,
                  "clips": self.check_clip, "schedules": self.check_schedule}
        for kind, check in checks.items():
            if not self.cases[kind]:
                self.fail(kind, "no cases")
            for case in self.cases[kind]:
                check(case)
        for op in OPS.keys() - {case["op"] for case in self.cases["ops"]}:
            self.fail(op, "torch_ops.py has it, but no case does")


def main():
    warnings.simplefilter("ignore")
    seed = os.environ.get("MOEGRAD_ORACLE_SEED") or str(random.SystemRandom().randrange(2**32))
    print(f"torch_oracle: PyTorch {torch.__version__}, MOEGRAD_ORACLE_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        make_cases(sys.argv[1], seed, folder)
        oracle = Oracle(Path(folder))
    oracle.run()
    for failure in oracle.failures:
        print(failure)
    for dtype, (worst, what) in oracle.worst.items():
        print(f"worst of {dtype}: {worst:.1e} ({what}), limit {TOLERANCE[dtype]:.0e}")
    print(f"{oracle.comparisons} comparisons, {len(oracle.failures)} failures")
    return 1 if oracle.failures else 0


if __name__ == "__main__":
    sys.exit(main())
