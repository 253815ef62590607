# SPDX-License-Identifier: Apache-2.0
"""docs/notes.md, which says where each titled Note stands.

usage: notes_index.py [--write]

Fails if the page is stale, if two Notes have one title, or if a comment or page cites a Note that does
not exist. With --write it first writes the page.
"""
import re
import sys
import tempfile
from pathlib import Path

from repository_files import repository_files

PAGE = "docs/notes.md"
TOP_LEVEL = ["CMakeLists.txt", "README.md", "docs", "examples", "framework", "fsdp", "models", "moegrad.h",
             "nn", "ops", "optim", "parallel", "plan", "tests", "tools", "train"]
SUFFIXES = {".cpp", ".h", ".md", ".py", ".sh", ".txt"}
MARK = r"[ \t]*(?://[/!]?|#)"
# A Note has its title on a line of its own, and text below it.
NOTE = re.compile(rf"^{MARK} Note \[([^\]\n]+)\]\n(?={MARK} \S)", re.MULTILINE)
CITATION = re.compile(r"\bNote \[([^\]]+)\]")
NEXT_LINE = re.compile(rf"\s*\n(?:{MARK})?\s*")
HEAD = """# Notes

An idea that several files need is explained once, in a comment that begins with `Note [Title]`. Other comments
and pages cite the title. `python3 tests/notes_index.py --write` writes this page.

| Note | file |
|---|---|
"""


def texts(root):
    for path in repository_files(root, TOP_LEVEL):
        if path.suffix in SUFFIXES and path.as_posix() not in (PAGE, "tests/notes_index.py"):
            yield path.as_posix(), (root / path).read_text(encoding="utf-8")


def check(root):
    """The page as it should be, and what is wrong with the Notes."""
    files = list(texts(root))
    notes = sorted(((title, name) for name, text in files for title in NOTE.findall(text)),
                   key=lambda note: (note[0].lower(), note))
    where = {}
    problems = []
    for title, name in notes:
        if title in where:
            problems.append(f"{name}: Note [{title}] stands in {where[title]} already")
        where.setdefault(title, name)
    for name, text in files:
        cited = set(CITATION.findall(NEXT_LINE.sub(" ", text)))
        problems += [f"{name}: cites Note [{title}], which does not exist"
                     for title in sorted(cited - where.keys())]
    return HEAD + "".join(f"| {title} | [{name}](../{name}) |\n" for title, name in notes), problems


def all_problems(root):
    page, problems = check(root)
    if not (root / PAGE).is_file() or (root / PAGE).read_text(encoding="utf-8") != page:
        problems.append(f"{PAGE}: is stale; run python3 tests/notes_index.py --write")
    return problems


def self_test():
    note = "/// Note [How it works]\n/// As it does.\nint a;\n"
    cites = "// See Note [How\n// it works].\n// Note [How it works]\nint b;\n"
    page = HEAD + "| How it works | [ops/a.h](../ops/a.h) |\n"
    good = {"ops/a.h": note, "ops/b.cpp": cites, PAGE: page}
    for change, count in [({}, 0), ({PAGE: HEAD}, 1), ({PAGE: None}, 1), ({"ops/c.h": note}, 2),
                          ({"ops/a.h": note.replace("How", "Why")}, 2),
                          ({"docs/d.md": "See Note\n[What it is].\n"}, 1)]:
        with tempfile.TemporaryDirectory() as tmp:
            for name, text in {**good, **change}.items():
                if text is not None:
                    (Path(tmp) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(tmp) / name).write_text(text, encoding="utf-8")
            found = all_problems(Path(tmp))
        assert len(found) == count, f"self-test: {change}: expected {count} problems, found {found}"


root = Path(__file__).resolve().parent.parent
self_test()
if sys.argv[1:] == ["--write"]:
    (root / PAGE).write_text(check(root)[0], encoding="utf-8")
elif sys.argv[1:]:
    sys.exit("usage: notes_index.py [--write]")
found = all_problems(root)
print("\n".join(found) or "notes_index: ok")
sys.exit(bool(found))
