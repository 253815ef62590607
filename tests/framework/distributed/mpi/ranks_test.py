# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of collectives, faults and fully_shard's conformance on ranks that are processes, in one
launch of eight. Prints which tests of threads do not run, and why.

usage: ranks_test.py mpi_ranks_test [--brief]

--brief, for programs that are slow: without fully_shard and whole exchanges of experts, which run on ranks
that are threads. With MOEGRAD_FULL=1 they run here, too; those over eight ranks run here with it alone."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mpirun import Job

program = Path(sys.argv[1]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
brief = "--brief" in sys.argv and not full
PROCESSES = 8

# What only ranks that are threads can do, or have.
NOT_FOR_PROCESSES = {
    "has a transport of its own": ["SequencesOnMessages.*"],
    "needs more ranks than there are processes": [
        "Conformance.Row18_*", "Conformance.Row19_*", "DeviceMesh.SlicesAreTheRanks*",
        "DeviceMesh.RejectsAxesThatCannotBeTaken*", "ParallelDims.NumbersRanks*"],
    "collects in one process what all ranks have seen or thrown": [
        "CollectiveOps.MayBeFreedAfterAnError*", "CollectiveOps.ShowAnError*",
        "ConformanceSwitches.RanksThatUseDifferentParameters*", "CountingProcessGroup.SharedBy*",
        "Failure.OfARanksBody*", "Failure.OfAConsumer*", "Failure.WhileBuffersGoOut*",
        "GatherConsumer.CannotWait*", "History.*",
        "LinkModel.DelaysOneQueueAndNot*", "LinkModel.HasHosts", "NaN/*", "Work.CanOutlive*",
        "Work.FailsAfterADeadline*"],
    "asks that ranks read each other's memory, and so end together": [
        "DispatchRows.RefusesPartsThat*", "Failure.EndsACallOnlyWhen*",
        "Failure.OfACallThatARankHasTakenBack*", "StuckConsumer.*",
        "Faults/*/ThrowsInAConsumer*", "Faults/*/IsStuckInAConsumer"],
    "counts memory of ranks that stage nothing": ["Conformance.Row26_*"],
    "catches the standard error of rank 0 and rank 1, or forks": [
        "Deadline.IsWarnedOf*", "Deadline.DoesNotCountWhileTheProcess*"],
}

if not full:
    NOT_FOR_PROCESSES["runs here with MOEGRAD_FULL=1"] = ["OnRanks/ForcedRouting.*/8*"]
if brief:
    NOT_FOR_PROCESSES["takes long under a sanitizer"] = ["Conformance.*", "OnRanks/ForcedRouting.*"]
patterns = [name for names in NOT_FOR_PROCESSES.values() for name in names]
without = ":".join(patterns)
for pattern in patterns:
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True,
                            text=True, check=True, env={**os.environ, "GTEST_OUTPUT": ""}).stdout
    assert re.search(r"^  \S", listed, re.MULTILINE), f"{pattern} names no test"
with tempfile.TemporaryDirectory() as folder:
    # mpirun's own option for this differs between its versions.
    to_files = f'exec "$0" "$@" >{folder}/$OMPI_COMM_WORLD_RANK.out 2>{folder}/$OMPI_COMM_WORLD_RANK.err'
    job = Job(PROCESSES, "sh", "-c", to_files, program, f"--gtest_filter=-{without}", "--gtest_color=no",
              TMPDIR=folder, GTEST_OUTPUT="")
    code, out, err = job.wait(timeout=1500)
    logs = {int(path.stem): path.read_text(errors="backslashreplace") for path in Path(folder).glob("*.out")}
    errors = "".join(path.read_text(errors="backslashreplace") for path in Path(folder).glob("*.err"))
assert len(logs) == PROCESSES, (code, out, err)
passed = {}
for rank, log in sorted(logs.items()):
    failures = re.findall(r"^\[  FAILED  \] \S+|^.*: Failure\n(?:.*\n){0,8}", log, re.MULTILINE)
    assert not failures, f"rank {rank}:\n" + "\n".join(failures[:20]) + log[-2000:] + errors[-2000:]
    passed[rank] = re.findall(r"^\[       OK \] (\S+)", log, re.MULTILINE)
    assert passed[rank] == passed[0], (rank, passed[rank][-1:], log[-2000:], errors[-2000:])
assert code == 0, (code, out, err, errors[-4000:])
assert len(passed[0]) >= 300, len(passed[0])
print("not for processes:")
for reason, names in NOT_FOR_PROCESSES.items():
    print(f"  {reason}: {', '.join(names)}")
rows = sorted(set(re.findall(r"Row(\d\d)", "\n".join(passed[0]))))
if rows:
    print(f"conformance rows: {' '.join(rows)}")
print(f"ranks_test: {len(passed[0])} tests passed on each of {PROCESSES} processes")
