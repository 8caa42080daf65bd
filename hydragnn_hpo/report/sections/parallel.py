"""Section of parallel coordinates: every trial as a line through its parameters."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hydragnn_hpo.campaign import TrialHistory
from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.report.charts import Trace, is_wide, short_names
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Figure,
    Section,
    Table,
    Text,
    make_table,
    searched_cell,
)
from hydragnn_hpo.search import list_values

LINES = 4000
"""Most lines: more hide each other, and brushing them is no longer fluent."""
BEST = 20
"""Trials of the table."""
TICKS = 10
"""Most values that have a tick each."""
MANY = 99
"""Values from which on lines of the same one are not drawn apart."""
COLOURS = ((0.0, "line"), (0.5, "c6"), (1.0, "c1"))
"""From bad to good: the good ones are drawn on top."""

GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 never bunch: lines and points of one choice are spread by them."""

_SPREAD = 0.25
"""How far apart lines of one value stand, as a share of the way to the next value."""
_OFF = 0.12
"""How far below an axis inactive parameters stand, as a share of its length."""

_HOW = (
    "To brush: drag along an axis to keep the lines that pass there; drag the mark to move it, "
    "click the axis beside it to let go. Several axes brush together. Drag an axis's name to "
    "move it. By keys: Tab goes to an axis, up and down move its mark, with Shift they widen or "
    "narrow it, Escape lets go, left and right move the axis."
)

ScoredTrials = Sequence[tuple[TrialHistory, float]]


def make_section(facts: Facts) -> Section | None:
    """Show parallel coordinates and the best trials; None before the first score."""
    rows = facts.scored_trials()
    if not rows:
        return None
    lead = (
        "Which values do the good trials have in common? One line is one trial: through its "
        "searched values, the epochs that it trained, to its objective."
    )
    blocks = (_make_figure(facts, rows), Text(_HOW), _make_table(facts, rows))
    return Section("parallel", "All trials at a glance", lead, blocks)


def _sample(rows: ScoredTrials) -> ScoredTrials:
    """Keep the best trials (a quarter of ``LINES``) and an even sample of the rest."""
    if len(rows) <= LINES:
        return rows
    order = np.argsort([score for _, score in rows], kind="stable")
    first = LINES // 4
    rest = np.linspace(first, len(rows) - 1, LINES - first).round().astype(int)
    return [rows[place] for place in sorted({*order[:first].tolist(), *order[rest].tolist()})]


def _make_figure(facts: Facts, every: ScoredTrials) -> Figure:
    rows, names = _sample(every), short_names(facts.config.space)
    scores = np.array([score for _, score in rows])
    dimensions = [
        parameter_axis(names[key], parameter, [t.trial.values.get(key) for t, _ in rows])
        for key, parameter in facts.config.space.items()
    ]
    dimensions.append(_number_axis("epochs", np.array([t.trial.epoch for t, _ in rows], float)))
    dimensions.append(_number_axis(facts.goal_name(), scores))
    good = -np.log10(scores) if is_wide(scores) else -scores
    low, high = float(np.quantile(good, 0.1)), float(good.max())
    line = {
        "color": good,
        "colorscale": COLOURS,
        "cmin": low,
        "cmax": high if high > low else low + 1.0,
    }
    drawn = "all" if len(rows) == len(every) else f"{len(rows)} of the"
    return Figure(
        key="coordinates",
        title="Parallel coordinates",
        caption=f"Lines of {drawn} {len(every)} trials with a score, "
        f"coloured by the {facts.goal_name()}: orange is good, grey is not. A parameter that a "
        "trial does not have stands at 'not active'.",
        data=({"type": "parcoords", "line": line, "dimensions": dimensions},),
        layout={},
        height=480,
    )


def parameter_axis(name: str, parameter: ParameterConfig, values: Sequence[Scalar | None]) -> Trace:
    """Return the axis of a parameter: places on it, and ticks in the parameter's own values.

    Lines of the same choice stand a little apart, so that their number can be seen.

    Args:
        name: of the axis.
        parameter: what was searched.
        values: of each trial; None where it is not active.

    Returns:
        A dimension of a ``parcoords`` trace.
    """
    off = any(value is None for value in values)
    every = list_values(parameter)
    if parameter.choices is not None:
        places = {repr(choice): float(k) for k, choice in enumerate(parameter.choices)}
        at = [np.nan if v is None else places.get(repr(v), np.nan) for v in values]
        ticks = {float(k): str(searched_cell(c)) for k, c in enumerate(parameter.choices)}
        low, high = 0.0, float(max(len(places) - 1, 1))
    else:
        assert parameter.low is not None
        assert parameter.high is not None
        low, high = (_place(parameter, end) for end in (parameter.low, parameter.high))
        at = [np.nan if v is None else _place(parameter, v) for v in values]
        few = every is not None and len(every) <= TICKS and not parameter.log
        ticks = _named(every or ()) if few else _ticks(low, high, log=parameter.log)
    step = (high - low) / len(every) if every is not None and 1 < len(every) < MANY else 0.0
    below = low - _OFF * (high - low)
    room = max(0.02 * (high - low), 0.5 * _SPREAD * step)
    ends = [(below if off else low) - room, high + room]
    if off:
        ticks = {below: "not active", **ticks}
    apart = _SPREAD * ((np.arange(len(at)) * GOLDEN) % 1.0 - 0.5)
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
    """Return an axis of numbers, logarithmic where they span decades."""
    log, every = is_wide(values), np.unique(values)
    places = np.log10(values) if log else values
    low, high = float(places.min()), float(places.max())
    high = high if high > low else low + 1.0
    ticks = _ticks(low, high, log=log)
    if len(every) <= TICKS:
        ticks = {math.log10(v) if log else v: f"{v:.4g}" for v in every.tolist()}
    return _axis(name, places, (low, high), ticks)


def _named(values: Iterable[Scalar]) -> dict[float, str]:
    return {float(value): f"{float(value):.4g}" for value in values}


def _ticks(low: float, high: float, *, log: bool) -> dict[float, str]:
    """Return round numbers between two ends; on a logarithmic axis the ends are exponents."""
    if not log:
        return _named(round_ticks(low, high))
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
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def _make_table(facts: Facts, every: ScoredTrials) -> Table:
    """List the best trials, in the order of the leaderboard."""
    ranked = sorted(every, key=lambda row: (-row[0].trial.until, row[1], row[0].name))[:BEST]
    names, members = short_names(facts.config.space), facts.members
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
        f"The {len(rows)} best trials: those trained furthest first, then by objective. A dash is "
        "a parameter that the trial does not have."
    )
    return make_table("best", columns, rows, note)
