# SPDX-License-Identifier: Apache-2.0
"""Prints where the time of a build went: per folder, and the dearest files.

usage: build_times.py [BUILD_FOLDER]     by default build/release

Seconds are summed over jobs that ran at the same time, from Ninja's log of the latest run of each.
"""
import sys
from collections import defaultdict
from pathlib import Path

DEAREST = 15


def latest_runs(log):
    """(seconds, output) of each output's latest run; of several outputs of one command, the first."""
    runs = {}
    for line in log.splitlines():
        if line.startswith("#"):
            continue
        start, end, _, output, command = line.split("\t")
        runs.setdefault(output, {})
        runs[output] = (int(start), int(end), command)
    seen, result = set(), []
    for output, (start, end, command) in runs.items():
        if (start, end, command) in seen:
            continue
        seen.add((start, end, command))
        result.append(((end - start) / 1000, output))
    return result


def kind_of(output):
    return "compile" if output.endswith((".o", ".gch")) else "link"


def folder_of(output):
    """The folder of the repository that an output belongs to."""
    return output.split("/")[0] if "/" in output else "."


def name_of(output):
    """framework/CMakeFiles/moegrad_framework.dir/a/x.o as `moegrad_framework: a/x`."""
    head, _, tail = output.partition(".dir/")
    return f"{head.rsplit('/', 1)[-1]}: {tail.removesuffix('.o')}" if tail else output


def report(log):
    runs = latest_runs(log)
    total = sum(seconds for seconds, _ in runs)
    folders = defaultdict(lambda: [0.0, 0])
    for seconds, output in runs:
        entry = folders[folder_of(output)]
        entry[0] += seconds
        entry[1] += 1
    yield f"{total:8.1f} s in {len(runs)} commands"
    for kind in ("compile", "link"):
        of_kind = [seconds for seconds, output in runs if kind_of(output) == kind]
        yield f"{sum(of_kind):8.1f} s in {len(of_kind)} commands that {kind}"
    for folder, (seconds, count) in sorted(folders.items(), key=lambda item: -item[1][0]):
        yield f"{seconds:8.1f} s  {100 * seconds / total:3.0f} %  {count:4} commands  {folder}"
    yield f"the {DEAREST} dearest:"
    for seconds, output in sorted(runs, reverse=True)[:DEAREST]:
        yield f"{seconds:8.1f} s  {kind_of(output):7}  {name_of(output)}"


def self_test():
    log = ("# ninja log v5\n0\t900\t1\ta/CMakeFiles/x.dir/b.cpp.o\tcc\n"
           "0\t2000\t2\ta/CMakeFiles/x.dir/b.cpp.o\tcc\n5\t1005\t2\tlib.a\tdd\n")
    lines = list(report(log))
    assert lines[0].split() == ["3.0", "s", "in", "2", "commands"], lines
    assert lines[1].split() == ["2.0", "s", "in", "1", "commands", "that", "compile"], lines
    assert lines[2].split() == ["1.0", "s", "in", "1", "commands", "that", "link"], lines
    assert lines[3].split() == ["2.0", "s", "67", "%", "1", "commands", "a"], lines
    assert lines[-2].split() == ["2.0", "s", "compile", "x:", "b.cpp"], lines


if __name__ == "__main__":
    self_test()
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    print("\n".join(report((build / ".ninja_log").read_text(encoding="utf-8"))))
