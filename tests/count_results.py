# SPDX-License-Identifier: Apache-2.0
"""Counts what a run of ctest did, for the last line of tests/run.sh.

usage: count_results.py FOLDER...

Each folder holds ctest.xml, from ctest's --output-junit, and one NAME.xml per GoogleTest program, from
GTEST_OUTPUT=xml:FOLDER/. A GoogleTest program counts case by case, any other entry of ctest as one. What
is skipped outside the groups below counts as failed. The exit code is 1 if anything failed.
"""
import re
import sys
import xml.etree.ElementTree
from collections import namedtuple
from pathlib import Path

# What may be skipped: name of the group, how to run it, the entries or cases of it.
OPTIONAL = [
    ("comparison with PyTorch", "./tests/run.sh --with-oracle", r"torch_oracle|golden_folders"),
    ("report in a browser", "./tests/run.sh --with-browser", r"report"),
    ("several hosts", "./tests/run.sh --full as root, where network namespaces may be made",
     r"mpi_hosts"),
    ("other systems", "./tests/run.sh --full as root on amd64, with mmdebstrap; for arm64 with qemu-user-static",
     r"platform_\w+"),
    ("tensors in gdb", "apt-get install gdb", r"gdb"),
    ("products that round once", "./tests/run.sh, on any preset but portable",
     r"Bf16Product\.(ComputesWithThePadding|FlushesWhatIsTooSmallAfterRounding)"),
]
SKIPPED = "SKIP_RETURN_CODE=77"  # ctest's word for it; a program that is not there is no skip

Result = namedtuple("Result", "name status reason")


def cases(path):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            yield Result(name, "failed", "")
        elif skipped is not None or case.get("status") != "run":
            reason = "disabled" if skipped is None else skipped.get("message", "").strip()
            yield Result(name, "skipped", reason.splitlines()[-1] if reason else "")
        else:
            yield Result(name, "passed", "")


def results(folder):
    record = folder / "ctest.xml"
    if not record.is_file():
        yield Result("ctest", "failed", f"there is no {record}")
        return
    for entry in xml.etree.ElementTree.parse(record).iter("testcase"):
        name, status, skipped = entry.get("name"), entry.get("status"), entry.find("skipped")
        passed = status == "run"
        program = folder / f"{name}.xml"
        if program.is_file():
            found = list(cases(program))
            yield from found
            if not passed and all(result.status != "failed" for result in found):
                yield Result(name, "failed", "no case failed, but the program did")
        elif not passed and skipped is not None and skipped.get("message") == SKIPPED:
            lines = (entry.findtext("system-out") or "").strip().splitlines()
            yield Result(name, "skipped", lines[-1] if lines else "")
        else:
            yield Result(name, "passed" if passed else "failed", "")


def judged(found):
    """Skips outside the optional groups as failures."""
    for result in found:
        group = [name for name, _, members in OPTIONAL if re.fullmatch(members, result.name)]
        if result.status == "skipped" and not group:
            reason = f"skipped, which only optional groups may be: {result.reason}"
            yield Result(result.name, "failed", reason)
        else:
            yield result


def summary(folders):
    """The lines to print, and whether all is well."""
    found = [result for folder in folders for result in judged(results(folder))]
    if not found:
        found = [Result("ctest", "failed", "no test was run")]
    lines = [f"failed: {name}" + (f" ({reason})" if reason else "")
             for name, status, reason in found if status == "failed"]
    for group, how, members in OPTIONAL:
        skipped = sorted({result.name for result in found
                          if result.status == "skipped" and re.fullmatch(members, result.name)})
        if skipped:
            lines.append(f"skipped: {group} ({', '.join(skipped)}); to run it: {how}")
    counts = {status: sum(result.status == status for result in found)
              for status in ("passed", "failed", "skipped")}
    lines.append(", ".join(f"{count} {status}" for status, count in counts.items()))
    return lines, counts["failed"] == 0


if __name__ == "__main__":
    report, sound = summary([Path(argument) for argument in sys.argv[1:]])
    print("\n" + "\n".join(report))
    sys.exit(not sound)
