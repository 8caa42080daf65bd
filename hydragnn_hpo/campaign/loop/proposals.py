"""Trials from the brain: asked for ahead, checked, noted, and told back when they rest."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.earlier import earlier_rows
from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.loop.dispatch import Dispatch
from hydragnn_hpo.campaign.loop.thinker import Result, Thinker
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.protocol import make_brain
from hydragnn_hpo.search.warm import Row, fitting

logger = logging.getLogger(__name__)

AT_REST = ("stopped", "completed", "failed")


class Proposals:
    """Keeps one wave of trials waiting, so that a free slot never waits for the brain."""

    def __init__(
        self,
        config: CampaignConfig,
        book: Book,
        dispatch: Dispatch,
        *,
        configure: Callable[[str, Mapping[str, Any]], Any],
    ) -> None:
        """Start without a brain.

        Args:
            config: the campaign.
            book: where proposals are noted.
            dispatch: learns the configurations of trials.
            configure: makes a trial's whole configuration, or raises ``ConfigError``.
        """
        self.config, self.book, self.dispatch = config, book, dispatch
        self.configure = configure
        self.thinker: Thinker | None = None
        self.dry = False
        """Whether the space holds no further configuration."""

    @property
    def budget(self) -> int:
        """Trials to propose in all."""
        return self.config.search.trials + self.book.state.added

    @property
    def to_come(self) -> int:
        """How many trials will still be proposed."""
        return 0 if self.exhausted else self.budget - self.book.state.searched

    @property
    def exhausted(self) -> bool:
        """Whether no further trial will be proposed."""
        return self.dry or self.book.state.ending or self.book.state.searched >= self.budget

    def wake(self) -> None:
        """Build the brain and replay what was told before; nothing once all is proposed."""
        for trial in self.book.state.trials.values():
            if trial.reason != "bad_config":
                self._configure(trial)
            self.dispatch.learn_again(trial)
        if not self.exhausted:
            self._start()

    def _start(self) -> None:
        search = self.config.search
        known = [t for t in self.book.state.trials.values() if t.parent is None]
        told = {t.name: t for t in known if t.rests or t.status in AT_REST}
        results: list[Result] = [(t.values, self._point(t)) for t in told.values()]
        pending = [t.values for t in known if t.name not in told]
        warm = self._warm()
        self.thinker = Thinker(
            lambda: make_brain(
                search.brain,
                self.config.space,
                seed=derive_seed(self.config.seed, "campaign", "search"),
                initial=search.initial,
                constraints=search.constraints,
                template=self.config.trial,
                warm=warm,
            ),
            results,
            pending,
        )

    def _warm(self) -> list[Row]:
        """Read what earlier campaigns found, as far as it fits this one."""
        search, kept = self.config.search, list[Row]()
        for path in search.warm_start:
            rows = earlier_rows(Path(path), search.objective, self.config.space)
            found = fitting(self.config.space, search.constraints, rows, self.config.trial)
            kept += found.kept
            causes = "; skipped: " if found.skipped else ""
            causes += ", ".join(f"{number} ({why})" for why, number in found.skipped.items())
            logger.warning("%s: %d results are learnt from%s.", path, len(found.kept), causes)
        return kept

    def turn(self) -> None:
        """Take in what a person or the brain proposed, and ask it for more when too few wait."""
        chosen = self.book.state.chosen
        while chosen and not self.book.state.ending:
            self.propose(dict(chosen[0]))
        if self.thinker is None:
            if self.exhausted:
                return
            self._start()
            assert self.thinker is not None
        self.thinker.check()
        self._take(self.thinker)
        wanted = min(self._missing(), self.budget - self.book.state.searched)
        if not self.exhausted and self.thinker.asking == 0 and wanted > 0:
            self.thinker.ask(wanted)

    def _missing(self) -> int:
        """Say how many more should wait: one wave ahead, two before anything runs."""
        state = self.book.state
        wave = self.wave
        return (2 * wave if not state.trials else wave) - state.count("queued")

    @property
    def wave(self) -> int:
        """Trials that run side by side, roughly: as many as run, or fit one rank each.

        A machine much larger than the campaign holds a quarter of its trials at once: with all
        of them the brain would never see a result.
        """
        search = self.config.search
        quarter = max(search.initial, math.ceil(self.budget / 4))
        slots = max(1, self.dispatch.pool.total)
        return max(1, min(slots, quarter))

    def _take(self, thinker: Thinker) -> None:
        proposals = thinker.answer()
        if proposals is None or self.book.state.ending:
            return
        self.dry = not proposals
        for values in proposals[: self.budget - self.book.state.searched]:
            self.propose(values)

    def propose(self, values: dict[str, Any], parent: str | None = None) -> None:
        """Note a new trial; one that cannot be is a result at once.

        Args:
            values: searched values.
            parent: the trial that has them already: they are trained again, to the end.
        """
        name, rungs = f"t{len(self.book.state.trials):04d}", self.config.search.rungs
        known = {"until": rungs[0]} if parent is None else {"until": rungs[-1], "parent": parent}
        self.book.note("proposed", durable=False, trial=name, values=values, **known)
        self._configure(self.book.state.trials[name])

    def _configure(self, trial: Trial) -> None:
        """Make a trial's configuration; values that make none are a result of a new trial."""
        try:
            self.dispatch.configs[trial.name] = self.configure(trial.name, trial.values)
        except ConfigError as error:
            if trial.attempt:
                raise
            self.book.note(
                "ended",
                trial=trial.name,
                outcome="failed",
                reason="bad_config",
                message=str(error),
                score=None,
            )
            self.tell(trial)

    def tell(self, trial: Trial) -> None:
        """Tell the brain a trial's first result: those of later rungs are of other budgets.

        Other seeds of values that it knows are no news.
        """
        if trial.parent is not None:
            return
        first = trial.until == self.config.search.rungs[0]
        if self.thinker is not None and (first or not trial.rests):
            self.thinker.tell(trial.values, self._point(trial))

    def _point(self, trial: Trial) -> Point | None:
        """Give what a trial scored at its first rung; nothing for a failure."""
        return trial.rests[min(trial.rests)] if trial.rests else None

    def close(self) -> None:
        """Stop thinking."""
        if self.thinker:
            self.thinker.close()
