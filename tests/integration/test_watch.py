"""``status --watch`` on a real terminal: 80 columns, 24 rows, and somebody who presses Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from made_campaign import make_campaign
from processes import until

from hydragnn_hpo.layout import RunDir

NOTE = "Ctrl-C to quit"
"""In the last line of a picture."""

SECONDS = 120.0
"""Patience with a command that imports, on a busy machine."""

STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7])m")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def made(tmp_path):
    """A run directory on which this process seems to be at work, and the rest of its journal."""
    whole = make_campaign(tmp_path / "whole", trials=40)
    run = RunDir(tmp_path / "run")
    (run.path / "controller").mkdir(parents=True)
    lease = {"pid": os.getpid(), "host": socket.gethostname()}
    (run.path / "controller" / "000001.lease").write_text(json.dumps(lease))
    run.campaign.write_bytes(whole.campaign.read_bytes())
    lines = whole.journal.read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    run.journal.write_bytes(b"".join(lines[:half]))
    return run, b"".join(lines[half:])


class Terminal:
    """A command on a pseudo terminal."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(80, 24)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hydragnn_hpo", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
            | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
            | environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C arrives
        )
        os.close(theirs)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._output += os.read(self.ours, 65536)
            except OSError:  # Linux: the other side has closed
                return

    @property
    def output(self) -> str:
        return bytes(self._output).decode("utf-8", errors="replace")

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, what: str, since: int = 0, seconds: float = SECONDS) -> int:
        end = time.monotonic() + seconds
        while (place := STYLE.sub("", self.output[since:]).find(what)) < 0:
            assert time.monotonic() < end, f"no {what!r} in {self.output[-3000:]!r}"
            if self.process.poll() is not None:
                self._reader.join(timeout=SECONDS)
                assert what in STYLE.sub("", self.output[since:]), "it ended without"
            time.sleep(0.02)
        return place

    def frames(self, since: int = 0) -> list[list[str]]:
        """Give what was drawn from corner to corner, without styles."""
        inside = STYLE.sub("", self.output[since:]).partition(LEAVE)[0].replace(SHOW, "")
        return [drawn.splitlines() for drawn in inside.split("\x1b[H") if drawn.count("\n") > 3]

    def end(self) -> int:
        code = self.process.wait(timeout=SECONDS)
        self._reader.join(timeout=SECONDS)
        os.close(self.ours)
        return code


def test_it_fills_the_terminal_follows_the_journal_and_ends_with_the_campaign(made):
    run, rest = made
    terminal = Terminal("status", str(run.path), "--watch", "--interval", "0.2")
    terminal.wait_for(NOTE)
    before = terminal.frames()[0]
    cut = rest[: len(rest) // 2].rfind(b"\n") + 30  # amid a line, as it may be met
    with run.journal.open("ab", buffering=0) as file:
        file.write(rest[:cut])
        end = time.monotonic() + SECONDS
        while len({drawn[1].strip() for drawn in terminal.frames()}) < 2:
            assert time.monotonic() < end, terminal.output[-3000:]
            time.sleep(0.02)
        file.write(rest[cut:])
    assert terminal.end() == 0
    for drawn in terminal.frames():
        assert len(drawn) <= 24
        assert max(len(line) for line in drawn) <= 80
    heads = list(dict.fromkeys(drawn[1].strip() for drawn in terminal.frames()))
    assert heads[0] == before[1].strip()
    assert heads[0].startswith("searching: ")
    assert heads[-1].startswith("finished: 40 of 40 trials at rest")
    assert len(heads) >= 3
    output = terminal.output
    assert output.count(ENTER) == output.count(LEAVE) == 1
    assert output.rfind(SHOW) > output.rfind(HIDE), "the cursor is there again"
    assert "\x1b[2J" not in output.partition(ENTER)[2].partition(LEAVE)[0][20:], "nothing flickers"
    assert STYLE.sub("", output).rstrip().endswith(f"{run.path}: finished")


def test_ctrl_c_leaves_a_clean_terminal_and_a_new_size_is_seen_at_once(made):
    run, _ = made
    terminal = Terminal("status", str(run.path), "--watch", "--interval", "1800")
    terminal.wait_for(NOTE)
    before = len(terminal.output)
    terminal.resize(132, 40)  # the next look comes after half an hour

    def redrawn() -> list[list[str]]:
        whole = [drawn for drawn in terminal.frames(before) if NOTE in drawn[-1]]
        return [drawn for drawn in whole if max(map(len, drawn)) == 132]

    wide = until(redrawn, "picture of the new size", SECONDS)[0]
    assert any("  objective  s/epoch" in line for line in wide)
    assert any("hosts  " in line for line in wide)
    os.write(terminal.ours, b"\x03")
    assert terminal.end() == 0
    output = terminal.output
    assert output.count(LEAVE) == 1
    assert output.rfind(SHOW) > output.rfind(HIDE)
    assert "Traceback" not in output
    assert f"run by process {os.getpid()}" in STYLE.sub("", output.partition(LEAVE)[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"NO_COLOR": "1"}, False), ({}, True)],
)
def test_colours_are_for_those_who_want_them(made, environment, coloured):
    run, rest = made
    with run.journal.open("ab") as file:
        file.write(rest)
    terminal = Terminal("status", str(run.path), "--watch", **environment)
    assert terminal.end() == 0
    assert bool(COLOUR.search(terminal.output)) is coloured


@pytest.mark.slow
def test_a_run_that_is_removed_ends_the_watching_with_a_sentence(made, tmp_path):
    run, _ = made
    terminal = Terminal("status", str(run.path), "--watch", "--interval", "0.2")
    terminal.wait_for(NOTE)
    run.path.rename(tmp_path / "elsewhere")
    assert terminal.end() == 2
    output = terminal.output
    assert output.rfind(LEAVE) < output.rfind("error: ")
    assert "was removed" in output
    assert "Traceback" not in output
