# SPDX-License-Identifier: Apache-2.0
"""Checks who may include whom, what public headers may include, and what stands at the top level."""
import re
import sys
import tempfile
from pathlib import Path

from repository_files import git, repository_files

FLOORS = ("runtime", "profile", "tensor", "distributed", "autograd", "io")
# The first folder that a file is in decides, the longest path first.
LIBRARIES = {
    "framework": {"framework"},
    # Its floors, the lowest first.
    "framework/runtime": {"framework/runtime"},
    "framework/profile": {"framework/runtime", "framework/profile"},
    "framework/tensor": {"framework/runtime", "framework/tensor"},
    "framework/distributed": {f"framework/{floor}" for floor in FLOORS[:4]},
    "framework/autograd": {f"framework/{floor}" for floor in FLOORS[:5]},
    "framework/io": {f"framework/{floor}" for floor in FLOORS},
    "ops": {"framework", "ops"},
    "nn": {"framework", "ops", "nn"},
    "models": {"framework", "ops", "nn", "models"},
    "optim": {"framework", "optim"},
    "fsdp": {"framework", "ops", "nn", "fsdp"},
    "parallel": {"framework", "ops", "nn", "parallel"},
    "plan": {"framework", "plan"},
}
UMBRELLAS = {"moegrad.h", "moegrad_diagnostics.h", "moegrad_mpi.h", "moegrad_testing.h"}
EVERY_LIBRARY = set(LIBRARIES) | UMBRELLAS
MAY_INCLUDE = {
    **LIBRARIES,
    **dict.fromkeys(UMBRELLAS, set(LIBRARIES)),
    "train": set(LIBRARIES) | {"train"},
    "tools": set(LIBRARIES) | {"train", "tools"},
    # An example sees what is installed, and the readers of data.
    "examples": UMBRELLAS | {"train/data", "framework/tensor/as_eigen.h"},
    # A library's tests and benchmarks see no program.
    "tests": EVERY_LIBRARY | {"train", "tests"},
    "tests/tools": EVERY_LIBRARY | {"train", "tools", "tests"},
}
FOLDERS = {path.split("/")[0] for path in MAY_INCLUDE}

