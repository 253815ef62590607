# SPDX-License-Identifier: Apache-2.0
"""What train.sh trains leaves no expert idle: over the last 50 steps each one has between 0.5 and 1.6
times its layer's mean load. With the loss pooled over layers some have not.

    balanced_run_test.py TRAIN
"""
import re
import subprocess
import sys

train = sys.argv[1]


def figures(*arguments):
    out = subprocess.run([train, "--sample-bytes", "0", *arguments], check=True, capture_output=True,
                         text=True).stdout
    line = re.search(r"^experts of each layer over the last 50 steps, .*: (.*)$", out, re.MULTILINE)[1]
    loads = [float(load) for layer in line.split() for load in layer.split("-")]
    assert len(loads) == 8, line
    return min(loads), max(loads), float(re.search(r"^validation loss (\S+)", out, re.MULTILINE)[1])


least, most, validation = figures()
print(f"loads {least} to {most}, validation loss {validation}")
assert 0.5 <= least <= most <= 1.6 and validation <= 1.599, (least, most, validation)
pooled = figures("--aux-loss-layers", "pooled")
assert pooled[0] < 0.5 and pooled[1] > 1.6, pooled
print("balanced_run_test: ok")
