"""Looking ahead: the same items, bounded, and no thread left behind."""

import threading
import time
from collections.abc import Iterator

import pytest

from hydragnn_hpo.data.prefetch import Prefetcher


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not [t for t in set(threading.enumerate()) - before if t.name == "look-ahead"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order(depth: int) -> None:
    with Prefetcher(lambda n: n * n, range(20), depth) as items:
        assert list(items) == [n * n for n in range(20)]


@pytest.mark.parametrize("depth", [1, 3])
def test_it_looks_no_further_than_it_may(depth: int) -> None:
    made: list[int] = []
    with Prefetcher(made.append, range(100), depth) as items:
        next(iter(items))
        deadline = time.monotonic() + 60
        while len(made) < depth + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        # One was taken, ``depth`` wait in the queue, one more waits for room.
        assert len(made) == depth + 2


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_met_at_its_item(depth: int) -> None:
    def make(n: int) -> int:
        if n == 3:
            raise ValueError("three")
        return n

    with Prefetcher(make, range(9), depth) as items:
        given = iter(items)
        assert [next(given) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(given)


def test_errors_of_the_source_are_met_too() -> None:
    def broken():
        yield 1
        raise OSError("gone")

    with Prefetcher(str, broken(), 2) as items, pytest.raises(OSError, match="gone"):
        list(items)
