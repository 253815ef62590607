# SPDX-License-Identifier: Apache-2.0
"""What every program does alike with its files: earlier metrics files, files that are input and
output at once, two runs in one folder, inputs that change or never end, a full disk."""
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import threading
import time
from pathlib import Path

from program_runs import SHORT, SMALL, WITHOUT_MODEL, contents, folder, full, run, start, text

run(*SHORT, "--metrics", "run.jsonl", "--checkpoint-dir", "sound")

# A metrics file: links followed, modes kept, devices and pipes left what they are, nothing emptied.
RESUMABLE = [*SHORT, "--checkpoint-dir", "resumable", "--checkpoint-interval", 1]
(folder / "linked").mkdir()
(folder / "linked" / "real.jsonl").touch()
(folder / "linked" / "real.jsonl").chmod(0o600)
link = folder / "link.jsonl"
link.symlink_to("linked/real.jsonl")
run(*RESUMABLE, "--metrics", link)
lines = link.read_text().splitlines()
for _ in range(2):
    shutil.rmtree(folder / "resumable" / "step-00000003", ignore_errors=True)
    run(*RESUMABLE, "--metrics", link, "--resume")
    assert link.is_symlink() and stat.S_IMODE(link.stat().st_mode) == 0o600
    assert [json.loads(line)["step"] for line in link.read_text().splitlines()] == [0, 1, 2, 3]
assert link.read_text().splitlines()[:2] == lines[:2]
before = link.read_bytes()
out, _ = run(*SHORT, "--metrics", link)
kept = folder / "linked" / "real.jsonl.1"
assert f"--metrics: the earlier {link} is kept as {kept}\n" in out, out
assert kept.read_bytes() == before and len(link.read_text().splitlines()) == 4 and link.is_symlink()
assert stat.S_IMODE(link.stat().st_mode) == 0o600
run(*SHORT, "--metrics", link)
assert (folder / "linked" / "real.jsonl.2").exists() and kept.read_bytes() == before
null = folder / "null"  # not /dev/null: a program that replaces it would take it from everybody
try:
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    null.write_text("")
except PermissionError:
    null.unlink(missing_ok=True)
    print("no device node may be made or opened here")
if null.exists():
    shutil.rmtree(folder / "resumable" / "step-00000003", ignore_errors=True)
    run(*RESUMABLE, "--metrics", null, "--resume")
    assert stat.S_ISCHR(null.stat().st_mode)
os.mkfifo(folder / "pipe")
_, err = run(*SHORT, "--metrics", "pipe", exit_code=1)
assert err == "train: --metrics: cannot write file 'pipe': No such device or address\n", err
assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
shutil.rmtree(folder / "resumable" / "step-00000003", ignore_errors=True)
run(*RESUMABLE, "--metrics", "pipe", "--resume")  # which a resumed run must not read itself
lines = os.read(reader, 1 << 16).decode().splitlines()
assert [json.loads(line)["step"] for line in lines] == [2, 3], lines
os.close(reader)

# A resumed run cuts off an unfinished line and the lines that it writes again. Where there is more,
# or the file is not its own, the earlier file is kept.
run(*RESUMABLE, "--metrics", "own.jsonl", "--checkpoint-dir", "whole")
own = (folder / "own.jsonl").read_text()
run(*SHORT, "--metrics", "seed.jsonl", "--seed", 2)
other = (folder / "seed.jsonl").read_text()
before, behind = "".join(own.splitlines(True)[:2]), "".join(own.splitlines(True)[2:])
# A warning says what the file then lacks.
ALL, STEP_1 = "lacks 2 of the 2 steps before step 2, the first of them step 0", \
    "lacks 1 of the 2 steps before step 2, the first of them step 1"
