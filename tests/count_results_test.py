# SPDX-License-Identifier: Apache-2.0
"""What count_results.py makes of real output of ctest, and of a GoogleTest program's.

usage: count_results_test.py GOOGLETEST_PROGRAM
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from count_results import judged, results, summary

program = Path(sys.argv[1]).resolve()
GTEST = """<testsuites><testsuite>
<testcase name="Good" classname="A" status="run" result="completed"/>
<testcase name="Bad" classname="A" status="run" result="completed"><failure message="1 is 2"/></testcase>
<testcase name="Off" classname="A" status="notrun" result="suppressed"/>
<testcase name="Later" classname="A" status="run" result="skipped"><skipped message="a.cpp:1&#x0A;no data"/></testcase>
</testsuite></testsuites>"""
WRITE = "import os, sys; open(os.environ['GTEST_OUTPUT'][4:] + sys.argv[1], 'w').write(sys.argv[2])"


def run(entries):
    """What ctest writes for entries of name: command; where it is a list, with exit code 77 a skip."""
    with tempfile.TemporaryDirectory() as tmp:
        out = Path(tmp, "out")
        out.mkdir()
        lines = ["cmake_minimum_required(VERSION 3.25)", "project(planted NONE)", "enable_testing()"]
        for name, command in entries.items():
            lines.append(f"add_test(NAME {name} COMMAND {' '.join(f'[==[{word}]==]' for word in command)})")
            lines.append(f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)")
        Path(tmp, "CMakeLists.txt").write_text("\n".join(lines), encoding="utf-8")
        subprocess.run(["cmake", "-G", "Ninja", "-S", tmp, "-B", f"{tmp}/build"], check=True, capture_output=True)
        subprocess.run(["ctest", "--test-dir", f"{tmp}/build", "--output-junit", f"{out}/ctest.xml"],
                       check=False, capture_output=True, env={**os.environ, "GTEST_OUTPUT": f"xml:{out}/"})
        return {result.name: (result.status, result.reason) for result in judged(results(out))}, summary([out])


found, (lines, sound) = run({
    "good": ["true"], "bad": ["false"], "absent": ["/nowhere/program"], "crash": ["sh", "-c", "kill -SEGV $$"],
    "torch_oracle": ["sh", "-c", "echo no torch; exit 77"], "other": ["sh", "-c", "echo no data; exit 77"],
    "a_test": ["python3", "-c", WRITE + "; sys.exit(1)", "a_test.xml", GTEST],
    "leak_test": ["python3", "-c", WRITE + "; sys.exit(1)", "leak_test.xml",
                  '<a><testcase name="Good" classname="B" status="run"/></a>']})
ONLY = "skipped, which only optional groups may be: "
assert found == {
    "good": ("passed", ""), "bad": ("failed", ""), "absent": ("failed", ""), "crash": ("failed", ""),
    "torch_oracle": ("skipped", "no torch"), "other": ("failed", ONLY + "no data"),
    "A.Good": ("passed", ""), "A.Bad": ("failed", ""), "A.Off": ("failed", ONLY + "disabled"),
    "A.Later": ("failed", ONLY + "no data"), "B.Good": ("passed", ""),
    "leak_test": ("failed", "no case failed, but the program did")}, found
assert not sound and lines[-1] == "3 passed, 8 failed, 1 skipped", lines
assert "failed: bad" in lines and f"failed: A.Later ({ONLY}no data)" in lines, lines
assert ("skipped: comparison with PyTorch (torch_oracle); to run it: ./tests/run.sh --with-oracle"
        in lines), lines

found, (lines, sound) = run({"good": ["true"]})
assert sound and lines == ["1 passed, 0 failed, 0 skipped"], lines
_, (lines, sound) = run({})
assert not sound and lines[-1] == "0 passed, 1 failed, 0 skipped", lines
with tempfile.TemporaryDirectory() as empty:
    lines, sound = summary([Path(empty)])
    assert not sound and lines[-1] == "0 passed, 1 failed, 0 skipped", lines

# A program of this project, every case of it and a part. Its list must not get into the record of the
# suite that this test runs in, where it would stand for the program's own.
quiet = {name: value for name, value in os.environ.items() if name != "GTEST_OUTPUT"}
for choice in ["*", "SGD.*"]:
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={choice}"], check=True,
                            capture_output=True, text=True, env=quiet).stdout
    count = sum(line.startswith("  ") for line in listed.splitlines())
    _, (lines, sound) = run({program.name: ["env", f"GTEST_FILTER={choice}", program]})
    assert count > 1 and sound and lines == [f"{count} passed, 0 failed, 0 skipped"], (count, lines)
print("count_results_test: ok")
