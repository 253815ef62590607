# SPDX-License-Identifier: Apache-2.0
"""What the tool schedule prints of schedules that it makes, reads, compares and draws, and what it refuses.

usage: schedule_test.py TOOLS      the folder where a build has its tools
"""
import subprocess
import sys
import tempfile
from pathlib import Path

programs = Path(sys.argv[1]).resolve()
golden = Path(__file__).parents[1] / "golden/schedules"
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def run(*arguments, exit_code=0):
    result = subprocess.run([programs / "schedule", *map(str, arguments)], capture_output=True, text=True,
                            check=False, timeout=600, cwd=folder)
    assert result.returncode == exit_code, (arguments, result)
    return result.stdout, result.stderr


def written(name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# PyTorch's file, as it is and as made here.
dual = ["--generate", "DualPipeV", "--ranks", 4, "--micro-batches", 10]
out, _ = run(*dual, "--csv", "v.csv", "--svg", "v.svg", "--compare", golden / "dualpipev_4rank_10mb.csv")
assert "comparison      equal\n" in out and "makespan        66\n" in out, out
assert (folder / "v.csv").read_bytes() == (golden / "dualpipev_4rank_10mb.csv").read_bytes()
# A box for each action.
lines = (folder / "v.csv").read_text(encoding="utf-8").splitlines(keepends=True)
drawn = (folder / "v.svg").read_text(encoding="utf-8")
assert drawn.count("<title>") == sum(len(line.split(",")) for line in lines) + "".join(lines).count(";"), drawn
out, _ = run("--file", "v.csv", "--pairs-in-turn")
assert out.startswith("schedule        v.csv, 4 ranks, 8 stages, 10 micro-batches\n"), out
assert "makespan        63\n" in out, out
assert "makespan        52\n" in run("--file", "v.csv", "--pair-factor", 2 / 3)[0]

# The older letters are named.
out, _ = run("--file", golden / "zb1p_2rank_2stagep_compute.csv", "--merge-backward", "--transfers", "when-sent",
             "--compare", golden / "zb1p_2rank_2stagep_comms.csv", "--critical-path")
assert out.startswith("letters         older: B is the input half of backward, BW the whole\n"
                      "comparison      equal\n"), out
assert "critical path    0F0 1F0 0F1 1F1 2F0 3F0 3I0 " in out, out

# What differs.
cut = written("cut.csv", "".join(lines[:3]))
out, _ = run("--file", "v.csv", "--compare", cut, exit_code=1)
assert out == "comparison      row 3, cell 0: 3F0 against no row\n", out
_, err = run("--file", cut, exit_code=1)
assert err == "schedule: check_schedule: must have 3F0, got none\n", err
shuffled = written("shuffled.csv", "".join(lines).replace("0F0,0F1", "0F1,0F0"))
out, _ = run("--file", "v.csv", "--compare", shuffled, exit_code=1)
assert out == "comparison      row 0, cell 0: 0F0 against 0F1\n", out

# Deadlocks and bad files.
sends = ["--generate", "1F1B", "--ranks", 2, "--micro-batches", 3, "--transfers", "before-use"]
out, _ = run(*sends, "--buffers", 1)
assert "deadlock        none with as many buffers from rank to rank as 1\n" in out, out
_, err = run(*sends, "--buffers", 0, exit_code=1)
assert "deadlock, each waits for the one before it and the first for the last: row 0, cell 3: 0SEND_F1 and 1RECV_F1; " \
       "row 0, cell 4: 0RECV_B0 and 1SEND_B0" in err, err
_, err = run("--file", written("bad.csv", "0F0,0Q0\n"), exit_code=1)
assert err.startswith("schedule: read_schedule: row 0, cell 1: must be a stage, an action and a micro-batch"), err
_, err = run("--file", "none.csv", exit_code=1)
assert "none.csv" in err, err
_, err = run("--generate", "DualPipeV", "--micro-batches", 7, exit_code=1)
assert err == "schedule: DualPipeV: 4 ranks need at least 8 micro-batches, got 7\n", err

# Passes, costs and layers.
run("--generate", "DualPipe", "--recompute", "--most-gathered", 2, "--reduce-grad", "--transfers", "before-use",
    "--csv", "lowered.csv")
text = (folder / "lowered.csv").read_text(encoding="utf-8")
for action in ["0R0", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD", "0SEND_F0", "1RECV_F0"]:
    assert f",{action}," in "," + text.replace("\n", ",\n,"), (action, text)
run("--file", "lowered.csv", "--copies", 2)
run("--generate", "1F1B", "--ranks", 2, "--micro-batches", 1, "--recompute", "--most-gathered", 1, "--reduce-grad",
    "--transfers", "before-use", "--csv", "passes.csv")
assert (folder / "passes.csv").read_text(encoding="utf-8") == (
    "0UNSHARD,0F0,0SEND_F0,0R0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1R0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n")
_, err = run("--file", "lowered.csv", exit_code=1)
assert "stage 1 must be on 1 rank" in err or "stage 0 must be on 1 rank" in err, err
out, _ = run("--generate", "Interleaved1F1B", "--ranks", 3, "--micro-batches", 6, "--layers", 15,
             *(word for stage in (3, 4, 5) for word in ("--empty-layers", stage)))
assert out.startswith("layers          3 3 3 2 2 2\n"), out
out, _ = run("--generate", "1F1B", "--ranks", 4, "--micro-batches", 8, "--layers", 10, "--first-less", 1, "--last-less",
             1, "--activation-bytes", 100)
assert out.startswith("layers          2 3 3 2\n") and "   0" in out and "         800\n" in out, out
out, _ = run("--generate", "1F1B", "--ranks", 4, "--layers", 7, "--first-less", 1)
assert out.startswith("layers          1 2 2 2\n"), out
# Every time and size is that of a layer.
out, _ = run("--generate", "1F1B", "--ranks", 1, "--micro-batches", 1, "--most-gathered", 1, "--reduce-grad",
             "--layers", 3, "--forward", 1, "--backward-input", 10, "--backward-weight", 100, "--unshard-time", 1000,
             "--reduce-grad-time", 10000, "--activation-bytes", 1, "--parameter-bytes", 10, "--gradient-bytes", 100)
assert "makespan        33333\n" in out and out.endswith(" 333\n"), out
out, _ = run("--generate", "1F1B", "--ranks", 1, "--micro-batches", 1, "--most-gathered", 1, "--unshard-time", 5,
             "--reduce-grad-time", 7)
assert "makespan        8\n" in out, out
# Two stages' gradients are live at once, but one stage's parameters.
out, _ = run("--generate", "Interleaved1F1B", "--ranks", 1, "--micro-batches", 1, "--most-gathered", 1,
             "--activation-bytes", 1, "--parameter-bytes", 10, "--gradient-bytes", 100)
assert out.endswith(" 211\n"), out
# The input alone is kept of two, all of the third.
out, _ = run("--generate", "GPipe", "--ranks", 1, "--micro-batches", 3, "--recompute", "--activation-bytes", 100,
             "--input-bytes", 10)
assert out.endswith(" 120\n"), out
out, _ = run("--generate", "Interleaved1F1B", "--ranks", 2, "--micro-batches", 4, "--stages-per-rank", 3, "--group", 4)
assert out.startswith("schedule        Interleaved1F1B, 2 ranks, 6 stages, 4 micro-batches\n"), out
assert out.endswith(" 9\n"), out
# I is on the way to the end, W is not.
out, _ = run("--file", written("halves.csv", "0F0,0I0,0W0\n1F0,1I0,1W0\n"), "--backward-input", 10,
             "--backward-weight", 3)
assert "makespan        25\n" in out, out
out, _ = run("--generate", "1F1B", "--ranks", 2, "--micro-batches", 1, "--latency", 0.5, "--output-bytes", 4,
             "--bytes-per-time", 8)
assert "makespan        8\n" in out, out
out, err = run("--generate", "1F1B", "--layers", 3, exit_code=1)
assert out == "" and err == "schedule: layers_per_stage: stage 3 of 4 must have one of the 3 layers, or an empty layer at its " \
              "place, got neither\n", err
_, err = run("--generate", "1F1B", "--layers", 15, "--empty-layers", "9", exit_code=1)
assert err == "schedule: --empty-layers: must be an integer from 0 to 3, got 9\n", err

run("--generate", "1F1B", "--ranks", 1, "--transfers", "before-use", "--buffers", 0)  # no messages
# A file that was not written: the schedule cannot run.
run(*sends, "--buffers", 0, "--csv", "deadlock.csv", exit_code=1)
assert not (folder / "deadlock.csv").exists()
# Which file, and which place in it, before passes move it.
_, err = run("--file", "v.csv", "--compare", written("spaces.csv", "0F0, 0B0\n"), exit_code=1)
assert "row 0, cell 1: must be of digits, letters and _ alone" in err and err.endswith("spaces.csv\n"), err
_, err = run("--file", written("late.csv", "0I0,0F0,0W0\n"), "--recompute", exit_code=1)
assert err == "schedule: check_schedule: row 0, cell 0: 0I0 must come after 0F0, got that in cell 1\n", err
turns = written("turns.csv", "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n")
assert "deadlock, each" in run("--file", turns, exit_code=1)[1]
assert "makespan        9\n" in run("--file", turns, "--pairs-in-turn", "--merge-backward")[0]

for option in ["--csv", "--svg"]:
    out, err = run("--generate", "1F1B", option, "no/such/folder", exit_code=1)
    assert out == "" and "cannot write file 'no/such/folder'" in err, (out, err)
_, err = run("--generate", "1F1B", "--stages-per-rank", 2, exit_code=1)
assert "Interleaved1F1B alone" in err, err

# Wrong usage.
for words in [["--generate", "1F1B", "--file", "v.csv"], [], ["--generate", "2F2B"],
              ["--generate", "1F1B", "--first-less", 1], ["--file", "v.csv", "--ranks", 4],
              ["--file", "v.csv", "--micro-batches", 10], ["--file", "v.csv", "--group", 4],
              ["--file", "v.csv", "--stages-per-rank", 2],
              ["--generate", "1F1B", "--buffers", 1], ["--generate", "DualPipe", "--copies", 2],
              ["--file", "v.csv", "--pairs-in-turn", "--pair-factor", 0.5],
              ["--file", "v.csv", "--compare", ""], ["--file", ""],
              ["--generate", "1F1B", "--ranks", 4096, "--micro-batches", 4096],
              ["--generate", "Interleaved1F1B", "--ranks", 512, "--micro-batches", 512, "--stages-per-rank", 2]]:
    run(*words, exit_code=2)
print("schedule_test: ok")