validated = before.splitlines(True)[0] + '{"step":1,"validation_loss":2}\n'
text_step = before.splitlines(True)[0] + '{"step":"1"}\n'
for number, (content, begins, is_kept, holes) in enumerate([
        (own, before, False, []), (before + '{"st', before, False, []), (before[:-1], before, False, []),
        (own + "{", before, False, []), ("", "", False, [ALL]), (None, "", False, [ALL]),
        (before + "[1]\n{", before + "[1]\n", False, ["line 3"]),
        (text_step, text_step, False, [STEP_1, "line 2"]), (validated, validated, False, [STEP_1]),
        ("notes\nof mine\n", "", True, [ALL]), ("notes", "", True, [ALL]),
        ('{"step":"one"}\n' + own, "", True, [ALL]), (own + "notes\n", before, True, []),
        (own + before, before, True, []), (other, "", True, [ALL]), (before + other, "", True, [ALL]),
        ('{"step":0}\n{"step":9}\n', '{"step":0}\n', True, [STEP_1])]):
    odd = folder / f"odd{number}.jsonl"
    if content is not None:
        odd.write_text(content)
        odd.chmod(0o640)
    shutil.rmtree(folder / "resumable" / "step-00000003")
    out, err = run(*RESUMABLE, "--metrics", odd, "--resume")
    got = odd.read_text()
    assert got.startswith(begins + '{"axes"'), (content, got)
    expected = [f"{hole} of {odd} has no step; programs that read the file refuse it" if "line" in hole
                else f"{odd} {hole}" for hole in holes]
    assert re.findall(r"^.* warning .*--metrics: (.*)$", err, re.M) == expected == \
        [line.split("--metrics: ")[1] for line in err.splitlines()], (content, err)
    assert [json.loads(line)["step"] for line in got[len(begins):].splitlines()] == [2, 3], got
    kept = Path(f"{odd}.1")
    assert kept.exists() == is_kept == (f"the earlier {odd} is kept as {kept}\n" in out), (content, out)
    assert not is_kept or kept.read_text() == content and odd.stat().st_mode == kept.stat().st_mode
    odd.unlink()
    kept.unlink(missing_ok=True)

# A log that somebody cuts, renames or removes while a run writes it: no hole, and what is lost is said.
for change in ("cut", "renamed", "removed"):
    log, board = folder / f"{change}.jsonl", folder / f"{change} board"
    process = start(*SHORT, "--steps", 10000, "--metrics", log, "--tensorboard", board)
    while not log.exists() or log.read_text().count("\n") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    if change == "removed":
        shutil.rmtree(board)
        log.unlink()
    elif change == "renamed":
        log.rename(folder / "renamed.old")
        size = (folder / "renamed.old").stat().st_size
        log = folder / "renamed.old"
    else:
        os.truncate(log, 0)
        size = 0
    while change != "removed" and log.stat().st_size == size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == (1 if change == "removed" else 128 + signal.SIGTERM), (out, err)
    if change != "removed":
        assert all(json.loads(line) for line in log.read_text().splitlines()), log.read_text()
        continue
    for said in [rf"--metrics: cannot write file '{log}': No such file or directory; the run goes on\n",
                 r"--metrics: \d+ records could not be written\n",
                 rf"--tensorboard: event_file: cannot write {board}/\S+: No such file or directory; the run",
                 r"--tensorboard: \d+ records could not be written\n"]:
        assert len(re.findall(said, err)) == 1, (said, err)
    assert not log.exists() and not board.exists()

# A metrics file that a run writes meanwhile is read as it was when it was opened.
second = json.loads((folder / "run.jsonl").read_text().splitlines()[1])
growing = folder / "growing.jsonl"
ended = threading.Event()


def line_of(step):
    return json.dumps({**second, "step": step}) + "\n"


growing.write_text("".join(map(line_of, range(5000))))


def grow():
    with open(growing, "a") as file:
        for step in itertools.count(5000):
            if ended.is_set():
                return
            file.write(line_of(step))
            file.flush()
            time.sleep(0.0002)


thread = threading.Thread(target=grow)
thread.start()
try:
    for _ in range(3):
        size = growing.stat().st_size
        out, _ = run("compare_losses", growing, "run.jsonl", "--rtol", 1e9, "--common")
        assert out.endswith("within the tolerance\n"), out
        run("training_report", growing, "-o", "growing.html")
        assert growing.stat().st_size > size
finally:
    ended.set()
    thread.join()

