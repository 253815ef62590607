# SPDX-License-Identifier: Apache-2.0
"""Runs a program that measures as docs/ says to, and checks what must hold on any machine.

usage: measurements_test.py PROGRAM [PRESET]

PROGRAM: loss_parity, which takes a preset, fsdp_overlap or fsdp_crossover, with its path.

Bounds on shares of time are loose: they tell a schedule that overlaps from one that does not.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

program = Path(sys.argv[1]).resolve()


def run(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                              check=False, cwd=folder)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.returncode
    return done.stdout


def loss_parity(preset):
    """100 steps: every path within its bound, bf16 on the wire within 1 %, all ways to divide the model
    to the bit."""
    out = run("--preset", preset, "--steps", 100)
    if preset in ["wide", "memory"]:
        assert "BROKEN" not in out and out.count("holds") == (15 if preset == "wide" else 93), out
        return
    assert "BROKEN" not in out and out.count("bits of loss") == 40, out
    assert re.search(r"^ +99 \|", out, re.MULTILINE), out
    limits = {float(limit) for limit in re.findall(r"^holds +\S+ <= (\S+)  ", out, re.MULTILINE)}
    assert limits == {0, 1e-9, 1e-5, 2e-5, 0.01}, limits
    limit, = re.findall(r"^holds +\S+ <= (\S+)  float32, plain - bf16 wire, 1 rank$", out, re.MULTILINE)
    assert float(limit) == 0.01, limit


def fsdp_overlap():
    """With prefetch most of the communication is hidden under layers that sleep, without it little of
    the gathers is. What compute hides depends on a core per rank, so there only the order counts."""
    shares = [[float(share) for share in line] for line in re.findall(
        r"hidden: (\S+) % of both \((\S+) % on .*?\), (\S+) % of gathers, (\S+) % of reductions", run())]
    (slept, _, slept_gathers, _), (_, _, off_gathers, _), _, _ = shares
    assert slept > 60 and slept_gathers > 60 and off_gathers < 30, shares
    assert shares[2][2] > shares[3][2], shares


def fsdp_crossover():
    """The more tokens, the more compute there is to hide a gather of the same size under."""
    out = run()
    rows = [list(map(float, row)) for row in re.findall(
        r"^ +(\d+) +(\S+) +(\S+) +(\S+) +(\S+)$", out, re.MULTILINE)]
    assert [row[0] for row in rows] == [16, 32, 64, 128, 256, 512, 1024, 2048], out
    fewest, most = rows[0], rows[-1]
    assert most[3] > 10 * fewest[3] and most[4] > 60 and fewest[4] < 40, rows
    assert re.search(r"^crossover: roofline \d+ tokens, measured (\d+|inf) tokens", out, re.MULTILINE), out


{check.__name__: check for check in (loss_parity, fsdp_overlap, fsdp_crossover)}[program.name](*sys.argv[2:])
print("measurements_test: ok")
