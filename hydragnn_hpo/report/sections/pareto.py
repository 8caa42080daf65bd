"""Section on Pareto fronts: score against latency, parameters, training cost and energy.

Latency is the seconds per structure that a trial measured during validation.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.report.charts import (
    LEGEND,
    PlotlyValue,
    Trace,
    axes,
    fitting_axis,
    scatter,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Figure,
    Fold,
    Row,
    Section,
    Table,
    Text,
    make_table,
)
from hydragnn_hpo.search import pareto_front
from hydragnn_hpo.search.objective import goals

MOST_READ = 4000
"""Maximum number of trials whose records are read, so that a report takes only seconds."""
POINTS = 10_000
"""Maximum number of non-member trials in a chart, besides those on its front."""
ROWS = 40
"""Maximum number of trials in the table."""
METERED = 0.9
"""Minimum share of a trial's slot time for which energy was metered, to show its energy."""

NO_LATENCY = "Latency: no trial directory here says how long validation took on one rank."
"""Reason shown when the latency is missing."""


@dataclass(frozen=True)
class TrialCost:
    """A cost of trials, with its values."""

    key: str
    label: str
    unit: str
    of: Mapping[str, float]
    """Value by trial; trials without a known value are left out."""
    missing: str = ""
    """Sentence on why no value is known; empty if there is nothing to explain."""


def make_section(facts: Facts) -> Section | None:
    """Show a chart for each cost and the trials on any front; None before the first score."""
    scores = {trial.name: score for trial, score in facts.scored_trials()}
    if not scores:
        return None
    costs = collect_costs(facts, scores)
    known = [cost for cost in costs if cost.of]
    fronts = {cost.key: _front(cost, scores) for cost in known}
    figures = tuple(_make_figure(facts, cost, scores, fronts[cost.key]) for cost in known)
    blocks: list[Block] = [Row(figures)] if figures else []
    blocks += [Text(cost.missing) for cost in costs if not cost.of and cost.missing]
    if fronts:
        blocks.append(Fold("Trials on a front", (_make_table(facts, known, scores, fronts),)))
    lead = "What does a lower error cost? No trial beats those on the line in both."
    return Section("pareto", "Accuracy against cost", lead, tuple(blocks))


# -- costs ---------------------------------------------------------------------------------


def collect_costs(facts: Facts, scores: Mapping[str, float]) -> list[TrialCost]:
    """Collect the costs of trials; the goals after the first count as costs, too.

    Args:
        facts: content of the run directory.
        scores: score by trial.
    """
    trials = [facts.trials[name] for name in scores]
    latencies = read_latencies(facts.run, sorted(scores, key=lambda name: scores[name]))
    latency = {name: 1e3 * seconds for name, seconds in latencies.items()}
    held = {trial.name: trial.trial.slot_seconds for trial in trials}
    parameters = {t.name: float(t.parameters) for t in trials if t.parameters is not None}
    costs = [
        TrialCost("parameters", "parameters", "", parameters),
        TrialCost("latency", "latency", "ms per structure", latency, NO_LATENCY),
        TrialCost("slot_seconds", "training cost", "slot-seconds", held),
        TrialCost("energy", "energy", "kJ", _kilojoules(trials)),
    ]
    wanted = goals(facts.config.search.objective)[1:]
    if "parameters" in wanted:  # a goal of the search already: shown once, below
        del costs[0]
    every = {trial.name: trial.trial.score for trial in trials}
    for number in range(1, len(wanted) + 1):
        goal = {name: score[number] for name, score in every.items() if isinstance(score, tuple)}
        label = facts.goal_name(number)
        unit = facts.goal_unit(number)
        costs.append(TrialCost(f"goal{number}", label, unit, goal))
    return costs


def _kilojoules(trials: Iterable[TrialHistory]) -> dict[str, float]:
    """Return the energy in kJ by trial, where nearly all of it was metered."""
    energies = ((t.name, t.trial.energy, t.trial.metered_share or 0.0) for t in trials)
    return {
        name: joules / 1e3
        for name, joules, share in energies
        if joules is not None and share >= METERED
    }


def read_latencies(run: RunDir, trials: Iterable[str]) -> dict[str, float]:
    """Return seconds per structure by trial.

    Args:
        run: the run directory.
        trials: names of trials, in the order in which they are read.

    Returns:
        Median over the epochs of each trial's last attempt of one rank. Trials without a
        directory, without such an attempt or without records are left out. Empty if a store does
        not state its number of validation structures.
    """
    structures = _count_validated(run)
    if not structures:
        return {}
    seconds = {name: _val_seconds(run, name) for name in list(trials)[:MOST_READ]}
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
    """Return the validation seconds of each epoch of a trial's last attempt on one rank."""
    folder = run.trial(name)
    for number in reversed(folder.attempts()):
        try:
            records = list(read_records(folder.attempt(number) / "metrics.jsonl"))
            worlds = [r.get("world") for r in records if r.get("record") == "start"]
            epochs = [r for r in records if r.get("record") == "epoch" and "val_seconds" in r]
            seconds = [float(epoch["val_seconds"]) for epoch in epochs]
        except (OSError, ValueError, TypeError, AttributeError):
            continue  # damaged: try an earlier attempt
        if worlds[-1:] == [1] and seconds:
            return seconds
    return []


