"""Axes of time."""

UNITS = ((300.0, "s", 1.0), (18_000.0, "min", 60.0), (432_000.0, "h", 3600.0))


def unit_of(seconds: float) -> tuple[str, float]:
    """Give the unit for an axis of so many seconds, and its length in seconds."""
    for limit, unit, size in UNITS:
        if seconds < limit:
            return unit, size
    return "days", 86_400.0
