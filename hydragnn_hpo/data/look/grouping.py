"""How a data set should be shared out: what belongs together, and how much calibration needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

FEWEST_GROUPS = 20
"""Compositions below which they cannot be kept apart and still fill five splits."""

CALIBRATING = 9
"""Groups in ``cal`` below which a 90 % interval has no guarantee: ceil(0.9 (9 + 1)) = 9."""

PLENTY = 2000
"""Groups that are enough to judge by: of more, train gets the rest."""

FEWEST = 5
"""Structures below which there are no five splits."""


@dataclass(frozen=True)
class Grouping:
    """What a card says under ``[split]``."""

    group: str
    shares: tuple[float, ...]
    published: str | None
    why: str
    warning: str | None


def grouping(
    total: int, read: int, compositions: int, texts: Mapping[str, set[str]], everywhere: set[str]
) -> Grouping:
    """Propose how structures are shared out.

    Args:
        total: structures there are.
        read: structures that were read.
        compositions: different ones among these.
        texts: properties that are text, and what they say.
        everywhere: those that every structure has.
    """
    published = next((key for key in texts if _is_split(key, texts[key], everywhere)), None)
    if compositions >= FEWEST_GROUPS:
        scaled = total > read and compositions > read / 2
        groups = round(compositions * total / read) if scaled else compositions
        about = "about " if total > read else ""
        why = f"{about}{groups:,} compositions; none stands in two splits"
        return Grouping("composition", shares(groups), published, why, _few(groups, "compositions"))
    named = "one composition" if compositions == 1 else f"{compositions} compositions"
    why = f"{named}: too few to keep them apart; every structure for itself"
    warning = (
        f"only {named}: structures of one composition stand in train "
        "and test, so errors and error bars hold for more of the same, not for other substances."
    )
    few = _few(total, "structures")
    return Grouping(
        "structure", shares(total), published, why, f"{warning} {few}" if few else warning
    )


def shares(groups: int) -> tuple[float, ...]:
    """Give the shares of the splits: a tenth each for what judges, less of very many.

    ``cal`` gets what intervals need, if that is at most a quarter.

    >>> shares(1000)
    (0.6, 0.1, 0.1, 0.1, 0.1)
    >>> shares(50)
    (0.5, 0.1, 0.1, 0.2, 0.1)
    >>> shares(100_000)
    (0.92, 0.02, 0.02, 0.02, 0.02)
    """
    each = min(0.1, max(0.02, math.ceil(100.0 * PLENTY / max(groups, 1)) / 100.0))
    cal = min(0.25, max(each, math.ceil(100.0 * (CALIBRATING + 1) / max(groups, 1)) / 100.0))
    return (round(1.0 - 3 * each - cal, 2), each, each, cal, each)


def _few(groups: int, what: str) -> str | None:
    left = groups * shares(groups)[3]
    if left >= CALIBRATING:
        return None
    return (
        f"{groups} {what} leave {max(1, round(left))} to calibrate with, fewer than {CALIBRATING}: "
        "the 90 % intervals have no guarantee."
    )


def _is_split(key: str, values: set[str], everywhere: set[str]) -> bool:
    """Tell whether a property names the published split."""
    named = key.lower() in ("split", "set", "subset", "fold", "partition", "data_split")
    return named and key in everywhere and "test" in values and len(values) in (2, 3, 4)
