"""Claims: one owner at a time, and free once the owner is gone."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import write

from hydragnn_hpo.ensemble import multi_rank, rank_pool
from hydragnn_hpo.ensemble.multi_rank import (
    MOST_DEATHS,
    ChunkClaims,
    Share,
    failure_of,
    identity,
    predict_together,
    rank_main,
)
from hydragnn_hpo.ensemble.output_parts import ChunkId, PartHeader
from hydragnn_hpo.ensemble.predict_file import PredictRequest
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def make_stranger(folder: Path, *, age: float, place: str = "other/boot/pid:[1]") -> str:
    """Put a rank of another host there that showed ``age`` seconds before now."""
    path = folder / "rank.feed"
    path.write_text(json.dumps({"pid": 1, "born": 1, "place": place}))
    stamp = path.stat().st_mtime - age
    os.utime(path, (stamp, stamp))
    return "feed"


def test_one_alone_has_it(folder):
    with ChunkClaims(folder) as one, ChunkClaims(folder) as two:
        assert one.take("0-7")
        assert not two.take("0-7")
        assert two.take("0-8")
        assert (one.others(), two.others()) == (1, 1)


def test_what_is_dropped_or_left_is_free(folder):
    with ChunkClaims(folder) as one:
        with ChunkClaims(folder) as two:
            assert two.take("0-1")
            assert two.take("0-2")
            two.drop("0-1")
            assert one.take("0-1")
            assert not one.take("0-2")
        assert one.take("0-2")
        assert one.others() == 0


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (5000.0, False), (7000.0, True)])
def test_a_rank_of_another_host_lives_while_it_shows(folder, age, free):
    with ChunkClaims(folder, lease_seconds=6000.0) as claims:
        (folder / "0-1.0").write_text(make_stranger(folder, age=age))
        assert claims.take("0-1") == free


def test_a_claim_that_is_being_written_is_held(folder):
    with ChunkClaims(folder) as claims:
        (folder / "0-1.0").touch()
        assert not claims.take("0-1")


def test_a_killed_process_of_this_host_is_gone_at_once(folder):
    code = "import sys, pathlib; from hydragnn_hpo.ensemble.multi_rank import ChunkClaims\n"
    code += "with ChunkClaims(pathlib.Path(sys.argv[1])) as claims:\n"
    code += "    print(claims.take('0-1'), flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ChunkClaims(folder) as claims, child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        assert not claims.take("0-1")
        child.kill()
        child.wait()
        assert claims.take("0-1")
        assert claims.others() == 0


def test_a_piece_that_ends_too_many_is_lost_until_a_new_life(folder):
    with ChunkClaims(folder) as survivor:
        for _ in range(MOST_DEATHS):
            assert not survivor.is_lost("0-1")
            with ChunkClaims(folder) as victim:
                assert victim.take("0-1")
        assert not survivor.take("0-1")
        assert survivor.is_lost("0-1")
        survivor.forget_dead()
        assert not survivor.is_lost("0-1")
        assert survivor.take("0-1")


def test_a_new_life_keeps_what_the_living_have(folder):
    with ChunkClaims(folder) as one, ChunkClaims(folder) as two:
        assert two.take("0-1")
        one.forget_dead()
        assert not one.take("0-1")
        assert one.others() == 1


def test_a_process_is_known_by_its_birth():
    me = identity(os.getpid())
    assert me["pid"] == os.getpid()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert me["born"] == int(fields[19]), "starttime is field 22 of proc(5)"
    assert identity(2**22 + 1) == {}


class Bench:
    """Lots with so many pieces each; what was done, and how often."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.lots = sizes, len(sizes)
        self.done: dict[ChunkId, PartHeader] = {}
        self.times: dict[ChunkId, int] = {}
        self.beyond = 0
        self._lock = Lock()

    def header(self, piece: ChunkId) -> PartHeader | None:
        return self.done.get(piece)

    def finish(self, piece: ChunkId) -> PartHeader:
        with self._lock:
            inside = piece.number < self.sizes[piece.lot]
            if inside:
                self.times[piece] = self.times.get(piece, 0) + 1
            else:
                self.beyond += 1
            last = piece.number >= self.sizes[piece.lot] - 1
            self.done[piece] = PartHeader(int(inside), 0, last, {}, 0)
        return self.done[piece]

    @property
    def wanted(self) -> list[ChunkId]:
        sizes = enumerate(self.sizes)
        return [ChunkId(lot, number) for lot, size in sizes for number in range(size)]


def test_one_rank_does_all_in_order_and_none_beyond(folder):
    work = Bench(3, 1, 2)
    with ChunkClaims(folder) as claims:
        assert Share(work, claims).do_all() == []
    assert list(work.times.items()) == [(piece, 1) for piece in work.wanted]
    assert work.beyond == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("ranks", [2, 5])
def test_several_ranks_do_each_piece_once(folder, ranks):
    work = Bench(40, 1, 17)

    def rank(_: int) -> list[ChunkId]:
        with ChunkClaims(folder) as claims:
            return Share(work, claims).do_all(lambda _: None)

    with ThreadPoolExecutor(ranks) as pool:
        assert list(pool.map(rank, range(ranks))) == [[]] * ranks
    assert work.times == dict.fromkeys(work.wanted, 1)
    assert work.beyond <= (ranks - 1) * 3


