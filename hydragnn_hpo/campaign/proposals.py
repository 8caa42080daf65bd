"""Request proposals from the brain ahead of time, record them, and report results back to it."""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.chosen_values import complete_initial_points
from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.event_store import EventStore, read_state
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.config import CampaignConfig, Objective, Space, load_config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import RunDir, derive_seed
from hydragnn_hpo.search import Brain, fixed_values, make_brain
from hydragnn_hpo.search.brain import Row, select_warm_start
from hydragnn_hpo.search.objective import TrialScore

logger = logging.getLogger(__name__)

AT_REST = ("stopped", "completed", "failed")


def read_warm_start_rows(path: Path, objective: Objective, space: Space) -> list[Row]:
    """Read values and first-rung scores of an earlier campaign's trials; None for failures.

    Args:
        path: run directory of the earlier campaign.
        objective: of this campaign.
        space: searched keys of this campaign; values that the earlier one had fixed are added.

    Raises:
        ConfigError: the earlier campaign minimized another objective.
        RunError: the directory holds no campaign, or its journal is damaged.
    """
    run = RunDir(path)
    state = read_state(run)
    theirs = load_config(run.campaign, CampaignConfig)
    if theirs.search.objective != objective:
        raise ConfigError(
            f"search.warm_start: {path} minimized {theirs.search.objective!r}, this campaign "
            f"{objective!r}: name a campaign with the same objective, or drop it."
        )
    fixed = {key: value for key, value in fixed_values(theirs.trial).items() if key in space}
    rows: list[Row] = []
    for trial in state.trials.values():
        if trial.parent is not None:  # a replicate: the original trial has the same values
            continue
        if trial.rung_scores:
            rows.append(({**fixed, **trial.values}, trial.rung_scores[min(trial.rung_scores)]))
        elif trial.status == "failed":
            rows.append(({**fixed, **trial.values}, None))
    return rows


def list_scores(trial: Trial, rungs: Sequence[int], *, newest: bool = False) -> list[TrialScore]:
    """Return what a brain learns from a trial at rest.

    A trial that ended by early stopping has its score at the last rung, too: more epochs would
    not change it.

    Args:
        trial: at rest.
        rungs: epochs of all rungs, ascending.
        newest: leave out what was there before its newest attempt.

    Returns:
        Its scores, shortest training first; one failure if it has none.
    """
    if not trial.rung_scores:
        return [TrialScore(trial.values, None)]
    reached = [epochs for epochs in sorted(trial.rung_scores) if epochs in rungs]
    if newest:
        reached = [epochs for epochs in reached if epochs == trial.until]
    scores = {rungs.index(epochs): trial.rung_scores[epochs] for epochs in reached}
    if trial.status == "completed" and reached:
        scores[len(rungs) - 1] = trial.rung_scores[reached[-1]]
    return [TrialScore(trial.values, score, rung) for rung, score in scores.items()]


