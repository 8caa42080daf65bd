"""Whoever shares pieces: each is done once, none is left, also when ranks end."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest

from hydragnn_hpo.ensemble.sharing.claims import Claims
from hydragnn_hpo.ensemble.sharing.sharing import Share
from hydragnn_hpo.ensemble.streaming.parts import Header, Piece


class Bench:
    """Lots with so many pieces each; what was done, and how often."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.lots = sizes, len(sizes)
        self.done: dict[Piece, Header] = {}
        self.times: dict[Piece, int] = {}
        self.beyond = 0
        self._lock = Lock()

    def header(self, piece: Piece) -> Header | None:
        return self.done.get(piece)

    def finish(self, piece: Piece) -> Header:
        with self._lock:
            inside = piece.number < self.sizes[piece.lot]
            if inside:
                self.times[piece] = self.times.get(piece, 0) + 1
            else:
                self.beyond += 1
            last = piece.number >= self.sizes[piece.lot] - 1
            self.done[piece] = Header(int(inside), 0, last, {}, 0)
        return self.done[piece]

    @property
    def wanted(self) -> list[Piece]:
        sizes = enumerate(self.sizes)
        return [Piece(lot, number) for lot, size in sizes for number in range(size)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def test_one_rank_does_all_in_order_and_none_beyond(folder):
    work = Bench(3, 1, 2)
    with Claims(folder) as claims:
        assert Share(work, claims).do_all() == []
    assert list(work.times.items()) == [(piece, 1) for piece in work.wanted]
    assert work.beyond == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("ranks", [2, 5])
def test_several_ranks_do_each_piece_once(folder, ranks):
    work = Bench(40, 1, 17)

    def rank(_: int) -> list[Piece]:
        with Claims(folder) as claims:
            return Share(work, claims).do_all(lambda _: None)

    with ThreadPoolExecutor(ranks) as pool:
        assert list(pool.map(rank, range(ranks))) == [[]] * ranks
    assert work.times == dict.fromkeys(work.wanted, 1)
    assert work.beyond <= (ranks - 1) * 3


def test_what_is_done_is_not_done_again(folder):
    work = Bench(4)
    work.finish(Piece(0, 1))
    with Claims(folder) as claims:
        Share(work, claims).do_all()
    assert work.times == dict.fromkeys(work.wanted, 1)


def test_a_piece_of_a_rank_that_ends_is_done_by_one_that_waits(folder):
    """The other holds piece 1; it ends while we wait, and we take it over."""
    work = Bench(3)
    other = Claims(folder).__enter__()
    assert other.take("0-1")
    waited = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            other.__exit__()

    with Claims(folder) as claims:
        assert Share(work, claims).do_all(pause) == []
    assert list(work.times) == [Piece(0, 0), Piece(0, 2), Piece(0, 1)]
    assert waited == sorted(waited), "it looks less often the longer nothing happens"


def test_a_piece_that_ends_ranks_is_left_and_told(folder):
    work = Bench(3)
    with Claims(folder) as claims:
        for _ in range(3):
            with Claims(folder) as victim:
                assert victim.take("0-1")
        assert Share(work, claims).do_all() == [Piece(0, 1)]
    assert sorted(work.times) == [Piece(0, 0), Piece(0, 2)]


def test_who_is_asked_to_end_leaves_no_death(folder):
    work = Bench(2)

    def asked(piece: Piece) -> Header:
        raise SystemExit(143)

    with Claims(folder) as claims:
        work.finish, finish = asked, work.finish  # type: ignore[method-assign]
        with pytest.raises(SystemExit):
            Share(work, claims).do_all()
        assert not list(folder.glob("[0-9]*"))
        work.finish = finish  # type: ignore[method-assign]
        assert Share(work, claims).do_all() == []
