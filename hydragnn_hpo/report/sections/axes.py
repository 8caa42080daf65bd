"""Axes and colours that several charts share."""

UNITS = ((300.0, "s", 1.0), (18_000.0, "min", 60.0), (432_000.0, "h", 3600.0))

RUNGS = ("c0", "c6", "c2", "c4", "c9", "c3")
"""Colours of rungs, from the lowest: none looks like what is lost or idle."""


def unit_of(seconds: float) -> tuple[str, float]:
    """Give the unit for an axis of so many seconds, and its length in seconds."""
    for limit, unit, size in UNITS:
        if seconds < limit:
            return unit, size
    return "days", 86_400.0


def spent_unit(seconds: float) -> tuple[str, float]:
    """Give the unit for a time that something cost: hours, as one pays them, if it is not short."""
    return unit_of(min(seconds, UNITS[-1][0] - 1.0))


def rung_colour(number: int) -> str:
    """Name the colour of a rung, counted from 0."""
    return RUNGS[number % len(RUNGS)]
