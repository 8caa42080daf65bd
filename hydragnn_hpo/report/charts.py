"""Colours, units of time, traces and axes of the page's charts.

A chart refers to colours by name; the page's script looks them up in the current theme.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

SERIES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9")
"""Colours of series side by side, in this order."""

RUNGS = ("c0", "c6", "c2", "c4", "c9", "c3")
"""Colours of rungs, lowest rung first; all differ from those of lost and idle time."""

TIME_UNITS = ((300.0, "s", 1.0), (18_000.0, "min", 60.0), (432_000.0, "h", 3600.0))
"""Upper limit in seconds of the times shown in a unit, its name, its length in seconds."""

COLOURS = {
    "paper": ("#f6f7f9", "#101318"),
    "card": ("#ffffff", "#181c23"),
    "ink": ("#1a1f27", "#e8ebf0"),
    "faint": ("#5a6472", "#a0abb8"),
    "line": ("#dfe3e8", "#313844"),
    "accent": ("#1d5fc4", "#7db1ff"),
    "good": ("#0b7a4b", "#4fcf97"),
    "bad": ("#b8252d", "#ff8a8a"),
    "warn": ("#8a5a00", "#e6b450"),
    "idle": ("#a9b3bf", "#566170"),
    "lost": ("#d0484f", "#e0666c"),
    "c0": ("#2563c9", "#6ea8ff"),
    "c1": ("#d2550d", "#ff9a52"),
    "c2": ("#0f8a5f", "#3fcf9a"),
    "c3": ("#bf2f7a", "#ff7dbb"),
    "c4": ("#7a4fd0", "#b39aff"),
    "c5": ("#8f7000", "#e3c34a"),
    "c6": ("#0a86a3", "#4fd0e8"),
    "c7": ("#8c4f2b", "#d9a27c"),
    "c8": ("#5b6b7d", "#a3b3c4"),
    "c9": ("#588500", "#a8d84e"),
}
"""CSS colour on a light and on a dark page, by name."""

RISING: list[list[str | float]] = [[0.0, "line"], [1.0, "c1"]]
"""Colour scale of areas, from little to much; all of it stands out from the card in both themes."""

DOTS: list[list[str | float]] = [[0.0, "c6"], [0.5, "c8"], [1.0, "c1"]]
"""Colour scale of points, from low to high."""

LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}


def series_colour(index: int) -> str:
    """Return the colour of a series by its index; colours repeat after ten."""
    return SERIES[index % len(SERIES)]


def rung_colour(number: int) -> str:
    """Return the colour of a rung, counted from 0."""
    return RUNGS[number % len(RUNGS)]


def time_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of an axis of time.

    Returns:
        Name of the unit, and its length in seconds.
    """
    for limit, unit, size in TIME_UNITS:
        if seconds < limit:
            return unit, size
    return "days", 86_400.0


def cost_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of a cost in time: like ``time_unit``, but in hours at most.

    Returns:
        Name of the unit, and its length in seconds.
    """
    return time_unit(min(seconds, TIME_UNITS[-1][0] - 1.0))


# -- plotly data ---------------------------------------------------------------------------

PlotlyValue: TypeAlias = (
    str | float | None | np.ndarray | Sequence["PlotlyValue"] | Mapping[str, "PlotlyValue"]
)
"""What plotly.js takes as a value of a trace or a layout; arrays may be numpy arrays."""

Trace: TypeAlias = dict[str, PlotlyValue]
"""Keys of one trace, https://plotly.com/javascript/reference/."""

Layout: TypeAlias = dict[str, PlotlyValue]
"""Keys of a layout, or of a part of it, https://plotly.com/javascript/reference/layout/."""

