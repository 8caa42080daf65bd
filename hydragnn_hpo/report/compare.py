"""Comparison of campaigns: what each ran, its best result, and its cost to reach an error.

Objectives are compared only where heads and their weights are equal, errors only in equal units,
and costs only where checksums of the data (which cover the splits) are equal: a campaign on easier
structures is not a better one. Host-seconds are slot-seconds, idle ones included, divided by the
slots of a host. A result counts from the time at which its trial stops, at any rung; the time of
failed trials counts as spent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hydragnn_hpo.campaign import Trial
from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.state import TrialStatus
from hydragnn_hpo.config import Objective, ParameterConfig, Scalar
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.page_blocks import Cell, searched_cell
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.search import finite_number
from hydragnn_hpo.search.objective import goal_label, goals
from hydragnn_hpo.units import GUESSED

NEAR = 0.05
"""Distance of a default level above the best result of all runs, as a share of that result."""

NEVER = "not reached"

COSTS = {"host_seconds": "host-seconds", "trials": "trials", "seconds": "wall seconds"}
"""Labels of the fields of ``Cost``."""


@dataclass(frozen=True)
class Cost:
    """What a run had spent at the time when a trial stopped."""

    trial: str
    trials: int
    """Trials that had ended at least once, including failures and this trial."""
    seconds: float
    """Wall time since the first placement."""
    host_seconds: float
    """Time of all hosts, idle or not; see ``accounting.SlotLedger``."""


@dataclass(frozen=True)
class Winner:
    """The best trial of a run."""

    trial: str
    epochs: int
    objective: float | None
    val_mae: Mapping[str, float | None]
    """Validation error by head, in the head's unit."""
    values: Mapping[str, Scalar]
    """Searched values."""


@dataclass(frozen=True)
class ComparedSummary:
    """What a run searched, spent and found."""

    label: str
    """Distinguishes the run from the others."""
    run: str
    """The run directory."""
    campaign: str
    finished: bool
    data: str | None
    """Checksum of the graphs; None for a command, or before the data is opened."""
    seed: int
    brain: str
    objective: Objective
    rungs: tuple[int, ...]
    """In epochs."""
    budget_trials: int
    """Trials to search, including those added later."""
    trials: Mapping[str, int]
    """Number of trials by status; a status without trials is left out."""
    hosts: int
    seconds: float
    """Wall time from the first placement to the last event."""
    host_seconds: float
    slot_seconds: float
    utilization: float | None
    """Share of all slot time in training, from 0 to 1."""
    energy_joules: float | None
    winner: Winner | None
    test_mae: Mapping[str, float | None]
    """Test error of the ensemble by head, in the head's unit."""
    units: Mapping[str, str]
    """Unit by head."""
    space: Mapping[str, str]
    """Range by searched key, as ``describe_range`` says it."""


@dataclass(frozen=True)
class ComparedRun:
    """One of the compared runs."""

    summary: ComparedSummary
    weights: Mapping[str, float]
    """Weight in the objective by head; empty for a command."""
    is_command: bool
    curves: Mapping[str, Sequence[tuple[Cost, float]]]
    """Results that improved on all earlier ones, with their cost, in order of time; by name:
    ``objective``, ``val_mae.HEAD``, and ``score`` if it is a single number."""


@dataclass(frozen=True)
class ReachedLevel:
    """Cost of each run to reach one level of a quantity."""

    quantity: str
    """A key of ``ComparedRun.curves``."""
    unit: str
    level: float
    why: str
    """Why this level: ``the worst of the bests``, ``5 % above the best``, ``asked for``."""
    by: Mapping[str, Cost | None]
    """Cost by label of the run; None if the run never reached the level."""


@dataclass(frozen=True)
class RunComparison:
    """Compared runs, and what each spent to reach common levels."""

    runs: tuple[ComparedRun, ...]
    warnings: tuple[str, ...]
    """Reasons why the runs are hard to compare."""
    same_data: bool
    units: Mapping[str, str]
    """Unit of each quantity by which all runs can be compared; keys of ``ComparedRun.curves``."""
    reached: tuple[ReachedLevel, ...]


