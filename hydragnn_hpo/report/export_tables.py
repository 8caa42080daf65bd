"""Trials and epochs of a campaign as rows, and as tables of typed columns.

Every format of ``export`` is made from them. Names of numbers are those of the journal
(``val_mae.HEAD``); text that came from a run is made printable here, once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hydragnn_hpo.campaign import Epoch, TrialHistory
from hydragnn_hpo.config import Scalar
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.sanitize import escape_controls, sanitize_values
from hydragnn_hpo.search import finite_number, goal_label, goals

UNITS = {
    "slot_seconds": "s",
    "train_seconds": "s",
    "energy": "J",
    "peak_bytes": "B",
    "started": "s since 1970",
    "ended": "s since 1970",
    "time": "s since 1970",
    "epoch_seconds": "s",
}
"""Of the numbers that have one beside MAEs; the others count, or have no dimension."""

_BY_HEAD = ("val_mae", "loss")
"""Numbers of each head in a trial's own record of an epoch."""

_WHOLE = ("epochs", "ranks", "attempts", "parameters", "peak_bytes")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class EpochRow:
    """An epoch of a trial."""

    trial: str
    attempt: int
    epoch: int
    time: float
    width: int
    numbers: Mapping[str, float]
    """``objective``, ``best_objective``, ``epoch_seconds``; and, where the trial's own records are
    still there, ``val_mae.HEAD``, ``loss.HEAD`` and ``learning_rate``."""


@dataclass(frozen=True)
class TrialRow:
    """A trial."""

    name: str
    status: str
    texts: Mapping[str, str | None]
    """``parent``, ``reason``, ``message``."""
    numbers: Mapping[str, float | int | None]
    """``objective``, ``score.GOAL`` where there are several goals, ``val_mae.HEAD``, and costs."""
    values: Mapping[str, Scalar]
    """Searched values that are active."""
    scores: tuple[float, ...]
    """Its result for each goal; empty without one."""

    @property
    def results(self) -> dict[str, float | int]:
        """The numbers that are known, except times."""
        times = ("started", "ended")
        return {k: v for k, v in self.numbers.items() if v is not None and k not in times}


def unit_of(name: str, units: Mapping[str, str]) -> str:
    """Return the unit of a number; empty if it has none.

    Args:
        name: a key of ``TrialRow.numbers`` or ``EpochRow.numbers``.
        units: of the targets.
    """
    if name.startswith("val_mae."):
        return units.get(name.removeprefix("val_mae."), "")
    return UNITS.get(name, "")


def goal_names(facts: Facts) -> list[str]:
    """Return the names of the campaign's goals."""
    return [goal_label(goal) for goal in goals(facts.config.search.objective)]


def trial_rows(facts: Facts) -> list[TrialRow]:
    """Return all trials, in the order in which they were proposed."""
    configured = dict.fromkeys(facts.config.trial.get("heads", {}))
    measured = {head for trial in facts.trials.values() for head in trial.trial.val_mae}
    heads = [h for h in configured if h in measured] + sorted(measured - set(configured))
    names = goal_names(facts)
    return [_trial_row(trial, heads, names) for trial in facts.trials.values()]


def _trial_row(facts: TrialHistory, heads: list[str], names: list[str]) -> TrialRow:
    trial = facts.trial
    scores = trial.score if isinstance(trial.score, tuple) else (trial.score,)
    has_result = all(score is not None for score in scores)
    numbers: dict[str, float | int | None] = {"objective": trial.objective}
    if len(names) > 1:
        parts = scores if len(scores) == len(names) else (None,) * len(names)
        numbers |= {f"score.{name}": s for name, s in zip(names, parts, strict=True)}
    numbers |= {f"val_mae.{head}": trial.val_mae.get(head) for head in heads}
    numbers |= _costs(facts)
    texts = {"parent": trial.parent, "reason": trial.reason, "message": trial.message}
    return TrialRow(
        name=escape_controls(trial.name),
        status=trial.status,
        texts={
            key: None if text is None else escape_controls(str(text)) for key, text in texts.items()
        },
        numbers=numbers,
        values=sanitize_values(trial.values),
        scores=tuple(s for s in scores if s is not None) if has_result else (),
    )


def _costs(facts: TrialHistory) -> dict[str, float | int | None]:
    trial, attempts = facts.trial, facts.attempts
    trained = [a.train_seconds for a in attempts if a.train_seconds is not None]
    ends = [a.ended for a in attempts if a.ended is not None]
    return {
        "epochs": trial.epoch,
        "ranks": trial.width or None,
        "attempts": len(attempts),
        "parameters": facts.parameters,
        "peak_bytes": facts.peak_bytes,
        "slot_seconds": trial.slot_seconds,
        "train_seconds": sum(trained) if trained else None,
        "energy": trial.energy,
        "energy_share": trial.metered_share,
        "started": attempts[0].placed if attempts else None,
        "ended": max(ends) if ends and trial.status not in ("running", "queued") else None,
    }