LEGEND: Layout = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Horizontal legend above a chart; on a narrow page it grows upwards."""

_SPAN = 5.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""
_DECADES = 50.0
"""Ratio of largest to smallest value below which a logarithmic axis has ticks at 1, 2 and 5."""


def scatter(x: PlotlyValue, y: PlotlyValue, mode: str, **more: PlotlyValue) -> Trace:
    """Return a scatter trace.

    Args:
        x: values along the horizontal axis, a list or an array, [n].
        y: values along the vertical axis, [n].
        mode: ``markers``, ``lines``, ``lines+markers`` or ``markers+text``.
        more: further keys of the trace.
    """
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def titled_axis(title: str, **more: PlotlyValue) -> Layout:
    """Return an axis with a title and further plotly keys."""
    return {"title": {"text": title}, **more}


def axes(
    x: str | Mapping[str, PlotlyValue], y: str | Mapping[str, PlotlyValue], **more: PlotlyValue
) -> Layout:
    """Return a layout with two axes.

    Args:
        x: the horizontal axis, or the title of a plain one.
        y: the vertical axis, or its title.
        more: further keys of the layout.
    """
    across, up = (titled_axis(of) if isinstance(of, str) else of for of in (x, y))
    return {"xaxis": across, "yaxis": up, **more}


def square_axes(labels: tuple[str, str], ends: tuple[float, float]) -> Layout:
    """Return the layout of two axes of the same length and range."""
    across, up = (titled_axis(label, range=list(ends), constrain="domain") for label in labels)
    return axes(across, up | {"scaleanchor": "x"}, legend=LEGEND)


def fitting_axis(values: Sequence[float] | np.ndarray, title: str) -> Layout:
    """Return a logarithmic axis for positive values over a wide range, else a linear one."""
    return log_axis(values, title) if is_wide(values) else titled_axis(title, type="linear")


def log_axis(values: Sequence[float] | np.ndarray, title: str) -> Layout:
    """Return a logarithmic axis for positive values, with few ticks."""
    axis = titled_axis(title, type="log")
    low = float(min(values))
    high = float(max(values))
    if high < _DECADES * low:
        tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        axis["tickvals"] = [float(f"{n}e{ten}") for ten in tens for n in (1, 2, 5)]
    return axis


def is_wide(values: Sequence[float] | np.ndarray) -> bool:
    """Check whether values are positive and need a logarithmic axis."""
    numbers = np.asarray(values, dtype=float)
    return bool(len(numbers) and numbers.min() > 0 and numbers.max() > _SPAN * numbers.min())


def format_number(value: float | None) -> str:
    """Round a number to three significant digits; None becomes a dash."""
    return "-" if value is None else f"{value:.3g}"


def format_percent(share: float | None) -> str:
    """Round a share from 0 to 1 to a whole percentage; None becomes a dash."""
    return "-" if share is None else f"{100 * share:.0f} %"


def readable_name(key: str) -> str:
    """Return a key as a person writes it: ``band_gap`` becomes ``band gap``."""
    return key.replace("_", " ")


def with_unit(name: str, unit: str) -> str:
    """Append a unit to a name; the unit of pure numbers is left out."""
    return f"{name} ({unit})" if unit and unit != "1" else name


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Shorten dotted keys to the fewest last parts that distinguish them, without underscores.

    Returns:
        Short name by key, in the order of ``keys``.

    >>> short_names(["model.max_width", "model.depth", "head.depth"])
    {'model.max_width': 'max width', 'model.depth': 'model.depth', 'head.depth': 'head.depth'}
    """
    return {key: readable_name(name) for key, name in short_keys(keys).items()}


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Shorten dotted keys to the fewest last parts that distinguish them.

    Returns:
        Short key by key, in the order of ``keys``.

    >>> short_keys(["model.max_width", "model.depth", "head.depth"])
    {'model.max_width': 'max_width', 'model.depth': 'model.depth', 'head.depth': 'head.depth'}
    """
    keys = list(keys)
    return {key: _shortest(key, [other for other in keys if other != key]) for key in keys}


def _shortest(key: str, others: Sequence[str]) -> str:
    parts = key.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if not any(other == end or other.endswith("." + end) for other in others):
            return end
    return key
