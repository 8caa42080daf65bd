"""One controller per run directory."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hydragnn_hpo.campaign import lease as lease_module
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.joining import AllocationLease
from hydragnn_hpo.campaign.lease import AWAY_SECONDS, Lease, Taken, alive, left
from hydragnn_hpo.errors import RunError, StorageError


def test_epochs_rise_and_a_released_lease_is_free(tmp_path):
    first = Lease(tmp_path)
    first.release()
    assert alive(tmp_path) is None
    assert Lease(tmp_path).epoch == first.epoch + 1


def test_a_second_controller_is_refused_while_the_first_lives(tmp_path):
    Lease(tmp_path)
    assert str(os.getpid()) in alive(tmp_path)
    with pytest.raises(RunError, match=f"is being run by process {os.getpid()}"):
        Lease(tmp_path)


def test_a_dead_process_on_this_host_holds_nothing(tmp_path):
    code = "import sys; from hydragnn_hpo.campaign.lease import Lease; from pathlib import Path;"
    subprocess.run([sys.executable, "-c", f"{code} Lease(Path(sys.argv[1]))", tmp_path], check=True)
    assert Lease(tmp_path).epoch == 2


def age(path, seconds):
    """Let a file be older, by its time stamp."""
    stamp = path.stat().st_mtime - seconds
    os.utime(path, (stamp, stamp))


def test_another_hosts_lease_holds_until_it_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_module, "STALE_SECONDS", 3600.0)
    lease = Lease(tmp_path)
    lease.path.write_text(json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}"}))
    with pytest.raises(RunError, match="is being run by"):
        Lease(tmp_path)
    age(lease.path, 3601.0)
    assert Lease(tmp_path).epoch == 2


def test_a_newer_controller_fences_the_older(tmp_path, monkeypatch):
    older = Lease(tmp_path)
    older.path.write_text("{}")
    Lease(tmp_path)
    monkeypatch.setattr(older, "_touched", -1e9)
    with pytest.raises(RunError, match="taken over"):
        older.renew()


def test_who_was_frozen_and_taken_over_writes_nothing_into_the_journal(tmp_path):
    lease = Lease(tmp_path)
    event_store = EventStore(tmp_path / "events.jsonl", lease.epoch, lambda: 0.0, lease.renew)
    event_store.append("opened", units={})
    before = event_store.path.read_bytes()
    lease._next.touch()
    lease._touched -= 60.0
    with pytest.raises(RunError, match="a newer controller has taken over"):
        event_store.append("finished")
    event_store.close()
    assert event_store.path.read_bytes() == before


def test_a_lease_that_is_just_being_written_is_taken(tmp_path, monkeypatch):
    """K copies of one job script look in the same second: none may see a free one in between."""
    monkeypatch.setattr(lease_module, "STALE_SECONDS", 3600.0)
    lease = Lease(tmp_path)
    lease.path.write_text("")
    with pytest.raises(Taken, match="just started"):
        Lease(tmp_path)
    age(lease.path, 3601.0)
    assert Lease(tmp_path).epoch == 2, "whoever died there holds nothing"


def test_who_leaves_says_why_and_who_is_killed_does_not(tmp_path):
    assert left(tmp_path) == ""
    Lease(tmp_path).release("paused")
    assert (alive(tmp_path), left(tmp_path)) == (None, "paused")
    Lease(tmp_path)
    assert left(tmp_path) == ""


def test_an_allocation_has_one_seat(tmp_path):
    first = AllocationLease(tmp_path, "12")
    with pytest.raises(
        Taken, match=f"allocation 12 works for it already, by process {os.getpid()}"
    ):
        AllocationLease(tmp_path, "12")
    AllocationLease(tmp_path, "13").release()
    first.release()
    AllocationLease(tmp_path, "12").release()


def test_of_two_that_take_a_seat_at_once_the_first_gives_way(tmp_path, monkeypatch):
    first = AllocationLease(tmp_path, "12")
    (file,) = (tmp_path / "controller" / "allocations").iterdir()
    file.write_text(json.dumps({"pid": 1, "host": "other"}))
    monkeypatch.setattr(first, "_touched", -1e9)
    with pytest.raises(Taken, match="took this allocation's place"):
        first.renew()
    first.release()
    assert "other" in file.read_text(), "it is not his to give back"


def test_the_name_of_an_allocation_leads_nowhere_else(tmp_path):
    AllocationLease(tmp_path, "../../x$(y)")
    (file,) = (tmp_path / "controller" / "allocations").iterdir()
    assert file.name == "..%2F..%2Fx%24%28y%29.lease"


def test_a_file_server_that_is_away_for_a_moment_costs_no_controller(tmp_path, monkeypatch):
    lease, touch = Lease(tmp_path), os.utime

    def fail(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "utime", fail)
    clock = SimpleNamespace(time=time.time, monotonic=lambda: now)
    monkeypatch.setattr(lease_module, "time", clock)
    now = lease._touched + AWAY_SECONDS / 2
    lease.renew()
    now = lease._touched + AWAY_SECONDS  # soon others may take it for stale
    with pytest.raises(StorageError, match="Stale file handle"):
        lease.renew()
    monkeypatch.setattr(os, "utime", touch)
    lease.renew()
    assert lease._touched == now


def test_the_number_of_a_process_that_another_has_now_holds_nothing(tmp_path):
    """A host that was lost and is up again uses the same numbers."""
    lease = Lease(tmp_path)
    who = json.loads(lease.path.read_text())
    lease.path.write_text(json.dumps({**who, "born": "another boot/12345"}))
    assert alive(tmp_path) is None
    assert Lease(tmp_path).epoch == 2


def test_a_seat_outlasts_a_file_server_that_is_away(tmp_path, monkeypatch):
    seat = AllocationLease(tmp_path, "12")

    def away(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(seat, "_touched", -1e9)
        patch.setattr(os, "utime", away)
        seat.renew()
    with pytest.raises(Taken):
        AllocationLease(tmp_path, "12")
