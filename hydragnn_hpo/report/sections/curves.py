"""Section on learning curves, by the rung at which a trial's training ended."""

import statistics
from collections.abc import Sequence
from typing import Any

from hydragnn_hpo.campaign import TrialHistory, first_goal
from hydragnn_hpo.report.charts import rung_colour, scatter, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Column, Figure, Section, Table, Text

MOST_TRIALS, MOST_POINTS = 240, 12_000
"""Curves and points that are drawn."""

Curve = tuple[list[int], list[float]]


def make_section(facts: Facts) -> Section | None:
    """Draw the learning curves and count the trials of each rung."""
    curves = {name: learning_curve(trial) for name, trial in facts.trials.items()}
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    lead = "How the validation objective fell with the epochs, and what each rung decided."
    if not curves:
        nothing = Text("No epoch has ended yet.")
        return Section("curves", "Learning curves", lead, (nothing,))
    blocks = (_make_figure(facts, curves), _make_table(facts))
    return Section("curves", "Learning curves", lead, blocks)


def learning_curve(trial: TrialHistory) -> Curve:
    """Return epochs and objectives; of an epoch that was trained twice, the last."""
    found = {e.epoch: e.objective for e in trial.epochs if e.objective is not None}
    return list(found), [float(value) for value in found.values()]


def choose_curves(curves: dict[str, Curve], best: Sequence[str]) -> list[str]:
    """Choose the curves to draw: the best trials first, then an even sample of the others.

    Args:
        curves: all of them.
        best: all trials with a result, best first.
    """
    ranked = [name for name in best if name in curves]
    others = [name for name in curves if name not in set(ranked)]
    keep = ranked[: MOST_TRIALS // 2]
    rest = [*ranked[len(keep) :], *others]
    step = max(1, -(-len(rest) // (MOST_TRIALS - len(keep))))
    keep += rest[::step]
    points, found = 0, list[str]()
    for name in keep:
        points += len(curves[name][0])
        if points > MOST_POINTS and found:
            break
        found.append(name)
    return found


def _make_figure(facts: Facts, curves: dict[str, Curve]) -> Figure:
    ranked = [trial.name for trial in facts.state.ranked()]
    names = choose_curves(curves, ranked)
    rungs = facts.config.search.rungs
    traces = []
    for number, rung in enumerate(rungs):
        below = rungs[number - 1] if number else 0
        here = [name for name in names if below < curves[name][0][-1] <= rung]
        if here:
            mode = "lines+markers" if len(names) <= 40 else "lines"
            trace = _bundle(curves, here, mode)
            line = {"width": 1, "color": rung_colour(number)}
            traces.append({**trace, "name": f"to epoch {rung}", "line": line})
    best = next((name for name in ranked if name in curves), None)
    if best is not None:
        x, y = curves[best]
        line = {"color": "ink", "width": 3}
        hover = f"{best}, epoch %{{x}}: %{{y:.4g}}<extra></extra>"
        traces.append(scatter(x, y, "lines", name=f"best: {best}", line=line, hovertemplate=hover))
    values = [value for name in names for value in curves[name][1]]
    kind = "log" if values and min(values) > 0 else "linear"
    return Figure(
        key="curves",
        title="Learning curves",
        caption=_caption(len(names), len(curves)),
        data=tuple(traces),
        layout={
            "xaxis": titled_axis("epoch"),
            "yaxis": titled_axis("validation objective", type=kind),
            "showlegend": True,
            "hovermode": "closest",
        },
        height=440,
    )


def _caption(shown: int, trials: int) -> str:
    what = "Each line is a trial, coloured by the rung to which it trained; the best is thick."
    if shown == trials:
        return what
    return f"{what} Shown are {shown} of {trials:,} trials: the best, and an even sample."


def _bundle(curves: dict[str, Curve], names: list[str], mode: str) -> dict[str, Any]:
    """Join many curves in one trace, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for name in names:
        epochs, values = curves[name]
        x += [*epochs, None]
        y += [*(float(f"{value:.5g}") for value in values), None]
        text += [name] * (len(epochs) + 1)
    style = {"marker": {"size": 4}, "opacity": 0.55, "connectgaps": False}
    hover = "%{text}, epoch %{x}: %{y:.4g}<extra></extra>"
    return scatter(x, y, mode, text=text, hovertemplate=hover, **style)


def _make_table(facts: Facts) -> Table:
    rows = []
    for rung in facts.config.search.rungs:
        rested = facts.state.results.get(rung, [])
        scores = [r.objective for r in rested if r.objective is not None]
        firsts = [first for score in scores if (first := first_goal(score)) is not None]
        rows.append(
            (
                f"epoch {rung}",
                len(rested),
                len(firsts),
                len(facts.state.promoted.get(rung, ())),
                min(firsts, default=None),
                statistics.median(firsts) if firsts else None,
            )
        )
    columns = (
        Column("rung", "rung"),
        Column("rested", "trials that ended there"),
        Column("scored", "with a score"),
        Column("promoted", "sent on"),
        Column("best", "best score"),
        Column("median", "median score"),
    )
    note = "Failures and trials that a stopping rule ended count as ended there, without a score."
    return Table("rungs", columns, tuple(rows), note)
