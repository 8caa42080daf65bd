"""Ranks that share chunks: each is done once, none is left, also when ranks end or come late."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import write

from hydragnn_hpo.ensemble import multi_rank, rank_pool
from hydragnn_hpo.ensemble.chunk_claims import ChunkClaims
from hydragnn_hpo.ensemble.input_chunks import ChunkId
from hydragnn_hpo.ensemble.multi_rank import predict_as_rank, rank_main, read_failure
from hydragnn_hpo.ensemble.output_parts import PartHeader
from hydragnn_hpo.ensemble.predict_file import PredictRequest, predict_chunks
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage


class Pipeline:
    """Sources with so many chunks each; what was done, and how often."""

    def __init__(self, *sizes: int, whole: tuple[int, ...] = ()) -> None:
        self.sizes, self.num_sources, self.whole = sizes, len(sizes), whole
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


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
    folder.mkdir()
    other = ChunkClaims(folder)
    assert other.take("0-0")

    def pause(seconds: float) -> None:
        pipeline.predict(ChunkId(0, 0))
        other.drop("0-0")

    with ChunkClaims(folder) as claims:
        assert predict_chunks(pipeline, claims, pause=pause) == []
    assert pipeline.beyond == 0


def test_what_is_done_is_not_done_again_and_told(folder):
    pipeline = Pipeline(4)
    pipeline.predict(ChunkId(0, 1))
    told = []
    with ChunkClaims(folder) as claims:
        predict_chunks(pipeline, claims, report=lambda _, before: told.append(before))
    assert pipeline.times == dict.fromkeys(pipeline.wanted, 1)
    assert told == [False, True, False, False]


def test_a_chunk_of_a_rank_that_ends_is_done_by_one_that_waits(folder):
    """The other holds chunk 1; it is seen no more while we wait, and we take it over."""
    pipeline, now, waited = Pipeline(3), 0.0, []
    folder.mkdir()
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


def test_a_chunk_that_ends_ranks_is_left_and_told(folder):
    pipeline, now = Pipeline(3), 0.0
    folder.mkdir()
    for attempt in range(3):
        (folder / f"0-1.{attempt}").touch()

    def pause(seconds: float) -> None:
        nonlocal now
        now += 100.0

    with ChunkClaims(folder, clock=lambda: now) as claims:
        assert predict_chunks(pipeline, claims, pause=pause) == [ChunkId(0, 1)]
    assert sorted(pipeline.times) == [ChunkId(0, 0), ChunkId(0, 2)]


def test_a_rank_that_is_asked_to_end_leaves_no_claim(folder):
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
def request_five(built_zip: Path, tmp_path: Path) -> PredictRequest:
    pairs = [Atoms("CO", positions=[(0, 0, 0), (0, 0, d)]) for d in np.linspace(1.0, 1.4, 5)]
    write(tmp_path / "some.extxyz", pairs)
    out = str(tmp_path / "some.csv")
    return PredictRequest((str(tmp_path / "some.extxyz"),), str(built_zip), out)


@pytest.fixture(autouse=True)
def _restore_process():
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


def test_rank_0_does_all_where_no_other_comes(request_five):
    outcome = predict_as_rank(request_five, 0)
    assert outcome is not None
    assert (outcome.structures, outcome.failed) == (5, 0)
    assert not request_five.parts.folder.exists()


def test_rank_0_tries_again_what_ranks_of_an_earlier_start_were_lost_at(request_five):
    claims = request_five.parts.folder / "claims"
    with request_five.open_output():
        claims.mkdir()
    for attempt in range(3):
        (claims / f"0-0.{attempt}").touch()
    assert predict_as_rank(request_five, 0) is not None


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


def fails(code):
    def fail(*_):
        with storage(Path("parts")):
            raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "ends"), [(errno.ESTALE, False), (errno.ENOSPC, True)])
def test_one_rank_without_its_files_does_not_end_the_others(request_five, monkeypatch, code, ends):
    monkeypatch.setattr(multi_rank, "STORAGE_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(multi_rank, "predict_chunks", fails(code))
    assert rank_main(request_five.to_json()) == 1
    assert isinstance(read_failure(request_five), JobError) == ends


@pytest.mark.parametrize(("code", "ends"), [(errno.EIO, False), (errno.EACCES, True)])
def test_progress_is_looked_for_again_where_files_are_away(request_five, monkeypatch, code, ends):
    class Held:
        def renew(self):
            pass

    progress = rank_pool._Progress(request_five, lambda header, before: None, Held())
    monkeypatch.setattr(rank_pool, "read_failure", fails(code))
    if ends:
        with pytest.raises(StorageError, match="Permission denied"):
            progress()
    else:
        progress()
    progress._last_update = -1e9
    monkeypatch.setattr(rank_pool, "read_failure", lambda _: JobError("no member is left."))
    with pytest.raises(JobError, match="no member is left"):
        progress()
