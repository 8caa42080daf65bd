"""Claims: one owner at a time, and free once the owner is gone."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import until

from hydragnn_hpo.ensemble.chunk_claims import MAX_ATTEMPTS, ChunkClaims


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "claims").mkdir()
    return tmp_path / "claims"


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def rank(folder, clock):
    """One of several ranks that live for an hour of a clock that stands still; none renews."""
    return lambda: ChunkClaims(folder, lease_seconds=3600.0, clock=lambda: clock.now)


def test_one_alone_has_it_until_it_is_dropped(rank):
    one, two = rank(), rank()
    assert one.take("0-7")
    assert not two.take("0-7")
    assert two.take("0-8")
    one.drop("0-7")
    assert two.take("0-7")


@pytest.mark.parametrize(("seconds", "free"), [(0.0, False), (3599.0, False), (3600.0, True)])
def test_a_rank_that_does_not_renew_is_gone_after_a_lease(rank, clock, seconds, free):
    one, two = rank(), rank()
    assert one.take("0-1")
    clock.now += 1e6  # what nobody watched does not count
    assert not two.take("0-1")
    clock.now += seconds
    assert two.take("0-1") == free


def test_a_stamp_that_changes_begins_another_lease(rank, clock, folder):
    one, two = rank(), rank()
    assert one.take("0-1")
    assert not two.take("0-1")
    clock.now += 3000.0
    time.sleep(0.02)
    (folder / "0-1.0").touch()
    assert not two.take("0-1")
    clock.now += 3000.0
    assert not two.take("0-1")
    clock.now += 600.0
    assert two.take("0-1")


def test_claims_are_renewed_while_their_rank_lives(folder):
    with ChunkClaims(folder, lease_seconds=0.06) as claims:
        assert claims.take("0-1")
        (path,) = folder.iterdir()
        stamp = path.stat().st_mtime_ns
        until(lambda: path.stat().st_mtime_ns > stamp, "a renewal")
        claims.drop("0-1")
        assert claims.take("0-2")
    (path,) = folder.iterdir()
    stamp = path.stat().st_mtime_ns
    time.sleep(0.1)
    assert path.stat().st_mtime_ns == stamp, "who has left renews nothing"


def test_a_killed_process_is_gone_after_a_lease(folder):
    code = "import sys, pathlib; from hydragnn_hpo.ensemble.chunk_claims import ChunkClaims\n"
    code += "with ChunkClaims(pathlib.Path(sys.argv[1]), lease_seconds=0.6) as claims:\n"
    code += "    print(claims.take('0-1'), flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    claims = ChunkClaims(folder, lease_seconds=6.0)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        for _ in range(4):
            assert not claims.take("0-1")
            time.sleep(0.2)
        child.kill()
        child.wait()
        until(lambda: claims.take("0-1"), "a free claim")


def test_a_chunk_that_ends_too_many_is_given_up_until_all_is_cleared(rank, clock):
    survivor = rank()
    for attempt in range(MAX_ATTEMPTS):
        assert not survivor.is_given_up("0-1")
        assert survivor.last_attempts() == []
        victim = rank()
        for _ in range(attempt + 1):
            assert not survivor.is_given_up("0-1")
            taken = victim.take("0-1")
            clock.now += 3600.0
        assert taken
    assert survivor.last_attempts() == ["0-1"]
    assert not survivor.is_given_up("0-1"), "the last one may be alive"
    clock.now += 3600.0
    assert survivor.is_given_up("0-1")
    assert not survivor.take("0-1")
    survivor.clear()
    assert not survivor.is_given_up("0-1")
    assert survivor.take("0-1")


def test_a_chunk_that_is_done_at_last_is_forgotten(rank, clock, folder):
    one, two = rank(), rank()
    assert one.take("0-1")
    assert not two.take("0-1")
    clock.now += 3600.0
    assert two.take("0-1")
    two.drop("0-1")
    assert list(folder.iterdir()) == []
