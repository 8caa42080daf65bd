"""Section on Pareto fronts: score against latency, parameters, training cost and energy.

Latency is seconds per structure, as a trial measured while validating.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.campaign import TrialHistory
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import scatter
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Column, Figure, Section, Table, Text
from hydragnn_hpo.report.trial_scores import (
    LEGEND,
    axis,
    goal_name,
    goal_unit,
    members_of,
    scored_trials,
    with_unit,
)
from hydragnn_hpo.search import goals, pareto_front

_MOST = 4000
"""Trials whose records are read at most: a report is written in seconds."""


def read_latencies(run: RunDir, trials: Iterable[str]) -> dict[str, float]:
    """Return seconds per structure by trial.

    Args:
        run: the run directory.
        trials: names, the most interesting first.

    Returns:
        Median over the epochs of each trial's last attempt of one rank. Trials without a
        directory, without such an attempt or without records are left out; so are all where no
        store says how many structures were validated.
    """
    structures = _count_validated(run)
    if not structures:
        return {}
    seconds = {name: _val_seconds(run, name) for name in list(trials)[:_MOST]}
    return {name: statistics.median(s) / structures for name, s in seconds.items() if s}


def _count_validated(run: RunDir) -> int:
    """Count the structures of the validation split, over all stores."""
    total = 0
    for path in run.data.glob("*.bp/stats.json"):
        try:
            total += int(json.loads(path.read_bytes())["splits"]["val"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return total


def _val_seconds(run: RunDir, name: str) -> list[float]:
    folder = run.trial(name)
    for number in reversed(folder.attempts()):
        width, seconds = 0, []
        for record in _records(folder.attempt(number) / "metrics.jsonl"):
            if record.get("record") == "start":
                width = record.get("world", 0)
            elif record.get("record") == "epoch" and "val_seconds" in record:
                seconds.append(float(record["val_seconds"]))
        if width == 1 and seconds:
            return seconds
    return []


def _records(path: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of an attempt; a torn line is passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


POINTS = 10_000
"""Most trials of a chart that are not on its front."""
ROWS = 40
"""Most trials of the table."""
METERED = 0.9
"""Share of the time a trial held slots in which its energy must have been counted."""


ScoredTrials = list[tuple[TrialHistory, float]]


@dataclass(frozen=True)
class TrialCost:
    """A quantity that trials cost, with its values."""

    key: str
    label: str
    unit: str
    of: Mapping[str, float]
    """By trial; those of which it is not known are left out."""
    missing: str = ""
    """Why there is none, one sentence."""


def make_section(facts: Facts) -> Section | None:
    """Show a chart for each cost and the trials on any front; None before the first score."""
    rows = scored_trials(facts)
    if not rows:
        return None
    blocks: list[Block] = []
    prices, absent = _collect_costs(facts, rows)
    fronts: dict[str, list[str]] = {}
    for price in prices:
        known = [(t.name, price.of[t.name], score) for t, score in rows if t.name in price.of]
        fronts[price.key] = [known[k][0] for k in pareto_places([row[1:] for row in known])]
        blocks.append(_make_figure(facts, price, known, fronts[price.key]))
    blocks += [Text(price.missing) for price in absent]
    if fronts:
        blocks.append(_make_table(facts, prices, rows, fronts))
    return Section(
        key="pareto",
        title="Accuracy against cost",
        lead="What does a lower error cost? On the line are the trials that no other beats in "
        "both: whoever wants it cheaper takes a larger error.",
        blocks=tuple(blocks),
    )


def pareto_places(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the Pareto front of (cost, score), cheapest first.

    Points no better than a cheaper one are dropped in one sweep, so that thousands stay fast.
    """
    kept: list[int] = []
    for k in sorted(range(len(points)), key=lambda k: points[k]):
        if not kept or points[k][1] < points[kept[-1]][1] or points[k] == points[kept[-1]]:
            kept.append(k)
    return [kept[k] for k in pareto_front([points[k] for k in kept])]


def _collect_costs(facts: Facts, rows: ScoredTrials) -> tuple[list[TrialCost], list[TrialCost]]:
    """Collect the costs of trials.

    Returns:
        The costs that are known, and those that are missing for a reason worth telling.
    """
    trials = [trial for trial, _ in rows]
    best = [trial.name for trial, _ in sorted(rows, key=lambda row: row[1])]

    def of(value: Callable[[TrialHistory], float | None]) -> dict[str, float]:
        found = {trial.name: value(trial) for trial in trials}
        return {name: float(v) for name, v in found.items() if v is not None}

    prices = [
        TrialCost("parameters", "parameters", "", of(lambda t: t.parameters)),
        TrialCost(
            "latency",
            "latency",
            "ms per structure",
            {name: 1e3 * seconds for name, seconds in read_latencies(facts.run, best).items()},
            "Latency: no trial directory here says how long validation took on one rank.",
        ),
        TrialCost(
            "slot_seconds", "training cost", "slot-seconds", of(lambda t: t.trial.slot_seconds)
        ),
        TrialCost(
            "energy",
            "energy",
            "kJ",
            of(_kilojoules),
            "Energy: the hosts have no counters that could be read, or they were not asked.",
        ),
        *_further_goals(facts, trials),
    ]
    return [p for p in prices if p.of], [p for p in prices if not p.of and p.missing]


