# SPDX-License-Identifier: Apache-2.0
"""Checks that no library calls a function whose bits the system's mathematical library decides.

See Note [Elementary functions].
"""
import re
import sys
import tempfile
from pathlib import Path

from repository_files import repository_files

FOLDERS = {"framework", "ops", "nn", "optim", "fsdp", "parallel", "plan", "models", "train"}
# Written on its own, as a reference for others.
EXCEPT = {"models/causal_lm/plain.cpp"}
FUNCTIONS = "exp exp2 expm1 log log2 log10 log1p pow cbrt hypot sin cos tan asin acos atan atan2 sinh cosh tanh " \
            "asinh acosh atanh erf erfc tgamma lgamma".split()
NAME = f"(?P<name>{'|'.join(FUNCTIONS)})"
# Comments and texts are not code.
IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
CALLS = [
    re.compile(rf"\bstd::{NAME}[fl]?\b"),
    re.compile(rf"(?<![\w>])::{NAME}[fl]?\b"),
    re.compile(rf"\b__builtin_{NAME}[fl]?\b"),
    re.compile(rf"(?<![\w:.>]){NAME}[fl]\("),
    re.compile(rf"\.{NAME}\(\)"),  # Eigen's
    re.compile(r"\.(?P<name>pow)\("),
    re.compile(r"\bstd::(?P<name>\w+_distribution)\b"),
]
BARE = re.compile(rf"(?<![\w:.>]){NAME}\(")
# A bare name is one of the folder itself. Elsewhere log() writes a message.
OWN = {"framework/runtime/math": set(FUNCTIONS), "ops/kernels": {"exp"}, "ops": set(FUNCTIONS)}


def own_names(file):
    for folder, names in OWN.items():
        if file.as_posix().startswith(folder + "/"):
            return names
    return {"log"}


def problems(root):
    for file in repository_files(root, FOLDERS):
        if file.parts[0] not in FOLDERS or file.suffix not in (".h", ".cpp") or file.as_posix() in EXCEPT:
            continue
        code = IGNORED.sub("", (root / file).read_text(encoding="utf-8"))
        found = [match for call in CALLS for match in call.finditer(code)]
        found += [match for match in BARE.finditer(code) if match["name"] not in own_names(file)]
        for match in found:
            instead = "Random (framework/runtime/random.h)" if match["name"].endswith("_distribution") else \
                f"math::{match['name']} (framework/runtime/math/elementary.h)"
            yield f"{file}: must not use {match[0].rstrip('(')}, which is not the same everywhere; use {instead}"


def self_test():
    """Plants breaches of each kind, and some calls that are fine."""
    planted = {
        "optim/a.cpp": ("double a = std::pow(b, 2.0) + std::expf(c);\n", 2),
        "ops/b.cpp": ("auto f = &std::tanh<float>;\nusing std::log;\n", 2),
        "nn/c.h": ("double a = ::erfc(b), c = (::sin(d));\n", 2),
        "train/d.cpp": ("x = __builtin_cosf(y);\n", 1),
        "fsdp/e.cpp": ("x = powf(y, 2) + logl(y);\n", 2),
        "framework/io/f.cpp": ("x = exp(y) + pow(y, 2);\n", 2),
        "ops/kernels/g.cpp": ("x = log(y) + exp(y);\n", 1),
        "models/h.cpp": ("as_eigen<float>(y) = x.array().tanh();\n", 1),
        "models/o.cpp": ("as_eigen<float>(y) = x.array().pow(3.0F);\n", 1),
        "train/p.cpp": ("/* one */ x = std::hypot(y, z) + std::cbrt(y);\n/* two */\n", 2),
        "parallel/i.cpp": ("std::normal_distribution<double> normal;\n", 1),
        "optim/j.cpp": ('#include <cmath>\ny = math::pow(x, 2) + std::sqrt(x) + std::abs(x);  // not std::pow\n', 0),
        "framework/k.cpp": ('log(kWarning, "std::exp(x)");\n/* std::log(x) */ logger().log(level, text);\n', 0),
        "framework/runtime/math/exp.cpp": ("double exp(double x) { return exp_of(x) * std::ldexp(x, 1); }\n", 0),
        "ops/l.cpp": ("Tensor y = exp(x), z = ops::log(x);\n", 0),
        "nn/m.h": ("return ops::tanh(x);\n", 0),
        "models/causal_lm/plain.cpp": ("x = std::cos(y);\n", 0),
        "tools/n.cpp": ("x = std::log10(y);\n", 0),
    }
    with tempfile.TemporaryDirectory() as tmp:
        for name, (text, _) in planted.items():
            (Path(tmp) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(tmp) / name).write_text(text, encoding="utf-8")
        found = list(problems(Path(tmp)))
    for name, (_, count) in planted.items():
        got = [problem for problem in found if problem.startswith(f"{name}:")]
        assert len(got) == count, f"self-test: {name}: expected {count} problems, found {got}"


self_test()
found = list(problems(Path(__file__).resolve().parent.parent))
print("\n".join(found) or "math_calls_test: ok")
sys.exit(bool(found))
