# SPDX-License-Identifier: Apache-2.0
"""Checks who may include whom, what public headers may include, and what stands at the top level."""
import re
import sys
import tempfile
from pathlib import Path

MAY_INCLUDE = {
    "framework": {"framework"},
    "ops": {"framework", "ops"},
    "nn": {"framework", "ops", "nn"},
    "models": {"framework", "ops", "nn", "models"},
    "optim": {"framework", "optim"},
    "fsdp": {"framework", "ops", "nn", "fsdp"},
}
MAY_INCLUDE["moegrad.h"] = set(MAY_INCLUDE)
EVERYTHING = set(MAY_INCLUDE) | {"examples"}
MAY_INCLUDE |= {"examples": EVERYTHING, "tests": EVERYTHING | {"tests"}}

# Kept out of headers, so that each is compiled in few files. The exceptions are opt-in headers.
HEAVY = re.compile(r"(?:unsupported/)?(Eigen|boost|spdlog|fmt|CLI|nlohmann|gtest|gmock|benchmark)/")
HEAVY_ALLOWED = {
    ("framework/tensor/as_eigen.h", "Eigen"),
    ("framework/autograd/gradcheck_gtest.h", "gtest"),
    ("framework/io/strict_json.h", "nlohmann"),  # json_fwd.hpp
}
TOP_LEVEL = set(MAY_INCLUDE) | {
    "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "build", "docs"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def problems(root):
    for entry in sorted(root.iterdir()):
        if not entry.name.startswith(".") and entry.name not in TOP_LEVEL:
            yield f"{entry.name}: does not belong at the top level"
    for folder, allowed in MAY_INCLUDE.items():
        for path in [root / folder, *sorted((root / folder).rglob("*"))]:
            if path.suffix not in (".h", ".cpp") or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            for bracket, target in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if (bracket == '"' or target.split("/")[0] in MAY_INCLUDE) and \
                        target.split("/")[0] not in allowed:
                    yield f"{name}: must not include {target}"
                heavy = HEAVY.match(target)
                if heavy and path.suffix == ".h" and folder not in ("examples", "tests") and \
                        (name, heavy[1]) not in HEAVY_ALLOWED:
                    yield f"{name}: a public header must not include {target}"


def self_test():
    """Plants one breach of each kind, and some includes that are fine."""
    planted = {
        "framework/a.h": ('#include "ops/b.h"\n', 1),
        "framework/tensor/as_eigen.h": ("#include <Eigen/Core>\n", 0),
        "framework/c.cpp": ("#include <Eigen/Core>\n#include <spdlog/spdlog.h>\n", 0),
        "ops/d.h": ("#include <Eigen/Core>\n", 1),
        "ops/e.cpp": ('#include "e.h"\n', 1),
        "nn/f.cpp": ('#include "ops/d.h"\n#include "framework/a.h"\n', 0),
        "optim/g.cpp": ('#include "ops/d.h"\n', 1),
        "models/h.cpp": ('#  include "fsdp/i.h"\n', 1),
        "fsdp/i.h": ('#include <models/h.h>\n', 1),
        "examples/j.cpp": ('#include "fsdp/i.h"\n#include "models/h.h"\n', 0),
        "moegrad.h": ('#include "fsdp/i.h"\n#include "models/h.h"\n', 0),
        "ops/k.h": ('#include "moegrad.h"\n', 1),
        "fsdp/l.cpp": ("#include <moegrad.h>\n", 1),
        "tests/m.cpp": ('#include "moegrad.h"\n', 0),
        "scratch.txt": ("", 1),
        ".hidden": ("", 0),
    }
    check_planted(planted)
    check_planted({"moegrad.h": ('#include "examples/j.h"\n#include <boost/any.hpp>\n', 2)})


def check_planted(planted):
    with tempfile.TemporaryDirectory() as tmp:
        for name, (text, _) in planted.items():
            path = Path(tmp) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        found = list(problems(Path(tmp)))
    for name, (_, count) in planted.items():
        got = [problem for problem in found if problem.startswith(f"{name}:")]
        assert len(got) == count, f"self-test: {name}: expected {count} problems, found {got}"


self_test()
found = list(problems(Path(__file__).resolve().parent.parent))
print("\n".join(found) or "layering_test: ok")
sys.exit(bool(found))
