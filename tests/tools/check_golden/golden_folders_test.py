# SPDX-License-Identifier: Apache-2.0
"""Makes golden folders with torch, by an implementation of the model that shares nothing with this
one, and runs check_golden on them. Exits with 77, skipped, where torch is absent.

    golden_folders_test.py PROGRAMS
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import golden_tools as tools

PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch is for
SKIPPED = 77
CASES = ["short_rows", "transformers_5", "three_packed", "near_ties", "compact"]

programs = Path(sys.argv[1]).resolve()
if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
    print(f"golden_folders_test: skipped, {PYTHON} has no torch (Debian's python3-torch)")
    sys.exit(SKIPPED)

maker = Path(__file__).resolve().parents[2] / "models/causal_lm/make_golden.py"
temporary = tempfile.TemporaryDirectory()
root = Path(temporary.name)
subprocess.run([PYTHON, maker, "make", root, *CASES], check=True, timeout=1700)
subprocess.run([PYTHON, maker, "verify", root / CASES[0]], check=True, stdout=subprocess.DEVNULL,
               timeout=1700)

# Each is odd in its own way, and says so.
out, _ = tools.check_golden(programs, *(root / case for case in CASES), exit_code=0)
assert f"\n{len(CASES)} folders, " in out and ", 0 past their limits\n" in out
assert f"\n{len(CASES)} folders, 0 expectations missing, " in out
for line in ["near_ties | plain | batch: a choice of experts is rounding; run with those of fp64",
             "three_packed | sharded   | fp64 | packed sequence 3 alone: loss ",
             "three_packed | optimised | fp32 | skip_clipped: gradient norm "]:
    assert line in out, line

# Models that transformers 5 saved, dense decoders among them.
saved = root / "saved"
subprocess.run([PYTHON, maker.parent / "make_pretrained.py", saved], check=True, timeout=1700)
folders = sorted(saved.iterdir())
out, _ = tools.check_golden(programs, *folders, exit_code=0)
assert f"\n{len(folders)} folders, 0 expectations missing, " in out
tools.expect_changed_dense_to_fail(programs, saved / "dense", saved / "dense_tied")

tools.expect_tampering_to_fail(programs, root / "transformers_5")

# A value that is missing fails; a parameter that the model does not have is an error.
copies = tools.Copies(root / "short_rows")
folder = copies(["train.json", "expected_packed.safetensors", "expected.json"])
out, _ = tools.check_golden(programs, folder, exit_code=1)
assert {"train.json", "the packed row", "expected.json"} <= set(tools.missing_in(out)), out[-2000:]
folder = copies(["train.json"])
tools.change_json(folder / "expected.json",
                  lambda value: value["grad_stats_fp64"].update(
                      {"model.extra.weight": value["grad_stats_fp64"]["model.norm.weight"]}))
_, err = tools.check_golden(programs, folder, exit_code=2)
assert err == (f"check_golden: {folder}: the folder expects something of 'model.extra.weight', "
               "which its model does not have\n"), err

# A bad folder does not keep the others from being checked, and decides the exit code.
out, _ = tools.check_golden(programs, root, copies(["train.json"]), exit_code=2)
assert "2 folders, 1 expectations missing, " in out and ", 0 past their limits\n" in out
print("golden_folders_test: ok")