def read_campaigns(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs to compare.

    Raises:
        ConfigError: there are fewer than two paths, or one is given twice.
        RunError: a directory holds no run, or one that is damaged or has not started.
    """
    if len(paths) < 2:
        raise ConfigError(
            "one run directory is nothing to compare; give two, or see hydragnn-hpo report RUN."
        )
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(paths):
        if resolved[place] in resolved[:place]:
            raise ConfigError(f"{path}: is named twice: name different runs.")
    read = [read_facts(RunDir(path)) for path in paths]
    for facts in read:
        if facts.begin is None:
            raise RunError(f"{facts.run.path}: nothing has run there yet: compare it later.")
    # the shortest distinct labels: the campaign, its directory, or its whole path
    choices = ([facts.config.name for facts in read], [p.name for p in resolved], map(str, paths))
    labels = next(labels for labels in map(list, choices) if len(set(labels)) == len(labels))
    return [_read_run(escape_controls(n), facts) for n, facts in zip(labels, read, strict=True)]


def _read_run(label: str, facts: Facts) -> ComparedRun:
    search = facts.config.search
    heads = facts.config.trial.get("heads", {})
    scores = facts.ensemble["heads"] if facts.ensemble is not None else {}
    best = next(iter(facts.state.ranked()), None)
    summary = ComparedSummary(
        label=label,
        run=str(facts.run.path),
        campaign=facts.config.name,
        finished=facts.state.finished,
        data=facts.data_checksum,
        seed=facts.config.seed,
        brain=search.brain,
        objective=search.objective,
        rungs=search.rungs,
        budget_trials=search.trials + facts.state.added,
        trials=Counter(trial.status for trial in facts.state.trials.values()),
        hosts=len({slot.rpartition(":")[0] for slot in facts.history.slots.all_slots}),
        seconds=(facts.end or 0.0) - (facts.begin or 0.0),
        host_seconds=facts.losses.slot_seconds / facts.slots_per_host,
        slot_seconds=facts.losses.slot_seconds,
        utilization=facts.figures["utilization"],
        energy_joules=facts.figures.get("energy_joules"),
        winner=None if best is None else _describe_winner(best),
        test_mae={head: finite_number(each.get("test_mae")) for head, each in scores.items()},
        units=facts.units,
        space={key: describe_range(one) for key, one in facts.config.space.items()},
    )
    weights = {head: float(values.get("weight", 1.0)) for head, values in heads.items()}
    return ComparedRun(summary, weights, facts.config.command is not None, _read_curves(facts))


def _describe_winner(best: Trial) -> Winner:
    return Winner(best.name, best.epoch, best.objective, best.val_mae, best.values)


def _read_curves(facts: Facts) -> dict[str, list[tuple[Cost, float]]]:
    """Return ``ComparedRun.curves``."""
    ledger = SlotLedger()
    ended = set[str]()
    curves: dict[str, list[tuple[Cost, float]]] = {}
    for event in facts.events:
        ledger.apply(event)
        if event["event"] != "ended" or event["outcome"] in ("interrupted", "cancelled"):
            continue
        ended.add(event["trial"])
        if event["outcome"] == "failed":
            continue
        cost = Cost(
            trial=event["trial"],
            trials=len(ended),
            seconds=event["time"] - (facts.begin or 0.0),
            host_seconds=ledger.utilization().slot_seconds / facts.slots_per_host,
        )
        raw = {"objective": event.get("objective"), "score": event.get("score")}
        raw |= {f"val_mae.{head}": mae for head, mae in (event.get("val_mae") or {}).items()}
        for key, number in raw.items():
            value = finite_number(number)
            if value is not None and (key not in curves or value < curves[key][-1][1]):
                curves.setdefault(key, []).append((cost, value))
    return curves


def describe_range(parameter: ParameterConfig) -> str:
    """Return the range of a parameter in words, and the condition under which it is active.

    >>> describe_range(ParameterConfig(low=1, high=9, step=2))
    '1 to 9, step 2'
    """
    if parameter.choices is not None:
        text = ", ".join(map(str, parameter.choices))
    else:
        text = f"{parameter.low} to {parameter.high}"
        text += ", log" if parameter.log else ""
        text += f", step {parameter.step}" if parameter.step is not None else ""
    conditions = []
    for key, values in parameter.when.items():
        options = values if isinstance(values, tuple) else (values,)
        conditions.append(f"{key} is {' or '.join(map(str, options))}")
    return f"{text}; if {' and '.join(conditions)}" if conditions else text


def compare_runs(
    runs: Sequence[ComparedRun], levels: Sequence[tuple[str, float]] = ()
) -> RunComparison:
    """Compare runs, and compute what each spent to reach common levels.

    Args:
        runs: two or more runs.
        levels: levels whose cost to report: name of a head or key of a quantity, and the level in
            its unit. If empty, levels are chosen from the best results of the runs.

    Raises:
        ConfigError: a level names a quantity by which the runs cannot be compared.
    """
    checksums = {run.summary.data for run in runs}
    same = len(checksums) == 1 and (all(r.is_command for r in runs) or None not in checksums)
    units = _comparable_units(runs)
    return RunComparison(
        runs=tuple(runs),
        warnings=tuple(_warnings(runs, units)),
        same_data=same,
        units=units,
        reached=tuple(_reached_levels(runs, units, levels)) if same or levels else (),
    )


def _comparable_units(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the units of the quantities that mean the same in all runs."""
    shared = [key for key in runs[0].curves if all(key in run.curves for run in runs)]
    goal = runs[0].summary.objective
    same_goal = all(run.summary.objective == goal for run in runs)
    # a goal of our own is the objective, or the error of a head
    own_goal = isinstance(goal, str) and (goal == "weighted" or goal.startswith("val_mae."))
    units = {}
    if "objective" in shared and all(run.weights == runs[0].weights for run in runs):
        units["objective"] = ""
    if "score" in shared and same_goal and not own_goal and not isinstance(goal, tuple):
        units["score"] = ""
    for key in shared:
        if key.startswith("val_mae."):
            different = _distinct_units(runs, key.removeprefix("val_mae."))
            if len(different) == 1:
                units[key] = different[0]
    return units


def _distinct_units(runs: Sequence[ComparedRun], head: str) -> list[str]:
    """Return the units of a head in several runs; of a guess and the same unit only the guess."""
    units = sorted({run.summary.units.get(head, "") for run in runs})  # a guess follows its unit
    return [*{unit.removesuffix(GUESSED): unit for unit in units}.values()]


def _warnings(runs: Sequence[ComparedRun], known: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why runs are hard to compare, most important first."""
    checksums = {run.summary.data for run in runs}
    if all(run.is_command for run in runs):
        yield "Their trials are commands: whether they mean the same is for you to know."
    elif any(run.is_command for run in runs):
        yield "Some runs train on data, others run a command: their errors are not comparable."
    elif None in checksums:
        yield "The data of some runs is not known: their errors may not be comparable."
    elif len(checksums) > 1:
        yield (
            "The runs saw different data (checksums differ): errors of different structures are "
            "not comparable, and what it cost to reach one is left out."
        )
    trained = [run for run in runs if run.weights]
    if len(trained) == len(runs) and "objective" not in known:
        yield "Their objectives weigh heads differently, or one has no result: not compared."
    heads = dict.fromkeys(head for run in trained for head in run.weights)
    partly = [head for head in heads if any(head not in run.weights for run in trained)]
    if partly:
        yield f"Not compared, since not all runs have them: {', '.join(partly)}."
    for head in heads:
        units = _distinct_units([run for run in trained if head in run.weights], head)
        if len(units) > 1:
            yield f"Head {head} has different units ({', '.join(units)}): not compared."
    for run in runs:
        if not run.summary.finished:
            yield f"{run.summary.label} is not finished: its figures are those of this moment."
        if not run.curves:
            yield f"{run.summary.label} has no result yet."


def _reached_levels(
    runs: Sequence[ComparedRun], units: Mapping[str, str], levels: Sequence[tuple[str, float]]
) -> Iterator[ReachedLevel]:
    """Yield the cost of the given levels, or else of two levels of every quantity."""
    wanted = [(_find_quantity(units, name), level, "asked for") for name, level in levels]
    for key in () if levels else units:
        bests = [run.curves[key][-1][1] for run in runs]
        near = min(bests) + NEAR * abs(min(bests))
        wanted.append((key, max(bests), "the worst of the bests"))
        if near < max(bests):
            wanted.append((key, near, f"{100 * NEAR:.0f} % above the best"))
    for key, level, why in wanted:
        by = {
            run.summary.label: next((cost for cost, v in run.curves[key] if v <= level), None)
            for run in runs
        }
        yield ReachedLevel(key, units[key], level, why, by)


def _find_quantity(units: Mapping[str, str], name: str) -> str:
    """Return the key of a quantity, given that or the name of a head."""
    keys = {key.removeprefix("val_mae."): key for key in units} | {key: key for key in units}
    if not keys:
        raise ConfigError(
            "--reach: these runs have nothing in common to be compared by: name others."
        )
    if name not in keys:
        names = [key.removeprefix("val_mae.") for key in units]
        raise ConfigError(f"--reach: {unknown('quantity', name, names)}")
    return keys[name]


@dataclass(frozen=True)
class RunTable:
    """A table with one column for each run."""

    title: str
    """Title of the first column, which names the rows."""
    rows: Mapping[str, Sequence[Cell]]
    """One cell for each run, by name of the row."""


def tabulate_comparison(comparison: RunComparison) -> dict[str, list[str | RunTable]]:
    """Lay out a comparison.

    Returns:
        Sentences and tables by heading; they may hold control characters.
    """
    return {
        "Campaigns": [*comparison.warnings, _overview(comparison.runs)],
        "Winners": list(_winners(comparison)),
        "Cost to reach an error": list(_costs(comparison)),
        "Spaces": list(_spaces(comparison.runs)),
    }


def _overview(runs: Sequence[ComparedRun]) -> RunTable:
    each = [run.summary for run in runs]
    statuses = [status for status in get_args(TrialStatus) if any(r.trials[status] for r in each)]
    rows: dict[str, list[Cell]] = {
        "finished": ["yes" if run.finished else "no" for run in each],
        "data checksum": [(run.data or "not known")[:12] for run in each],
        "brain": [run.brain for run in each],
        "seed": [run.seed for run in each],
        "rungs [epochs]": [", ".join(map(str, run.rungs)) for run in each],
        "budget [trials]": [run.budget_trials for run in each],
        **{f"trials {status}": [run.trials[status] for run in each] for status in statuses},
        "hosts": [run.hosts for run in each],
        "wall time [s]": [run.seconds for run in each],
        "host-hours [h]": [run.host_seconds / 3600.0 for run in each],
        "utilization [%]": [_scale(run.utilization, 100.0) for run in each],
        "energy [kWh]": [_scale(run.energy_joules, 1.0 / 3.6e6) for run in each],
    }
    return RunTable("campaign", rows)


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _winners(comparison: RunComparison) -> Iterator[str | RunTable]:
    runs = [run.summary for run in comparison.runs]
    if all(run.winner is None for run in runs):
        yield "No campaign has a result yet."
        return
    nothing = Winner("-", 0, None, {}, {})
    best = [run.winner or nothing for run in runs]
    rows: dict[str, list[Cell]] = {
        "best trial": [winner.trial for winner in best],
        "epochs": [winner.epochs for winner in best],
        "objective (validation)": [winner.objective for winner in best],
    }
    for head in dict.fromkeys(head for winner in best for head in winner.val_mae):
        units = _distinct_units([r for r in comparison.runs if head in r.weights], head)
        unit = f" [{' or '.join(filter(None, units))}]" if any(units) else ""
        rows[f"val MAE {head}{unit}"] = [winner.val_mae.get(head) for winner in best]
        if any(run.test_mae for run in runs):
            rows[f"ensemble test MAE {head}{unit}"] = [run.test_mae.get(head) for run in runs]
    yield RunTable("error", rows)
    keys = dict.fromkeys(key for winner in best for key in winner.values)
    values = {key: [searched_cell(winner.values.get(key)) for winner in best] for key in keys}
    yield RunTable("value of the best trial", values)


def _costs(comparison: RunComparison) -> Iterator[str | RunTable]:
    if not comparison.reached and not comparison.same_data:
        yield "Left out: errors on different data are not comparable."
    elif not comparison.reached:
        yield "The campaigns have no result in common that could be compared."
    for attribute, title in COSTS.items() if comparison.reached else ():
        rows: dict[str, list[Cell]] = {}
        for reached in comparison.reached:
            unit = f" {reached.unit}" if reached.unit else ""
            name = reached.quantity.replace("val_mae.", "val MAE ")
            if name == "score":  # only where all runs have the same single goal
                name = goal_label(goals(comparison.runs[0].summary.objective)[0])
            costs = [NEVER if c is None else getattr(c, attribute) for c in reached.by.values()]
            rows[f"{name} {reached.level:.4g}{unit} ({reached.why})"] = costs
        yield RunTable(f"{title} until", rows)


def _spaces(runs: Sequence[ComparedRun]) -> Iterator[str | RunTable]:
    spaces = [run.summary.space for run in runs]
    if all(space == spaces[0] for space in spaces):
        yield "All campaigns searched the same space."
    keys = dict.fromkeys(key for space in spaces for key in space)
    rows = {key: [space.get(key, "not searched") for space in spaces] for key in keys}
    yield RunTable("parameter", rows)
