# SPDX-License-Identifier: Apache-2.0
"""The commands in the `sh` blocks of README.md and docs/.

usage: documented_commands_test.py BUILD_FOLDER

Checks that each runs a program or script of the repository and that this has the options it is given.
With MOEGRAD_FULL in the environment each command is also run as it is written, one after the other, in
a copy of the checkout, for at most TIME_LIMIT seconds; none may fail or leave a file among the sources.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from repository_files import git, repository_files

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:\./)?(build/release/(?:tools|examples|tests)/\w+|(?:examples|tests)(?:/\w+)*\.sh)$")
# Other programs that a command may begin with.
SYSTEM = {"cmake", "doxygen", "g++", "python3", "rm"}
TIME_LIMIT = 20
# What train.sh and run.sh do is this test's own surrounding, and compare_torch.sh needs PyTorch.
NOT_RUN = re.compile(r"^\./(examples/train|tests/run)\.sh|compare_torch|compare_libraries|scaling\.sh|--target benchmarks|"
                     r"release/tests/")


def commands_of(text):
    """Logical lines of the `sh` blocks, without comments."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s)#.*", "", line).strip()
            if command:
                yield " ".join(command.split())


def pages(root):
    return [root / path for path in repository_files(root, ["README.md", "docs"])
            if path.suffix == ".md" and path.parts[0] in ("README.md", "docs")]


def help_of(program, build):
    """What a program says of its options; for a script, its text."""
    if program.endswith(".sh"):
        return (ROOT / program).read_text(encoding="utf-8")
    path = build / program.removeprefix("build/release/")
    if not path.exists() and program.startswith("build/release/tests/bench_"):
        return (ROOT / f"tests/bench/{path.name}.cpp").read_text(encoding="utf-8")
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def without_launcher(words):
    """A command without the mpirun that starts it: `mpirun -n 2 PROGRAM ...`."""
    if words[0] == "tools/mpirun_guard":
        words = words[1:]
    return words[3:] if words[:2] == ["mpirun", "-n"] else words


def problems_of(command, build):
    """What is wrong with a command without running it."""
    for part in re.split(r"\s*(?:&&|\|)\s*", command):
        words = without_launcher(part.split())
        if words[0] == "python3" and not (ROOT / words[1]).exists():
            yield f"{command}: no script {words[1]}"
        if words[0] in SYSTEM | {"dot"}:
            continue
        match = PROGRAM.match(words[0])
        program = match[1] if match else None
        exists = program and (build / program.removeprefix("build/release/")).exists() if \
            program and program.startswith("build/") else program and (ROOT / program).exists()
        benchmark = program and (ROOT / f"tests/bench/{Path(program).name}.cpp").exists()
        if not exists and not benchmark:
            yield f"{command}: no program {words[0]}"
            continue
        text = help_of(program, build)
        for option in (word for word in words[1:] if word.startswith("--")):
            name = option.split("=")[0]
            listed = re.search(rf"{re.escape(name)}(?![\w-])", text) or f'"{name[2:]}"' in text
            common = name in ("--world-size", "--threads-per-rank") and "_option(" in text
            if not listed and not common and name != "--help":
                yield f"{command}: {words[0]} has no option {name}"


def fixtures(folder, build):
    """Files of the names that the documentation gives to a reader's own."""
    train = [build / "tools/train", "--preset", "tiny", "--steps", "4", "--batch", "2",
             "--sample-bytes", "0", "--validation-sequences", "4"]
    text = "".join(f"{i} sheep went to the water and came back again.\n\n" for i in range(3000))
    for name in ("FILE", "TEXT"):
        (folder / name).write_text(text)
    run = {"cwd": folder, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*train, "--text", "TEXT", "--checkpoint-dir", "A", "--export-hf", "DIR",
                    "--metrics", "a.jsonl"], **run)
    for copy in ("B", "PATH"):
        shutil.copytree(folder / "A", folder / copy, symlinks=True)
    shutil.copy(folder / "a.jsonl", folder / "b.jsonl")
    shutil.copy(folder / "DIR/config.json", folder / "config.json")
    (folder / "train.bin").write_bytes(b"".join(
        bytes((i % 200 + 1, 0)) if i % 90 else bytes(2) for i in range(1, 90 * 400 + 1)))
    (folder / "first.cpp").write_bytes((ROOT / "examples/linear_regression.cpp").read_bytes())


