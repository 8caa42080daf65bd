"""Section on the course of the search: the best score so far, and the learning curves."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign import rank_trials
from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.state import first_goal
from hydragnn_hpo.report.charts import (
    Trace,
    axes,
    cost_unit,
    readable_name,
    rung_colour,
    scatter,
    titled_axis,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Figure,
    Fold,
    Number,
    Numbers,
    Row,
    Section,
    Table,
    Text,
    make_table,
)
from hydragnn_hpo.report.sections.trials import make_details
from hydragnn_hpo.search.objective import goal_label, goals

TOP = 10
"""Number of trials in the table."""

MOST_RESULTS = 6000
"""Maximum number of results in a chart; of more, every n-th is drawn."""

CLOSE = 1.01
"""Largest ratio of a score to the best score that counts as close to it."""

MOST_TRIALS, MOST_POINTS = 240, 12_000
"""Maximum numbers of learning curves, and of their points, that are drawn."""

Curve = tuple[list[int], list[float]]
"""Epochs, and the validation objective after each."""


@dataclass(frozen=True)
class ScoredAttempt:
    """An attempt that ended with a score, and the state of the search at that time."""

    trial: str
    until: int
    """Rung of the attempt, in epochs; a stopping rule may have ended it earlier."""
    score: float
    """Score for the first goal of the campaign."""
    trials: int
    """Number of trials that had stopped or failed by then, including this one."""
    seconds: float
    """Slot-seconds that all attempts had held by then."""
    best: float
    """The smallest score so far."""


def make_section(facts: Facts) -> Section:
    """Show how the best score improved, and the learning curves."""
    results = collect_results(facts)
    curves = {name: learning_curve(trial) for name, trial in facts.trials.items()}
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    figures: list[Figure] = []
    more: list[Block] = []
    blocks: list[Block] = []
    if results:
        by_trials, by_cost = _result_figures(facts, results)
        figures = [by_trials]
        more = [_best_table(facts), by_cost]
        blocks.append(_time_to_best(facts, results))
    else:
        blocks.append(Text("No trial has a result yet."))
    if curves:
        figures.append(_curve_figure(facts, curves))
        more.append(_rung_table(facts))
    if figures:
        blocks += [
            Row(tuple(figures)),
            Fold("Best trials, cost, and what rungs decided", tuple(more)),
        ]
    lead = "How fast did the search find its best trials, and had they learned all they could?"
    return Section("progress", "Progress and learning curves", lead, (*blocks, make_details(facts)))


def collect_results(facts: Facts) -> list[ScoredAttempt]:
    """Collect all results of the search in order; trials with other seeds are left out."""
    results: list[ScoredAttempt] = []
    ended: set[str] = set()
    seconds = 0.0
    best = float("inf")
    for end in facts.history.slots.ends:
        seconds += end.width * ((end.ended or 0.0) - end.placed)
        if end.outcome in ("interrupted", "cancelled") or facts.trials[end.trial].trial.parent:
            continue
        ended.add(end.trial)
        score = first_goal(end.score)
        if score is not None:
            best = min(best, score)
            results.append(ScoredAttempt(end.trial, end.until, score, len(ended), seconds, best))
    return results


def first_within(results: Sequence[ScoredAttempt], times: float) -> ScoredAttempt:
    """Return the first result whose score is at most ``times`` the best of all."""
    best = results[-1].best
    limit = times * best if best > 0 else best
    return next(result for result in results if result.score <= limit)


def _time_to_best(facts: Facts, results: Sequence[ScoredAttempt]) -> Numbers:
    best = first_within(results, 1.0)
    close = first_within(results, CLOSE)
    unit, size = cost_unit(best.seconds / facts.slots_per_host)
    size *= facts.slots_per_host
    return Numbers(
        (
            Number("best", "best score", best.score, note=f"trial {best.trial}"),
            Number("trials_to_best", "trials until the best", best.trials),
            Number("time_to_best", "time to the best", best.seconds / size, f"host {unit}"),
            Number("trials_to_close", "trials to within 1 %", close.trials),
            Number("time_to_close", "time to within 1 %", close.seconds / size, f"host {unit}"),
        )
    )


def _result_figures(facts: Facts, results: Sequence[ScoredAttempt]) -> Iterator[Figure]:
    goal = goal_label(goals(facts.config.search.objective)[0])
    label = "weighted validation MAE" if goal == "weighted" else readable_name(goal)
    thin = results[:: -(-len(results) // MOST_RESULTS)]
    kind = "log" if min(result.score for result in thin) > 0 else "linear"
    caption = (
        "Each point is the end of an attempt, in the colour of its rung; the line is the best "
        "score so far, at any rung."
    )
    if goal == "weighted":
        caption += " The weighted MAE is in units of each target's standard deviation."
    trials = np.array([float(result.trials) for result in thin])
    spent = np.array([result.seconds for result in thin]) / facts.slots_per_host
    for key, name, title, x, across in (
        ("by_trials", "progress", "Best so far, by trials", trials, "finished trials"),
        (
            "by_cost",
            "progress_by_cost",
            "Best so far, by host-seconds",
            spent,
            "time that trials used (host seconds)",
        ),
    ):
        layout = axes(across, titled_axis(label, type=kind), showlegend=True)
        yield Figure(key, title, caption, tuple(_result_traces(thin, x)), layout, name=name)


def _result_traces(results: Sequence[ScoredAttempt], x: np.ndarray) -> Iterator[Trace]:
    scores = np.array([result.score for result in results])
    until = np.array([result.until for result in results])
    for number, rung in enumerate(np.unique(until)):
        here = np.flatnonzero(until == rung).tolist()
        yield scatter(
            x[here],
            scores[here],
            "markers",
            text=[results[k].trial for k in here],
            name=f"to epoch {rung}",
            marker={"color": rung_colour(number), "size": 5, "opacity": 0.6},
            hovertemplate="%{text}: %{y:.4g}<extra></extra>",
        )
    yield scatter(
        x,
        np.array([result.best for result in results]),
        "lines",
        name="best so far",
        line={"shape": "hv", "width": 2.5, "color": "ink"},
        hovertemplate="best so far: %{y:.4g}<extra></extra>",
    )


def _best_table(facts: Facts) -> Table:
    board = rank_trials(facts.state, facts.config)
    best = board.best(TOP).rows
    unit, size = cost_unit(max((row.slot_seconds for row in best), default=0.0))
    heads = list(dict.fromkeys(head for row in board.rows for head in row.val_mae))
    errors = {
        f"val_mae.{h}": (f"{readable_name(h)}, val MAE", facts.units.get(h, "")) for h in heads
    }
    convs = {"conv": "conv"} if any(row.conv for row in best) else {}
    columns = {"trial": "trial", **convs, "rank": "rank", "epochs": "epochs"}
    columns["objective"] = "objective"
    rows = [
        (row.trial, *(row.conv for _ in convs), row.rank, row.epochs, row.objective)
        + tuple(row.val_mae.get(head) for head in heads)
        + (row.slot_seconds / size,)
        for row in best
        if row.rank is not None
    ]
    note = "Trials trained furthest come first; MAEs are of the validation split."
    return make_table("top", columns | errors | {"time": ("slot time", f"slot {unit}")}, rows, note)


# -- learning curves -----------------------------------------------------------------------


def learning_curve(trial: TrialHistory) -> Curve:
    """Return epochs and objectives; of an epoch that was trained twice, the later one."""
    return list(trial.objectives), list(trial.objectives.values())


def choose_curves(curves: Mapping[str, Curve], best: Sequence[str]) -> list[str]:
    """Choose the curves to draw: the best trials first, then an even sample of the others.

    Args:
        curves: all curves, by trial.
        best: names of all trials with a result, best first.
    """
    ranked = [name for name in best if name in curves]
    others = [name for name in curves if name not in set(ranked)]
    keep = ranked[: MOST_TRIALS // 2]
    rest = [*ranked[len(keep) :], *others]
    keep += rest[:: max(1, -(-len(rest) // (MOST_TRIALS - len(keep))))]
    points = np.cumsum([len(curves[name][0]) for name in keep])
    return keep[: max(1, int(np.searchsorted(points, MOST_POINTS, side="right")))]


def _curve_figure(facts: Facts, curves: Mapping[str, Curve]) -> Figure:
    ranked = [trial.name for trial in facts.state.ranked() if trial.name in curves]
    names = choose_curves(curves, ranked)
    traces: list[Trace] = []
    below = 0
    for number, rung in enumerate(facts.config.search.rungs):
        here = [name for name in names if below < curves[name][0][-1] <= rung]
        below = rung
        if here:
            mode = "lines+markers" if len(names) <= 40 else "lines"
            line: Trace = {"width": 1, "color": rung_colour(number)}
            bundle = _bundle({name: curves[name] for name in here}, mode)
            traces.append(bundle | {"name": f"to epoch {rung}", "line": line})
    if ranked:
        best = scatter(
            *curves[ranked[0]],
            "lines",
            name=f"best: {ranked[0]}",
            line={"color": "ink", "width": 3},
            hovertemplate=f"{ranked[0]}, epoch %{{x}}: %{{y:.4g}}<extra></extra>",
        )
        traces.append(best)
    kind = "log" if min(value for name in names for value in curves[name][1]) > 0 else "linear"
    objective = titled_axis("validation objective", type=kind)
    caption = "Each line is a trial, coloured by the rung to which it trained; the best is thick."
    if len(names) < len(curves):
        caption += (
            f" Shown are {len(names)} of {len(curves):,} trials: the best, and an even sample."
        )
    layout = axes("epoch", objective, showlegend=True, hovermode="closest")
    named = "learning_curves"
    return Figure("curves", "Learning curves", caption, tuple(traces), layout, name=named)


def _bundle(curves: Mapping[str, Curve], mode: str) -> Trace:
    """Join many curves in one trace, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for name, (epochs, values) in curves.items():
        x += [*epochs, None]
        y += [*(float(f"{value:.5g}") for value in values), None]
        text += [name] * (len(epochs) + 1)
    style: Trace = {"marker": {"size": 4}, "opacity": 0.55, "connectgaps": False}
    hover = "%{text}, epoch %{x}: %{y:.4g}<extra></extra>"
    return scatter(x, y, mode, text=text, hovertemplate=hover, **style)


def _rung_table(facts: Facts) -> Table:
    rows = []
    for rung in facts.config.search.rungs:
        rested = facts.state.results.get(rung, [])
        scores = [first for r in rested if (first := first_goal(r.objective)) is not None]
        counts = len(rested), len(scores), len(facts.state.promoted.get(rung, ()))
        middle = statistics.median(scores) if scores else None
        rows.append((f"epoch {rung}", *counts, min(scores, default=None), middle))
    columns = {
        "rung": "rung",
        "rested": "trials that ended there",
        "scored": "with a score",
        "promoted": "promoted",
        "best": "best score",
        "median": "median score",
    }
    note = "Failures and trials that a stopping rule ended count as ended there, without a score."
    return make_table("rungs", columns, rows, note)
