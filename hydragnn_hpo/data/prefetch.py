"""Prefetch a bounded number of items in one thread."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")

_LOOK_SECONDS = 0.1
"""How often a thread that waits for room looks whether it is still wanted."""


class _End:
    """What the thread says last: nothing more, or an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Prefetcher(Generic[T]):
    """Gives ``make(item)`` for every item in order, made up to ``depth`` items ahead.

    What ``make`` raises, the consumer meets at that item. Who stops early closes it, or leaves
    the ``with``: the thread ends after the item it is at.
    """

    def __init__(self, make: Callable[[S], T], items: Iterable[S], depth: int) -> None:
        """Start the thread; 0 makes each item when it is asked for, without a thread."""
        self._stop = threading.Event()
        self._queue: queue.Queue[T | _End] = queue.Queue(maxsize=max(depth, 1))
        self._plain = map(make, items) if depth == 0 else None
        self._thread: threading.Thread | None = None
        if depth > 0:
            self._thread = threading.Thread(
                target=self._run, args=(make, items), name="look-ahead", daemon=True
            )
            self._thread.start()

    def _run(self, make: Callable[[Any], T], items: Iterable[Any]) -> None:
        try:
            for item in items:
                if not self._put(make(item)):
                    return
            self._put(_End())
        except BaseException as error:
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        if self._plain is not None:
            yield from self._plain
            return
        while True:
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
