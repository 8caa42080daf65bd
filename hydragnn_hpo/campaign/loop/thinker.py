"""The brain, thinking beside the controller: one thread, first in, first out.

Because questions and answers keep their order, what the brain knows at each question does
not depend on how long it thinks: with one slot a campaign repeats itself (Law 5).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.protocol import Brain

Result = tuple[dict[str, Any], Point | None]


class Thinker:
    """A brain in its own thread."""

    def __init__(
        self,
        make: Callable[[], Brain],
        results: Sequence[Result],
        pending: Sequence[dict[str, Any]],
    ) -> None:
        """Start to build the brain, and replay what was known before."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brain")
        self._brain = self._pool.submit(_build, make, results, pending)
        self._asked: Future[list[dict[str, Any]]] | None = None
        self._told: list[Future[None]] = []
        self.asking = 0

    def ask(self, count: int) -> None:
        """Ask for proposals; one question is open at a time."""
        assert self._asked is None
        self.asking = count
        self._asked = self._pool.submit(lambda: self._brain.result().ask(count))

    def answer(self, wait: bool = False) -> list[dict[str, Any]] | None:
        """Give the proposals if they are there (or wait for them), else None."""
        if self._asked is None or not (wait or self._asked.done()):
            return None
        proposals = self._asked.result()
        self._asked, self.asking = None, 0
        return proposals

    def tell(self, values: Mapping[str, Any], objective: Point | None) -> None:
        """Tell a result; None is a failure."""
        known = dict(values)
        self._told.append(self._pool.submit(lambda: self._brain.result().tell(known, objective)))

    def check(self) -> None:
        """Raise what went wrong in the brain's thread."""
        for future in [f for f in self._told if f.done()]:
            future.result()
            self._told.remove(future)

    def close(self) -> None:
        """Stop thinking."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _build(
    make: Callable[[], Brain], results: Sequence[Result], pending: Sequence[dict[str, Any]]
) -> Brain:
    brain = make()
    if results or pending:
        brain.replay(results, pending)
    return brain
