"""How long a campaign may still take, judged by what ran, for whoever only reads its journal."""

import statistics
from itertools import pairwise

from hydragnn_hpo.campaign.records.losses import Ledger
from hydragnn_hpo.campaign.records.standing import running_trials
from hydragnn_hpo.campaign.records.state import State
from hydragnn_hpo.config.search import SearchConfig

LEAST_SHARE = 0.05
"""Training is taken to fill this share of the slots at least: at the start nothing trains yet."""


def seconds_left(
    state: State, ledger: Ledger, search: SearchConfig, now: float | None = None
) -> float | None:
    """Predict when everything has ended: what is known, and what is still to be proposed.

    Epochs that are left, times the median slot-seconds of an epoch, over the slots and the share
    of their time that went into training; no less than the longest of the running trials.

    Args:
        state: the campaign's state.
        ledger: where its slot-seconds went.
        search: how many trials, and which rungs.
        now: seconds since the epoch.

    Returns:
        Seconds; None before the first epoch, and without slots.
    """
    costs = [w * s for trial in state.trials.values() for w, s in trial.seconds.items()]
    if not costs or not ledger.slots:
        return None
    share = max(LEAST_SHARE, ledger.losses(now).share("training"))
    work = epochs_left(state, search) * statistics.median(costs) / (ledger.slots * share)
    running = running_trials(state, state.count("running"), now)
    return max([work, *(row.ends_in for row in running if row.ends_in is not None)])


def epochs_left(state: State, search: SearchConfig) -> int:
    """Count the epochs from here to the end of the search."""
    open_trials = state.with_status("queued", "running")
    left = sum(max(0, trial.until - trial.epoch) for trial in open_trials)
    if state.ending or state.finished:
        return left
    budget = search.trials + state.added
    left += max(0, budget - state.searched) * search.rungs[0]
    there = budget
    for rung, following in pairwise(search.rungs):
        there //= search.reduction
        if following == search.rungs[-1]:
            there = max(there, search.finalists)
        sent = len(state.promoted[rung]) if rung in state.promoted else 0
        left += 0 if state.closed else max(0, there - sent) * (following - rung)
    return left
