# SPDX-License-Identifier: Apache-2.0
"""A rank of four does something wrong: all processes end in time, the others name what and where, and
what they wrote last can be read.

usage: faults_test.py faulty_rank"""
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from mpirun import Job

program = Path(sys.argv[1]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
RANKS, FAULTY, DEADLINE = 4, 2, 2
OTHERS = [rank for rank in range(RANKS) if rank != FAULTY]
CALL = "all_reduce [group world, sequence 3, layers.1]: "

# The fault; what the others say; whether the others find the fault themselves, and so can name it.
FAULTS = [
    ("is killed", f"process rank {FAULTY} ", False),  # says mpirun
    ("is killed in an exchange", f"process rank {FAULTY} ", False),
    ("is stopped", f"not joined within {1000 * DEADLINE} ms by rank {FAULTY}", True),
    ("exits", f"rank {FAULTY} failed: it has called exit()", True),
]
if full:
    FAULTS += [
        ("throws", f"rank {FAULTY} failed: boom", True),
        ("exits at once", "", False),
        ("stalls", f"not joined within {1000 * DEADLINE} ms by rank {FAULTY}", True),
        ("skips a collective", f"rank {FAULTY} all_reduce(sum) of 100000 float32 (layers.1, round 4)",
         True),
        ("calls another", f"rank {FAULTY} barrier", True),
        ("reduces less", f"rank {FAULTY} all_reduce(sum) of 99 float32", True),
        ("is stopped in a long sum", f" within {1000 * DEADLINE} ms by rank", True),
    ]

for kind, cause, is_named in FAULTS:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(RANKS, program, kind, FAULTY, folder, 1000 * DEADLINE)
        code, out, err = job.wait(timeout=DEADLINE + 20)
        ended = job.end_of_all(timeout=5)
        fault = float((Path(folder) / "fault").read_text())
        print(f"{kind}: {ended - fault:.1f} s from the fault to the end of the last process, "
              f"exit code {code}")
        assert code != 0, (kind, out, err)
        limit = DEADLINE + 5 if " within " in cause else 5
        assert ended - fault < limit, (kind, ended - fault, err)
        assert "all steps done" not in out, (kind, out)
        assert cause in err, (kind, err)
        if " within " in cause:  # what rank 0 has heard stands in order
            report = err.partition("last operations of each rank:\n")[2]
            report = re.match(r"((ranks? [-\d, ]+|  .*)\n)*", report)[0]  # other processes write after it
            parts = re.split(r"^ranks? [-\d, ]+\n", report, flags=re.MULTILINE)[1:]
            numbers = [[int(number) for number in
                        re.findall(r"^  [a-z ]+  group world  sequence (\d+) ", part, re.MULTILINE)] for part in parts]
            assert any(len(each) > 1 for each in numbers), (kind, err)
            assert all(each == sorted(each) for each in numbers), (kind, err)
        for rank in OTHERS:
            text = (Path(folder) / f"last_operations.rank{rank}.txt").read_text()
            assert re.match(rf"rank {rank} on host \S+ \(process \d+, [-\d]+T[:\d]+Z\): ", text), (kind, rank, text)
            # The word of a fault that is found at once may overtake what was sent before.
            at_once = is_named and " within " not in cause
            overtaken = at_once and re.search(r"^  failed +group world  sequence 2  ", text, re.MULTILINE)
            assert overtaken or re.search(r"^  done +group world  sequence 2  all_reduce\(sum\) of "
                                          r"100000 float32  layers\.1$", text,
                                          re.MULTILINE), (kind, rank, text)
            # In the call that the faulty rank does not come to, or as far as it had come; or it had
            # heard of the fault before it issued the call.
            ended_before = is_named and "outside collectives" in text.splitlines()[0]
            assert overtaken or ended_before or re.search(r"^  (issued|joined|running|failed|done) +group world  sequence 3  "
                             r"(all_reduce|all_to_all|barrier)", text, re.MULTILINE), (kind, rank, text)
            if not is_named:  # mpirun has ended it
                first = text.splitlines()[0]
                op = "all_to_all" if "exchange" in kind else "all_reduce"
                assert f"): SIGTERM in group world  sequence 3  {op}" in first, (kind, first)
                assert first in err, (kind, rank, err)
if full:
    # A process that does not come to a launch; no rank of that has written anything.
    with tempfile.TemporaryDirectory() as folder:
        job = Job(RANKS, program, "comes late", FAULTY, folder, 1000 * DEADLINE)
        code, out, err = job.wait(timeout=DEADLINE + 20)
        ended = job.end_of_all(timeout=5)
        fault = float((Path(folder) / "fault").read_text())
        print(f"comes late: {ended - fault:.1f} s to the end of the last process, exit code {code}")
        assert code != 0 and ended - fault < DEADLINE + 5, (code, ended - fault, err)
        assert f"launch_mpi: not joined within {1000 * DEADLINE} ms by rank {FAULTY}" in err, err
    # A job that is stopped as a whole, for longer than the deadline, and goes on.
    with tempfile.TemporaryDirectory() as folder:
        job = Job(RANKS, program, "runs slowly", FAULTY, folder, 1000 * DEADLINE)
        while len(job.processes()) < RANKS:
            time.sleep(0.05)
        time.sleep(3)
        ranks = job.processes()
        for number in [signal.SIGSTOP, signal.SIGCONT]:
            for pid in ranks.values():
                os.kill(pid, number)
            time.sleep(DEADLINE + 2)
        code, out, err = job.wait(timeout=60)
        assert code == 0 and "all steps done" in out, (code, out, err)
        print(f"stopped for {DEADLINE + 2} s as a whole: goes on")
print("faults_test: ok")