def epoch_rows(facts: Facts) -> Iterator[EpochRow]:
    """Yield all epochs, trial by trial; those that were lost and trained again are there twice."""
    for trial in facts.trials.values():
        records = _read_epoch_records(facts, trial)
        for epoch in trial.epochs:
            started = [a.number for a in trial.attempts if a.placed <= epoch.time]
            attempt = started[-1] if started else 0
            yield EpochRow(
                trial=escape_controls(trial.name),
                attempt=attempt,
                epoch=epoch.epoch,
                time=epoch.time,
                width=epoch.width,
                numbers=_epoch_numbers(epoch, records.get((attempt, epoch.epoch), {})),
            )


TrialRun = tuple[TrialRow, list[EpochRow]]
"""A trial and its epochs, each once."""


def trial_runs(facts: Facts) -> list[TrialRun]:
    """Return all trials with their curves, in the order in which they were proposed."""
    last: dict[str, dict[int, EpochRow]] = {}
    for epoch in epoch_rows(facts):
        last.setdefault(epoch.trial, {})[epoch.epoch] = epoch
    curves = {name: [rows[at] for at in sorted(rows)] for name, rows in last.items()}
    return [(row, curves.get(row.name, [])) for row in trial_rows(facts)]


def _epoch_numbers(epoch: Epoch, record: Mapping[str, Any]) -> dict[str, float]:
    raw = {
        "objective": epoch.objective,
        "best_objective": epoch.best_objective,
        "epoch_seconds": epoch.seconds,
        "learning_rate": record.get("learning_rate"),
    }
    for name in _BY_HEAD:
        by_head = record.get(name)
        if isinstance(by_head, Mapping):
            raw |= {
                f"{name}.{escape_controls(str(head))}": value for head, value in by_head.items()
            }
    return {
        key: finite for key, value in raw.items() if (finite := finite_number(value)) is not None
    }


def _read_epoch_records(facts: Facts, trial: TrialHistory) -> dict[tuple[int, int], dict[str, Any]]:
    """Read the epochs from the records of a trial's attempts; empty where these are gone."""
    if "/" in trial.name or trial.name.startswith("."):
        return {}
    folder = facts.run.trial(trial.name)
    epochs = {}
    for attempt in trial.attempts:
        try:
            records = list(read_records(folder.attempt(attempt.number) / "metrics.jsonl"))
        except (OSError, ValueError):
            continue  # the journal has the numbers that count
        for record in records:
            if isinstance(record, dict) and record.get("record") == "epoch":
                epochs[attempt.number, record["epoch"]] = record
    return epochs


Kind = Literal["text", "whole", "real", "truth"]


@dataclass(frozen=True)
class TypedColumn:
    """A column of a table; every value is None or of its kind."""

    name: str
    kind: Kind
    values: list[Any]
    unit: str = ""

    @property
    def title(self) -> str:
        """Name with unit: ``val_mae.energy [eV]``."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


TypedTable = list[TypedColumn]


def tables_of(facts: Facts) -> dict[str, TypedTable]:
    """Return the tables of a campaign: ``trials`` and ``epochs``."""
    space = [escape_controls(key) for key in facts.config.space]
    return {
        "trials": _trial_table(trial_rows(facts), facts.units, space),
        "epochs": _epoch_table(list(epoch_rows(facts)), facts.units),
    }


def _trial_table(
    rows: Sequence[TrialRow], units: Mapping[str, str], space: list[str]
) -> TypedTable:
    table = [
        TypedColumn("trial", "text", [row.name for row in rows]),
        TypedColumn("parent", "text", [row.texts["parent"] for row in rows]),
        TypedColumn("status", "text", [row.status for row in rows]),
        TypedColumn("reason", "text", [row.texts["reason"] for row in rows]),
    ]
    for name in _keys(row.numbers for row in rows):
        kind: Kind = "whole" if name in _WHOLE else "real"
        values = [row.numbers.get(name) for row in rows]
        table.append(TypedColumn(name, kind, values, unit_of(name, units)))
    for key in _keys([space, *(row.values for row in rows)]):
        table.append(_value_column(f"params.{key}", [row.values.get(key) for row in rows]))
    table.append(TypedColumn("message", "text", [row.texts["message"] for row in rows]))
    return table


def _epoch_table(rows: Sequence[EpochRow], units: Mapping[str, str]) -> TypedTable:
    table = [
        TypedColumn("trial", "text", [row.trial for row in rows]),
        TypedColumn("attempt", "whole", [row.attempt for row in rows]),
        TypedColumn("epoch", "whole", [row.epoch for row in rows]),
        TypedColumn("time", "real", [row.time for row in rows], unit_of("time", units)),
        TypedColumn("ranks", "whole", [row.width for row in rows]),
    ]
    for name in _keys(row.numbers for row in rows):
        values = [row.numbers.get(name) for row in rows]
        table.append(TypedColumn(name, "real", values, unit_of(name, units)))
    return table


def _keys(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return all keys, in the order in which they are met."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _value_column(name: str, values: list[Any]) -> TypedColumn:
    """Choose the narrowest kind that holds all searched values; mixed ones become text."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there):
        return TypedColumn(name, "truth", values)
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in there):
        texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        return TypedColumn(name, "text", texts)
    if there and all(isinstance(value, int) and abs(value) <= _LARGEST for value in there):
        return TypedColumn(name, "whole", values)
    return TypedColumn(name, "real", [None if value is None else float(value) for value in values])
