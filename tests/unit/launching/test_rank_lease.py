"""A lease: until when ranks may run, whatever happens to those who should end them."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import state_of, until

from hydragnn_hpo.launching import rank_lease

WATCH = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from hydragnn_hpo.launching import rank_lease as lease
path, seconds, left = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
how, alarm, looked = sys.argv[4], signal.setitimer, threading.Event()
def set_alarm(which, after):
    alarm(which, 0.0 if how == "no alarm" else after)
    if not looked.is_set():
        looked.set()
        print("looked", flush=True)
        if how == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "holding":
            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the interpreter's lock
signal.setitimer, now = set_alarm, time.monotonic()
lease.create(path, now + left)
if how in ("frozen", "holding"):
    time.monotonic = lambda: now  # the first look comes in time, however late we are
threading.Thread(target=lease.watch, args=(path, seconds), daemon=True).start()
time.sleep(600)
"""


@pytest.fixture
def watcher(tmp_path):
    """Start a process that makes a lease and watches it; gives it once it has looked."""
    made = []

    def start(seconds, left, how="sleeping"):
        words = [str(tmp_path / "lease"), str(seconds), str(left), how]
        argv = [sys.executable, "-c", WATCH, *words]
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
    process = watcher(5.0, left=600.0, how="no alarm")
    until = time.monotonic() + 1.0
    rank_lease.grant(tmp_path / "lease", until)

    assert process.wait(120) == rank_lease.LAPSED
    assert until <= time.monotonic()
    assert b"was not renewed for 5 s; ending." in process.stderr.read()
    assert (tmp_path / "lease").stat().st_mode & 0o777 == 0o600


def test_a_renewed_lease_goes_on(tmp_path, watcher):
    process = watcher(0.5, left=600.0)

    rank_lease.grant(tmp_path / "lease", time.monotonic() + 1200.0)

    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    rank_lease.grant(tmp_path / "lease", time.monotonic() - 1.0)
    assert process.wait(120) == rank_lease.LAPSED


def test_a_lease_that_is_taken_away_is_over(tmp_path, watcher):
    process = watcher(0.5, left=600.0)

    (tmp_path / "lease").unlink()

    assert process.wait(120) == rank_lease.LAPSED


def test_who_holds_the_interpreter_is_ended_by_the_kernel(tmp_path, watcher):
    process = watcher(1.0, left=1.5, how="holding")

    assert process.wait(120) == -signal.SIGALRM


def test_who_was_frozen_is_ended_as_it_thaws(tmp_path, watcher):
    process = watcher(1.0, left=1.0, how="frozen")
    if until(lambda: state_of(process.pid) in "TZX" and state_of(process.pid), "rest") == "T":
        time.sleep(1.5)  # until its alarm has come
        assert process.poll() is None

    process.send_signal(signal.SIGCONT)

    assert process.wait(120) == -signal.SIGALRM


def test_a_file_that_is_gone_cannot_be_granted(tmp_path):
    with pytest.raises(FileNotFoundError):
        rank_lease.grant(tmp_path / "none", 1.0)
    assert not os.path.exists(tmp_path / "none")
