"""Claims on chunks, and ranks that share them."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import write
from processes import until

from hydragnn_hpo.ensemble import multi_rank
from hydragnn_hpo.ensemble.multi_rank import (
    MAX_ATTEMPTS,
    ChunkClaims,
    predict_as_rank,
)
from hydragnn_hpo.ensemble.predict_file import PredictRequest, predict_chunks
from hydragnn_hpo.ensemble.predict_output import PartHeader
from hydragnn_hpo.ensemble.structure_batches import ChunkId
from hydragnn_hpo.errors import JobError, StorageError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "claims").mkdir()
    return tmp_path / "claims"


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def rank(folder, clock):
    """One of several ranks that live for an hour of a clock that stands still; none renews."""
    return lambda: ChunkClaims(folder, lease_seconds=3600.0, clock=lambda: clock.now)


@pytest.mark.parametrize(("seconds", "free"), [(0.0, False), (3599.0, False), (3600.0, True)])
def test_a_rank_that_does_not_renew_is_gone_after_a_lease(rank, clock, seconds, free):
    one = rank()
    two = rank()
    assert one.take("0-1")
    clock.now += 1e6  # what no rank watched does not count
    assert not two.take("0-1")
    clock.now += seconds
    assert two.take("0-1") == free


def test_a_stamp_that_changes_begins_another_lease(rank, clock, folder):
    one = rank()
    two = rank()
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


def test_a_chunk_that_ends_too_many_is_given_up_until_all_is_cleared(rank, clock):
    survivor = rank()
    for attempt in range(MAX_ATTEMPTS):
        assert not survivor.is_given_up("0-1")
        victim = rank()
        for _ in range(attempt + 1):
            assert not survivor.is_given_up("0-1")
            taken = victim.take("0-1")
            clock.now += 3600.0
        assert taken
    assert not survivor.is_given_up("0-1"), "the last one may be alive"
    clock.now += 3600.0
    assert survivor.is_given_up("0-1")
    assert not survivor.take("0-1")
    survivor.clear()
    assert not survivor.is_given_up("0-1")
    assert survivor.take("0-1")


def test_a_claim_that_cannot_be_removed_is_a_sentence(rank, folder):
    (folder / "0-1.0").mkdir()
    with pytest.raises(StorageError, match="0-1.0: cannot be written"):
        rank().clear()


class Pipeline:
    """Sources with so many chunks each; what was done, and how often."""

    def __init__(self, *sizes: int, whole: tuple[int, ...] = ()) -> None:
        self.sizes = sizes
        self.num_sources = len(sizes)
        self.whole = whole
        self.done: dict[ChunkId, PartHeader] = {}
        self.times: dict[ChunkId, int] = {}
        self.beyond = 0
        self._lock = Lock()

    def is_last(self, chunk: ChunkId) -> bool:
        return chunk.source in self.whole

    def header(self, chunk: ChunkId) -> PartHeader | None:
        return self.done.get(chunk)

    def predict(self, chunk: ChunkId) -> PartHeader:
        with self._lock:
            inside = chunk.number < self.sizes[chunk.source]
            if inside:
                self.times[chunk] = self.times.get(chunk, 0) + 1
            else:
                self.beyond += 1
            last = chunk.number >= self.sizes[chunk.source] - 1
            self.done[chunk] = PartHeader(int(inside), 0, last, {}, 0)
        return self.done[chunk]

    @property
    def wanted(self) -> list[ChunkId]:
        sizes = enumerate(self.sizes)
        return [ChunkId(source, number) for source, size in sizes for number in range(size)]


@pytest.mark.parametrize("alone", [True, False])
def test_one_rank_does_all_in_order_and_none_beyond(folder, alone):
    pipeline = Pipeline(3, 1, 2)
    with ChunkClaims(folder) as claims:
        assert predict_chunks(pipeline, None if alone else claims) == []
    assert list(pipeline.times.items()) == [(chunk, 1) for chunk in pipeline.wanted]
    assert pipeline.beyond == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("ranks", [2, 5])
def test_several_ranks_do_each_chunk_once(folder, ranks):
    pipeline = Pipeline(40, 1, 17)

    def rank(_: int) -> list[ChunkId]:
        with ChunkClaims(folder) as claims:
            return predict_chunks(pipeline, claims, pause=lambda _: None)

    with ThreadPoolExecutor(ranks) as pool:
        assert list(pool.map(rank, range(ranks))) == [[]] * ranks
    assert pipeline.times == dict.fromkeys(pipeline.wanted, 1)
    assert pipeline.beyond <= (ranks - 1) * 3


def test_nothing_is_sought_behind_a_run_of_small_files(folder):
    """Another rank is at it: what lies behind its one chunk would be all of it again."""
    pipeline = Pipeline(1, 2, whole=(0,))
    other = ChunkClaims(folder)
    assert other.take("0-0")

    def pause(seconds: float) -> None:
        pipeline.predict(ChunkId(0, 0))
        other.drop("0-0")

    with ChunkClaims(folder) as claims:
        assert predict_chunks(pipeline, claims, pause=pause) == []
    assert pipeline.beyond == 0


def test_a_chunk_of_a_rank_that_ends_is_done_by_one_that_waits(folder):
    """The other holds chunk 1; it is seen no more while we wait, and we take it over."""
    pipeline = Pipeline(3)
    now = 0.0
    waited = []
    assert ChunkClaims(folder).take("0-1")

    def pause(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        if len(waited) == 3:
            now += 100.0

    with ChunkClaims(folder, clock=lambda: now) as claims:
        assert predict_chunks(pipeline, claims, pause=pause) == []
    assert list(pipeline.times) == [ChunkId(0, 0), ChunkId(0, 2), ChunkId(0, 1)]
    assert waited == sorted(waited), "it looks less often the longer nothing happens"
    assert list(folder.iterdir()) == [], "a chunk that is done at last is forgotten"


def test_a_chunk_that_ends_ranks_is_left_and_reported(folder):
    pipeline = Pipeline(3)
    now = 0.0
    for attempt in range(3):
        (folder / f"0-1.{attempt}").touch()

    def pause(seconds: float) -> None:
        nonlocal now
        now += 100.0

    with ChunkClaims(folder, clock=lambda: now) as claims:
        assert predict_chunks(pipeline, claims, pause=pause) == [ChunkId(0, 1)]
    assert sorted(pipeline.times) == [ChunkId(0, 0), ChunkId(0, 2)]


def test_a_rank_that_is_requested_to_end_leaves_no_claim(folder):
    pipeline = Pipeline(2)

    def end(chunk: ChunkId) -> PartHeader:
        raise SystemExit(143)

    with ChunkClaims(folder) as claims:
        pipeline.predict, predict = end, pipeline.predict  # type: ignore[method-assign]
        with pytest.raises(SystemExit):
            predict_chunks(pipeline, claims)
        assert not list(folder.glob("[0-9]*"))
        pipeline.predict = predict  # type: ignore[method-assign]
        assert predict_chunks(pipeline, claims) == []


@pytest.fixture
def request_five(built_zip, tmp_path):
    pairs = [Atoms("CO", positions=[(0, 0, 0), (0, 0, d)]) for d in np.linspace(1.0, 1.4, 5)]
    write(tmp_path / "some.extxyz", pairs)
    out = str(tmp_path / "some.csv")
    return PredictRequest((str(tmp_path / "some.extxyz"),), str(built_zip), out)


@pytest.fixture(autouse=True)
def _restore_process():
    handler = signal.getsignal(signal.SIGTERM)
    threads = torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


def test_rank_0_tries_again_what_ranks_of_an_earlier_start_were_lost_at(request_five):
    claims = request_five.parts.folder / "claims"
    with request_five.open_output():
        claims.mkdir()
    for attempt in range(3):
        (claims / f"0-0.{attempt}").touch()
    outcome = predict_as_rank(request_five, 0)
    assert outcome is not None
    assert (outcome.structures, outcome.failed) == (5, 0)
    assert not request_five.parts.folder.exists()


def test_the_first_lost_chunk_is_named_by_its_number(request_five, monkeypatch):
    lost = [ChunkId(0, 2), ChunkId(0, 10)]
    monkeypatch.setattr(multi_rank, "predict_chunks", lambda *_: lost)
    with pytest.raises(JobError, match="2 pieces .* the first at piece 3 of input 1"):
        predict_as_rank(request_five, 0)


@pytest.mark.parametrize("moment", ["before it looked", "while it began"])
def test_a_rank_that_comes_when_all_is_done_leaves(request_five, monkeypatch, moment):
    predict_as_rank(request_five, 0)
    before = Path(request_five.out).read_bytes()
    if moment == "while it began":
        monkeypatch.setattr(multi_rank, "_await_folder", lambda *_: None)
    assert predict_as_rank(request_five, 1) is None
    assert not request_five.parts.folder.exists()
    assert Path(request_five.out).read_bytes() == before


def test_an_output_of_earlier_days_is_no_sign(request_five, monkeypatch):
    out = Path(request_five.out)
    out.touch()
    monkeypatch.setattr(multi_rank, "_process_start", lambda: out.stat().st_mtime + 1.0)
    monkeypatch.setattr(multi_rank, "_await_folder", lambda *_: None)
    with pytest.raises(StorageError):
        predict_as_rank(request_five, 1)


@pytest.mark.parametrize(
    ("slot", "first", "device"),
    [(None, "cuda:0", "cuda:1"), (None, "cpu", "cpu"), ("cuda:3", "cuda:3", "cuda:3")],
)
def test_ranks_of_a_launcher_share_the_devices_of_their_host(monkeypatch, slot, first, device):
    monkeypatch.delenv(multi_rank.DEVICE, raising=False)
    if slot:
        monkeypatch.setenv(multi_rank.DEVICE, slot)
    monkeypatch.setattr(multi_rank, "device_of", lambda _: first)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert multi_rank.device_of_rank(5) == device
