"""A lease: until when ranks may run, whatever happens to those who should end them."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import until

from hydragnn_hpo.launching.host import lease

WATCH = """
import ctypes, signal, sys, threading, time
from pathlib import Path
from hydragnn_hpo.launching.host import lease
path, seconds, left = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
lease.create(path, time.monotonic() + left)
threading.Thread(target=lease.watch, args=(path, seconds), daemon=True).start()
while not signal.getitimer(signal.ITIMER_REAL)[0]:  # it has looked, and set the kernel's alarm
    time.sleep(0.001)
print(path.stat().st_mtime_ns / 1e9, flush=True)
if sys.argv[4] == "holding":
    ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the interpreter's lock
print("end", time.sleep(600))
"""


@pytest.fixture
def watcher(tmp_path):
    """Start a process that makes a lease and watches it; gives it once it does."""
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
        process.until = float(process.stdout.readline())
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_lease_ends_when_it_says(tmp_path, watcher):
    process = watcher(20.0, left=2.0)

    assert process.wait(60) == lease.LAPSED
    assert process.until <= time.monotonic()
    assert b"was not renewed for 20 s; ending." in process.stderr.read()
    assert (tmp_path / "lease").stat().st_mode & 0o777 == 0o600


def test_a_renewed_lease_goes_on(tmp_path, watcher):
    process = watcher(0.5, left=60.0)

    lease.grant(tmp_path / "lease", time.monotonic() + 120.0)

    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    lease.grant(tmp_path / "lease", time.monotonic() - 1.0)
    assert process.wait(50) == lease.LAPSED


def test_a_lease_that_is_taken_away_is_over(tmp_path, watcher):
    process = watcher(0.5, left=120.0)

    (tmp_path / "lease").unlink()

    assert process.wait(60) == lease.LAPSED


def test_who_holds_the_interpreter_is_ended_by_the_kernel(tmp_path, watcher):
    process = watcher(1.0, left=1.5, how="holding")

    assert process.wait(60) == -signal.SIGALRM


def test_who_was_frozen_is_ended_as_it_thaws(tmp_path, watcher):
    process = watcher(1.0, left=1.5)
    process.send_signal(signal.SIGSTOP)
    until(lambda: time.monotonic() > process.until + 1.0, "end of the lease")
    assert process.poll() is None

    process.send_signal(signal.SIGCONT)

    assert process.wait(60) in (-signal.SIGALRM, lease.LAPSED)


def test_a_file_that_is_gone_cannot_be_granted(tmp_path):
    with pytest.raises(FileNotFoundError):
        lease.grant(tmp_path / "none", 1.0)
    assert not os.path.exists(tmp_path / "none")
