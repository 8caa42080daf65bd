"""Fits of a cross-fitted ensemble: the best configurations, trained on folds of the labels."""

import logging
from typing import NamedTuple

from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.proposals import Proposals
from hydragnn_hpo.campaign.state import FOLD, State, Trial
from hydragnn_hpo.campaign.trial_kind import TrialKind
from hydragnn_hpo.config import CampaignConfig
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.search import RungResult
from hydragnn_hpo.search.rungs import rank_results

logger = logging.getLogger(__name__)

ALMOST_LAST = 0.8
"""Share of the full epochs from which the best epoch of a search counts as its last: the errors of
the last epochs, at low learning rates, differ by noise."""


class FoldFit(NamedTuple):
    """One training on all folds but one."""

    parent: str
    """Trial whose values it has."""
    fold: int
    """Fold that it leaves out, from 0."""
    folds: int
    """Number of folds."""
    epochs: int
    """Epochs of its whole training."""


def choose_epochs(best_epoch: int | None, last: int) -> int:
    """Return the epochs of a fit on folds, which has no validation split to stop by.

    Args:
        best_epoch: epoch of the parent's lowest validation objective; None if it is not known.
        last: epochs of the parent.

    Returns:
        ``best_epoch``, or ``last`` where these are close.
    """
    return last if best_epoch is None or best_epoch >= ALMOST_LAST * last else max(1, best_epoch)


def choose_fold_fits(state: State, config: CampaignConfig, groups: int | None) -> list[FoldFit]:
    """Return the fits on folds that are to be proposed.

    Args:
        state: the campaign's.
        config: the campaign.
        groups: groups of structures outside the test split; None if they were not counted.

    Returns:
        Empty where ``ensemble.fit`` is ``split``, before the search is over and its trials rest,
        after a person ended it, and where there are fewer than two groups.
    """
    over = state.closed and not (state.ending or state.finished)
    if config.ensemble.fit == "split" or not over:
        return []
    if any(trial.parent is None for trial in state.with_status("queued", "running")):
        return []
    done = [t for t in state.with_status("completed") if t.parent is None]
    ended = [RungResult(t.name, t.objective, errors=t.errors) for t in done]
    ranked = rank_results(sorted(ended, key=lambda one: one.trial))
    parents = dict.fromkeys(parent for parent, _ in state.folds)  # a controller died among them
    count = max(len(parents), config.ensemble.configurations)
    parents |= dict.fromkeys(one.trial for one in ranked)
    folds = min(config.ensemble.folds, config.ensemble.folds if groups is None else groups)
    if state.folds:
        folds = int(state.trials[next(iter(state.folds.values()))].values["training.folds"])
    if folds < 2:
        return []
    last = config.search.rungs[-1]
    return [
        FoldFit(parent, fold, folds, choose_epochs(state.trials[parent].best_epoch, last))
        for parent in list(parents)[:count]
        for fold in range(folds)
        if (parent, fold) not in state.folds
    ]


class FoldFits:
    """Proposes the best configurations on folds once the search is over."""

    def __init__(
        self, config: CampaignConfig, event_store: EventStore, proposals: Proposals, work: TrialKind
    ) -> None:
        """Propose nothing yet.

        Args:
            config: the campaign.
            event_store: its journal.
            proposals: takes the fits.
            work: knows the data.
        """
        self.config, self.event_store = config, event_store
        self.proposals, self.work = proposals, work

    @property
    def missing(self) -> list[FoldFit]:
        """Return the fits that are to be proposed now."""
        groups = None if self.work.stats is None else self.work.stats.get("groups")
        return choose_fold_fits(self.event_store.state, self.config, groups)

    def propose_missing(self) -> None:
        """Propose what is missing."""
        state, wanted = self.event_store.state, self.config.ensemble.folds
        for fit in self.missing:
            if fit.folds < wanted and not state.folds:
                logger.warning(
                    "there are %d groups of structures outside the test split, so the ensemble is "
                    "fitted on %d folds, not %d.",
                    fit.folds,
                    fit.folds,
                    wanted,
                )
            self.proposals.propose(
                self._values(state.trials[fit.parent], fit), parent=fit.parent, until=fit.epochs
            )

    def _values(self, parent: Trial, fit: FoldFit) -> SearchedValues:
        values: SearchedValues = {
            **parent.values,
            FOLD: fit.fold,
            "training.folds": fit.folds,
            "training.fold_seed": derive_seed(self.config.seed, "campaign", "folds"),
            "training.epochs": fit.epochs,
        }
        common = self.config.trial.get("training", {}).get("schedule")
        if values.get("training.schedule", common) == "plateau":  # it needs a validation split
            values["training.schedule"] = "cosine"
        return values
