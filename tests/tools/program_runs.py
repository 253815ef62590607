# SPDX-License-Identifier: Apache-2.0
"""Short runs of the programs in a folder of their own, for the tests of what all programs do alike.
The first argument of the test is the folder of the tools."""
import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from program_path import program_path

# What a parent ignores is inherited, and shells ignore SIGINT for background jobs.
signal.signal(signal.SIGINT, signal.default_int_handler)

programs = Path(sys.argv[1]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
SMALL = ["--text", text, "--preset", "tiny", "--steps", 3, "--micro-batches", 2, "--batch", 1,
         "--seq-len", 16, "--sample-bytes", 2, "--validation-sequences", 2]
WITHOUT_MODEL = [word for word in SMALL if word not in ("--preset", "tiny")]
SHORT = ["train", *SMALL]


def start(*command, **keywords):
    options = []  # of two with the same name the last counts
    for word in map(str, command[1:]):
        if word.startswith("--") or not options:
            options = [option for option in options if option[0] != word]
            options.append([word])
        else:
            options[-1].append(word)
    words = [str(program_path(programs, command[0])), *(word for option in options for word in option)]
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder, **keywords}
    process = subprocess.Popen(words, text=True, errors="backslashreplace", **keywords)
    atexit.register(process.kill)  # for a test that fails; nothing where the program has ended
    return process


def run(*command, exit_code=0, timeout=120, **keywords):
    process = start(*command, **keywords)
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == exit_code, (command, process.returncode, out, err)
    return out, err


def contents(root):
    """Path -> bytes of all files, but for what differs from run to run."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and "tfevents" not in path.name:
            data = path.read_bytes()
            if path.suffix == ".jsonl":
                data = [{key: json.loads(line).get(key) for key in ("step", "loss", "grad_norm")}
                        for line in data.splitlines()]
            found[path.relative_to(root)] = data
    return found
