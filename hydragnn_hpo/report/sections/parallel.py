"""Section of parallel coordinates: every trial as a line through its parameters."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.report.charts import Trace, is_wide, short_names
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Figure, Section, Table, Text, make_table, searched_cell
from hydragnn_hpo.search.space import list_values

MAX_LINES = 4000
"""Maximum number of lines: more would hide each other and slow down brushing."""
BEST_TRIALS = 20
"""Number of trials in the table."""
MAX_TICKS = 10
"""Maximum number of values for which each value has a tick."""
MANY_VALUES = 99
"""Number of values from which on lines through the same value are not spread."""
COLOURS = ((0.0, "line"), (0.5, "c6"), (1.0, "c1"))
"""Colours from bad trials to good ones."""

GOLDEN_RATIO = 0.6180339887498949
"""Its multiples modulo 1 are evenly spread, which separates lines or points of one choice."""

_SPREAD = 0.25
"""Width over which lines of one value are spread, as a share of the distance to the next value."""
_INACTIVE_GAP = 0.12
"""Distance below an axis at which inactive parameters are drawn, as a share of its length."""

_BRUSH_HELP = (
    "To select trials, drag along an axis: only lines that cross the marked range stay. Drag the "
    "range to move it; click the axis outside the range to clear it. Ranges on several axes "
    "combine. Drag the name of an axis to move the axis. Keyboard: Tab selects an axis, up and "
    "down move its range, with Shift they widen or narrow it, Escape clears it, left and right "
    "move the axis. A click on a line opens its trial; few selected trials are listed by name."
)

ScoredTrials = Sequence[tuple[TrialHistory, float]]


def make_section(facts: Facts) -> Section | None:
    """Return parallel coordinates and the best trials; None before the first score."""
    rows = facts.scored_trials()
    if not rows:
        return None
    lead = (
        "Which values do the good trials have in common? Each line is a trial: it crosses the "
        "axes at its searched values, its epochs and its objective."
    )
    blocks = (_make_figure(facts, rows), Text(_BRUSH_HELP), _make_table(facts, rows))
    return Section("parallel", "All trials at a glance", lead, blocks, folded=True)


def _sample(rows: ScoredTrials) -> ScoredTrials:
    """Return at most ``MAX_LINES`` trials: a quarter the best, the others sampled evenly."""
    if len(rows) <= MAX_LINES:
        return rows
    order = np.argsort([score for _, score in rows], kind="stable")
    first = MAX_LINES // 4
    rest = np.linspace(first, len(rows) - 1, MAX_LINES - first).round().astype(int)
    return [rows[place] for place in sorted({*order[:first].tolist(), *order[rest].tolist()})]


def _make_figure(facts: Facts, every: ScoredTrials) -> Figure:
    rows = _sample(every)
    names = short_names(facts.config.space)
    scores = np.array([score for _, score in rows])
    dimensions = [
        parameter_axis(names[key], parameter, [t.trial.values.get(key) for t, _ in rows])
        for key, parameter in facts.config.space.items()
    ]
    dimensions.append(_number_axis("epochs", np.array([t.trial.epoch for t, _ in rows], float)))
    dimensions.append(_number_axis(facts.goal_name(), scores))
    good = -np.log10(scores) if is_wide(scores) else -scores
    low = float(np.quantile(good, 0.1))
    high = float(good.max())
    line = {
        "color": good,
        "colorscale": COLOURS,
        "cmin": low,
        "cmax": high if high > low else low + 1.0,
    }
    drawn = "all" if len(rows) == len(every) else f"{len(rows)} of the"
    return Figure(
        key="coordinates",
        name="parallel_coordinates",
        title="Parallel coordinates",
        caption=f"Lines of {drawn} {len(every)} trials with a score, "
        f"coloured by the {facts.goal_name()}: orange is good, grey is bad. A parameter that a "
        "trial does not have is drawn at 'not active'.",
        data=(
            {
                "type": "parcoords",
                "line": line,
                "dimensions": dimensions,
                "customdata": [trial.name for trial, _ in rows],
            },
        ),
        layout={},
        height=480,
    )


def parameter_axis(name: str, parameter: ParameterConfig, values: Sequence[Scalar | None]) -> Trace:
    """Return the axis of a parameter: a position for each trial, and ticks with values.

    Lines through the same value are spread slightly, so that they do not cover each other.

    Args:
        name: title of the axis.
        parameter: the searched parameter.
        values: the parameter's value in each trial; None if it is not active there.

    Returns:
        A dimension of a ``parcoords`` trace.
    """
    off = any(value is None for value in values)
    every = list_values(parameter)
    if parameter.choices is not None:
        places = {repr(choice): float(k) for k, choice in enumerate(parameter.choices)}
        at = [np.nan if v is None else places.get(repr(v), np.nan) for v in values]
        ticks = {float(k): str(searched_cell(c)) for k, c in enumerate(parameter.choices)}
        low = 0.0
        high = float(max(len(places) - 1, 1))
    else:
        assert parameter.low is not None
        assert parameter.high is not None
        low, high = (_place(parameter, end) for end in (parameter.low, parameter.high))
        at = [np.nan if v is None else _place(parameter, v) for v in values]
        few = every is not None and len(every) <= MAX_TICKS and not parameter.log
        ticks = _label_ticks(every or ()) if few else _ticks(low, high, log=parameter.log)
    step = (high - low) / len(every) if every is not None and 1 < len(every) < MANY_VALUES else 0.0
    below = low - _INACTIVE_GAP * (high - low)
    room = max(0.02 * (high - low), 0.5 * _SPREAD * step)
    ends = [(below if off else low) - room, high + room]
    if off:
        ticks = {below: "not active", **ticks}
    apart = _SPREAD * ((np.arange(len(at)) * GOLDEN_RATIO) % 1.0 - 0.5)
    lines = np.nan_to_num(np.array(at, dtype=float), nan=below) + step * apart
    return _axis(name, lines, ends, ticks)


def _axis(
    name: str, values: np.ndarray, ends: Sequence[float], ticks: Mapping[float, str]
) -> Trace:
    shown: Trace = {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    return {"label": name, "values": values, "range": list(ends), **shown}


def _place(parameter: ParameterConfig, value: Scalar) -> float:
    number = float(value)
    return math.log10(number) if parameter.log and number > 0 else number


def _number_axis(name: str, values: np.ndarray) -> Trace:
    """Return an axis of numbers, logarithmic if they span a wide range."""
    log = is_wide(values)
    every = np.unique(values)
    places = np.log10(values) if log else values
    low = float(places.min())
    high = float(places.max())
    high = high if high > low else low + max(1.0, abs(low))
    ticks = _ticks(low, high, log=log)
    if len(every) <= MAX_TICKS:
        ticks = {math.log10(v) if log else v: f"{v:.4g}" for v in every.tolist()}
    return _axis(name, places, (low, high), ticks)


def _label_ticks(values: Iterable[Scalar]) -> dict[float, str]:
    return {float(value): f"{float(value):.4g}" for value in values}


def _ticks(low: float, high: float, *, log: bool) -> dict[float, str]:
    """Return labels of round numbers by position; on a logarithmic axis positions are exponents."""
    if not log:
        return _label_ticks(round_ticks(low, high))
    tens = range(math.floor(low), math.ceil(high) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        values = [digit * 10.0**ten for ten in tens for digit in digits]
        inside = [v for v in values if low - 1e-9 <= math.log10(v) <= high + 1e-9]
        if len(inside) >= 3:
            return {math.log10(v): f"{v:.3g}" for v in inside}
    return {end: f"{10.0**end:.3g}" for end in (low, high)}


def round_ticks(low: float, high: float) -> list[float]:
    """Return four to ten round numbers in a range."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4.0))
    step *= max(times for times in (1, 2, 5) if times * step <= (high - low) / 4.0 + 1e-12)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def _make_table(facts: Facts, every: ScoredTrials) -> Table:
    """Return a table of the best trials, in the order of the leaderboard."""
    ranked = sorted(every, key=lambda row: (-row[0].trial.until, row[1], row[0].name))[:BEST_TRIALS]
    names = short_names(facts.config.space)
    members = facts.members
    columns: dict[str, str | Sequence[str]] = {
        "trial": "trial",
        "objective": (facts.goal_name(), facts.goal_unit()),
        "epochs": "epochs",
        **names,
    }
    rows = []
    for trial, score in ranked:
        values = (searched_cell(trial.trial.values.get(key)) for key in names)
        member = ("yes" if trial.name in members else "",) if members else ()
        rows.append((trial.name, score, trial.trial.epoch, *values, *member))
    if members:
        columns["member"] = "member"
    note = (
        f"The {len(rows)} best trials: those trained furthest first, then by objective. A dash "
        "marks a parameter that the trial does not have."
    )
    return make_table("best", columns, rows, note)
