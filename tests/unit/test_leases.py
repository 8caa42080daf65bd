"""Leases: one controller per run, one process per allocation, and how long ranks may run."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import state_of, until

from hydragnn_hpo import leases
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.errors import RunError, StorageError
from hydragnn_hpo.leases import (
    RANK_LEASE_LAPSED,
    RENEWAL_GRACE_SECONDS,
    AllocationLease,
    ControllerLease,
    LeaseTaken,
    RankLease,
    StampWatch,
    find_controller,
    read_release_reason,
)


def test_a_lease_holds_the_boot_and_the_start_of_its_process(tmp_path):
    """So a process that gets its pid later is not taken for it; proc_pid_stat(5), field 22."""
    lease = ControllerLease(tmp_path)
    born = json.loads(lease.path.read_text())["born"]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert born == f"{boot}/{after_name[22 - 3]}"
    lease.release()


def test_epochs_rise_and_a_released_lease_is_free(tmp_path):
    first = ControllerLease(tmp_path)
    for name in ("1x.lease", "9 copy.lease", "notes.lease"):
        (tmp_path / "controller" / name).write_text("{}")
    assert str(os.getpid()) in find_controller(tmp_path), "other files beside it are no leases"
    with pytest.raises(RunError, match=f"is being run by process {os.getpid()}"):
        ControllerLease(tmp_path)
    first.release()
    assert find_controller(tmp_path) is None
    assert ControllerLease(tmp_path).epoch == first.epoch + 1


def test_a_dead_process_on_this_host_holds_nothing(tmp_path):
    code = "import sys; from hydragnn_hpo.leases import ControllerLease; from pathlib import Path;"
    subprocess.run(
        [sys.executable, "-c", f"{code} ControllerLease(Path(sys.argv[1]))", tmp_path], check=True
    )
    assert ControllerLease(tmp_path).epoch == 2


def age(path, seconds):
    """Make a file older, by its time stamp."""
    stamp = path.stat().st_mtime - seconds
    os.utime(path, (stamp, stamp))


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (
            json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}"}),
            "is being run by process 1",
        ),
        ("", "just started"),
    ],
    ids=["another host", "just being written"],
)
def test_what_may_be_alive_holds_its_lease_until_it_is_stale(
    tmp_path, monkeypatch, content, pattern
):
    """Copies of one job script look in the same second: none may see a free one in between."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 3600.0)
    lease = ControllerLease(tmp_path)
    lease.path.write_text(content)
    for seconds in (0.0, 3500.0):
        age(lease.path, seconds)
        with pytest.raises(LeaseTaken, match=pattern):
            ControllerLease(tmp_path)
    age(lease.path, 101.0)
    assert ControllerLease(tmp_path).epoch == 2


@pytest.mark.parametrize("text", ["[]", "7", '{"pid": 1}', '{"pid": "x", "host": "h"}', "\\xff"])
def test_a_file_that_is_no_lease_holds_nothing(tmp_path, text):
    folder = tmp_path / "controller"
    folder.mkdir()
    (folder / "000001.lease").write_text(text)
    assert find_controller(tmp_path) is None
    assert read_release_reason(tmp_path) == ""


def test_who_was_frozen_and_taken_over_writes_nothing_into_the_journal(tmp_path):
    lease = ControllerLease(tmp_path)
    event_store = EventStore(tmp_path / "events.jsonl", lease.epoch, lambda: 0.0, lease.renew)
    event_store.append("opened", units={})
    before = event_store.path.read_bytes()
    lease.path.write_text("{}")
    ControllerLease(tmp_path)
    lease._renewed -= 60.0
    with pytest.raises(RunError, match="a newer controller has taken over"):
        event_store.append("finished")
    event_store.close()
    assert event_store.path.read_bytes() == before


def test_who_leaves_says_why_and_who_is_killed_does_not(tmp_path):
    assert read_release_reason(tmp_path) == ""
    ControllerLease(tmp_path).release("paused")
    assert (find_controller(tmp_path), read_release_reason(tmp_path)) == (None, "paused")
    ControllerLease(tmp_path)
    assert read_release_reason(tmp_path) == ""


def test_an_allocation_has_one_seat(tmp_path):
    first = AllocationLease(tmp_path, "12")
    with pytest.raises(
        LeaseTaken, match=f"allocation 12 works for it already, by process {os.getpid()}"
    ):
        AllocationLease(tmp_path, "12")
    AllocationLease(tmp_path, "13").release()
    first.release()
    AllocationLease(tmp_path, "12").release()


def test_of_two_that_take_a_seat_at_once_the_first_gives_way(tmp_path, monkeypatch):
    first = AllocationLease(tmp_path, "12")
    (file,) = (tmp_path / "controller" / "allocations").iterdir()
    file.write_text(json.dumps({"pid": 1, "host": "other"}))
    monkeypatch.setattr(first, "_renewed", -1e9)
    with pytest.raises(LeaseTaken, match="took this allocation's place"):
        first.renew()
    first.release()
    assert "other" in file.read_text(), "it is not his to give back"