class SearchWorker:
    """Runs the brain in its own thread, which handles requests and results in order of arrival.

    What the brain knows at each request therefore does not depend on how long it computes, so a
    one-slot campaign is reproducible (Law 5).
    """

    def __init__(
        self,
        make: Callable[[], Brain],
        results: Sequence[TrialScore],
        pending: Sequence[SearchedValues],
    ) -> None:
        """Start building the brain in its thread, with earlier results and open proposals."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brain")
        self._brain = self._pool.submit(_build, make, results, pending)
        self._proposals: Future[list[SearchedValues]] | None = None
        self._results: list[Future[None]] = []
        self.asking = 0

    def ask(self, count: int) -> None:
        """Request ``count`` proposals; only one request may be open at a time."""
        assert self._proposals is None
        self.asking = count
        self._proposals = self._pool.submit(lambda: self._brain.result().ask(count))

    def take_proposals(self) -> list[SearchedValues] | None:
        """Return the requested proposals; None if they are not ready."""
        if self._proposals is None or not self._proposals.done():
            return None
        proposals = self._proposals.result()
        self._proposals, self.asking = None, 0
        return proposals

    def tell(self, score: TrialScore) -> None:
        """Report a result to the brain."""
        self._results.append(self._pool.submit(lambda: self._brain.result().tell(score)))

    def check(self) -> None:
        """Raise any error of the brain's thread."""
        for future in [f for f in self._results if f.done()]:
            future.result()
            self._results.remove(future)

    def close(self) -> None:
        """End the brain's thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _build(
    make: Callable[[], Brain], results: Sequence[TrialScore], pending: Sequence[SearchedValues]
) -> Brain:
    brain = make()
    if results or pending:
        brain.replay(results, pending)
    return brain


class Proposals:
    """Keeps one ``wave`` of trials queued, so that a free slot does not wait for the brain."""

    def __init__(
        self,
        config: CampaignConfig,
        event_store: EventStore,
        dispatch: Dispatch,
        *,
        configure: Callable[[str, SearchedValues], Any],
    ) -> None:
        """Start without a brain.

        Args:
            config: the campaign.
            event_store: the journal that proposals are written to.
            dispatch: gets the configuration of each trial.
            configure: returns a trial's whole configuration from its name and values, or raises
                ``ConfigError``.
        """
        self.config, self.event_store, self.dispatch = config, event_store, dispatch
        self.configure = configure
        self.search_worker: SearchWorker | None = None
        self.space_exhausted = False
        """Whether the space has no further configuration."""

    @property
    def budget(self) -> int:
        """Total number of trials to propose."""
        return self.config.search.trials + self.event_store.state.added

    @property
    def to_come(self) -> int:
        """Number of trials still to be proposed."""
        return 0 if self.exhausted else self.budget - self.event_store.state.searched

    @property
    def exhausted(self) -> bool:
        """Whether no further trial will be proposed."""
        return (
            self.space_exhausted
            or self.event_store.state.ending
            or self.event_store.state.searched >= self.budget
        )

    def start(self) -> None:
        """Configure the known trials; start the brain unless all trials are proposed already."""
        for trial in self.event_store.state.trials.values():
            if trial.attempt or trial.reason != "bad_config":  # a trial that ran once was valid
                self._configure(trial)
            self.dispatch.learn_again(trial)
        if not self.exhausted:
            self._propose_initial_points()
        if not self.exhausted:
            self._start_brain()

    def _propose_initial_points(self) -> None:
        """Propose the configurations that the campaign names, unless they are known."""
        known = [trial.values for trial in self.event_store.state.trials.values()]
        for values in complete_initial_points(self.config):
            if values not in known and not self.exhausted:
                self.propose(values)

    def _start_brain(self) -> None:
        search = self.config.search
        known = [t for t in self.event_store.state.trials.values() if t.parent is None]
        resting = {t.name: t for t in known if t.rung_scores or t.status in AT_REST}
        rungs = self.config.search.rungs
        results = [score for trial in resting.values() for score in list_scores(trial, rungs)]
        pending = [t.values for t in known if t.name not in resting]
        # Initial points may all be alike, so they do not count as spread over the space.
        initial = search.initial + len(complete_initial_points(self.config))
        warm = self._warm()
        self.search_worker = SearchWorker(
            lambda: make_brain(
                search.brain,
                self.config.space,
                seed=derive_seed(self.config.seed, "campaign", "search"),
                initial=initial,
                constraints=search.constraints,
                template=self.config.trial,
                warm=warm,
            ),
            results,
            pending,
        )

    def _warm(self) -> list[Row]:
        """Read the results of earlier campaigns that fit the space of this one."""
        search = self.config.search
        kept = list[Row]()
        for path in search.warm_start:
            rows = read_warm_start_rows(Path(path), search.objective, self.config.space)
            chosen = select_warm_start(
                self.config.space, search.constraints, rows, self.config.trial
            )
            kept += chosen.kept
            causes = "; skipped: " if chosen.skipped else ""
            causes += ", ".join(f"{number} ({why})" for why, number in chosen.skipped.items())
            logger.warning("%s: %d results are learnt from%s.", path, len(chosen.kept), causes)
        return kept

    def propose_next(self) -> None:
        """Propose trials that the user or the brain chose; request more when too few are queued."""
        chosen = self.event_store.state.chosen
        while chosen and not self.event_store.state.ending:
            self.propose(dict(chosen[0]))
        if self.search_worker is None:
            if self.exhausted:
                return
            self._start_brain()
            assert self.search_worker is not None
        self.search_worker.check()
        self._take(self.search_worker)
        wanted = min(self._missing(), self.budget - self.event_store.state.searched)
        if not self.exhausted and self.search_worker.asking == 0 and wanted > 0:
            self.search_worker.ask(wanted)

    def _missing(self) -> int:
        """Return how many more trials to queue: up to one wave, two before the first proposal."""
        state = self.event_store.state
        wave = self.wave
        return (2 * wave if not state.trials else wave) - state.count("queued")

    @property
    def wave(self) -> int:
        """Number of trials to keep queued: one for each slot.

        At most a quarter of the budget (or ``search.initial``): on a large machine the brain would
        otherwise propose all trials before it sees a result.
        """
        search = self.config.search
        quarter = max(search.initial, math.ceil(self.budget / 4))
        slots = max(1, self.dispatch.pool.total)
        return max(1, min(slots, quarter))

    def _take(self, worker: SearchWorker) -> None:
        proposals = worker.take_proposals()
        if proposals is None or self.event_store.state.ending:
            return
        self.space_exhausted = not proposals
        if not proposals:
            tried = self.event_store.state.searched
            logger.warning(
                "all points of [space] were tried: the search ends after %d of %d trials; add "
                "values to [space] in another campaign for more.",
                tried,
                self.budget,
            )
        for values in proposals[: self.budget - self.event_store.state.searched]:
            self.propose(values)

    def propose(
        self, values: SearchedValues, parent: str | None = None, until: int | None = None
    ) -> None:
        """Record a new trial; one with an invalid configuration fails at once.

        Args:
            values: searched values.
            parent: for a replicate or a fit of the learning curve, the trial that it repeats.
            until: epochs of one with a parent; those of the last rung if left out.
        """
        name = f"t{len(self.event_store.state.trials):04d}"
        rungs = self.config.search.rungs
        known: dict[str, int | str] = {"until": rungs[0]}
        if parent is not None:
            known = {"until": until or rungs[-1], "parent": parent}
        self.event_store.append("proposed", durable=False, trial=name, values=values, **known)
        self._configure(self.event_store.state.trials[name])

    def _configure(self, trial: Trial) -> None:
        """Make a trial's configuration; record a failure if a new trial's values are invalid."""
        try:
            self.dispatch.configs[trial.name] = self.configure(trial.name, trial.values)
        except ConfigError as error:
            if trial.attempt:
                raise
            self.event_store.append(
                "ended",
                trial=trial.name,
                outcome="failed",
                reason="bad_config",
                message=str(error),
                score=None,
            )
            self.tell(trial)

    def tell(self, trial: Trial) -> None:
        """Report a trial's newest result to the brain.

        Replicates are not reported: the brain knows their values already. Nor are trials that
        failed after an earlier rung, whose score the brain has.
        """
        if trial.parent is None and self.search_worker is not None:
            for score in list_scores(trial, self.config.search.rungs, newest=True):
                self.search_worker.tell(score)

    def close(self) -> None:
        """End the brain's thread."""
        if self.search_worker:
            self.search_worker.close()
