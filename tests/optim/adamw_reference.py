# SPDX-License-Identifier: Apache-2.0
"""Writes adamw_reference.json: torch.optim.AdamW's formulas in plain Python floats.

    python3 tests/optim/adamw_reference.py > tests/optim/adamw_reference.json
"""
import json
import math

STEPS = 12
SKIPPED = {4, 5}  # steps at which the parameter has no gradient
CASES = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    {"lr": 3e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    {"lr": 1e-2, "beta1": 0.0, "beta2": 0.5, "eps": 1e-3, "weight_decay": 0.0},
]
START = [0.5, -1.25, 3.0, 0.0, 1e-4]


def gradient(step, i):
    return round(math.sin(1.7 * step + 0.9 * i) * 10.0 ** (i - 2), 6)


def run(lr, beta1, beta2, eps, weight_decay):
    parameter = list(START)
    first, second = [0.0] * len(START), [0.0] * len(START)
    count, trace = 0, []
    for step in range(STEPS):
        if step not in SKIPPED:
            count += 1
            for i in range(len(START)):
                g = gradient(step, i)
                parameter[i] *= 1 - lr * weight_decay
                first[i] = beta1 * first[i] + (1 - beta1) * g
                second[i] = beta2 * second[i] + (1 - beta2) * g * g
                m_hat = first[i] / (1 - beta1**count)
                v_hat = second[i] / (1 - beta2**count)
                parameter[i] -= lr * m_hat / (math.sqrt(v_hat) + eps)
        trace.append(list(parameter))
    return trace


gradients = [None if step in SKIPPED else [gradient(step, i) for i in range(len(START))]
             for step in range(STEPS)]
print(json.dumps({"start": START, "gradients": gradients,
                  "cases": [case | {"parameters": run(**case)} for case in CASES]}, indent=1))
