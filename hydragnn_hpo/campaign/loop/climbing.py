"""Who trains on in a forecast: the campaign's own rules, over results that are made up."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.placement.simulated import Work
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.rungs import Promotion, Rested, promotable, tail, together

AGAIN = "@again"
"""Follows the name of a trial whose values are trained once more, with another seed."""


class Trial(Protocol):
    """What is asked of a priced trial."""

    def work(self, start: float, until: int) -> Work:
        """Give what it does from one epoch to another."""


class Climbing:
    """Follows trials up the rungs, as ``Ladder`` does in a campaign."""

    def __init__(
        self,
        config: CampaignConfig,
        works: Sequence[Work],
        trials: Mapping[str, Trial],
        state: State | None = None,
    ) -> None:
        """Begin with what is to be done, and with what rests already.

        Args:
            config: the campaign.
            works: what its trials do first, named ``TRIAL@EPOCHS``.
            trials: all its trials by name.
            state: how it stands; from the beginning if left out.
        """
        self.config, self.search, self.trials = config, config.search, trials
        self.left = len(works)
        self.added: list[Work] = []
        state = state or State()
        self.closed = state.closed or state.ending
        self.results = [list(state.results.get(rung, [])) for rung in self.search.rungs]
        self.reseeds = 0 if state.ending else max(config.ensemble.reseed, state.reseed)
        self.reseeded = dict(state.reseeded)
        self.promoted = [set(state.promoted.get(rung, set())) for rung in self.search.rungs]

    def ended(self, work: str, now: float) -> Iterator[Work]:
        """Say what follows when a piece of work has ended."""
        name, _, until = work.rpartition("@")
        rung = self.search.rungs.index(int(until))
        self.left -= 1
        if name in self.reseeded.values():
            return
        self.results[rung].append(Rested(name, self._objective(name)))
        found = [] if self.closed else self._found()
        for promotion in found:
            yield self._sent(promotion)
        if not found and self.left == 0:
            yield from self._once_more()

    def _once_more(self) -> Iterator[Work]:
        """Train the best again with new seeds, as ``Reseeding`` does when all rest."""
        last = self.search.rungs[-1]
        done = self.results[-1]
        best = sorted((r.objective, r.trial) for r in done if r.objective is not None)
        for _, parent in best[: self.reseeds]:
            if parent not in self.reseeded:
                self.reseeded[parent] = parent + AGAIN
                work = self.trials[parent].work(0, last)
                self.left += 1
                self.added.append(replace(work, name=f"{parent}{AGAIN}@{last}"))
                yield self.added[-1]

    def _objective(self, name: str) -> Point:
        """Make up a result, the same at every rung; of as many goals as there are."""
        draws = random.Random(derive_seed(self.config.seed, name, "forecast"))
        objective = self.search.objective
        if isinstance(objective, tuple):
            return tuple(draws.random() for _ in objective)
        return draws.random()

    def _found(self) -> list[Promotion]:
        resting = self.left == 0
        search, results, gone = self.search, self.results, self.promoted
        if search.promotion == "together":
            if not resting:
                return []
            return together(results, gone, reduction=search.reduction, finalists=search.finalists)
        if resting:
            return tail(results, gone, finalists=search.finalists)
        return promotable(results, gone, reduction=search.reduction)

    def _sent(self, promotion: Promotion) -> Work:
        rungs = self.search.rungs
        self.promoted[promotion.from_rung].add(promotion.trial)
        start, until = rungs[promotion.from_rung], rungs[promotion.to_rung]
        work = self.trials[promotion.trial].work(start, until)
        self.left += 1
        self.added.append(work)
        return work