# Kept out of headers, so that each is compiled in few files. The exceptions are opt-in headers.
HEAVY = re.compile(r"(?:unsupported/)?(Eigen|boost|spdlog|fmt|CLI|nlohmann|gtest|gmock|benchmark)/")
HEAVY_ALLOWED = {
    ("framework/tensor/as_eigen.h", "Eigen"),
    ("framework/autograd/gradcheck_gtest.h", "gtest"),
    ("framework/io/json_node.h", "nlohmann"),  # json_fwd.hpp
    ("train/logs/run_header_json.h", "nlohmann"),  # json_fwd.hpp
}
TOP_LEVEL = FOLDERS | {
    "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "docs", "findings"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def problems(root):
    files = repository_files(root, TOP_LEVEL)
    for top in sorted({path.parts[0] for path in files}):
        if not top.startswith(".") and top not in TOP_LEVEL:
            yield f"{top}: does not belong at the top level"
    for file in files:
        allowed = what_may_be_included(file)
        if allowed is None or file.suffix not in (".h", ".cpp"):
            continue
        name = file.as_posix()
        for bracket, target in INCLUDE.findall((root / file).read_text(encoding="utf-8")):
            if (bracket == '"' or target.split("/")[0] in FOLDERS) and \
                    not any(is_in(target, place) for place in allowed):
                yield f"{name}: must not include {target}"
            heavy = HEAVY.match(target)
            if heavy and file.suffix == ".h" and file.parts[0] in EVERY_LIBRARY | {"train"} and \
                    (name, heavy[1]) not in HEAVY_ALLOWED:
                yield f"{name}: a public header must not include {target}"


def is_in(path, place):
    return path == place or path.startswith(place + "/")


def what_may_be_included(file):
    for place in sorted(MAY_INCLUDE, key=len, reverse=True):
        if is_in(file.as_posix(), place):
            return MAY_INCLUDE[place]
    return None


def self_test():
    """Plants one breach of each kind, and some includes that are fine."""
    planted = {
        "framework/a.h": ('#include "ops/b.h"\n', 1),
        "framework/tensor/as_eigen.h": ("#include <Eigen/Core>\n", 0),
        "framework/c.cpp": ("#include <Eigen/Core>\n#include <spdlog/spdlog.h>\n", 0),
        "framework/runtime/a.h": ('#include "framework/tensor/a.h"\n', 1),
        "framework/runtime/b.h": ('#include "framework/profile/a.h"\n', 1),
        "framework/runtime/c.cpp": ('#include "framework/io/a.h"\n', 1),
        "framework/profile/a.h": ('#include "framework/tensor/a.h"\n', 1),
        "framework/tensor/a.h": ('#include "framework/profile/a.h"\n', 1),
        "framework/tensor/b.cpp": ('#include "framework/autograd/a.h"\n', 1),
        "framework/tensor/c.cpp": ('#include "framework/distributed/a.h"\n', 1),
        "framework/distributed/a.h": ('#include "framework/autograd/a.h"\n', 1),
        "framework/distributed/b.cpp": ('#include "framework/io/a.h"\n', 1),
        "framework/distributed/mpi/b.cpp": ('#include "framework/autograd/a.h"\n', 1),
        "framework/distributed/c.cpp": (
            '#include "framework/profile/a.h"\n#include "framework/tensor/a.h"\n', 0),
        "framework/autograd/a.h": ('#include "framework/io/a.h"\n', 1),
        "framework/autograd/b.cpp": (
            '#include "framework/distributed/a.h"\n#include "framework/runtime/a.h"\n', 0),
        "framework/io/a.h": ('#include "framework/autograd/a.h"\n', 0),
        "framework/io/b.cpp": ('#include "ops/d.h"\n', 1),
        "ops/d.h": ("#include <Eigen/Core>\n", 1),
        "ops/e.cpp": ('#include "e.h"\n', 1),
        "nn/f.cpp": ('#include "ops/d.h"\n#include "framework/a.h"\n', 0),
        "optim/g.cpp": ('#include "ops/d.h"\n', 1),
        "models/h.cpp": ('#  include "fsdp/i.h"\n', 1),
        "fsdp/i.h": ('#include <models/h.h>\n', 1),
        "train/j.cpp": ('#include "fsdp/i.h"\n#include "models/h.h"\n', 0),
        "train/k.h": ('#include "tools/l.h"\n', 1),
        "train/l.h": ("#include <CLI/CLI.hpp>\n", 1),
        "ops/o.cpp": ('#include "train/k.h"\n', 1),
        "tools/l.h": ('#include "train/k.h"\n#include "fsdp/i.h"\n', 0),
        "tools/m.cpp": ('#include "tests/m.h"\n', 1),
        "examples/n.cpp": ('#include "moegrad.h"\n#include "train/data/text_data.h"\n', 0),
        "examples/o.cpp": ('#include "train/k.h"\n#include "framework/a.h"\n', 2),
        "plan/a.h": ('#include "framework/a.h"\n', 0),
        "plan/b.cpp": ('#include "ops/d.h"\n#include "models/h.h"\n', 2),
        "examples/p.cpp": ('#include "tools/l.h"\n', 1),
        "examples/q.cpp": ('#include "moegrad_testing.h"\n#include "moegrad_diagnostics.h"\n', 0),
        "tests/n.cpp": ('#include "tools/l.h"\n', 1),
        "tests/fsdp/n.cpp": ('#include "train/k.h"\n', 0),
        "tests/tools/n.cpp": ('#include "tools/l.h"\n#include "tests/testing.h"\n', 0),
        "moegrad.h": ('#include "fsdp/i.h"\n#include "models/h.h"\n', 0),
        "moegrad_testing.h": ('#include "moegrad.h"\n#include "ops/k.h"\n', 1),
        "ops/k.h": ('#include "moegrad.h"\n', 1),
        "fsdp/l.cpp": ("#include <moegrad.h>\n", 1),
        "tests/m.cpp": ('#include "moegrad.h"\n', 0),
        ".hidden": ("", 0),
    }
    check_planted(planted)
    check_planted({"moegrad.h": ('#include "examples/j.h"\n#include <boost/any.hpp>\n', 2)})
    # What git does not know is the user's own, wherever it is; so is, without git, the top level.
    breach = '#include "fsdp/i.h"\n'
    left = {"scratch.txt": ("", 0), "runs/a.h": (breach, 0), "ops/mine.h": (breach, 0)}
    check_planted({"run.jsonl": ("", 0), "runs/a.h": (breach, 0), "ops/known.h": (breach, 1)})
    check_planted({"known.txt": ("", 1), "ops/known.h": (breach, 1)}, left)
    check_planted({"known.txt": ("", 0), "ops/known.h": (breach, 1)}, {"scratch.txt": ("", 0)},
                  inside="vendored")


def check_planted(planted, untracked=None, inside="."):
    """`untracked` not None: in a git checkout, to which only `planted` has been added. With
    `inside`, the files are a folder of that checkout, so that git does not know what belongs."""
    with tempfile.TemporaryDirectory() as tmp:
        root = Path(tmp) / inside
        write(root, planted)
        if untracked is not None:
            for command in (["init", "-q"], ["add", "."]):
                if git(tmp, *command) is None:
                    return  # there is no git here to ask
            write(root, untracked)
        found = list(problems(root))
    for name, (_, count) in {**planted, **(untracked or {})}.items():
        got = [problem for problem in found if problem.startswith(f"{name}:")]
        assert len(got) == count, f"self-test: {name}: expected {count} problems, found {got}"


def write(root, files):
    for name, (text, _) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


self_test()
found = list(problems(Path(__file__).resolve().parent.parent))
print("\n".join(found) or "layering_test: ok")
sys.exit(bool(found))
