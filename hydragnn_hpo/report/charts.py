"""Colours, units of time, traces and axes of the page's charts.

A chart names its colours; the page's script looks them up in the theme that is shown.
"""

from typing import Any

SERIES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9")
"""Colours of series side by side, in this order."""

ROLES = ("ink", "faint", "line", "accent", "good", "bad", "warn", "idle", "lost")
"""Colours with a meaning: text, secondary text, rules, emphasis, and how something ended."""

RUNGS = ("c0", "c6", "c2", "c4", "c9", "c3")
"""Colours of rungs, from the lowest: none looks like what is lost or idle."""

TIME_UNITS = ((300.0, "s", 1.0), (18_000.0, "min", 60.0), (432_000.0, "h", 3600.0))
"""Most seconds that are shown in a unit, its name, and its length in seconds."""

LIGHT = {
    "paper": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1a1f27",
    "faint": "#5a6472",
    "line": "#dfe3e8",
    "accent": "#1d5fc4",
    "good": "#0b7a4b",
    "bad": "#b8252d",
    "warn": "#8a5a00",
    "idle": "#a9b3bf",
    "lost": "#d0484f",
    "c0": "#2563c9",
    "c1": "#d2550d",
    "c2": "#0f8a5f",
    "c3": "#bf2f7a",
    "c4": "#7a4fd0",
    "c5": "#8f7000",
    "c6": "#0a86a3",
    "c7": "#8c4f2b",
    "c8": "#5b6b7d",
    "c9": "#588500",
}

DARK = {
    "paper": "#101318",
    "card": "#181c23",
    "ink": "#e8ebf0",
    "faint": "#a0abb8",
    "line": "#313844",
    "accent": "#7db1ff",
    "good": "#4fcf97",
    "bad": "#ff8a8a",
    "warn": "#e6b450",
    "idle": "#566170",
    "lost": "#e0666c",
    "c0": "#6ea8ff",
    "c1": "#ff9a52",
    "c2": "#3fcf9a",
    "c3": "#ff7dbb",
    "c4": "#b39aff",
    "c5": "#e3c34a",
    "c6": "#4fd0e8",
    "c7": "#d9a27c",
    "c8": "#a3b3c4",
    "c9": "#a8d84e",
}


def series_colour(index: int) -> str:
    """Return the colour of a series; they repeat after ten."""
    return SERIES[index % len(SERIES)]


def rung_colour(number: int) -> str:
    """Return the colour of a rung, counted from 0."""
    return RUNGS[number % len(RUNGS)]


def time_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of an axis of time.

    Returns:
        Its name, and its length in seconds.
    """
    for limit, unit, size in TIME_UNITS:
        if seconds < limit:
            return unit, size
    return "days", 86_400.0


def cost_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of a cost in time: as ``time_unit``, but never days, as hours are paid.

    Returns:
        Its name, and its length in seconds.
    """
    return time_unit(min(seconds, TIME_UNITS[-1][0] - 1.0))


# -- plotly data ---------------------------------------------------------------------------


def scatter(x: Any, y: Any, mode: str, **more: Any) -> dict[str, Any]:
    """Return a scatter trace.

    Args:
        x: values along the horizontal axis; lists or arrays.
        y: values along the vertical axis.
        mode: ``markers``, ``lines``, ``lines+markers`` or ``markers+text``.
        more: further keys of the trace.
    """
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def titled_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title and further keys of plotly's."""
    return {"title": {"text": title}, **more}