def test_the_name_of_an_allocation_leads_nowhere_else(tmp_path):
    AllocationLease(tmp_path, "../../x$(y)")
    (file,) = (tmp_path / "controller" / "allocations").iterdir()
    assert file.name == "..%2F..%2Fx%24%28y%29.lease"


def test_a_file_server_that_is_away_for_a_moment_costs_no_controller(tmp_path, monkeypatch):
    lease = ControllerLease(tmp_path)
    touch = os.utime

    def fail(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "utime", fail)
    lease._renewed = 1000.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: now)
    monkeypatch.setattr(leases, "time", clock)
    now = lease._renewed + RENEWAL_GRACE_SECONDS / 2
    lease.renew()
    now = lease._renewed + RENEWAL_GRACE_SECONDS  # soon others may take it for stale
    with pytest.raises(StorageError, match="Stale file handle"):
        lease.renew()
    monkeypatch.setattr(os, "utime", touch)
    lease.renew()
    assert lease._renewed == now


def test_the_number_of_a_process_that_another_has_now_holds_nothing(tmp_path):
    """A host that was lost and is up again uses the same numbers."""
    lease = ControllerLease(tmp_path)
    who = json.loads(lease.path.read_text())
    lease.path.write_text(json.dumps({**who, "born": "another boot/12345"}))
    assert find_controller(tmp_path) is None
    assert ControllerLease(tmp_path).epoch == 2


def test_a_seat_outlasts_a_file_server_that_is_away(tmp_path, monkeypatch):
    seat = AllocationLease(tmp_path, "12")

    def away(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(seat, "_renewed", -1e9)
        patch.setattr(os, "utime", away)
        seat.renew()
    with pytest.raises(LeaseTaken):
        AllocationLease(tmp_path, "12")


WATCH = """
import ctypes, os, signal, sys, threading, time
from hydragnn_hpo import leases
from hydragnn_hpo.launching.process_control import end_group
lease, seconds, left = leases.RankLease(int(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3])
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
lease.grant(now + left)
if how in ("frozen", "holding"):
    time.monotonic = lambda: now  # the first look comes in time, however late we are
terms = (lease, seconds, end_group)
threading.Thread(target=leases.watch_rank_lease, args=terms, daemon=True).start()
time.sleep(600)
"""


@pytest.fixture
def lease():
    made = RankLease.create()
    yield made
    os.close(made.descriptor)


@pytest.fixture
def watcher(lease):
    """Start a process that watches the lease; gives it once it has looked."""
    made = []

    def start(seconds, left, how="sleeping"):
        words = [str(lease.descriptor), str(seconds), str(left), how]
        argv = [sys.executable, "-c", WATCH, *words]
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[lease.descriptor],
            start_new_session=True,  # who lapses ends its whole group
        )
        made.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_lease_ends_when_it_says(lease, watcher):
    assert lease.read() == 0.0, "it is over until it is granted"
    process = watcher(5.0, left=600.0, how="no alarm")
    until = time.monotonic() + 1.0
    lease.grant(until)

    assert process.wait(120) == RANK_LEASE_LAPSED
    assert until <= time.monotonic()
    assert b"its lease of 5 s was not renewed; ending." in process.stderr.read()


def test_a_renewed_lease_goes_on(lease, watcher):
    process = watcher(0.5, left=600.0)

    lease.grant(time.monotonic() + 1200.0)

    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    lease.grant(time.monotonic() - 1.0)
    assert process.wait(120) == RANK_LEASE_LAPSED


def test_who_holds_the_interpreter_is_ended_by_the_kernel(watcher):
    process = watcher(1.0, left=1.5, how="holding")

    assert process.wait(120) == -signal.SIGALRM


def test_who_was_frozen_is_ended_as_it_thaws(watcher):
    process = watcher(1.0, left=1.0, how="frozen")
    if until(lambda: state_of(process.pid) in "TZX" and state_of(process.pid), "rest") == "T":
        time.sleep(1.5)  # until its alarm has come
        assert process.poll() is None

    process.send_signal(signal.SIGCONT)

    assert process.wait(120) == -signal.SIGALRM


def test_changes_of_a_stamp_extend_a_lease_whatever_clock_made_them(tmp_path):
    path = tmp_path / "beat"
    path.touch()
    watch = StampWatch(path, 30.0, now=100.0)
    assert watch.until == 130.0
    watch.update(110.0)  # first seen
    assert watch.until == 140.0
    watch.update(120.0)
    assert watch.until == 140.0, "the same stamp proves nothing"
    os.utime(path, (5, 5))  # by a file server whose clock is decades behind
    watch.update(135.0)
    assert watch.until == 165.0
    path.unlink()
    with pytest.raises(FileNotFoundError):
        watch.update(136.0)
