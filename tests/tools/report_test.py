# SPDX-License-Identifier: Apache-2.0
"""Draws the report of short training runs, checks its markup, and opens it in a browser without network."""
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from datetime import datetime, timedelta, timezone
from pathlib import Path

programs = Path(sys.argv[1]).resolve()
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
SECTIONS = ["loss", "grad-norm", "lr", "throughput", "data-loading", "mfu", "router-entropy", "experts", "memory",
            "axes", "communication", "configuration"]
HOSTILE = "</pre><script>alert('x')</script> & \" \u2028 \uFFFF \x1b"


def run(program, *arguments, exit_code=0):
    result = subprocess.run([programs / program, *map(str, arguments)], capture_output=True, text=True,
                            cwd=folder, timeout=600)
    assert result.returncode == exit_code, (program, arguments, result)
    return result.stdout, result.stderr


def report(metrics, sections=SECTIONS):
    """The page of a metrics file, its path, and its elements."""
    path = metrics.with_suffix(".html")
    out, _ = run("training_report", metrics, "-o", path)
    page = path.read_text()
    assert out == f"wrote {path}, {path.stat().st_size} bytes\n", out
    root = xml.etree.ElementTree.fromstring(page)
    assert [section.get("id") for section in root.iter("section")] == sections
    check_complete_in_itself(page, root)
    return page, path, root


def check_complete_in_itself(page, root):
    """Nothing is loaded, nothing runs, nothing is drawn at a place that is no number."""
    assert not re.search(r"https?://|//|@import|url\(|\ssrc=|\son\w+=", re.sub(r"base64,[\w+/=]*", "", page))
    for element in root.iter():
        assert element.tag not in ("script", "link", "iframe", "img", "object"), element.tag
        assert element.get("href", "data:").startswith("data:"), element.attrib
        for name in ["x", "y", "width", "height", "cx", "cy"]:
            assert re.fullmatch(r"-?[\d.]+", element.get(name, "0")), element.attrib
        assert re.fullmatch(r"[-MLHhvz\d.,]*", element.get("d", "")), element.attrib


def texts(root, section):
    return [text for part in root.iter("section") if part.get("id") == section
            for text in part.itertext() if text.strip()]


text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
SHORT = ["--text", text, "--preset", "tiny", "--micro-batches", 2, "--batch", 1, "--seq-len", 32,
         "--sample-bytes", 0, "--validation-sequences", 2]

# A run of two ranks, with all that a report can show.
metrics = folder / "run.jsonl"
run("train", *SHORT, "--steps", 12, "--validation-interval", 4, "--profile-steps", "3:5",
    "--metrics", metrics)
page, path, root = report(metrics)
for text_of, words in [("loss", ["training", "validation", "nats per byte", "step"]),
                       ("throughput", ["tokens per second"]),
                       ("experts", [f"expert, mixture layer {i}" for i in range(4)]),
                       ("memory", ["parameters", "gradients", "optimizer", "activations",
                                   "communication", "checkpoint", "all at one moment"]),
                       ("axes", ["dp_shard"]),
                       ("communication", ["gather", "reduce", "other"])]:
    assert set(words) <= set(texts(root, text_of)), (text_of, texts(root, text_of))
assert "over 2 profiled steps" in page and re.search(r"ms, [\d.]+ % hidden, [\d.]+ KiB received<", page)
assert texts(root, "configuration")[1] == json.loads(
    metrics.read_text().splitlines()[1])["configuration"]
assert len(list(root.iter("image"))) == 4


# Under expert parallelism there are two charts more.
divided = folder / "divided.jsonl"
run("train", *SHORT, "--steps", 3, "--expert-parallel", 2, "--metrics", divided)
after_entropy = SECTIONS.index("router-entropy") + 1
_, _, root_of_divided = report(
    divided, [*SECTIONS[:after_entropy], "exchange", "rank-load", *SECTIONS[after_entropy:]])
assert "% of the step's time" in texts(root_of_divided, "exchange")
assert "tokens, in means of the parts" in texts(root_of_divided, "rank-load")

# A model whose first layer is dense has loads of the others alone.
other = folder / "glm4.jsonl"
run("train", *["tiny-glm4-moe" if word == "tiny" else word for word in SHORT], "--steps", 3, "--metrics", other,
    "--offload", "activations", "--offload-window", 20000)
_, _, glm4 = report(other)
assert [f"expert, mixture layer {i}" in texts(glm4, "experts") for i in range(4)] == [True] * 3 + [False]


def shown(root, name):
    """What the page says beside that name."""
    terms = [term for term in root.iter() if term.tag in ("dt", "dd")]
    return next("".join(value.itertext()) for term, value in zip(terms, terms[1:]) if term.text == name)


