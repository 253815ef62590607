# SPDX-License-Identifier: Apache-2.0
"""Checks README.md's table of names: each file exists, and contains each `name` of its row."""
import re
import sys
from pathlib import Path

HEADER = ["Name in the pull request or article", "File here"]
MIN_ROWS = 5


def table_rows(text):
    """The cells of each row below HEADER."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[:2] == HEADER:
            inside = True
        elif inside and not line.lstrip().startswith("|"):
            return
        elif inside and not set(line) <= set("|-: "):
            yield cells


def problems(root, readme):
    rows = list(table_rows(readme))
    if len(rows) < MIN_ROWS:
        yield f"README.md: the table of names has {len(rows)} rows, expected at least {MIN_ROWS}"
    for name, where, *_ in rows:
        files, names = [], re.findall(r"`([^`]+)`", name)
        for word in re.findall(r"`([^`]+)`", where) or [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", where)]:
            (files if "/" in word or (root / word).is_file() else names).append(word)
        absent = [file for file in files if not (root / file).is_file()]
        yield from (f"{name}: no file {file}" for file in absent)
        if not files:
            yield f"{name}: no file named"
        if not absent:
            text = "".join((root / file).read_text(encoding="utf-8") for file in files)
            yield from (f"{where}: does not contain {word}" for word in names if word not in text)


def self_test(root):
    head = f"| {HEADER[0]} | {HEADER[1]} |\n|---|---|\n"
    good = "| `self_test`, the check | `tests/names_test.py` |\n"
    assert not list(problems(root, head + good * MIN_ROWS))
    assert len(list(problems(root, head + good * (MIN_ROWS - 1) + "\ntext\n" + good))) == 1
    assert len(list(problems(root, head + good * MIN_ROWS + "| x | `tests/none.py` |\n"))) == 1
    absent = "not_in_" + "this_file"
    bad = f"| `{absent}` | `tests/names_test.py` |\n"
    assert len(list(problems(root, head + good * MIN_ROWS + bad))) == 1


root = Path(__file__).resolve().parent.parent
self_test(root)
readme = root / "README.md"
found = list(problems(root, readme.read_text(encoding="utf-8") if readme.exists() else ""))
print("\n".join(found) or "names_test: ok")
sys.exit(bool(found))