def _kilojoules(trial: TrialHistory) -> float | None:
    """Return the energy of a trial's slots if nearly all of it was counted."""
    share, energy = trial.trial.metered_share, trial.trial.energy
    known = energy is not None and share is not None and share >= METERED
    return energy / 1e3 if known and energy is not None else None


def _further_goals(facts: Facts, trials: Sequence[TrialHistory]) -> list[TrialCost]:
    """Return the further goals of a search that has several, as costs."""
    found = []
    for number in range(1, len(goals(facts.config.search.objective))):
        scores = {t.name: t.trial.score for t in trials}
        of = {name: s[number] for name, s in scores.items() if isinstance(s, tuple)}
        found.append(
            TrialCost(f"goal{number}", goal_name(facts, number), goal_unit(facts, number), of)
        )
    return [price for price in found if price.label != "parameters"]


def _make_figure(
    facts: Facts, price: TrialCost, known: list[tuple[str, float, float]], front: Sequence[str]
) -> Figure:
    places = {name: (cost, score) for name, cost, score in known}
    members = [name for name in members_of(facts) if name in places]
    others = [name for name in places if name not in members][:POINTS]
    title = with_unit(goal_name(facts), goal_unit(facts))
    what = with_unit(price.label, price.unit)
    costs, scores = [row[1] for row in known], [row[2] for row in known]
    line = {"color": "accent", "width": 2, "shape": "hv"}
    dots = {"color": "c8", "size": 6, "opacity": 0.5}
    stars = {"color": "c1", "size": 10, "symbol": "diamond", "line": {"color": "ink", "width": 1}}
    traces = [
        _trace("trials", others, places, "markers", marker=dots),
        _trace("Pareto front", front, places, "lines+markers", line=line),
    ]
    if members:
        named: dict[str, Any] = {"marker": stars, "textposition": "top center"}
        named |= {"textfont": {"color": "ink", "size": 11}, "hovertext": members}
        named |= {"text": [name if name in front else "" for name in members]}
        named |= {"hovertemplate": "%{hovertext}: %{x:.4g}, %{y:.4g}"}
        traces.append(_trace("ensemble members", members, places, "markers+text", **named))
    return Figure(
        key=price.key,
        title=f"{goal_name(facts).capitalize()} against {price.label}",
        caption=f"{len(known)} trials; {len(front)} on the front, from {front[0]} (cheapest) to "
        f"{front[-1]} (best).",
        data=tuple(traces),
        layout={
            "xaxis": axis(costs, what),
            "yaxis": axis(scores, title),
            "hovermode": "closest",
            "legend": LEGEND,
        },
    )


def _trace(
    name: str,
    trials: Sequence[str],
    places: Mapping[str, tuple[float, float]],
    mode: str,
    **style: Any,
) -> dict[str, Any]:
    x, y = np.array([places[trial] for trial in trials], dtype=float).reshape(-1, 2).T
    labels = {"text": list(trials), "hovertemplate": "%{text}: %{x:.4g}, %{y:.4g}"}
    return scatter(x, y, mode, name=name, **(labels | style))


def _make_table(
    facts: Facts,
    prices: Sequence[TrialCost],
    rows: ScoredTrials,
    fronts: Mapping[str, Sequence[str]],
) -> Table:
    members, shown = members_of(facts), {name for front in fronts.values() for name in front}
    kept = sorted((score, trial.name) for trial, score in rows if trial.name in shown)
    lines = []
    for score, name in kept[:ROWS]:
        on = ", ".join(price.label for price in prices if name in fronts[price.key])
        costs = [price.of.get(name) for price in prices]
        lines.append((name, score, *costs, on, "yes" if name in members else ""))
    return Table(
        key="fronts",
        columns=(
            Column("trial", "trial"),
            Column("objective", goal_name(facts), goal_unit(facts)),
            *(Column(price.key, price.label, price.unit) for price in prices),
            Column("on", "on the front of"),
            Column("member", "member"),
        ),
        rows=tuple(lines),
        note=f"The {len(lines)} of {len(kept)} trials on a front that have the lowest objective."
        if len(kept) > len(lines)
        else "",
    )
