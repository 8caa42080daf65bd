"""How much a first campaign searches: the most thorough search that fits a time on a machine."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hydragnn_hpo.campaign import stores_of, trial_config
from hydragnn_hpo.config import CampaignConfig
from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.placement import CostModel
from hydragnn_hpo.planning.forecast import (
    Forecast,
    ForecastMachine,
    PricedTrial,
    TrialPricer,
    forecast_campaign,
    price_draws,
)
from hydragnn_hpo.words import count

BATCHES = (16, 32, 64)

TIERS: tuple[tuple[tuple[int, ...], tuple[int, int]], ...] = (
    ((32, 64, 96, 128), (2, 4)),
    ((32, 48, 64), (2, 4)),
    ((16, 32, 48), (2, 3)),
    ((16, 32), (2, 3)),
)
"""Widths and numbers of layers, the largest nets first. Every number of attention heads divides
every width."""

MIN_TRIALS, MAX_TRIALS, TARGET_TRIALS = 8, 400, 24
"""Trials: below which there is no search, above which it gains little, and what is aimed at."""

TRIALS_PER_CONV = 4
"""Least trials for every conv that is searched."""

MAX_CONVS = 8
"""Most convs of a campaign that has a time to keep."""

PLANNED = 0.8
"""Part of the time that is planned for: prices are guesses until something ran."""

DRAWS = 24
"""Configurations by which a budget is priced."""

CONFIGURATIONS, FOLDS = 2, 5
"""Configurations and folds of a cross-fitted ensemble."""

FOLD_EPOCHS = 1.2
"""Structures of an epoch on four of five folds, over those of the usual training split of 60 %."""

CROSS_TRIALS = 16
"""Fewest trials of a search that leaves the rest of its time to fits on folds."""

LEAST_GROWTH = 1.05
"""Fewest structures that a fit on folds learns from, over those of the training split, for which
it is worth its time: with tens of thousands the training split is most of the data."""

REDUCTION = 0.75
"""Factor by which trials are cut where the simulation takes too long."""


@dataclass(frozen=True)
class SearchBudget:
    """What a campaign searches, and how far."""

    trials: int = 60
    initial: int = 20
    rungs: tuple[int, int] = (10, 40)
    finalists: int | None = None
    """Trials that are trained to the full budget; what the config says if left out."""
    members: int = 6
    features: tuple[int, ...] = (32, 64, 96, 128)
    layers: tuple[int, int] = (2, 4)
    batches: tuple[int, ...] = BATCHES
    steps: int | None = None
    """Steps that are called an epoch; a pass over the data if left out."""
    convs: tuple[str, ...] | None = None
    """Convs to search; all that fit if left out."""
    fit: Literal["split", "cross"] = "split"
    """How the members are trained, see ``EnsembleConfig.fit``."""
    why: tuple[str, ...] = ()
    """Reasons, for comments."""


RenderConfig = Callable[[SearchBudget], CampaignConfig]


def fit_budget(
    render: RenderConfig,
    machine: ForecastMachine,
    stats: StoreStats,
    able: Sequence[str],
    seconds: float,
) -> tuple[SearchBudget, Forecast]:
    """Find the budget that fits a time, and forecast it by the planner's own simulation.

    The nets are as large, and trained for as long, as leaves ``TARGET_TRIALS`` trials. What does
    not fit is given up in this order: epochs, size of nets, whole passes over the data, trials.
    The ensemble is cross-fitted where that leaves ``CROSS_TRIALS`` trials of this thoroughness.

    Args:
        render: makes a campaign of a budget.
        machine: where it runs.
        stats: of the data, as in ``stats.json``, or an estimate.
        able: names of the convs that can predict the wanted targets.
        seconds: time for the whole campaign.

    Returns:
        The budget with its reasons, and its forecast.
    """
    wanted = max(PLANNED * seconds - machine.overhead, PLANNED * seconds / 3.0)
    options: list[tuple[int, SearchBudget]] = []
    crossed: SearchBudget | None = None
    for budget in list_budgets(stats["splits"]["train"], able):
        priced = _price_draws(render(set_trials(budget, TARGET_TRIALS)), machine, stats)
        each = sum(one.price.epoch_seconds(1) for one in priced.values())
        slot_epochs = wanted * machine.slots * len(priced) / max(each, 1e-9)
        options.append((count_trials(budget, slot_epochs), budget))
        if options[-1][0] >= TARGET_TRIALS:
            crossed = _cross_fit(budget, slot_epochs) if _gains_from_folds(stats) else None
            break
    if crossed is not None:
        fitted = _reduce_trials(render, machine, stats, crossed, PLANNED * seconds)
        if fitted[0].trials >= CROSS_TRIALS:
            return fitted
    trials, budget = _choose_budget(options)
    return _reduce_trials(render, machine, stats, set_trials(budget, trials), PLANNED * seconds)


def _cross_fit(budget: SearchBudget, epochs: float) -> SearchBudget | None:
    """Return a budget with fits on folds; None where they leave too little to search."""
    crossed = replace(budget, fit="cross")
    trials = count_trials(crossed, epochs)
    return set_trials(crossed, trials) if not budget.steps and trials >= CROSS_TRIALS else None


def _gains_from_folds(stats: StoreStats) -> bool:
    """Check whether a fit on folds learns from more structures than the training split has."""
    free = sum(count for split, count in stats["splits"].items() if split != "test")
    return (1.0 - 1.0 / FOLDS) * free >= LEAST_GROWTH * stats["splits"]["train"]


def list_budgets(training: int, able: Sequence[str]) -> Iterator[SearchBudget]:
    """Yield budgets from the most thorough to the least, without their number of trials.

    Args:
        training: structures in the training split.
        able: names of the convs that can predict the wanted targets.
    """
    full = choose_epochs(training)
    for features, layers in TIERS:
        for share in (1.0, 0.6):
            last = max(6, round(share * full))
            yield SearchBudget(
                rungs=(max(2, round(last / 4)), last),
                features=features,
                layers=layers,
                batches=choose_batches(training),
                convs=tuple(able),
            )
    features, layers = TIERS[-1]
    for steps in (1000, 300, 100, 30):
        if steps * max(choose_batches(training)) < training:
            yield SearchBudget(
                rungs=(2, 8), features=features, layers=layers, steps=steps, convs=tuple(able)
            )


def choose_epochs(training: int) -> int:
    """Return the epochs at which a training of so many graphs has mostly converged.

    Fewer graphs need more passes: 40 for a thousand, as the root of their number.
    """
    return max(8, min(120, round(40.0 * math.sqrt(1000.0 / max(training, 1)))))


def choose_batches(training: int) -> tuple[int, ...]:
    """Return batch sizes that leave an epoch at least a few steps.

    Returns:
        Graphs per optimizer step, rising; 8 alone where the data are few.
    """
    return tuple(b for b in BATCHES if training >= 6 * b) or (8,)


def set_trials(budget: SearchBudget, trials: int) -> SearchBudget:
    """Set a number of trials, and the convs and finalists that go with it."""
    trials = max(MIN_TRIALS, min(MAX_TRIALS, trials))
    finalists = CONFIGURATIONS if budget.fit == "cross" else max(6, min(12, trials // 3))
    return replace(
        budget,
        trials=trials,
        initial=max(4, trials // 4),
        finalists=finalists,
        members=6 if budget.fit == "cross" else min(6, finalists),
        convs=select_convs(budget.convs or (), min(MAX_CONVS, max(3, trials // TRIALS_PER_CONV))),
    )


def select_convs(able: Sequence[str], most: int) -> tuple[str, ...]:
    """Select some convs by ``ConvSpec.tried_first``; in the order in which they were given.

    Returns:
        At most ``most`` names.
    """
    kept = sorted(able, key=lambda name: CONV_SPECS[name].tried_first)[:most]
    return tuple(name for name in able if name in kept)


def count_trials(budget: SearchBudget, epochs: float) -> int:
    """Return the number of trials that fit into a number of epochs of a mean trial on one slot."""
    first, last = budget.rungs
    if budget.fit == "cross":
        fits = CONFIGURATIONS * (FOLDS * FOLD_EPOCHS * last + last - first)
        return max(0, int((epochs - fits) / first))
    return int(epochs / (first + (last - first) / 3.0))


def _choose_budget(options: Sequence[tuple[int, SearchBudget]]) -> tuple[int, SearchBudget]:
    """Choose the most thorough budget that leaves ``TARGET_TRIALS``, else two thirds of them."""
    for least in (TARGET_TRIALS, 2 * TARGET_TRIALS // 3, MIN_TRIALS):
        for option in options:
            if option[0] >= least:
                return option
    return max(options, key=lambda option: option[0])


def _reduce_trials(
    render: RenderConfig,
    machine: ForecastMachine,
    stats: StoreStats,
    budget: SearchBudget,
    seconds: float,
) -> tuple[SearchBudget, Forecast]:
    """Simulate a budget, and take trials away while it takes too long."""
    while True:
        config = render(budget)
        expected = forecast_campaign(
            config, machine, _price_draws(config, machine, stats, budget.trials)
        )
        if expected.simulated.makespan + machine.overhead <= seconds or budget.trials <= MIN_TRIALS:
            why = _explain_budget(budget, stats["splits"]["train"], machine, expected)
            return replace(budget, why=why), expected
        budget = set_trials(budget, int(REDUCTION * budget.trials))


def _price_draws(
    config: CampaignConfig, machine: ForecastMachine, stats: StoreStats, count: int = DRAWS
) -> dict[str, PricedTrial]:
    """Price configurations that are drawn from a campaign's space."""
    stores = stores_of(config, [stats["name"]])

    def configure(name: str, values: SearchedValues) -> Any:
        return trial_config(config, name, values, stores)

    costs = CostModel(stats, machine.profile, max_width=machine.slots)
    priced, _ = price_draws(TrialPricer(config, machine, costs, configure), count)
    return priced


def _explain_budget(
    budget: SearchBudget, training: int, machine: ForecastMachine, expected: Forecast
) -> tuple[str, str]:
    minutes = max(1, round((expected.simulated.makespan + machine.overhead) / 60.0))
    size = (
        f"{budget.trials} trials on {count(machine.slots, 'slot')} of this machine: about "
        f"{count(minutes, 'minute')} by first prices, which may be off by a factor of 2 until "
        "something ran ('plan' tells more)."
    )
    if budget.fit == "cross":
        return size, (
            f"The {CONFIGURATIONS} best are trained again on {FOLDS} folds, so that every label "
            f"but those of test trains: {budget.rungs[1]} passes each."
        )
    if budget.steps is None:
        return size, (
            f"{training:,} structures to train on: {budget.rungs[1]} passes over them, after "
            f"{budget.rungs[0]} of which a third goes on."
        )
    return size, (
        f"{training:,} structures are many for this time: {budget.steps} steps are called an "
        "epoch, not a whole pass; give it more time for better models."
    )