def number(text):
    return float(text.replace("\u202F", ""))


# What it has swapped, the most of any rank: means over its steps.
swaps = [json.loads(line) for line in other.read_text().splitlines() if '"loss"' in line]
swapped, = [text for text in texts(glm4, "memory") if text.startswith("Swapped in a step")]
waited = sum(step["swap"]["wait_seconds"] for step in swaps) / sum(step["seconds"] for step in swaps)
out, back = [sum(step["swap"][way] for step in swaps) / 3 / 2**10 for way in ("bytes_out", "bytes_in")]
assert 100 < back < out < 1024, (out, back)
assert swapped.endswith(f": {out:.2f} KiB out, {back:.2f} KiB back, waited for {100 * waited:.1f} % of the time."), (
    swapped, out, back, waited)
assert not any(text.startswith("Swapped") for text in texts(root_of_divided, "memory"))

# What the file's first line tells of the run, and figures computed from its lines here.
version = re.search(r"project\(moegrad VERSION ([\d.]+)", (
    Path(__file__).parents[2] / "CMakeLists.txt").read_text())[1]
lines = [json.loads(line) for line in metrics.read_text().splitlines()]
header = lines[0]["run"]
assert [line for line in lines if "run" in line] == lines[:1]
assert (header["version"], header["unit"], header["steps"], header["max_grad_norm"], header["title"]) == (
    version, "byte", 12, 1.0, "tiny on text.txt"), header
assert header["command"] == [str(programs / "train"), *map(str, SHORT), "--steps", "12",
                             "--validation-interval", "4", "--profile-steps", "3:5", "--metrics",
                             str(metrics)], header
assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(header["date"].replace("Z", "+00:00"))
           ) < timedelta(minutes=10), header
assert (shown(root, "started"), shown(root, "moegrad version"), shown(root, "CPU")) == (
    header["date"], version, header.get("cpu", "unknown"))
assert shlex.split(shown(root, "command")) == header["command"]
for heading in [root.find(".//title"), root.find(".//h1")]:
    assert "".join(heading.itertext()) == "tiny on text.txt: training report"
steps = [line for line in lines if "loss" in line]
clipped = sum(step["grad_norm"] > 1 for step in steps)
assert 0 < clipped and f"Clipped above 1 (max_grad_norm): {clipped} of 12 steps, " in page
assert shown(root, "clipped steps") == f"{100 * clipped / 12:.1f} %"
assert abs(number(shown(root, "tokens per second, median of steps")) -
           statistics.median(step["tokens_per_second"] for step in steps)) <= 0.5
axes = [step["axes"]["dp_shard"] for step in steps]
waited = sum(axis["wait_seconds"] for axis in axes) / sum(step["seconds"] for step in steps)
assert f">{100 * waited:.1f} %, " in page and all(axis["bytes_received"] > 10000 for axis in axes)
dead = sum(sum(counts) == 0 for layer in zip(*(step["tokens_per_expert"] for step in steps))
           for counts in zip(*layer))
assert shown(root, "dead experts") == f"{dead} of 32"
run("compare_losses", metrics, metrics, "--assert-equal")

# An earlier file: the same steps without what was not recorded then.
earlier = folder / "earlier.jsonl"
earlier.write_text("".join(json.dumps({key: value for key, value in line.items()
                                       if key not in ("run", "axes")}) + "\n" for line in lines))
earlier_page, _, earlier_root = report(earlier, [name for name in SECTIONS if name != "axes"])
assert [shown(earlier_root, name) for name in ["started", "moegrad version", "CPU", "command",
                                               "clipped steps"]] == ["unknown"] * 5
assert "nats per byte or token (unknown which)" in texts(earlier_root, "loss")
run("compare_losses", metrics, earlier, "--assert-equal")

# A run that is stopped, resumed twice and stopped again: each part is told of.
parts = folder / "parts.jsonl"
firsts = []
for _ in range(3):
    before = parts.read_text().count('"loss"') if parts.exists() else 0
    firsts.append(before)
    process = subprocess.Popen(
        [str(word) for word in (programs / "train", *SHORT, "--steps", 100000, "--metrics", parts,
                                "--checkpoint-dir", folder / "parts", "--resume")],
        stdout=subprocess.DEVNULL)
    while not parts.exists() or parts.read_text().count('"loss"') < before + 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
page_of_parts, _, root_of_parts = report(parts)
done = parts.read_text().count('"loss"')
assert f"Resumed at step {firsts[1]}, {firsts[2]}." in page_of_parts
assert f"The run ends after step {done - 1}: {done} of 100000 steps are done." in page_of_parts
assert "Earlier parts of the run: 2<" in page_of_parts
assert [page_of_parts.count(f"<p>From step {first}:</p>") for first in firsts] == [1, 1, 0]

