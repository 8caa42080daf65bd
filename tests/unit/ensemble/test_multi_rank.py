"""Claims on chunks, ranks that share them, and which ranks are started, replaced and given up."""

import contextlib
import errno
import os
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
    MAX_STARTS,
    ChunkClaims,
    RankPool,
    predict_as_rank,
    rank_main,
    read_failure,
)
from hydragnn_hpo.ensemble.predict_file import PredictRequest, predict_chunks
from hydragnn_hpo.ensemble.predict_output import PartHeader
from hydragnn_hpo.ensemble.structure_batches import ChunkId
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.job import Event, Job, Slot


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


def test_a_claim_that_cannot_be_removed_is_a_sentence(rank, folder):
    (folder / "0-1.0").mkdir()
    with pytest.raises(StorageError, match="0-1.0: cannot be written"):
        rank().clear()


def test_the_first_lost_chunk_is_named_by_its_number(tmp_path, monkeypatch):
    request = PredictRequest(("x.xyz",), "ensemble.zip", str(tmp_path / "y.csv"))
    claims = request.parts.folder / "claims"
    claims.mkdir(parents=True)

    class LostRanks:
        def __init__(self, *_: object) -> None: ...

        def run(self, tick: object) -> None:
            for number in (10, 2):
                (claims / f"0-{number}.{MAX_ATTEMPTS - 1}").touch()

    monkeypatch.setattr(multi_rank, "RankPool", LostRanks)
    monkeypatch.setattr("hydragnn_hpo.campaign.backend_on", lambda *_: contextlib.nullcontext())
    progress = SimpleNamespace(update=lambda before=False: None)
    with pytest.raises(JobError, match="2 pieces .* the first at piece 3 of input 1"):
        multi_rank._run_ranks(request, 1, SimpleNamespace(backend="local"), progress)


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


def fails(code):
    def fail(*_):
        with storage(Path("parts")):
            raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "ends"), [(errno.ESTALE, False), (errno.ENOSPC, True)])
def test_one_rank_without_its_files_does_not_end_the_others(request_five, monkeypatch, code, ends):
    monkeypatch.setattr(multi_rank, "STORAGE_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(multi_rank, "predict_chunks", fails(code))
    assert rank_main(request_five.to_spec()) == 1
    assert isinstance(read_failure(request_five), JobError) == ends


@pytest.mark.parametrize(("code", "ends"), [(errno.EIO, False), (errno.EACCES, True)])
def test_progress_is_looked_for_again_where_files_are_away(request_five, monkeypatch, code, ends):
    class Held:
        def renew(self):
            pass

    progress = multi_rank._Progress(request_five, lambda header, before: None, Held())
    monkeypatch.setattr(multi_rank, "read_failure", fails(code))
    if ends:
        with pytest.raises(StorageError, match="Permission denied"):
            progress()
    else:
        progress()
    progress._last_update = -1e9
    monkeypatch.setattr(multi_rank, "read_failure", lambda _: JobError("no member is left."))
    with pytest.raises(JobError, match="no member is left"):
        progress()


class Stage:
    """A backend whose jobs end as a list says, in the order in which they were started."""

    settled = True

    def __init__(self, slots: int, *codes: list[int]) -> None:
        self.slots = tuple(Slot("h", n, (n,), "cpu") for n in range(slots))
        self.codes = list(codes)
        self.started: list[Job] = []
        self.stopped: list[str] = []
        self._alive: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._alive.append(job)

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        self.stopped.append(job_id)

    def poll(self, timeout: float) -> list[Event]:
        if not self._alive or not self.codes:
            return []
        job = self._alive.pop(0)
        return [Event("ended", job.id, 0.0, {"codes": self.codes.pop(0)})]


def run(stage: Stage) -> list[list[int]]:
    RankPool(stage, Path("work"), {"a": 1}).run(lambda: None)  # type: ignore[arg-type]
    return [[slot.index for slot in job.slots] for job in stage.started]


def test_who_only_waits_for_others_is_ended():
    stage = Stage(3, [0], [-15], [-15])
    run(stage)
    assert stage.stopped == [job.id for job in stage.started[1:]]


def test_a_lost_rank_is_replaced():
    assert run(Stage(2, [-9], [0], [0])) == [[0], [1], [0]]


def test_who_ends_badly_again_and_again_is_given_up():
    stage = Stage(1, *[[1]] * 5)
    with pytest.raises(JobError, match=r"all ranks have ended before .* see work/ranks.log"):
        run(stage)
    assert len(stage.started) == MAX_STARTS


def test_a_slot_that_fails_leaves_the_work_to_the_others():
    assert run(Stage(2, [1], [-11], [1], [0], [1])).count([0]) <= MAX_STARTS


def test_an_error_that_is_reported_meanwhile_ends_the_ranks():
    def tick() -> None:
        raise JobError("no more")

    with pytest.raises(JobError, match="no more"):
        RankPool(Stage(1), Path("work"), {}).run(tick)  # type: ignore[arg-type]


class Lost(Stage):
    """Its host goes away with every rank, and comes back some polls later, or never."""

    def __init__(self, *codes: list[int], back: bool) -> None:
        super().__init__(1, *codes)
        self.back = back
        self._there = self.slots
        self._away = 0

    def poll(self, timeout: float) -> list[Event]:
        if not self.slots:
            self._away += 1
            self.slots = self._there if self.back and self._away > 3 else ()
            return []
        events = super().poll(timeout)
        if events and events[0].data["codes"] == [-9]:
            self.slots = ()
        return events


def test_ranks_go_on_when_the_last_host_that_was_lost_is_back():
    assert len(run(Lost([-9], [0], back=True))) == 2


def test_hosts_that_never_come_back_are_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(multi_rank, "HOST_SECONDS", 0.05)
    with pytest.raises(JobError, match="no host joined within"):
        run(Lost([-9], back=False))
