# SPDX-License-Identifier: Apache-2.0
"""Draws the report of short training runs, checks its markup, and opens it in a browser without network."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

programs = Path(sys.argv[1]).resolve()
folder = Path(tempfile.mkdtemp())
SECTIONS = ["loss", "grad-norm", "lr", "throughput", "data-loading", "experts", "memory",
            "communication", "configuration"]
HOSTILE = "</pre><script>alert('x')</script> & \" \u2028 \uFFFF \x1b"


def run(program, *arguments, exit_code=0):
    result = subprocess.run([programs / program, *map(str, arguments)], capture_output=True, text=True,
                            cwd=folder, timeout=600)
    assert result.returncode == exit_code, (program, arguments, result)
    return result.stdout, result.stderr


def report(metrics):
    """The page of a metrics file, its path, and its elements."""
    path = metrics.with_suffix(".html")
    out, _ = run("training_report", metrics, "-o", path)
    page = path.read_text()
    assert out == f"wrote {path}, {path.stat().st_size} bytes\n", out
    root = xml.etree.ElementTree.fromstring(page)
    assert [section.get("id") for section in root.iter("section")] == SECTIONS
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
run("train_qwen3_moe", *SHORT, "--steps", 12, "--validation-interval", 4, "--profile-steps", "3:5",
    "--metrics", metrics)
page, path, root = report(metrics)
for text_of, words in [("loss", ["training", "validation", "nats per token", "step"]),
                       ("throughput", ["tokens per second"]),
                       ("experts", [f"expert, mixture layer {i}" for i in range(4)]),
                       ("memory", ["parameters", "gradients", "optimizer", "activations",
                                   "communication", "checkpoint", "all at one moment"]),
                       ("communication", ["gather", "reduce", "other"])]:
    assert set(words) <= set(texts(root, text_of)), (text_of, texts(root, text_of))
assert "over 2 profiled steps" in page and re.search(r"ms, [\d.]+ % hidden, [\d.]+ KiB received<", page)
assert texts(root, "configuration")[1] == json.loads(
    metrics.read_text().splitlines()[1])["configuration"]
assert len(list(root.iter("image"))) == 4

# One step, no numbers at all, and a text that would be markup.
lines = [json.loads(line) for line in metrics.read_text().splitlines()]
line = next(line for line in lines if "configuration" in line)
damaged = {**line, "configuration": HOSTILE, **{
    key: None for key in ["ce", "loss", "grad_norm", "lr", "tokens", "seconds", "data_seconds",
                          "tokens_per_second"]}}
damaged["peak_bytes"] = {key: None for key in line["peak_bytes"]}
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
(folder / "empty.jsonl").touch()
for arguments, message in [
        (["none.jsonl"], "metrics: none.jsonl: must be a readable regular file, got No such file or "
                         "directory"),
        (["empty.jsonl"], "metrics: empty.jsonl: must have a training step, got none"),
        ([metrics, "-o", "/nowhere/r.html"], "cannot write file '/nowhere/r.html'")]:
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
    assert "Training report</h1>" in dom

# The browser reads the pictures of expert loads: a column per step, a row per expert.
probe = folder / "probe.html"
pictures = re.findall(r'href="(data:[^"]*)"', page)
probe.write_text("".join(
    f"<img src='{picture}' onload=\"this.alt = this.naturalWidth + ' x ' + this.naturalHeight\">"
    for picture in pictures))
assert browse(probe, "--dump-dom").count('alt="12 x 8"') == len(pictures) == 4

shutil.rmtree(folder)
print("report_test: ok")
