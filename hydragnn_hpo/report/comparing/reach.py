"""What it cost each campaign to reach an error."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.report.comparing.campaigns import Campaign, Result
from hydragnn_hpo.search.objective import named

NEAR = 0.05
"""How far above the best of all one of the levels lies that are chosen if none is given."""


@dataclass(frozen=True)
class Quantity:
    """Something that all runs made smaller, and may be compared by."""

    key: str
    """A key of ``Result.numbers``."""
    label: str
    unit: str


@dataclass(frozen=True)
class Reached:
    """When a campaign's best first was at or below a level."""

    quantity: Quantity
    level: float
    why: str
    """Why this level: ``the worst of the bests``, ``5 % above the best``, ``asked for``."""
    first: tuple[Result | None, ...]
    """By run; None where it never was."""


def quantities(runs: Sequence[Campaign]) -> list[Quantity]:
    """Name what the runs may be compared by: what all have, in one unit and with one meaning."""
    found = []
    weights = [run.weights for run in runs]
    if all(each == weights[0] for each in weights) and _all_have(runs, "objective"):
        found.append(Quantity("objective", "objective", ""))
    goals = [run.facts.config.search.objective for run in runs]
    goal = goals[0]
    ours = goal == "weighted" or (isinstance(goal, str) and goal.startswith("val_mae."))
    if not ours and not isinstance(goal, tuple) and all(each == goal for each in goals):
        found += [Quantity("score", named(goal), "")] if _all_have(runs, "score") else []
    for head in heads_of(runs):
        units = {run.facts.units.get(head) for run in runs}
        if len(units) == 1 and _all_have(runs, f"val_mae.{head}"):
            unit = units.pop() or ""
            found.append(Quantity(f"val_mae.{head}", f"val MAE {head}", unit))
    return found


def heads_of(runs: Sequence[Campaign]) -> list[str]:
    """Name the heads of all runs, in the order in which they are met."""
    found = dict.fromkeys(head for run in runs for head in run.weights)
    for run in runs:
        keys = (key for result in run.course for key in result.numbers)
        found |= dict.fromkeys(k.removeprefix("val_mae.") for k in keys if "val_mae." in k)
    return list(found)


def _all_have(runs: Sequence[Campaign], key: str) -> bool:
    return all(any(key in result.numbers for result in run.course) for run in runs)


def best_so_far(run: Campaign, key: str) -> list[tuple[Result, float]]:
    """Give the results that were better than all before them."""
    found: list[tuple[Result, float]] = []
    for result in run.course:
        value = result.numbers.get(key)
        if value is not None and (not found or value < found[-1][1]):
            found.append((result, value))
    return found


def reached(
    runs: Sequence[Campaign], known: Sequence[Quantity], asked: Sequence[tuple[str, float]] = ()
) -> list[Reached]:
    """Say what each level cost each run.

    Args:
        runs: the runs.
        known: what they may be compared by.
        asked: levels by name of a head or key of a quantity; chosen if none is given.

    Raises:
        ConfigError: a level is asked of something that the runs cannot be compared by.
    """
    levels = [_asked(known, name, level) for name, level in asked] or [
        level for quantity in known for level in _chosen(runs, quantity)
    ]
    return [
        Reached(quantity, level, why, tuple(_first(run, quantity.key, level) for run in runs))
        for quantity, level, why in levels
    ]


def _chosen(runs: Sequence[Campaign], quantity: Quantity) -> list[tuple[Quantity, float, str]]:
    bests = [best_so_far(run, quantity.key)[-1][1] for run in runs]
    near = min(bests) + NEAR * abs(min(bests))
    found = [(quantity, max(bests), "the worst of the bests")]
    if near < max(bests):
        found.append((quantity, near, f"{100 * NEAR:.0f} % above the best"))
    return found


def _asked(known: Sequence[Quantity], name: str, level: float) -> tuple[Quantity, float, str]:
    for quantity in known:
        if name in (quantity.key, quantity.key.removeprefix("val_mae.")):
            return quantity, level, "asked for"
    names = [quantity.key.removeprefix("val_mae.") for quantity in known]
    if not names:
        raise ConfigError("--reach: these runs have nothing in common to be compared by.")
    raise ConfigError(f"--reach: {unknown('quantity', name, names)}")


def _first(run: Campaign, key: str, level: float) -> Result | None:
    return next((result for result, value in best_so_far(run, key) if value <= level), None)
