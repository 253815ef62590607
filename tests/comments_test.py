# SPDX-License-Identifier: Apache-2.0
"""Checks that a comment begins with what it is about, not with a word that leaves the reader to guess."""
import re
import sys
import tempfile
from pathlib import Path

from repository_files import repository_files

FOLDERS = {".ci", "docs", "examples", "framework", "fsdp", "models", "nn", "ops", "optim", "parallel", "plan", "tests",
           "tools", "train", "CMakeLists.txt", "README.md", "moegrad.h", "moegrad_diagnostics.h", "moegrad_mpi.h",
           "moegrad_testing.h"}
SUFFIXES = {".cpp", ".h", ".md", ".py", ".sh", ".supp", ".txt"}
REFUSED = re.compile(r'(?:(?://[/!]?<?|/\*+|#|<!--)\s+|"""\s*)(Of|Those|That of|Whoever|Nobody)\b')


def problems(root):
    for file in repository_files(root, FOLDERS):
        if file.suffix in SUFFIXES:
            lines = (root / file).read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                for word in REFUSED.findall(line):
                    yield f"{file}:{number}: a comment must not begin with '{word}'; say what it is about"


def self_test():
    """Plants one comment of each kind, and some texts that are fine. No line here is one itself."""
    of, those, that, whoever, nobody = "Of all", "Those of a rank", "That of a rank", "Whoever asks", "Nobody asks"
    planted = {
        "ops/a.h": (f"/// {of} elements.\nint a;  // {those}\n", 2),
        "ops/b.cpp": (f"  // {whoever}\n  /* {nobody} */\n", 2),
        "tests/c.py": (f'# {that}\ndef c():\n    """{of} elements."""\n', 2),
        "tests/d.sh": (f"true  # {nobody}\n", 1),
        "ops/CMakeLists.txt": (f"# {whoever}\n", 1),
        "docs/e.md": (f"<!-- {those} -->\n{those}\n", 1),
        "ops/f.h": ("/// Offsets. That often is 0: of all elements.\n// That is what it costs. Those that\n", 0),
        "ops/g.cpp": (f'const char* text = "{of} them";  // the text\n', 0),
        "tests/h.json": (f'"# {of} elements"\n', 0),
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
print("\n".join(found) or "comments_test: ok")
sys.exit(bool(found))
