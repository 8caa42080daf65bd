"""A lease: until when ranks may run, whatever happens to those who should end them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hydragnn_hpo.launching.host import lease

WATCH = """
import ctypes, sys, threading, time
from pathlib import Path
from hydragnn_hpo.launching.host import lease
terms = Path(sys.argv[1]), float(sys.argv[2])
threading.Thread(target=lease.watch, args=terms, daemon=True).start()
time.sleep(0.3)
print("watching", flush=True)
if sys.argv[3] == "holding":
    ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter's lock
print("end", time.sleep(60))
"""


@pytest.fixture
def watcher(tmp_path):
    """Start a process that watches a lease; gives it once it does."""
    made = []

    def start(seconds, how="sleeping"):
        argv = [sys.executable, "-c", WATCH, str(tmp_path / "lease"), str(seconds), how]
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # who lapses ends its whole group
        )
        made.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_lease_ends_when_it_says(tmp_path, watcher):
    until = time.monotonic() + 2.0
    lease.create(tmp_path / "lease", until)

    process = watcher(1.0)

    assert process.wait(10) == lease.LAPSED
    assert until <= time.monotonic() < until + 2.0
    assert b"was not renewed for 1 s; ending." in process.stderr.read()
    assert (tmp_path / "lease").stat().st_mode & 0o777 == 0o600


def test_a_renewed_lease_goes_on(tmp_path, watcher):
    lease.create(tmp_path / "lease", time.monotonic() + 5.0)
    process = watcher(0.5)

    for _ in range(8):
        lease.grant(tmp_path / "lease", time.monotonic() + 3.0)
        time.sleep(0.1)

    assert process.poll() is None
    lease.grant(tmp_path / "lease", time.monotonic() - 1.0)
    assert process.wait(5) == lease.LAPSED


def test_a_lease_that_is_taken_away_is_over(tmp_path, watcher):
    lease.create(tmp_path / "lease", time.monotonic() + 60.0)
    process = watcher(0.5)

    (tmp_path / "lease").unlink()

    assert process.wait(5) == lease.LAPSED


def test_who_holds_the_interpreter_is_ended_by_the_kernel(tmp_path, watcher):
    lease.create(tmp_path / "lease", time.monotonic() + 1.5)

    process = watcher(1.0, "holding")

    assert process.wait(10) == -signal.SIGALRM


def test_who_was_frozen_is_ended_as_it_thaws(tmp_path, watcher):
    lease.create(tmp_path / "lease", time.monotonic() + 1.5)
    process = watcher(1.0)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    assert process.poll() is None

    process.send_signal(signal.SIGCONT)

    assert process.wait(1.0) in (-signal.SIGALRM, lease.LAPSED)


def test_a_file_that_is_gone_cannot_be_granted(tmp_path):
    with pytest.raises(FileNotFoundError):
        lease.grant(tmp_path / "none", 1.0)
    assert not os.path.exists(tmp_path / "none")