# No output is an input or another output, by whatever name, there already or not.
(folder / "other-name.txt").hardlink_to(text)
(folder / "here").symlink_to(".")
shutil.copy(folder / "run.jsonl", folder / "x.jsonl")
shutil.copytree(folder / "sound", folder / "kept")
(folder / "run.toml").write_text("steps=3\n")
run("checkpoint_tool", "export", "sound", "hf")
before = contents(folder)
STEP = "sound/step-00000003"
for command in [
        ["train", *SMALL, "--metrics", text],
        ["train", *SMALL, "--metrics", "other-name.txt"],
        ["train", *SMALL, "--metrics", "here/text.txt"],
        ["train", *SMALL, "--metrics", "m", "--profile", "here/m", "--profile-steps", "0:1"],
        ["train", *SMALL, "--metrics", "here/trace.json", "--profile-steps", "0:1"],
        ["train", *SMALL, "--config-file", "run.toml", "--metrics", "run.toml"],
        ["train", *SMALL, "--export-hf", "sound"],
        ["train", *SMALL, "--export-hf", STEP],
        ["train", *SMALL, "--export-hf", "new", "--checkpoint-dir", "here/new"],
        ["train", *WITHOUT_MODEL, "--export-hf", "hf", "--hf-model", "hf"],
        ["train", *WITHOUT_MODEL, "--export-hf", "hf", "--config", "here/hf/config.json"],
        ["train", *WITHOUT_MODEL, "--metrics", "hf/config.json", "--hf-model", "hf"],
        ["train", *SMALL, "--export-hf", "new", "--metrics", "here/new/tokenizer.json"],
        ["train", *SMALL, "--export-hf", "new/", "--checkpoint-dir", "new"],
        ["train", *SMALL, "--export-hf", "new/", "--profile", "new/model.safetensors", "--profile-steps", "0:1"],
        ["train", *SMALL, "--metrics", f"{STEP}/manifest.json"],
        ["train", *SMALL, "--tensorboard", f"{STEP}/board"],
        ["train", *SMALL, "--tensorboard", STEP],
        ["train", *SMALL, "--checkpoint-dir", STEP],
        ["train", *SMALL, "--checkpoint-dir", "here/sound/latest/"],
        ["train", *SMALL, "--metrics", "m", "--profile", "here/m.1", "--profile-steps", "0:1"],
        ["train", *SMALL, "--metrics", "m", "--export-hf", "m.20"],
        ["train", *WITHOUT_MODEL, "--profile", "hf/config.json", "--config", "hf/config.json",
         "--profile-steps", "0:1"],
        ["training_report", "x.jsonl", "-o", "x.jsonl"],
        ["training_report", "x.jsonl", "-o", "here/x.jsonl"],
        ["checkpoint_tool", "export", "sound", "sound"],
        ["checkpoint_tool", "export", "sound", STEP],
        ["checkpoint_tool", "export", "sound", f"{STEP}/inside"],
        ["checkpoint_tool", "export", "sound", "kept"],
        ["inspect_graph", "--config", "hf/config.json", "--dot", "hf/config.json"],
        ["inspect_graph", "--preset", "tiny", "--dot", "a", "--live-bytes", "a"],
        ["fsdp_timeline", "--trace", "a", "--summary", "here/a"],
        ["loss_parity", "--text", text, "--svg", text],
        ["loss_parity", "--text", text, "--svg", "a", "--json", "a"]]:
    _, err = run(*command, exit_code=2)
    assert re.fullmatch(rf"{command[0]}: (--\S+|folder|[A-Z_]+): must not be .*, got '.*'\n", err), (command, err)
    assert contents(folder) == before, command

# Beside an export may be what it does not write.
(folder / "own").mkdir()
shutil.copy(text, folder / "own")
run("train", *SMALL, "--text", f"own/{text.name}", "--metrics", "own/metrics.jsonl", "--export-hf", "own")
assert {text.name, "metrics.jsonl", "model.safetensors"} <= {path.name for path in (folder / "own").iterdir()}
shutil.rmtree(folder / "own")

_, err = run("own_training_loop", text, "sound/latest", exit_code=1)
assert err == "own_training_loop: lock: sound/latest must not be in a checkpoint\n", err
assert contents(folder) == before

# Two runs in one folder, and of one metrics file: the second is refused and told by whom.
seed = random.randrange(1 << 32)
print("seed of the pauses", seed)
randomness = random.Random(seed)


