# SPDX-License-Identifier: Apache-2.0
"""Every collective gives the same bits where ranks are threads and where they are processes. Prints a
matrix of what ran.

usage: collectives_test.py collective_matrix [--brief]

--brief, for a program that is slow: without the largest count."""
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mpirun import Job

program = Path(sys.argv[1]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
brief = "--brief" in sys.argv
sizes = ["small"] if brief else []
counts = [0, 1, 7, 4099, 250_000][:-1 if brief else None]

threads = subprocess.run([program, *sizes], check=True, capture_output=True, text=True).stdout.splitlines()
out, _ = Job(8, program, *sizes).run(timeout=600)
processes = out.splitlines()
worlds = [f"world {size}" for size in (1, 2, 3, 4, 8)]
dtypes = ["float32", "float64", "bfloat16", "int64"]
cases = set(line.rsplit("  ", 1)[0] for line in threads)
# Broadcast runs from two roots.
assert len(threads) == len(cases) + len(worlds) * len(dtypes) * len(counts), len(threads)
for ours, theirs in zip(threads, processes):
    assert ours == theirs, (ours, theirs)
assert len(threads) == len(processes)

ran = Counter()
for line in threads:
    world, operation, dtype, count, _ = line.split("  ")
    ran[operation, world, dtype] += 1
print(f"threads = processes of one host: the numbers of counts {counts}, for each world and "
      + ", ".join(dtypes))
for operation in dict.fromkeys(operation for operation, _, _ in ran):
    cells = ["/".join(str(ran[operation, world, dtype]) for dtype in dtypes) for world in worlds]
    print(f"  {operation:34}" + "  ".join(f"{world[6:]}: {cell}" for world, cell in zip(worlds, cells)))
if full:
    out, _ = Job(2, program, "large").run(timeout=900)
    print(out.strip())
print("collectives_test: ok")
