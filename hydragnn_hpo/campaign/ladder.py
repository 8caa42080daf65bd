"""Rungs: who may train on, decided from what the book says alone."""

from hydragnn_hpo.campaign.book import Book
from hydragnn_hpo.config.search import SearchConfig
from hydragnn_hpo.search.rungs import Promotion, promotable, tail, together


class Ladder:
    """Sends trials from rung to rung."""

    def __init__(self, search: SearchConfig, book: Book) -> None:
        """Start at the first rung of every trial."""
        self.search, self.book = search, book

    def climb(self, *, exhausted: bool) -> None:
        """Promote who may go on now.

        Args:
            exhausted: whether all trials of the budget were proposed.
        """
        state = self.book.state
        if state.closed or state.ending:
            return
        resting = exhausted and not state.count("queued", "running")
        found = self._found(resting)
        for rung in sorted({p.to_rung for p in found}, reverse=True):
            names = [p.trial for p in found if p.to_rung == rung]
            self.book.note("promoted", trials=names, until=self.search.rungs[rung], last=False)
        if resting and not found:
            self.book.note("promoted", trials=[], until=self.search.rungs[-1], last=True)

    def _found(self, resting: bool) -> list[Promotion]:
        """Ask the rule of the campaign; only who is at rest can go on."""
        search, state = self.search, self.book.state
        waits = search.promotion == "together"
        if waits and not resting:
            return []
        results = [state.results.get(rung, []) for rung in search.rungs]
        gone = [state.promoted.get(rung, set()) for rung in search.rungs]
        if waits:
            rule = {"reduction": search.reduction, "finalists": search.finalists}
            found = together(results, gone, **rule)
        elif resting:
            found = tail(results, gone, finalists=search.finalists)
        else:
            found = promotable(results, gone, reduction=search.reduction)
        return [p for p in found if state.trials[p.trial].status == "stopped"]
