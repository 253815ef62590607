# SPDX-License-Identifier: Apache-2.0
"""Throws absurd values at every option of every program, under 4 GB of memory and 20 seconds: what
cannot be is refused with a message, and what the bounds in --help allow ends in order."""
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from program_path import program_path

programs = Path(sys.argv[1]).resolve()
full = os.environ.get("MOEGRAD_FULL") == "1"
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n\n" for i in range(300)))
SMALL = {"--text": text, "--preset": "tiny", "--steps": 1, "--micro-batches": 2, "--batch": 1,
         "--seq-len": 16, "--sample-bytes": 2, "--validation-sequences": 2}
# Arguments with which a program ends soon.
PROGRAMS = {
    "train": SMALL, "inspect_graph": {"--preset": "tiny", "--tokens": 3},
    "loss_parity": {"--text": text, "--steps": 1, "--batch": 1, "--seq-len": 8, "--micro-batches": 8},
    "fsdp_timeline": {"--steps": 1, "--batch": 1, "--seq-len": 8},
    "nz_ablation": {"--preset": "tiny", "--rounds": 1}, "sampler_balance": {"--text": text},
    "training_report": {"metrics.jsonl": None},
    "compare_losses": {"metrics.jsonl": None, "./metrics.jsonl": None, "--rtol": 1},
    "fsdp_overlap": {"--layers": 1, "--tokens": 64, "--steps": 1},
    "fsdp_crossover": {"--steps": 1},
    "schedule": {"--generate": "1F1B"},
}
NUMBERS = [*(str(sign * 2**bits + more) for bits in (31, 32, 62, 63, 64) for sign in (1, -1)
             for more in (-1, 0, 1)), "1000000000", "-1", "1" * 400, "nan", "-nan", "inf", "-inf", "1e308", "-1e308",
           "1e999", "1e-320", "", "abc", "0x10", "1e3", "1.5", "1,2", " 1", "1 ", "--", "\u0661", "1\x1b[2J"]
ESCAPE = "\x1b[2J"  # also the name of a file
TEXTS = ["", "x" * 5000, ESCAPE, str(folder / "nowhere/at/all"), "/dev/zero", str(folder)]


def options_of(program):
    """Name -> (kind, least, most) of each option that takes a value."""
    result = subprocess.run([program_path(programs, program), "--help"], capture_output=True, text=True, check=True)
    found = {}
    for names, kind, least, most in re.findall(
            r"^ {2,8}(-\S+) ([A-Z-]+|\{\S*\})(?::\[(\S+) - (\S+)\])?", result.stdout, re.MULTILINE):
        found[names.split(",")[-1] if names.startswith("-o,") else names.split(",")[0]] = (kind, least, most)
    return found


def is_allowed(value, kind, least, most):
    if kind == "INT":
        return bool(re.fullmatch(r"\+?-?[0-9]+", value)) and int(least) <= int(value) <= int(most)
    try:
        number = float(value)
    except ValueError:
        return False
    return value.strip() == value and "_" not in value and value.isascii() and \
        float(least) <= number <= float(most)


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def seconds_of_work(process):
    """CPU time, which what hangs does not take."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(program, arguments):
    words = [str(program_path(programs, program))]
    for name, value in arguments.items():
        words += [name] if value is None else [f"{name}={value}" if name.startswith("--") else name]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
                               preexec_fn=limit, text=True, errors="backslashreplace")
    try:
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        # What only takes its time hears a signal, at the latest the second one.
        busy = seconds_of_work(process.pid) > 1
        for patience in (10, 5):
            process.send_signal(signal.SIGTERM)
            try:
                out, err = process.communicate(timeout=patience)
                return "busy" if busy else "stopped", out, err
            except subprocess.TimeoutExpired:
                pass
        process.kill()
        return "hangs", *process.communicate()


metrics = folder / "metrics.jsonl"
metrics.write_text('{"step":0,"loss":1,"ce":1,"grad_norm":1}\n')
TIMED = {"--steps", "--rounds", "--window", "--latency-us", "--gb-per-second", "--mb-per-second"}
randomness = random.Random(1)
runs, refused, ended, stopped = 0, 0, 0, 0
for program, base in PROGRAMS.items():
    options = options_of(program)
    assert options, program
    numbers = {name: rest for name, rest in options.items() if rest[0] in ("INT", "FLOAT")}
    for name, (kind, least, most) in options.items():
        assert (least == "") != (kind in ("INT", "FLOAT")), (program, name, "declared without bounds")
    print(program, len(numbers), "numbers,", len(options) - len(numbers), "others")
    for name, (kind, least, most) in numbers.items():
        values = NUMBERS if full else randomness.sample(NUMBERS, 4)
        for value in [*values, *([least, most] if full else [])]:
            allowed = is_allowed(value, kind, least, most)
            if allowed and not full:
                continue  # may take its time
            code, out, err = run(program, {**base, name: value})
            case = (program, name, value, code, out[-300:], err[-600:])
            runs += 1
            assert "\x1b" not in out + err, case
            if allowed:
                assert code in (0, 1, 2, "busy") or (code == "stopped" and name in TIMED) or \
                    (code == "stopped" and program == "train" and "SIGTERM" in err), case
                assert code in (0, "busy", "stopped") or err.strip(), case
                ended += code not in ("busy", "stopped")
                stopped += code in ("busy", "stopped")
            else:
                assert code == 2 and err.strip(), case
                refused += 1
    for name, (kind, _, _) in options.items():
        if name in numbers:
            continue
        for value in TEXTS if full else randomness.sample(TEXTS, 1):
            # What another program has written under that name is no input.
            written = folder / ESCAPE
            shutil.rmtree(written) if written.is_dir() else written.unlink(missing_ok=True)
            model = ["--preset"] if name in ("--config", "--hf-model") else []
            others = {key: given for key, given in base.items() if key not in model}
            code, out, err = run(program, {**others, name: value})
            case = (program, name, value, code, out[-300:], err[-600:])
            runs += 1
            at_work = code in ("busy", "stopped") and out
            assert "\x1b" not in out + err and (code in (0, 1, 2) or at_work), case
            assert code in (0, "busy", "stopped") or err.strip(), case
            assert code != 0 or kind != "INPUT", case
            # An empty path is refused before anything else.
            assert code == 2 or value or not kind.startswith(("INPUT", "OUTPUT", "EXPORT")), case
            assert code == 2 or not kind.startswith("{"), case
products = [["--batch", 1 << 20, "--seq-len", 1 << 24], ["--micro-batches", 1 << 20, "--batch", 1 << 20],
            ["--world-size", 65536, "--threads-per-rank", 65536], ["--steps", 10**9, "--seq-len", 1 << 24,
                                                                   "--batch", 1024, "--micro-batches", 4]]
for words in products:
    code, out, err = run("train", {**SMALL, **dict(zip(words[::2], words[1::2]))})
    assert code == 2 and re.search(r" x .*: must be at most \d+, got \d+ x \d+\n", err), (words, err)
    runs += 1
print(f"{runs} runs: {refused} values refused, {ended} ended by themselves, {stopped} went on until told to stop")
assert runs >= (600 if full else 100)
print("options_test: ok")
