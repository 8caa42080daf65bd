"""Rungs: who may train on, decided from what the book says alone."""

from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.config.search import SearchConfig
from hydragnn_hpo.search.rungs import Promotion, promotable, tail, together


class Ladder:
    """Sends trials from rung to rung."""

    def __init__(self, search: SearchConfig, book: Book) -> None:
        """Start at the first rung of every trial."""
        self.search, self.book = search, book
        self._seen: tuple[object, ...] = ()
        """What was there when all were last compared."""

    def climb(self, *, exhausted: bool) -> None:
        """Promote who may go on now.

        Args:
            exhausted: whether all trials of the budget were proposed.
        """
        state = self.book.state
        if state.closed or state.ending:
            return
        resting = exhausted and not state.count("queued", "running")
        if not self._is_news(resting):
            return
        found = self._found(resting)
        for rung in sorted({p.to_rung for p in found}, reverse=True):
            names = [p.trial for p in found if p.to_rung == rung]
            self.book.note("promoted", trials=names, until=self.search.rungs[rung], last=False)
        if resting and not found:
            self.book.note("promoted", trials=[], until=self.search.rungs[-1], last=True)

    def _is_news(self, resting: bool) -> bool:
        """Say whether anything changed: ordering thousands of trials in each turn would tell."""
        state, seen = self.book.state, self._seen
        arrived = [len(rows) for rows in state.results.values()]
        gone = [len(names) for names in state.promoted.values()]
        self._seen = (resting, state.count("stopped"), arrived, gone)
        return self._seen != seen

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
