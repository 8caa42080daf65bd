"""Section on the search's progress: the best score so far, against trials and cost."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.campaign import first_goal, rank_trials
from hydragnn_hpo.report.charts import cost_unit, rung_colour, scatter, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Cell,
    Code,
    Column,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)
from hydragnn_hpo.search import goal_label, goals

TOP = 10
"""Trials in the table."""

MOST_POINTS = 6000
"""Results of a chart; of more every n-th is drawn."""

CLOSE = 1.01
"""Times the best: what counts as having reached it."""


@dataclass(frozen=True)
class ScoredAttempt:
    """One end of an attempt that gave a score."""

    trial: str
    until: int
    """Its rung, in epochs; a stopping rule may have ended it earlier."""
    score: float
    """By the first goal of the campaign."""
    trials: int
    """Trials that had come to rest or failed by then, this one included."""
    seconds: float
    """Slot-seconds that all attempts had held by then."""
    best: float
    """The smallest score so far."""


def make_section(facts: Facts) -> Section | None:
    """Show how the best score fell."""
    found = collect_results(facts)
    lead = "How fast the search found its best trials, by trials and by the time they took."
    if not found:
        nothing = Text("No trial has a result yet.")
        return Section("progress", "Progress of the search", lead, (nothing,))
    hosts = facts.slots_per_host
    blocks = (
        _make_numbers(found, hosts),
        *_make_figures(facts, found, hosts),
        _make_table(facts),
        _best(facts),
    )
    return Section("progress", "Progress of the search", lead, blocks)


def collect_results(facts: Facts) -> list[ScoredAttempt]:
    """Collect all results of the search in order; trials with other seeds are left out."""
    found: list[ScoredAttempt] = []
    ended: set[str] = set()
    placed: dict[str, tuple[float, int, int]] = {}
    seconds, best = 0.0, float("inf")
    for event in facts.events:
        name = event.get("trial", "")
        if event["event"] == "placed":
            placed[name] = event["time"], len(event["slots"]), event["until"]
        if event["event"] != "ended":
            continue
        trial = facts.trials[name].trial
        begun, slots, until = placed.pop(name, (event["time"], 0, trial.until))
        seconds += slots * (event["time"] - begun)
        if event["outcome"] in ("interrupted", "cancelled") or trial.parent is not None:
            continue
        ended.add(name)
        score = first_goal(event.get("score", event.get("objective")))
        if score is not None:
            best = min(best, score)
            found.append(ScoredAttempt(name, until, score, len(ended), seconds, best))
    return found


def first_within(found: Sequence[ScoredAttempt], times: float) -> ScoredAttempt:
    """Return the first result that is at most so many times the best of all."""
    limit = times * found[-1].best if found[-1].best > 0 else found[-1].best
    return next(result for result in found if result.score <= limit)


def _make_numbers(found: Sequence[ScoredAttempt], slots: float) -> Numbers:
    best, close = first_within(found, 1.0), first_within(found, CLOSE)
    unit, size = cost_unit(best.seconds / slots)
    size *= slots
    return Numbers(
        (
            Number("best", "best score", best.score, note=f"trial {best.trial}"),
            Number("trials_to_best", "trials until then", best.trials),
            Number("time_to_best", "time until then", best.seconds / size, f"host {unit}"),
            Number("trials_to_close", "trials to within 1 %", close.trials),
            Number("time_to_close", "time to within 1 %", close.seconds / size, f"host {unit}"),
        )
    )


def _make_figures(
    facts: Facts, found: Sequence[ScoredAttempt], slots: float
) -> tuple[Figure, Figure]:
    goal = goal_label(goals(facts.config.search.objective)[0])
    label = "weighted validation MAE" if goal == "weighted" else goal
    thin = found[:: -(-len(found) // MOST_POINTS)]
    positive = min(result.score for result in thin) > 0
    axis = titled_axis(label, type="log" if positive else "linear")
    caption = (
        "Each point is the end of an attempt, in the colour of its rung; the line is the best "
        "score so far, at any rung."
    )
    if goal == "weighted":
        caption += " The weighted MAE is in units of each target's standard deviation."
    trials = [float(result.trials) for result in thin]
    spent = [result.seconds / slots for result in thin]

    def figure(key: str, title: str, x: list[float], along: str) -> Figure:
        layout = {"xaxis": titled_axis(along), "yaxis": axis, "showlegend": True}
        return Figure(key, title, caption, tuple(_traces(thin, x)), layout)

    cost = "time that trials held slots (host seconds)"
    return (
        figure("by_trials", "Best so far, by trials", trials, "trials that came to rest"),
        figure("by_cost", "Best so far, by host-seconds", spent, cost),
    )


def _traces(found: Sequence[ScoredAttempt], x: Sequence[float]) -> Iterator[dict[str, Any]]:
    for number, rung in enumerate(sorted({result.until for result in found})):
        here = [k for k, result in enumerate(found) if result.until == rung]
        yield scatter(
            np.array([x[k] for k in here]),
            np.array([found[k].score for k in here]),
            "markers",
            text=[found[k].trial for k in here],
            name=f"to epoch {rung}",
            marker={"color": rung_colour(number), "size": 5, "opacity": 0.6},
            hovertemplate="%{text}: %{y:.4g}<extra></extra>",
        )
    yield scatter(
        np.array(x),
        np.array([result.best for result in found]),
        "lines",
        name="best so far",
        line={"shape": "hv", "width": 2.5, "color": "ink"},
        hovertemplate="best so far: %{y:.4g}<extra></extra>",
    )


def _best(facts: Facts) -> Block:
    """Return the searched values of the best trial."""
    ranked = facts.state.ranked()
    if not ranked:
        return Text("The best trial is being trained again.")
    lines = [f"{key} = {json.dumps(value)}" for key, value in ranked[0].values.items()]
    return Code("\n".join(lines), f"Searched values of {ranked[0].name}, the first of them")


def _make_table(facts: Facts) -> Table:
    board = rank_trials(facts.state)
    best = board.best(TOP).rows
    unit, size = cost_unit(max((row.slot_seconds for row in best), default=0.0))
    heads = list(dict.fromkeys(head for row in board.rows for head in row.val_mae))
    columns = (
        Column("trial", "trial"),
        Column("rank", "rank"),
        Column("epochs", "epochs"),
        Column("objective", "objective"),
        *(
            Column(f"val_mae.{head}", f"val. MAE {head}", facts.units.get(head, ""))
            for head in heads
        ),
        Column("time", "slot time", f"slot {unit}"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            row.trial,
            row.rank,
            row.epochs,
            row.objective,
            *(row.val_mae.get(head) for head in heads),
            row.slot_seconds / size,
        )
        for row in best
        if row.rank is not None
    ]
    note = "Trials trained furthest come first; MAEs are of the validation split."
    return Table("top", columns, tuple(rows), note)
