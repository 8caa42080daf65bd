"""One controller per run directory."""

import json
import os
import socket
import subprocess
import sys

import pytest

from hydragnn_hpo.campaign.book import Book
from hydragnn_hpo.campaign.lease import STALE_SECONDS, Lease, alive
from hydragnn_hpo.errors import RunError


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


def test_another_hosts_lease_holds_until_it_is_stale(tmp_path):
    lease = Lease(tmp_path)
    lease.path.write_text(json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}"}))
    with pytest.raises(RunError, match="is being run by"):
        Lease(tmp_path)
    past = lease.path.stat().st_mtime - STALE_SECONDS - 1
    os.utime(lease.path, (past, past))
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
    book = Book(tmp_path / "events.jsonl", lease.epoch, lambda: 0.0, lease.renew)
    book.note("opened", units={})
    before = book.path.read_bytes()
    lease._next.touch()
    lease._touched -= 60.0
    with pytest.raises(RunError, match="a newer controller has taken over"):
        book.note("finished")
    book.close()
    assert book.path.read_bytes() == before
