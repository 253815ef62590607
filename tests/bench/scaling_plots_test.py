# SPDX-License-Identifier: Apache-2.0
"""Runs the arithmetic of scaling_plots.py on made-up results."""
import json
import sys
import tempfile
from pathlib import Path

import scaling_plots as scaling
from scaling_plots import BASE, Point

FIT = 0.05, 400e-6, 20e-9  # s, s per token, s per squared token of a sequence
POINTS = [BASE, BASE._replace(threads=1),
          *(BASE._replace(sequences=n) for n in (1, 2, 8)),
          *(Point(2, 1, n, 32) for n in (1024, 4096)),
          *(BASE._replace(experts=n) for n in (8, 128))]


def made_up(point):
    """A step with two rates of the FMA peak, 190 and 100, and experts that cost 1 ms each."""
    tokens = point.sequences * point.length
    step = FIT[0] + FIT[1] * tokens + FIT[2] * tokens * point.length
    step *= 1.9 if point.threads == 1 else 1
    return point._asdict() | {
        "tokens_per_second": tokens / step, "step_ms": 1e3 * step,
        "fma_peak_gflops": {1: 100, 2: 190}[point.threads],
        "forward_ms": 300 + point.experts / 4, "backward_ms": 700 + point.experts * 3 / 4}


def report(changes=None):
    """The lines on three rounds: as made up, twice as slow in all, and as made up. `changes`: what
    quantities are multiplied with, by point."""
    with tempfile.TemporaryDirectory() as folder:
        for point in POINTS:
            run = made_up(point)
            for key, factor in (changes or {}).get(point, {}).items():
                run[key] *= factor
            slow = run | {key: 2 * run[key] for key in ("step_ms", "forward_ms", "backward_ms")}
            slow["tokens_per_second"] /= 2
            for n, each in enumerate((run, slow, run)):
                name = "-".join(map(str, point))
                (Path(folder) / f"{name}.{n}.json").write_text(json.dumps(each))
        return scaling.report(scaling.read_runs(Path(folder)))


def expect(wanted, lines):
    assert wanted in lines, "\n".join([f"no line '{wanted}' in", *lines])


lines, fit = report()
assert all(abs(got / wanted - 1) < 1e-9 for got, wanted in zip(fit, FIT)), fit
assert len(lines) == 17, lines
expect("1 threads: 1211 tokens/s", lines)
expect("2 threads over 1: 1.90 (single rounds 1.90 to 1.90; FMA peak 1.90); at least 1.85: holds",
       lines)
expect("step = 50.0 ms + 400.0 us x tokens + 20.00 ns x sum(length^2), fitted to both sweeps",
       lines)
expect("8 x 512 tokens: 1730 ms, fit 1730 ms (+0.0 %)", lines)
expect("1 x 4096 tokens: 2024 ms, fit 2024 ms (+0.0 %)", lines)
expect("sequences of 512: at most 0.0 % from the fit; at most 5 %: holds", lines)
expect("one sequence: at most 0.0 % from the fit; at most 5 %: holds", lines)
expect("32 experts: forward + backward 1032 ms", lines)
expect("slowest over fastest: +11.9 %; at most 15 %: holds", lines)  # 1128 over 1008

lines, _ = report({BASE: {"tokens_per_second": 1.8 / 1.9}})
expect("2 threads over 1: 1.80 (single rounds 1.80 to 1.80; FMA peak 1.90); at least 1.85: "
       "DOES NOT HOLD", lines)
lines, _ = report({BASE._replace(sequences=8): {"step_ms": 1.3}})
assert any(line.startswith("sequences of 512: at most 1") and line.endswith("DOES NOT HOLD")
           for line in lines), lines
lines, _ = report({BASE._replace(experts=128): {"backward_ms": 1.05}})
expect("slowest over fastest: +15.9 %; at most 15 %: DOES NOT HOLD", lines)

assert "matplotlib" not in sys.modules
print("scaling_plots_test: ok")
