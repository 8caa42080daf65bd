"""The most thorough first campaign that fits into a time on a machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hydragnn_hpo.campaign.beginning.scope import (
    LEAST,
    WISHED,
    Scope,
    scopes,
    trials_for,
    with_trials,
)
from hydragnn_hpo.campaign.forecast import (
    Forecast,
    ForecastMachine,
    PricedTrial,
    TrialPricer,
    forecast,
    sample_configurations,
)
from hydragnn_hpo.campaign.setup import stores_of, trial_config
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.placement.cost import CostModel

ASIDE = 30.0
"""Seconds that building graphs, starting, the ensemble and the report take of a small campaign."""

PART = 0.8
"""Part of the time that is planned for: prices are guesses until something ran."""

DRAWN = 24
"""Configurations by which a scope is priced."""

FEWER = 0.75
"""By what trials are cut where the simulation takes longer than wished."""

Make = Callable[[Scope], CampaignConfig]


def fitting_scope(
    make: Make,
    machine: ForecastMachine,
    stats: Mapping[str, Any],
    able: Sequence[str],
    seconds: float,
) -> tuple[Scope, Forecast]:
    """Find a scope for a time, and what it will take by the planner's own simulation.

    The nets are as large, and trained for as long, as leaves ``WISHED`` trials; what cannot be is
    given up in this order: epochs, size of nets, whole passes over the data, trials.

    Args:
        make: writes a campaign of a scope.
        machine: where it runs.
        stats: of the data, as ``stats.json`` has them, or a guess.
        able: convs that can predict what is asked.
        seconds: that people want to wait.
    """
    wanted = max(PART * seconds - ASIDE, PART * seconds / 3.0)
    training = int(stats["splits"]["train"])
    found: list[tuple[int, Scope]] = []
    for scope in scopes(training, able):
        tried = with_trials(scope, WISHED)
        each = _epoch_seconds(_priced(make(tried), machine, stats))
        found.append((trials_for(scope, wanted, each, machine.slots), scope))
        if found[-1][0] >= WISHED:
            break
    trials, scope = _first_enough(found)
    return _settled(make, machine, stats, with_trials(scope, trials), PART * seconds)


def _first_enough(found: Sequence[tuple[int, Scope]]) -> tuple[int, Scope]:
    """Give the most thorough scope that leaves the trials wished for, else two thirds of them."""
    for least in (WISHED, 2 * WISHED // 3, LEAST):
        for one in found:
            if one[0] >= least:
                return one
    return max(found, key=lambda one: one[0])


def _settled(
    make: Make, machine: ForecastMachine, stats: Mapping[str, Any], scope: Scope, seconds: float
) -> tuple[Scope, Forecast]:
    """Simulate a scope, and take trials away while it takes too long."""
    while True:
        made = make(scope)
        priced = _priced(made, machine, stats, scope.trials)
        seen = forecast(made, machine, priced)
        if seen.simulated.makespan + ASIDE <= seconds or scope.trials <= LEAST:
            return replace(scope, why=tuple(_reasons(scope, stats, machine, seen))), seen
        scope = with_trials(scope, int(FEWER * scope.trials))


def _priced(
    config: CampaignConfig, machine: ForecastMachine, stats: Mapping[str, Any], count: int = DRAWN
) -> dict[str, PricedTrial]:
    """Price configurations that are drawn from a campaign's space."""
    stores = stores_of(config, [str(stats["name"])])
    configure = partial(_configure, config, stores)
    costs = CostModel(stats, machine.profile, max_width=machine.slots)
    pricing = TrialPricer(config, machine, costs, configure)
    drawn = sample_configurations(config, count)
    found = [pricing.price(f"t{number:04d}", values) for number, values in enumerate(drawn)]
    return {each.name: each for each in found if each is not None}


def _configure(
    config: CampaignConfig, stores: list[dict[str, Any]], name: str, values: Mapping[str, Any]
) -> Any:
    return trial_config(config, name, values, stores)


def _epoch_seconds(priced: Mapping[str, PricedTrial]) -> float:
    """Give the mean seconds of an epoch on one slot."""
    if not priced:
        return float("inf")
    return sum(each.price.epoch_seconds(1) for each in priced.values()) / len(priced)


def _reasons(
    scope: Scope, stats: Mapping[str, Any], machine: ForecastMachine, seen: Forecast
) -> list[str]:
    """Say in sentences why it is as it is."""
    training = int(stats["splits"]["train"])
    slots = f"{machine.slots} slot{'s' if machine.slots != 1 else ''}"
    minutes = (seen.simulated.makespan + ASIDE) / 60.0
    said = [
        f"{scope.trials} trials on {slots} of this machine: about {minutes:.0f} minutes by first "
        "prices, which may be off by a factor of 2 until something ran ('plan' tells more)."
    ]
    if scope.steps is None:
        said.append(
            f"{training:,} structures to train on: {scope.rungs[1]} passes over them, after "
            f"{scope.rungs[0]} of which a third goes on."
        )
    else:
        said.append(
            f"{training:,} structures are many for this time: {scope.steps} steps are called an "
            "epoch, not a whole pass; give it more time for better models."
        )
    return said