# One step, no numbers at all, and a text that would be markup.
line = next(line for line in lines if "configuration" in line)
damaged = {**line, "configuration": HOSTILE, "run": {
    "title": HOSTILE, "date": HOSTILE, "version": HOSTILE, "cpu": HOSTILE, "unit": HOSTILE,
    "command": [HOSTILE, "x" * 5000, ""], "steps": 2 ** 63 - 1, "max_grad_norm": None}, **{
    key: None for key in ["ce", "loss", "grad_norm", "lr", "tokens", "seconds", "data_seconds",
                          "tokens_per_second", "mfu", "router_entropy", "skipped_steps"]}}
damaged["peak_bytes"] = {key: None for key in line["peak_bytes"]}
damaged["axes"] = {HOSTILE: dict.fromkeys(line["axes"]["dp_shard"]),
                   "": {"bytes_sent": -1, "bytes_received": 1e308, "wait_seconds": -1e308}}
damaged["communication"] = {
    "steps": None, "compute_seconds": None,
    "gather": {"seconds": None, "exposed_seconds": None, "bytes": None},
    "reduce": {"seconds": 1, "exposed_seconds": 0.5, "bytes": -1},
    "other": {"seconds": -1e308, "exposed_seconds": 1e308, "bytes": 1e308}}
hostile_metrics = folder / "hostile & <b>.jsonl"
hostile_metrics.write_text(json.dumps(damaged) + "\n")
hostile_page, hostile_path, root = report(hostile_metrics)
assert "".join(root.find(".//pre").itertext()) == HOSTILE.replace("\uFFFF", "\uFFFD").replace("\x1b", "\uFFFD")
assert "".join(root.find(".//p").itertext()) == str(hostile_metrics)
assert texts(root, "loss").count("no values") == 1

# What cannot be read or written: one line that says so.
for key in ("loss", "ce", "grad_norm"):
    for value in ("text", [1], {"a": 1}, True):
        hostile_metrics.write_text(json.dumps({**damaged, key: value}) + "\n")
        _, err = run("training_report", hostile_metrics, exit_code=1)
        assert err == (f"training_report: metrics: {hostile_metrics}: line 1: {key} must be a number or null, "
                       f"got {json.dumps(value, separators=(',', ':'))}\n"), err
(folder / "empty.jsonl").touch()
for arguments, message in [
        (["none.jsonl"], "metrics: none.jsonl: must be a readable regular file, got No such file or "
                         "directory"),
        (["empty.jsonl"], "metrics: empty.jsonl: must have a training step, got none"),
        ([metrics, "-o", "/nowhere/r.html"], "cannot write file '/nowhere/r.html': No such file or "
                                          "directory")]:
    _, err = run("training_report", *arguments, exit_code=1)
    assert err == f"training_report: {message}\n", err
run("training_report", exit_code=2)

browser = shutil.which("chromium") or shutil.which("chromium-browser")
if browser is None:
    print("report_test: the markup is sound; skipped: no chromium to open it "
          "(apt-get install chromium)")
    sys.exit(77)


def browse(path, *arguments):
    # Its --no-sandbox lets it run as root; no name is resolved, so nothing can come from a network.
    result = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000",
         "--window-size=1000,2600", f"--user-data-dir={folder / 'profile'}", *arguments,
         path.as_uri()], capture_output=True, text=True, timeout=120,
        env={**os.environ, "HOME": str(folder)})
    assert result.returncode == 0, result
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout


# Drawn: more than an empty page. Understood: all sections are there.
empty = folder / "empty.html"
empty.write_text("<!DOCTYPE html><html><head><title>x</title></head><body></body></html>")
sizes = {}
for name, page_path in [("empty", empty), ("run", path), ("hostile", hostile_path)]:
    picture = folder / f"{name}.png"
    browse(page_path, f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG"), name
    sizes[name] = picture.stat().st_size
assert sizes["run"] > sizes["hostile"] > 3 * sizes["empty"], sizes
for page_path in [path, hostile_path]:
    dom = browse(page_path, "--dump-dom")
    assert re.findall(r'<section id="([^"]*)">', dom) == SECTIONS
    assert dom.count("<svg ") == dom.count("</svg>") > 8 and "<script" not in dom
    assert ": training report</h1>" in dom

# The browser reads the pictures of expert loads: a column per step, a row per expert.
probe = folder / "probe.html"
pictures = re.findall(r'href="(data:[^"]*)"', page)
probe.write_text("".join(
    f"<img src='{picture}' onload=\"this.alt = this.naturalWidth + ' x ' + this.naturalHeight\">"
    for picture in pictures))
assert browse(probe, "--dump-dom").count('alt="12 x 8"') == len(pictures) == 4

print("report_test: ok")
