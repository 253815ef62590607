# SPDX-License-Identifier: Apache-2.0
"""Usage: one_file_test.py BUILD_FOLDER

Checks that the sources of each library compile as one file. A unity build may put any of them into one
file, and which ones changes with every source that is added."""
import json
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OWN_FLAGS = re.compile(r"-m(?!arch=x86-64-v3$|arch=armv8)")


def libraries(build):
    """name -> (a command that compiles, its folder, sources), of the libraries in a unity build."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        if "-o" not in words:
            continue
        name = re.search(r"/?CMakeFiles/(\w+?)(_loops)?\.dir/", words[words.index("-o") + 1])
        source = Path(entry["file"])
        if not name or "tests" in Path(words[words.index("-o") + 1]).parts:
            continue
        united = re.fullmatch(name[1] + r"_unity_\d+\.cpp", source.name)
        if not united and (not name[2] or any(OWN_FLAGS.match(word) for word in words)):
            continue
        library = found.setdefault(name[1], [None, entry["directory"], []])
        if united:
            library[0] = library[0] or words[:words.index("-o")]
            library[2] += [line.split('"')[1] for line in source.read_text().splitlines()]
        else:
            library[2].append(str(source))
    return {name: library for name, library in found.items() if library[0]}


def errors_of(library):
    words, folder, sources = library
    if Path(words[0]).name == "cmake":  # through a compiler cache
        words = words[next(i for i, word in enumerate(words) if Path(word).name == "ccache") + 1:]
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write("".join(f'#include "{source}"\n' for source in sorted(sources)))
        file.flush()
        ran = subprocess.run([*words, "-Werror", "-fsyntax-only", file.name], cwd=folder, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return [] if ran.returncode == 0 else ran.stdout.splitlines()[:20]


def main(build):
    found = libraries(build)
    if len(found) < 5:
        return [f"{len(found)} libraries found in {build}, expected at least 5"]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(errors_of, found.values())
        return [f"{name}: {line}" for name, lines in zip(found, results) for line in lines]


problems = main(Path(sys.argv[1]))
print("\n".join(problems) or "one_file_test: ok")
sys.exit(bool(problems))
