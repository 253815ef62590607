# SPDX-License-Identifier: Apache-2.0
"""What train draws on terminals: of 40, 80 and 200 columns, resized while it trains, dumb,
without a size, none at all. A terminal that is too narrow for a bar scrolls at each redraw.

    terminal_test.py PROGRAM [--brief]

--brief, for a program that is slow: fewer steps and widths.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

train = Path(sys.argv[1]).resolve()
brief = "--brief" in sys.argv
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
text = folder / "text.txt"
text.write_text("".join(f"{i} sheep went to the water and came back again.\n" for i in range(300)))
RUN = ["--text", text, "--preset", "tiny", "--micro-batches", 2, "--batch", 1, "--seq-len", 32,
       "--sample-bytes", 0, "--validation-sequences", 2]
ERASE = "\x1b[K"
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \w+ \[rank \d\] .*")
BAR = re.compile(r"(?:\[=* *\] )?\d+/\d+(?: ETA [\d:]+)?(?: \| .*)?")


def set_columns(descriptor, columns):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class Terminal:
    """A run on a pseudo-terminal that is its standard output and error."""

    def __init__(self, *arguments, columns=80, **variables):
        self.primary, secondary = pty.openpty()
        set_columns(secondary, columns)
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("TERM", "COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            [str(word) for word in (train, *RUN, *arguments)], stdout=secondary, stderr=secondary,
            cwd=folder, env={**environment, "TERM": "xterm", **variables})
        os.close(secondary)
        self.shown = ""

    def read(self, timeout=60):
        """Reads what is there; false at the end, or if nothing comes in that time."""
        if not select.select([self.primary], [], [], timeout)[0]:
            return False
        try:
            block = os.read(self.primary, 65536)
        except OSError:  # the program has ended
            return False
        self.shown += block.decode()
        return bool(block)

    def finish(self, exit_code=0):
        """All that was shown. A terminal is given \\r\\n for each \\n."""
        while self.read():
            pass
        assert self.process.wait(timeout=60) == exit_code, self.shown
        os.close(self.primary)
        return self.shown.replace("\r\n", "\n")

    def finish_while_resizing(self, step, columns):
        """As finish(), but after that step the terminal is resized. Also how much was shown before."""
        while not any(int(done) >= step for done in re.findall(r"(\d+)/\d+ ETA", self.shown)):
            assert self.read(), self.shown
        self.process.send_signal(signal.SIGSTOP)
        while self.read(timeout=0.5):
            pass
        before = len(self.shown.replace("\r\n", "\n"))
        set_columns(self.primary, columns)
        self.process.send_signal(signal.SIGCONT)
        return self.finish(), before


def drawings(shown):
    """What was drawn from the beginning of a row on, over what was there."""
    return [drawing.split("\n")[0] for drawing in shown.split("\r")[1:]]


def rows(shown):
    """The rows that remain on a terminal that is wide enough for all of them."""
    result = []
    for line in shown.split("\n"):
        row = ""
        for part in line.split("\r"):
            before, erases, after = part.partition(ERASE)
            row = before + (after if erases else row[len(before):])
        result.append(row)
    return result


def check_bars(shown, columns, steps):
    """Bars of all drawings, each within a row whose last column stays free."""
    bars = []
    for drawing in drawings(shown):
        assert drawing.endswith(ERASE) or drawing.startswith(ERASE), drawing
        bar = drawing.removesuffix(ERASE)
        if drawing.startswith(ERASE):
            continue  # above the bar a line is printed
        assert BAR.fullmatch(bar), bar
        assert bar.isascii() and bar.isprintable() and len(bar) < columns, (columns, bar)
        bars.append(bar)
    assert len(bars) > 1 and f"{steps}/{steps}" in bars[-1], bars
    assert f"\n{bars[-1]}\n" in "\n".join(["", *rows(shown), ""]), rows(shown)
    return bars


# No row wraps, and the room is used: what is most important at 40 columns, all of it at 200.
HAVE = {10: "60/60", 40: r"\[={8}\] 60/60 ETA 0:00 \| loss [\d.]+",
        80: r"\[={15}\] 60/60 ETA 0:00 \| loss [\d.]+ \| grad norm [\d.]+.*",
        200: r"\[={20}\] 60/60 ETA 0:00 \| loss [\d.]+ \| grad norm [\d.]+ \| lr [\d.e-]+ \| "
             r"\d+ tokens/s \| TGS \d+ \| load( [\d.]+){4}"}
for width, last in list(HAVE.items())[2 * brief:]:
    bars = check_bars(Terminal("--steps", 60, columns=width).finish(), width, 60)
    assert re.fullmatch(last, bars[-1]), (width, bars[-1])

# The width is asked at each redraw: at most the drawing that was on its way is of the old one.
STEPS = 80 if brief else 400
for width, later in [(40, 200)] if brief else [(200, 40), (40, 200), (80, 20)]:
    shown, before = Terminal("--steps", STEPS, columns=width).finish_while_resizing(20, later)
    after = shown[shown.index("\r", before):]
    bars = check_bars(after[after.index("\r", 1):], later, STEPS)
    assert later < 200 or "| load" in bars[-1], bars[-1]

# Without a size: that of COLUMNS, or else 80.
WITHOUT_SIZE = [({"COLUMNS": "50"}, 50), ({}, 80), ({"COLUMNS": "none"}, 80)]
for variables, width in WITHOUT_SIZE[:1] if brief else WITHOUT_SIZE:
    bars = check_bars(Terminal("--steps", 40, columns=0, **variables).finish(), width, 40)
    assert ("grad norm" in bars[-1]) == (width == 80), bars[-1]

# Log lines of the ranks' threads and validation losses stand on rows of their own.
shown = Terminal("--steps", 30, "--log-level", "debug", "--validation-interval", 10, columns=80).finish()
begin = shown.index("\r")
logged = [row for row in rows(shown[begin:]) if "[rank" in row]
assert len(logged) > 100 and all(LOG_LINE.fullmatch(row) for row in logged), logged
assert {"[rank 0]", "[rank 1]"} <= {row.split(" ")[2] + " " + row.split(" ")[3] for row in logged}
for row in rows(shown[begin:]):
    if "/30 ETA" in row:
        assert BAR.fullmatch(row), row
    if "validation loss" in row:
        assert re.fullmatch(r"validation loss \S+ nats per byte after \d+ steps", row), row
assert shown.count("validation loss ") == 5, shown  # before, three times, and at the end
check_bars(shown, 80, 30)

# The error that ends a run stands on its own row, and so does that it was stopped.
shown = Terminal("--steps", 30, "--lr", 1e20, "--schedule", "constant", "--warmup", 0).finish(1)
assert any(row.startswith("train: step 1: loss and") for row in rows(shown)), rows(shown)
terminal = Terminal("--steps", 100000, "--checkpoint-dir", "stopped")
while "5/100000" not in terminal.shown:
    assert terminal.read()
terminal.process.send_signal(signal.SIGTERM)
shown = terminal.finish(128 + signal.SIGTERM)
assert any(row.startswith("train: SIGTERM: stopping after this step") for row in rows(shown)), \
    rows(shown)
assert any(re.fullmatch(r"stopped after step \d+", row) for row in rows(shown)), rows(shown)

# Lines and no control character: on a dumb terminal, on one without a name, in a file.
for variables in [{"TERM": "dumb"}, {"TERM": ""}, {"TERM": "dumb", "NO_COLOR": "1"}]:
    shown = Terminal("--steps", 12, "--log-every", 5, columns=40, **variables).finish()
    assert "\r" not in shown and "\x1b" not in shown and "ETA" not in shown, shown
    assert re.findall(r"^step +(\d+) \| loss", shown, re.MULTILINE) == ["0", "5", "10", "11"], shown
result = subprocess.run([str(word) for word in (train, *RUN, "--steps", 12)], capture_output=True,
                        cwd=folder, env={**os.environ, "TERM": "xterm"}, check=True, timeout=600)
assert result.stderr == b"" and b"\r" not in result.stdout and b"\x1b" not in result.stdout
assert len(re.findall(rb"^step +\d+ \| loss", result.stdout, re.MULTILINE)) == 12

print("terminal_test: ok")
