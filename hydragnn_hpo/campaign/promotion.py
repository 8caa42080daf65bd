"""Which trials train on: promotion from rung to rung, and what follows the search.

The best train again with new seeds, and the best of all with less data, for a learning curve.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.proposals import Proposals
from hydragnn_hpo.campaign.state import TRAIN_SHARE, State, Trial
from hydragnn_hpo.config import CampaignConfig, SearchConfig
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.search import (
    Promotion,
    RungResult,
    promote_asynchronously,
    promote_finalists,
    promote_synchronously,
)


def choose_promotions(
    search: SearchConfig,
    results: Sequence[Sequence[RungResult]],
    promoted: Sequence[Collection[str]],
    *,
    resting: bool,
) -> list[Promotion]:
    """Apply the campaign's rule of promotion.

    Args:
        search: names the rule.
        results: of the trials that rested, by rung.
        promoted: names of the trials that were sent on, by rung.
        resting: whether nothing runs, waits or is to come.
    """
    if search.promotion == "together":
        if not resting:
            return []
        return promote_synchronously(
            results, promoted, reduction=search.reduction, finalists=search.finalists
        )
    promotions = promote_asynchronously(results, promoted, reduction=search.reduction)
    if resting and not promotions:
        return promote_finalists(results, promoted, finalists=search.finalists)
    return promotions


class Promoter:
    """Sends trials from rung to rung."""

    def __init__(self, search: SearchConfig, event_store: EventStore) -> None:
        """Start at the first rung of every trial."""
        self.search, self.event_store = search, event_store
        self._seen: tuple[object, ...] = ()
        """What was there when all were last compared."""

    def promote(self, *, exhausted: bool) -> None:
        """Promote the trials that may go on now.

        Args:
            exhausted: whether all trials of the budget were proposed.
        """
        state = self.event_store.state
        if state.closed or state.ending:
            return
        resting = exhausted and not state.count("queued", "running")
        if not self._has_changed(resting):
            return
        promotions = self._choose(resting)
        for rung in sorted({p.to_rung for p in promotions}, reverse=True):
            names = [p.trial for p in promotions if p.to_rung == rung]
            self.event_store.append(
                "promoted", trials=names, until=self.search.rungs[rung], last=False
            )
        if resting and not promotions:
            self.event_store.append("promoted", trials=[], until=self.search.rungs[-1], last=True)

    def _has_changed(self, resting: bool) -> bool:
        """Check whether anything changed: ranking thousands of trials every turn is slow."""
        state, seen = self.event_store.state, self._seen
        arrived = [len(rows) for rows in state.results.values()]
        gone = [len(names) for names in state.promoted.values()]
        self._seen = (resting, state.count("stopped"), arrived, gone)
        return self._seen != seen

    def _choose(self, resting: bool) -> list[Promotion]:
        """Apply the rule of the campaign; only trials at rest can go on."""
        search, state = self.search, self.event_store.state
        results = [state.results.get(rung, []) for rung in search.rungs]
        gone = [state.promoted.get(rung, set()) for rung in search.rungs]
        promotions = choose_promotions(search, results, gone, resting=resting)
        return [p for p in promotions if state.trials[p.trial].status == "stopped"]


class Replicates:
    """Proposes the best trials again once the search is over, to the full budget at once.

    They are members for an ensemble, and take no part in the search.

    Source: Wenzel et al. (2020), Hyperparameter ensembles for robustness and uncertainty
    quantification, NeurIPS 33: varying seeds beside hyperparameters.
    """

    def __init__(self, wanted: int, event_store: EventStore, proposals: Proposals) -> None:
        """Keep how many of the best the campaign itself trains again."""
        self.wanted, self.event_store, self.proposals = wanted, event_store, proposals

    @property
    def missing(self) -> list[Trial]:
        """Return the trials that are to be trained again and are not yet, best first.

        A person who ended the campaign early wants no more of it, unless they ask.
        """
        state = self.event_store.state
        wanted = max(0 if state.ending else self.wanted, state.reseed)
        return choose_replicates(state, wanted) if wanted else []

    def request(self, count: int) -> None:
        """Append to the journal that a person wants the best trained again.

        Raises:
            RunError: the search goes on, or nothing came to its end.
        """
        state, where = self.event_store.state, self.event_store.path.parent
        if not (state.closed or state.ending):
            raise RunError(
                f"{where}: its search is not over, so the best are not known yet: let it end, or "
                "set ensemble.reseed in the campaign file."
            )
        if not any(trial.status == "completed" for trial in state.trials.values()):
            raise RunError(
                f"{where}: no trial was trained to the full budget: let the search end first."
            )
        self.event_store.append("reseed", count=count)

    def propose_missing(self) -> None:
        """Propose what is missing."""
        for trial in self.missing:
            self.proposals.propose(dict(trial.values), parent=trial.name)


def choose_replicates(state: State, wanted: int) -> list[Trial]:
    """Return those of the best completed trials of a search that have no replicate yet.

    Args:
        state: the campaign's.
        wanted: how many of the best are to be trained again.

    Returns:
        Best first, by the objective that members are chosen by; none before the search is over
        and all rest.
    """
    if not (state.closed or state.ending) or state.count("queued", "running"):
        return []
    done = [t for t in state.with_status("completed") if t.parent is None]
    scored = [(t.objective, t.name) for t in done if t.objective is not None]
    best = [state.trials[name] for _, name in sorted(scored)[:wanted]]
    return [trial for trial in best if trial.name not in state.reseeded]


CURVE_SHARES = (1.0, 0.5, 0.25)
"""Shares of the training data of a learning curve: two doublings. All of the data is fitted again,
too: the best trial itself was chosen among many, so its error is too low beside the others."""

LEAST_CURVE_EPOCHS = 1 / 3
"""Epochs of a fit, as a share of the full budget, below which a learning curve is left out: a net
that has hardly learned from half of the data cannot show what the other half holds."""


class CurveFit(NamedTuple):
    """One fit of a learning curve."""

    parent: str
    """Trial whose values it has."""
    share: float
    """Share of the training data."""
    epochs: int
    """Epochs of its whole training, each of as many steps as with all data."""


def choose_curve_epochs(
    config: CampaignConfig, costs: Sequence[tuple[int, float]], own: float
) -> int:
    """Return the epochs of each fit of the learning curve; 0 where the campaign has no room.

    Args:
        config: the campaign.
        costs: epochs, and cost of one of them, of each trial of the search.
        own: cost of an epoch of the best trial.
    """
    chosen = "train_share" in config.trial.get("training", {}) or TRAIN_SHARE in config.space
    if config.command is not None or chosen or not own:
        return 0
    room = config.ensemble.learning_curve * math.fsum(n * cost for n, cost in costs) / own
    last = config.search.rungs[-1]
    epochs = min(last, int(room / len(CURVE_SHARES)))
    return epochs if epochs >= LEAST_CURVE_EPOCHS * last else 0


def choose_curve_fits(
    state: State, config: CampaignConfig, cost: Callable[[Trial], float]
) -> list[CurveFit]:
    """Return the fits of the learning curve that are to be proposed.

    Args:
        state: the campaign's.
        config: the campaign.
        cost: returns the price of an epoch, by formula alone, so that it is the same in any run.

    Returns:
        Empty before the search is over and its trials rest, and after a person ended it or asked
        for more of a finished campaign.
    """
    over = state.closed and not (state.ending or state.finished)
    open_trials = state.with_status("queued", "running")
    if not over or any(trial.parent is None for trial in open_trials):
        return []
    if state.curve:  # a controller died among the proposals
        first = state.trials[next(iter(state.curve.values()))]
        parent = str(first.parent)
        epochs = first.until
    else:
        done = [t for t in state.with_status("completed") if t.parent is None]
        scored = [(t.objective, t.name) for t in done if t.objective is not None]
        if not scored or state.reseed:
            return []
        parent = min(scored)[1]
        searched = [t for t in state.trials.values() if t.parent is None and t.epoch]
        costs = [(t.epoch, cost(t)) for t in searched]
        epochs = choose_curve_epochs(config, costs, cost(state.trials[parent]))
    missing = [share for share in CURVE_SHARES if share not in state.curve]
    return [CurveFit(parent, share, epochs) for share in missing if epochs]


class LearningCurveFits:
    """Proposes fits of the best configuration on shares of the training data.

    All take the same number of optimizer steps with the same schedule: with equal epochs the fits
    on less data would also be trained for less time, and more data would seem to help.

    Source: Hestness et al. (2017), arXiv:1712.00409, for the power law; Kaplan et al. (2020),
    arXiv:2001.08361, section 4, for data that limit and training that limits.
    """

    def __init__(
        self,
        config: CampaignConfig,
        event_store: EventStore,
        proposals: Proposals,
        dispatch: Dispatch,
    ) -> None:
        """Propose nothing yet.

        Args:
            config: the campaign.
            event_store: its journal.
            proposals: takes the fits.
            dispatch: prices the trials.
        """
        self.config, self.event_store = config, event_store
        self.proposals, self.dispatch = proposals, dispatch
        self._seen: tuple[object, ...] = ()
        """What was there when the fits were last chosen: pricing thousands of trials is slow."""
        self._missing: list[CurveFit] = []

    @property
    def missing(self) -> list[CurveFit]:
        """Return the fits that are to be proposed now."""
        state = self.event_store.state
        flags = (state.closed, state.ending, state.finished, state.reseed, len(state.curve))
        seen = (*flags, len(state.trials), state.count("queued", "running"))
        if seen != self._seen:
            self._seen = seen
            self._missing = choose_curve_fits(state, self.config, self._cost)
        return self._missing

    def _cost(self, trial: Trial) -> float:
        return self.dispatch.price(trial).quote.seconds(1)

    def propose_missing(self) -> None:
        """Propose what is missing."""
        for parent, share, epochs in list(self.missing):
            values = dict(self.event_store.state.trials[parent].values)
            values |= {
                TRAIN_SHARE: share,
                "training.share_seed": derive_seed(self.config.seed, "campaign", "train share"),
                "training.epochs": epochs,
            }
            self.proposals.propose(values, parent=parent, until=epochs)