def second_run_is_refused(number):
    root = folder / f"contested {number}"
    long = ["train", *SMALL, "--steps", 10000, "--checkpoint-dir", root,
            "--checkpoint-interval", 1, "--log-every", 10000]
    first = start(*long, "--seed", 1)
    while not list(root.glob("step-*")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    _, err = run(*long, "--seed", 2, "--resume", exit_code=1)
    assert err == (f"train: lock: {root} must be written by one program at a time, got process "
                   f"{first.pid} on {os.uname().nodename} at work in it\n"), err
    _, err = run("own_training_loop", text, root, exit_code=1)
    assert f"got process {first.pid} on " in err, err
    time.sleep(randomness.uniform(0, 0.3))
    run("checkpoint_tool", "list", root)
    first.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
    first.communicate()
    out, _ = run("checkpoint_tool", "verify", root)
    assert out.count(": sound, ") >= 1 and out.count("\n") == out.count(": sound, "), out
    # What a killed run leaves of its lock holds nobody up.
    newest = max(int(path.name[5:]) for path in root.glob("step-*"))
    again = start(*long, "--seed", 1, "--resume")
    while not any(int(path.name[5:]) > newest for path in root.glob("step-*")):
        assert again.poll() is None, again.communicate()
        time.sleep(0.02)
    again.send_signal(signal.SIGTERM)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 128 + signal.SIGTERM and f"step-{newest:08}, saved by" in out, (out, err)
    assert sorted(path.name for path in root.iterdir() if path.name.startswith(".")) == []
    shutil.rmtree(root)


REFUSALS = 20 if full else 2
for count in range(REFUSALS):
    second_run_is_refused(count)
print(REFUSALS, "second runs refused, every checkpoint sound")
first = start(*SHORT, "--steps", 10000, "--metrics", "contested.jsonl")
while not (folder / "contested.jsonl").exists() or not (folder / "contested.jsonl").read_text():
    assert first.poll() is None, first.communicate()
    time.sleep(0.02)
_, err = run(*SHORT, "--metrics", "here/contested.jsonl", exit_code=1)
assert err == ("train: --metrics: 'here/contested.jsonl' must be written by one program at a "
               "time, got another at work on it\n"), err
first.kill()
first.communicate()

# A tokenized file that is cut short or written anew while it is read; a text is held in memory.
ids = folder / "ids.bin"


def rewrite():
    with open(ids, "r+b") as file:
        file.write(b"\2\0" * 16000)


for change, what in [(lambda: os.truncate(ids, 5000), "5000 bytes after 32000"),
                     (lambda: os.truncate(ids, 0), "0 bytes after 32000"),
                     (rewrite, "other contents")]:
    ids.write_bytes(b"\1\0" * 16000)
    process = start("train", *SMALL[2:], "--data", "ids.bin", "--steps", 100000, "--metrics",
                    "ids.jsonl")
    while not (folder / "ids.jsonl").exists() or not (folder / "ids.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    change()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (process.returncode, out, err)
    assert f"train: data: ids.bin: must not change while it is read, got {what}\n" in err, err
    (folder / "ids.jsonl").unlink()
copy = folder / "copy.txt"
shutil.copy(text, copy)
process = start(*SHORT, "--text", copy, "--steps", 30, "--metrics", "copy.jsonl")
while not (folder / "copy.jsonl").exists() or not (folder / "copy.jsonl").read_text():
    assert process.poll() is None, process.communicate()
    time.sleep(0.01)
os.truncate(copy, 10)
out, err = process.communicate(timeout=60)
assert process.returncode == 0 and not err, (process.returncode, err)

# Inputs that are no regular files, or larger than they can be.
(folder / "empty folder").mkdir()
layers = json.loads((folder / "hf" / "config.json").read_text())
(folder / "layers.json").write_text(json.dumps({**layers, "num_hidden_layers": 10**6}))
with open(folder / "large.json", "w") as large:
    large.truncate(1 << 30)
WHAT = {"/dev/zero": "a device", "pipe": "a pipe", "empty folder": "a folder"}
for path, what in WHAT.items():
    for command, who in [(["train", "--text", path], "text"),
                         (["train", "--data", path], "data"),
                         (["train", "--config", path], "--config: model config"),
                         (["train", "--dry-run", "--config", path], "--config: model config"),
                         (["inspect_graph", "--config", path], "model config"),
                         (["training_report", path, "-o", "r.html"], "metrics"),
                         (["sampler_balance", "--text", path], "text"),
                         (["loss_parity", "--text", path], "text"),
                         (["train_loop", path], "text"),
                         (["own_training_loop", path, "nowhere"], "TEXT")]:
        _, err = run(*command, exit_code=1, timeout=20)
        assert err == f"{command[0]}: {who}: {path}: must be a readable regular file, got {what}\n", err
    _, err = run("train", "--config-file", path, exit_code=2, timeout=20)
    assert f"must be a readable regular file, got {what}" in err, err
for more in [[], ["--dry-run"]]:
    _, err = run("train", *more, "--config", "layers.json", exit_code=1, timeout=20)
    assert err == ("train: --config: layers.json: qwen3_moe config: num_hidden_layers must be in "
                   "[1, 10000], got 1000000\n"), err
    _, err = run("train", *more, "--config", "large.json", exit_code=1, timeout=20)
    assert err == ("train: --config: model config: large.json: must be of at most 16777216 "
                   "bytes, got 1073741824\n"), err

# A full disk, for each thing that a run writes: said once, counted, exit code 1.
def full_disk(limit):
    def apply():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return apply


for options, limit, said, lost in [
        (["--metrics", "full.jsonl"], 2000, r"--metrics: cannot write file 'full.jsonl': File too large; the "
         r"run goes on", r"--metrics: \d+ records could not be written"),
        (["--tensorboard", "full"], 500, r"--tensorboard: event_file: cannot write full/events\S+: File too "
         r"large; the run goes on", r"--tensorboard: \d+ records could not be written"),
        (["--profile-steps", "0:2"], 2000, r"--profile: cannot write file 'trace.json': File too large; the run goes on",
         r"--profile: 1 records could not be written")]:
    out, err = run(*SHORT, *options, "--steps", 6, exit_code=1, preexec_fn=full_disk(limit))
    assert len(re.findall(said, err)) == 1 and len(re.findall(lost, err)) == 1, err
    assert err.count("\n") == 2 and out.count("\nstep ") == 6, (out, err)
assert all(json.loads(line) for line in (folder / "full.jsonl").read_text().splitlines())
for program, arguments in [("training_report", ["run.jsonl", "-o", "large.html"]),
                           ("inspect_graph", ["--preset", "tiny", "--tokens", 3]),
                           ("fsdp_timeline", ["--steps", 1, "--batch", 1, "--seq-len", 8]),
                           ("checkpoint_tool", ["export", "sound", "large"])]:
    run(program, *arguments, exit_code=1, preexec_fn=full_disk(100))
assert not list(folder.glob("*.tmp.*"))

# A file that is written as a whole is as it was until it is; links, pipes and devices are written in
# place; what cannot be written is refused with the reason.
WHOLE = {"training_report": ["run.jsonl", "-o"], "inspect_graph": ["--preset", "tiny", "--tokens", 3, "--dot"],
         "train": [*SMALL, "--profile-steps", "0:1", "--profile"],
         "fsdp_timeline": ["--steps", 1, "--batch", 1, "--seq-len", 8, "--trace"]}
for program, arguments in WHOLE.items():
    said = rf"{program}: .*cannot write file '{{}}': {{}}(; the run goes on)?\n"
    place = folder / f"whole {program}"
    place.write_text("earlier")
    place.chmod(0o640)
    _, err = run(program, *arguments, place, exit_code=1, preexec_fn=full_disk(100))
    assert re.search(said.format(place, "File too large")[len(program):], err), err
    assert place.read_text() == "earlier" and not list(folder.glob("*.tmp.*"))
    run(program, *arguments, place)
    new = place.read_text()
    assert new != "earlier" and stat.S_IMODE(place.stat().st_mode) == 0o640
    place.with_suffix(".link").symlink_to(place.name)
    run(program, *arguments, place.with_suffix(".link"))
    assert place.with_suffix(".link").is_symlink() and len(place.read_text()) > len(new) / 2
    for unwritable, reason in [("pipe", "No such device or address"), ("empty folder", "Is a directory"),
                               ("nowhere/at/all", "No such file or directory"),
                               ("/dev/full", "No space left on device")]:
        _, err = run(program, *arguments, unwritable, exit_code=1, timeout=20)
        assert re.search(said.format(unwritable, reason)[len(program):], err), (unwritable, err)

# What a run that was killed while it removed an old checkpoint left goes away with the next one.
left = folder / "sound" / ".step-00000001.old.tmp"
left.mkdir()
(left / "rank-00000.safetensors").write_text("half")
run(*SHORT, "--checkpoint-dir", "sound", "--resume")
assert not left.exists()

print("files_test: ok")
