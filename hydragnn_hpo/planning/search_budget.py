"""How much a first campaign searches: the most thorough search that fits a time on a machine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

MIN_TRIALS, MAX_TRIALS, TARGET_TRIALS = 8, 400, 32
"""Trials: below which there is no search, above which it gains little, and what is aimed at."""

FEW_TRIALS = 2 * TARGET_TRIALS // 3
"""Trials that are enough where more would take smaller nets, or less than whole passes."""

MOST_CONVS = 8
"""Most convs of a search."""

MOST_POINTS, FEWEST_SPREAD = 8, 2
"""Trials from the portfolio, and at least so many others before the brain learns."""

REDUCTION = 3
"""One trial in so many goes on from a rung."""

TRIALS_PER_STRUCTURE, FEWEST_TO_TELL_APART = 16, 24
"""Trials for each structure to validate on, beyond which the best of them are best by chance.

Of 200 recorded nets of ``castelli_mini`` (``tests/benchmarks/curves``) the true error of the best
six falls by less than 1 % with each doubling of the trials beyond 24, 48 and 128, if 1, 3 and 8
structures are to validate on."""

PLANNED = 0.8
"""Part of the time that is planned for: prices are guesses until something ran."""

EXCESS = 1.25
"""Time of a search over that of ``count_trials``: trials that are among the best of a rung when
they get there, and no longer at the end, and the fits of the learning curve."""

DRAWS = 24
"""Configurations by which a budget is priced."""

MEMBERS = 6
"""Members of an ensemble, and fewest trials that are trained to the end."""

CONFIGURATIONS, FOLDS = 2, 5
"""Configurations and folds of a cross-fitted ensemble."""

FOLD_EPOCHS = 1.2
"""Structures of an epoch on four of five folds, over those of the usual training split of 60 %."""

CROSS_TRIALS = 16
"""Fewest trials of a search that leaves the rest of its time to fits on folds."""

LEAST_GROWTH = 1.05
"""Fewest structures that a fit on folds learns from, over those of the training split, for which
it is worth its time: with tens of thousands the training split is most of the data."""

CUT = 0.75
"""Factor by which trials are cut where the simulation takes too long."""


@dataclass(frozen=True)
class SearchBudget:
    """What a campaign searches, and how far."""

    trials: int = 60
    points: int = 8
    """Trials whose settings did well on other data; they come first."""
    initial: int = 8
    """Trials that are spread over the space, beside those."""
    rungs: tuple[int, ...] = (10, 40)
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
    most = count_distinct_trials(stats["splits"]["val"])
    options: list[tuple[int, SearchBudget]] = []
    crossed: SearchBudget | None = None
    for budget in list_budgets(stats["splits"]["train"], able):
        priced = _price_draws(render(set_trials(budget, TARGET_TRIALS)), machine, stats)
        each = sum(one.price.epoch_seconds(1) for one in priced.values())
        slot_epochs = wanted * machine.slots * len(priced) / max(each, 1e-9)
        options.append((count_trials(budget, slot_epochs / EXCESS), budget))
        if options[-1][0] >= TARGET_TRIALS:
            crossed = _cross_fit(budget, slot_epochs, most) if _gains_from_folds(stats) else None
            break
    if crossed is not None:
        fitted = _reduce_trials(render, machine, stats, crossed, PLANNED * seconds)
        if fitted[0].trials >= CROSS_TRIALS:
            return fitted
    trials, budget = _choose_budget(options)
    chosen = set_trials(budget, min(trials, most))
    return _reduce_trials(render, machine, stats, chosen, PLANNED * seconds)


def count_distinct_trials(validation: int) -> int:
    """Return how many trials so many structures of validation can tell apart."""
    return max(FEWEST_TO_TELL_APART, TRIALS_PER_STRUCTURE * validation)


def _cross_fit(budget: SearchBudget, epochs: float, most: int) -> SearchBudget | None:
    """Return a budget with fits on folds; None where they leave too little to search.

    Args:
        budget: without its number of trials.
        epochs: of a mean trial on one slot that fit into the time.
        most: trials that validation can tell apart.
    """
    crossed = replace(budget, fit="cross")
    trials = count_trials(crossed, epochs)
    if budget.steps or trials < CROSS_TRIALS:
        return None
    return set_trials(crossed, min(trials, most))


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
                rungs=choose_rungs(last),
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


def choose_rungs(last: int) -> tuple[int, ...]:
    """Return rungs up to a number of epochs: a sixteenth, a quarter, all.

    Three halve the time to a good net in replays of recorded curves.

    Returns:
        Epochs of each rung, rising; the shortest has at least two.
    """
    first = max(2, round(last / 16))
    second = round(last / 4)
    return (first, second, last) if second >= 2 * first else (max(2, second), last)


def choose_batches(training: int) -> tuple[int, ...]:
    """Return batch sizes that leave an epoch at least a few steps.

    Returns:
        Graphs per optimizer step, rising; 8 alone where the data are few.
    """
    return tuple(b for b in BATCHES if training >= 6 * b) or (8,)


def set_trials(budget: SearchBudget, trials: int) -> SearchBudget:
    """Set a number of trials, and how many of them come first, are spread, and are finalists."""
    trials = max(MIN_TRIALS, min(MAX_TRIALS, trials))
    finalists = CONFIGURATIONS if budget.fit == "cross" else choose_finalists(trials)
    return replace(
        budget,
        trials=trials,
        points=min(MOST_POINTS, trials - FEWEST_SPREAD),
        initial=max(FEWEST_SPREAD, trials // 8),
        finalists=finalists,
        members=MEMBERS,
        convs=select_convs(budget.convs or (), MOST_CONVS),
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
    below, last = budget.rungs[:-1], budget.rungs[-1]
    before = (0, *below[:-1])
    search = sum(
        (r - b) / float(REDUCTION) ** n for n, (b, r) in enumerate(zip(before, below, strict=True))
    )
    final = last - below[-1]
    if budget.fit == "cross":
        fits = CONFIGURATIONS * (FOLDS * FOLD_EPOCHS * last + final)
        return max(0, int((epochs - fits) / search))
    share = float(REDUCTION) ** -len(below)

    def cost(trials: int) -> float:
        return trials * search + max(share * trials, choose_finalists(trials)) * final

    return max((n for n in range(1, MAX_TRIALS + 1) if cost(n) <= epochs), default=0)


def choose_finalists(trials: int) -> int:
    """Return how many of the trials of a search are trained to the end, to choose members from.

    Of eight among 32 the best six make a better ensemble than six of six, by 2 % (recorded curves).
    """
    return max(MEMBERS, min(2 * MEMBERS, trials // 4))


def _choose_budget(options: Sequence[tuple[int, SearchBudget]]) -> tuple[int, SearchBudget]:
    """Choose the most thorough budget that leaves ``TARGET_TRIALS``, or at least a few.

    Whole passes over the data come first.
    """
    whole = [option for option in options if option[1].steps is None]
    for kind, least in (
        *((whole, TARGET_TRIALS), (whole, FEW_TRIALS)),
        *((options, TARGET_TRIALS), (options, FEW_TRIALS), (options, MIN_TRIALS)),
    ):
        for option in kind:
            if option[0] >= least:
                return option
    return max(reversed(options), key=lambda option: option[0])


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
            why = _explain_budget(budget, stats["splits"], machine, expected)
            return replace(budget, why=why), expected
        budget = set_trials(budget, int(CUT * budget.trials))


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
    budget: SearchBudget, splits: Mapping[str, int], machine: ForecastMachine, expected: Forecast
) -> tuple[str, str]:
    training = splits["train"]
    minutes = max(1, round((expected.simulated.makespan + machine.overhead) / 60.0))
    size = (
        f"{budget.trials} trials on {count(machine.slots, 'slot')} of this machine: about "
        f"{count(minutes, 'minute')} by first prices, which may be off by a factor of 2 until "
        "something ran ('plan' tells more)."
    )
    if budget.trials == count_distinct_trials(splits["val"]):
        validating = count(splits["val"], "structure")
        size += f" More would choose by chance among {validating} to validate on."
    if budget.fit == "cross":
        return size, (
            f"The {CONFIGURATIONS} best are trained again on {FOLDS} folds, so that every label "
            f"but those of test trains: {budget.rungs[-1]} passes each."
        )
    if budget.steps is None:
        below = " and ".join(map(str, budget.rungs[:-1]))
        return size, (
            f"{training:,} structures to train on: {budget.rungs[-1]} passes over them, after "
            f"{below} of which a third goes on."
        )
    return size, (
        f"{training:,} structures are many for this time: {budget.steps} steps are called an "
        "epoch, not a whole pass; give it more time for better models."
    )