def test_what_is_done_is_not_done_again(folder):
    work = Bench(4)
    work.finish(ChunkId(0, 1))
    with ChunkClaims(folder) as claims:
        Share(work, claims).do_all()
    assert work.times == dict.fromkeys(work.wanted, 1)


def test_a_piece_of_a_rank_that_ends_is_done_by_one_that_waits(folder):
    """The other holds piece 1; it ends while we wait, and we take it over."""
    work = Bench(3)
    other = ChunkClaims(folder).__enter__()
    assert other.take("0-1")
    waited = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            other.__exit__()

    with ChunkClaims(folder) as claims:
        assert Share(work, claims).do_all(pause) == []
    assert list(work.times) == [ChunkId(0, 0), ChunkId(0, 2), ChunkId(0, 1)]
    assert waited == sorted(waited), "it looks less often the longer nothing happens"


def test_a_piece_that_ends_ranks_is_left_and_told(folder):
    work = Bench(3)
    with ChunkClaims(folder) as claims:
        for _ in range(3):
            with ChunkClaims(folder) as victim:
                assert victim.take("0-1")
        assert Share(work, claims).do_all() == [ChunkId(0, 1)]
    assert sorted(work.times) == [ChunkId(0, 0), ChunkId(0, 2)]


def test_who_is_asked_to_end_leaves_no_death(folder):
    work = Bench(2)

    def asked(piece: ChunkId) -> PartHeader:
        raise SystemExit(143)

    with ChunkClaims(folder) as claims:
        work.finish, finish = asked, work.finish  # type: ignore[method-assign]
        with pytest.raises(SystemExit):
            Share(work, claims).do_all()
        assert not list(folder.glob("[0-9]*"))
        work.finish = finish  # type: ignore[method-assign]
        assert Share(work, claims).do_all() == []


@pytest.fixture
def order(built_zip: Path, tmp_path: Path) -> PredictRequest:
    pairs = [Atoms("CO", positions=[(0, 0, 0), (0, 0, d)]) for d in np.linspace(1.0, 1.4, 5)]
    write(tmp_path / "some.extxyz", pairs)
    return PredictRequest(
        (str(tmp_path / "some.extxyz"),), str(built_zip), str(tmp_path / "some.csv")
    )


def test_rank_0_does_all_where_nobody_else_comes(order):
    outcome = predict_together(order, 0)
    assert outcome is not None
    assert (outcome.structures, outcome.failed) == (5, 0)
    assert not order.parts.folder.exists()


@pytest.mark.parametrize("moment", ["before it looked", "while it began"])
def test_who_comes_when_all_is_done_leaves(order, monkeypatch, moment):
    predict_together(order, 0)
    before = Path(order.out).read_bytes()
    if moment == "while it began":
        monkeypatch.setattr(multi_rank, "_await", lambda *_: None)
    assert predict_together(order, 1) is None
    assert not order.parts.folder.exists()
    assert Path(order.out).read_bytes() == before


def test_an_output_of_earlier_days_is_no_sign(order, monkeypatch):
    Path(order.out).touch()
    monkeypatch.setattr(multi_rank, "_birth", lambda: Path(order.out).stat().st_mtime + 1.0)
    monkeypatch.setattr(multi_rank, "_await", lambda *_: None)
    with pytest.raises(StorageError):
        predict_together(order, 1)


@pytest.fixture(autouse=True)
def _as_before():
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


@pytest.fixture
def order_job(built_zip: Path, tmp_path: Path) -> PredictRequest:
    write(tmp_path / "some.extxyz", Atoms("CO", positions=[(0, 0, 0), (0, 0, 1.1)]))
    return PredictRequest(
        (str(tmp_path / "some.extxyz"),), str(built_zip), str(tmp_path / "some.csv")
    )


def fails(code):
    def fail(*_):
        with storage(Path("parts")):
            raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "ends"), [(errno.ESTALE, False), (errno.ENOSPC, True)])
def test_one_rank_without_its_files_does_not_end_the_others(order_job, monkeypatch, code, ends):
    monkeypatch.setattr(multi_rank, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(multi_rank.Share, "do_all", fails(code))
    assert rank_main(order_job.as_json()) == 1
    assert isinstance(failure_of(order_job), JobError) == ends


@pytest.mark.parametrize(("code", "ends"), [(errno.EIO, False), (errno.EACCES, True)])
def test_who_watches_looks_again_where_files_are_away(order_job, monkeypatch, code, ends):
    class Held:
        def renew(self):
            pass

    watch = rank_pool._Watch(order_job, lambda header, before: None, Held())
    monkeypatch.setattr(rank_pool, "failure_of", fails(code))
    if ends:
        with pytest.raises(StorageError, match="Permission denied"):
            watch()
    else:
        watch()
    watch._looked = -1e9
    monkeypatch.setattr(rank_pool, "failure_of", lambda order: JobError("no member is left."))
    with pytest.raises(JobError, match="no member is left"):
        watch()