# -- fronts --------------------------------------------------------------------------------


def _front(cost: TrialCost, scores: Mapping[str, float]) -> list[str]:
    """Return the trials on the front of a cost, cheapest first."""
    names = [name for name in scores if name in cost.of]
    return [names[k] for k in pareto_places([(cost.of[name], scores[name]) for name in names])]


def pareto_places(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the Pareto front of (cost, score), cheapest first.

    One sweep first drops points no better than a cheaper one, so that thousands are fast.
    """
    kept: list[int] = []
    for k in sorted(range(len(points)), key=lambda k: points[k]):
        if not kept or points[k][1] < points[kept[-1]][1] or points[k] == points[kept[-1]]:
            kept.append(k)
    return [kept[k] for k in pareto_front([points[k] for k in kept])]


def _make_figure(
    facts: Facts, cost: TrialCost, scores: Mapping[str, float], front: Sequence[str]
) -> Figure:
    places = {name: (cost.of[name], scores[name]) for name in scores if name in cost.of}
    members = [name for name in facts.members if name in places]
    others = [name for name in places if name not in members][:POINTS]
    dots: Trace = {"color": "c8", "size": 6, "opacity": 0.5}
    line: Trace = {"color": "accent", "width": 2, "shape": "hv"}
    traces = [
        _trace("trials", others, places, "markers", marker=dots),
        _trace("front", front, places, "lines+markers", line=line),
    ]
    if members:
        named: Trace = {
            "marker": {
                "color": "c1",
                "size": 10,
                "symbol": "diamond",
                "line": {"color": "ink", "width": 1},
            },
            "text": [name if name == front[-1] else "" for name in members],
            "textposition": "top center",
            "textfont": {"color": "ink", "size": 11},
            "customdata": members,
            "hovertext": members,
            "hovertemplate": "%{hovertext}: %{x:.4g}, %{y:.4g}",
        }
        traces.append(_trace("members", members, places, "markers+text", **named))
    goal = facts.goal_name()
    across = fitting_axis([at for at, _ in places.values()], with_unit(cost.label, cost.unit))
    up = fitting_axis([at for _, at in places.values()], with_unit(goal, facts.goal_unit()))
    return Figure(
        key=cost.key,
        name=f"pareto.{cost.key}",
        title=f"{goal.capitalize()} against {cost.label}",
        caption=f"{len(places)} trials; {len(front)} on the Pareto front, from {front[0]} "
        f"(cheapest) to {front[-1]} (best).",
        data=tuple(traces),
        layout=axes(across, up, hovermode="closest", legend=LEGEND),
        height=340,
    )


def _trace(
    name: str,
    trials: Sequence[str],
    places: Mapping[str, tuple[float, float]],
    mode: str,
    **style: PlotlyValue,
) -> Trace:
    x, y = np.array([places[trial] for trial in trials], dtype=float).reshape(-1, 2).T
    labels: Trace = {"text": list(trials), "hovertemplate": "%{text}: %{x:.4g}, %{y:.4g}"}
    return scatter(x, y, mode, name=name, **(labels | style))


def _make_table(
    facts: Facts,
    costs: Sequence[TrialCost],
    scores: Mapping[str, float],
    fronts: Mapping[str, Sequence[str]],
) -> Table:
    """List the trials on any front, those with the lowest objective first.

    Args:
        facts: content of the run directory.
        costs: costs that have values.
        scores: score by trial.
        fronts: trials on the front of each cost, by its key.
    """
    shown = {name for front in fronts.values() for name in front}
    best = sorted(shown, key=lambda name: (scores[name], name))
    rows = []
    for name in best[:ROWS]:
        on = ", ".join(cost.label for cost in costs if name in fronts[cost.key])
        member = "yes" if name in facts.members else ""
        rows.append((name, scores[name], *(cost.of.get(name) for cost in costs), on, member))
    columns = {
        "trial": "trial",
        "objective": (facts.goal_name(), facts.goal_unit()),
        **{cost.key: (cost.label, cost.unit) for cost in costs},
        "on": "on the front of",
        "member": "member",
    }
    note = f"The {len(rows)} of {len(best)} trials on a front that have the lowest objective."
    return make_table("fronts", columns, rows, note if len(best) > len(rows) else "")
