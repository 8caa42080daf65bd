"""Campaigns side by side, as plain data, and what one must know before reading it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from hydragnn_hpo.campaign.state import TrialStatus
from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.report.comparing.campaigns import Campaign
from hydragnn_hpo.report.comparing.reach import (
    Quantity,
    Reached,
    heads_of,
    quantities,
    reached,
)


@dataclass(frozen=True)
class Comparison:
    """What is to be said of some runs together."""

    runs: tuple[Campaign, ...]
    warnings: tuple[str, ...]
    """What makes them hard to compare."""
    same_data: bool
    quantities: tuple[Quantity, ...]
    heads: tuple[str, ...]
    levels: tuple[Reached, ...]

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "runs": [_run_to_plain(run, self.heads) for run in self.runs],
            "warnings": list(self.warnings),
            "same_data": self.same_data,
            "reached": [_reached_to_plain(level, self.runs) for level in self.levels],
        }


def compare(runs: Sequence[Campaign], asked: Sequence[tuple[str, float]] = ()) -> Comparison:
    """Set runs side by side.

    Args:
        runs: two or more.
        asked: levels of errors whose cost is wanted; see ``reach.reached``.

    Raises:
        ConfigError: a level is asked of something that the runs cannot be compared by.
    """
    sums = {run.data for run in runs}
    commands = all(run.facts.config.command is not None for run in runs)
    same = len(sums) == 1 and (commands or None not in sums)
    known = quantities(runs)
    return Comparison(
        runs=tuple(runs),
        warnings=tuple(_warnings(runs, known)),
        same_data=same,
        quantities=tuple(known),
        heads=tuple(heads_of(runs)),
        levels=tuple(reached(runs, known, asked)) if same or asked else (),
    )


def _warnings(runs: Sequence[Campaign], known: Sequence[Quantity]) -> Iterator[str]:
    """Say what makes runs hard to compare, most important first."""
    yield from _on_data(runs)
    trained = [run for run in runs if run.weights]
    if len(trained) == len(runs) and "objective" not in {each.key for each in known}:
        yield "Their objectives weigh heads differently, or one has no result: not compared."
    partly = [h for h in heads_of(trained) if any(h not in run.weights for run in trained)]
    if partly:
        yield f"Not compared, since not all runs have them: {', '.join(partly)}."
    for head in heads_of(trained):
        units = dict.fromkeys(r.facts.units.get(head) for r in trained if head in r.weights)
        if len(units) > 1:
            told = ", ".join(map(str, units))
            yield f"Head {head} has different units ({told}): not compared."
    for run in runs:
        if not run.facts.state.finished:
            yield f"{run.label} is not finished: its figures are those of this moment."
        if not run.course:
            yield f"{run.label} has no result yet."


def _on_data(runs: Sequence[Campaign]) -> Iterator[str]:
    commands = [run.facts.config.command is not None for run in runs]
    sums = {run.data for run in runs}
    if all(commands):
        yield "Their trials are commands: whether they mean the same is for you to know."
    elif any(commands):
        yield "Some runs train on data, others run a command: their errors are not comparable."
    elif None in sums:
        yield "The data of some runs is not known: their errors may not be comparable."
    elif len(sums) > 1:
        yield (
            "The runs saw different data (checksums differ): errors of different structures are "
            "not comparable, and what it cost to reach one is left out."
        )


def range_of(parameter: ParameterConfig) -> str:
    """Say what a parameter may be.

    >>> range_of(ParameterConfig(low=1, high=9, step=2))
    '1 to 9, step 2'
    """
    if parameter.choices is not None:
        text = ", ".join(map(str, parameter.choices))
    else:
        text = f"{parameter.low} to {parameter.high}"
        text += ", log" if parameter.log else ""
        text += f", step {parameter.step}" if parameter.step is not None else ""
    when = " and ".join(f"{key} {_one_of(wanted)}" for key, wanted in parameter.when.items())
    return f"{text}; if {when}" if when else text


def _one_of(wanted: Any) -> str:
    return " or ".join(map(str, wanted)) if isinstance(wanted, tuple) else f"is {wanted}"


def spaces(runs: Sequence[Campaign]) -> dict[str, list[str | None]]:
    """Give what each run searched by key; None where it did not search it."""
    keys = dict.fromkeys(key for run in runs for key in run.facts.config.space)
    every = [run.facts.config.space for run in runs]
    return {key: [range_of(s[key]) if key in s else None for s in every] for key in keys}


def outcomes(run: Campaign) -> Mapping[str, int]:
    """Count a run's trials by how they stand."""
    counts = Counter(trial.status for trial in run.facts.state.trials.values())
    return {status: counts[status] for status in get_args(TrialStatus) if counts[status]}


def _run_to_plain(run: Campaign, heads: Sequence[str]) -> dict[str, Any]:
    facts, winner = run.facts, run.winner
    search, figures = facts.config.search, facts.figures
    return {
        "label": run.label,
        "run": str(facts.run.path),
        "campaign": facts.config.name,
        "finished": facts.state.finished,
        "data": run.data,
        "seed": facts.config.seed,
        "brain": search.brain,
        "objective": search.model_dump(mode="json")["objective"],
        "rungs": list(search.rungs),
        "budget_trials": search.trials + facts.state.added,
        "trials": dict(outcomes(run)),
        "hosts": run.hosts,
        "seconds": run.seconds,
        "host_seconds": run.host_seconds,
        "slot_seconds": facts.losses.slot_seconds,
        "utilization": figures["utilization"],
        "energy_joules": figures["energy_joules"],
        "winner": winner
        and {
            "trial": winner.name,
            "epochs": winner.epoch,
            "objective": winner.objective,
            "val_mae": winner.val_mae,
            "values": winner.values,
        },
        "test_mae": {head: run.test_mae(head) for head in heads},
        "units": dict(facts.units),
        "space": {key: range_of(parameter) for key, parameter in facts.config.space.items()},
    }


def _reached_to_plain(level: Reached, runs: Sequence[Campaign]) -> dict[str, Any]:
    return {
        "quantity": level.quantity.key,
        "unit": level.quantity.unit,
        "level": level.level,
        "why": level.why,
        "by": {
            run.label: first
            and {
                "trial": first.trial,
                "trials": first.trials,
                "seconds": first.seconds,
                "host_seconds": first.host_seconds,
            }
            for run, first in zip(runs, level.first, strict=True)
        },
    }