def strays(folder):
    """Files that git does not know, in folders that have files that it knows."""
    listed = git(folder, "ls-files", "-z", "--others", "--exclude-standard") or b""
    known = {path.parts[0] for path in repository_files(folder, []) if len(path.parts) > 1}
    others = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]
    return [path for path in others if len(path.parts) > 1 and path.parts[0] in known]


def run_all(commands, build, prepare=fixtures, files=None):
    """Runs the commands in a copy of the checkout, or of these files of it; what goes wrong."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "checkout"
        for path in files or repository_files(ROOT, []):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        for command in (["init", "-q"], ["add", "-A"]):
            assert git(folder, *command) is not None, "git is needed to see what a command leaves"
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(build)
        prepare(folder, build)
        # For mpirun: as root, and with more processes than there may be cores.
        environment = {**os.environ, "HOME": tmp, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1",
                       "OMPI_MCA_hwloc_base_binding_policy": "none",
                       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                       "PRTE_MCA_hwloc_default_binding_policy": "none"}
        for command in commands:
            if NOT_RUN.search(command):
                continue
            print(f"  {command}", flush=True)
            process = subprocess.Popen(["bash", "-c", f"exec {command}" if "&&" not in command else command],
                                       cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
            stopped = False
            try:
                _, err = process.communicate(timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                stopped = True  # then mpirun may exit with its own code or with that of a rank
                os.killpg(process.pid, signal.SIGTERM)
                _, err = process.communicate(timeout=120)
            if not stopped and process.returncode != 0:
                yield f"{command}: exit status {process.returncode}\n{err}"
            for path in strays(folder):
                yield f"{command}: leaves {path}"
                (folder / path).unlink()


def self_test(build):
    text = "```sh\n./tests/run.sh --full   # all\ncmake \\\n  --version\n```\n```\nno command\n```\n"
    assert list(commands_of(text)) == ["./tests/run.sh --full", "cmake --version"]
    bad = {"build/release/tools/no_such_tool": "no program",
           "./tests/no_such.sh": "no program",
           "build/release/tools/train --no-such-option 3": "no option --no-such-option",
           "./tests/run.sh --fulll": "no option --fulll",
           "mpirun -n 2 build/release/tools/no_such_tool": "no program",
           "mpirun -n 2 build/release/tools/train --no-such": "no option --no-such",
           "build/release/tools/train --expert 2": "no option --expert",
           "python3 tests/no_such.py": "no script tests/no_such.py"}
    for command, what in bad.items():
        found = list(problems_of(command, build))
        assert len(found) == 1 and what in found[0], (command, found)
    good = ["./tests/run.sh --full", "build/release/tools/train --lr 3 && dot -Tsvg x"]
    assert not [problem for command in good for problem in problems_of(command, build)]
    planted = ["touch ops/stray.h", "touch top_level_is_fine.json", "false"]
    few = [Path("README.md"), Path("ops/CMakeLists.txt")]
    found = list(run_all(planted, build, prepare=lambda *_: None, files=few))
    assert len(found) == 2 and found[0].endswith("leaves ops/stray.h") and \
        found[1].startswith("false: exit status 1"), found


build_folder = Path(sys.argv[1]).resolve()
self_test(build_folder)
documented = [command for page in pages(ROOT) for command in commands_of(page.read_text(encoding="utf-8"))]
assert len(documented) > 30, documented
failures = [problem for command in documented for problem in problems_of(command, build_folder)]
if os.environ.get("MOEGRAD_FULL") and not failures:
    failures += run_all(documented, build_folder)
print("\n".join(failures) or f"documented_commands_test: ok, {len(documented)} commands")
sys.exit(bool(failures))
