"""Trials and epochs as rows: what every format of ``export`` is made from.

Names of numbers are those of the journal (``val_mae.HEAD``); text that came from a run is made
printable here, once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.config.search import Scalar
from hydragnn_hpo.records import read_records
from hydragnn_hpo.report.facts import Epoch, Facts, TrialFacts
from hydragnn_hpo.search.objective import goals, named, number
from hydragnn_hpo.text import shown

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
"""Of the columns that have one beside MAEs; what is not here counts, or has no dimension."""

_BY_HEAD = ("val_mae", "loss")
"""What a trial's own records say of each head after an epoch."""


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
    """What it is ranked by, one for each goal; empty without a result."""


def unit_of(name: str, units: Mapping[str, str]) -> str:
    """Give the unit of a number by its name; empty if it has none.

    Args:
        name: a key of ``TrialRow.numbers`` or ``EpochRow.numbers``.
        units: of the targets.
    """
    if name.startswith("val_mae."):
        return units.get(name.removeprefix("val_mae."), "")
    return UNITS.get(name, "")


def heads_of(facts: Facts) -> list[str]:
    """Name the heads that any trial has an error of, in the campaign's order."""
    seen = dict.fromkeys(facts.config.trial.get("heads", {}))
    found = {head for trial in facts.trials.values() for head in trial.trial.val_mae}
    return [h for h in seen if h in found] + sorted(found - set(seen))


def goal_names(facts: Facts) -> list[str]:
    """Name what the campaign minimizes."""
    return [named(goal) for goal in goals(facts.config.search.objective)]


def trial_rows(facts: Facts) -> list[TrialRow]:
    """Give all trials, in the order in which they were proposed."""
    heads, names = heads_of(facts), goal_names(facts)
    return [_trial_row(trial, heads, names) for trial in facts.trials.values()]


def _trial_row(facts: TrialFacts, heads: list[str], names: list[str]) -> TrialRow:
    trial, attempts = facts.trial, facts.attempts
    scores = trial.score if isinstance(trial.score, tuple) else (trial.score,)
    has_result = all(score is not None for score in scores)
    numbers: dict[str, float | int | None] = {"objective": trial.objective}
    if len(names) > 1:
        parts = scores if len(scores) == len(names) else (None,) * len(names)
        numbers |= {f"score.{name}": s for name, s in zip(names, parts, strict=True)}
    numbers |= {f"val_mae.{head}": trial.val_mae.get(head) for head in heads}
    trained = [a.train_seconds for a in attempts if a.train_seconds is not None]
    ends = [a.ended for a in attempts if a.ended is not None]
    numbers |= {
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
    texts = {"parent": trial.parent, "reason": trial.reason, "message": trial.message}
    return TrialRow(
        name=shown(trial.name),
        status=trial.status,
        texts={key: None if text is None else shown(str(text)) for key, text in texts.items()},
        numbers=numbers,
        values={shown(key): _plain(value) for key, value in trial.values.items()},
        scores=tuple(s for s in scores if s is not None) if has_result else (),
    )


def _plain(value: Any) -> Scalar:
    return shown(value) if isinstance(value, str) else value


def epoch_rows(facts: Facts) -> Iterator[EpochRow]:
    """Give all epochs, trial by trial; those that were lost and trained again are there twice."""
    for trial in facts.trials.values():
        records = _records(facts, trial)
        for epoch in trial.epochs:
            attempt = _attempt_at(trial, epoch.time)
            told = records.get((attempt, epoch.epoch), {})
            yield EpochRow(
                trial=shown(trial.name),
                attempt=attempt,
                epoch=epoch.epoch,
                time=epoch.time,
                width=epoch.width,
                numbers=_numbers(epoch, told),
            )


def curve_of(rows: list[EpochRow]) -> list[EpochRow]:
    """Give each epoch of one trial once, as it was trained last, in order."""
    last = {row.epoch: row for row in rows}
    return [last[epoch] for epoch in sorted(last)]


def curves(facts: Facts) -> dict[str, list[EpochRow]]:
    """Give the curve of every trial that has one."""
    found: dict[str, list[EpochRow]] = {}
    for row in epoch_rows(facts):
        found.setdefault(row.trial, []).append(row)
    return {name: curve_of(rows) for name, rows in found.items()}


def _numbers(epoch: Epoch, told: Mapping[str, Any]) -> dict[str, float]:
    known = {
        "objective": epoch.objective,
        "best_objective": epoch.best_objective,
        "epoch_seconds": epoch.seconds,
        "learning_rate": told.get("learning_rate"),
    }
    for what in _BY_HEAD:
        by_head = told.get(what)
        if isinstance(by_head, Mapping):
            known |= {f"{what}.{shown(str(head))}": value for head, value in by_head.items()}
    return {key: value for key, raw in known.items() if (value := number(raw)) is not None}


def _attempt_at(trial: TrialFacts, time: float) -> int:
    """Give the number of the attempt that was under way; 0 if the journal names none."""
    begun = [attempt.number for attempt in trial.attempts if attempt.placed <= time]
    return begun[-1] if begun else 0


def _records(facts: Facts, trial: TrialFacts) -> dict[tuple[int, int], dict[str, Any]]:
    """Read what a trial's attempts wrote of their epochs; nothing where they are gone."""
    found = {}
    if "/" in trial.name or trial.name.startswith("."):
        return {}
    folder = facts.run.trial(trial.name)
    for attempt in trial.attempts:
        try:
            records = list(read_records(folder.attempt(attempt.number) / "metrics.jsonl"))
        except (OSError, ValueError):
            continue  # the journal has the numbers that count
        for record in records:
            if isinstance(record, dict) and record.get("record") == "epoch":
                found[attempt.number, record["epoch"]] = record
    return found
