"""Trials and epochs of a campaign as rows, and as tables of typed columns.

Every format of ``export`` is made from them. Numbers have the same names as in the journal
(``val_mae.HEAD``). Control characters in text of a run are escaped here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.status import find_conv
from hydragnn_hpo.config import Scalar
from hydragnn_hpo.data_frames import DATES, make_frame
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.report.charts import short_keys
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.sanitize import escape_controls, sanitize_values
from hydragnn_hpo.search import finite_number
from hydragnn_hpo.search.objective import goal_label, goals

if TYPE_CHECKING:
    import pandas

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
"""Unit by name of a number; MAEs have their target's unit, the rest are counts or pure numbers."""

_TEXTS = ("trial", "parent", "status", "reason", "conv", "message")
_WHOLE = ("attempt", "attempts", "epoch", "epochs", "parameters", "peak_bytes", "ranks")
_EPOCH_COLUMNS = ("trial", "attempt", "epoch", "time", "ranks")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class ExportedFiles:
    """Files that an export has written, and how to open them."""

    files: tuple[Path, ...]
    """One file, a folder, or the files in a folder."""
    trials: int
    epochs: int
    open_with: str
    """Command or line of Python that opens the export."""
    note: str = ""
    """A sentence to show to the user; empty if none."""


@dataclass(frozen=True)
class EpochRow:
    """An epoch of a trial."""

    attempt: int
    epoch: int
    time: float
    width: int
    numbers: Mapping[str, float]
    """``objective``, ``best_objective``, ``epoch_seconds``; and, where the trial's own records are
    still there, ``val_mae.HEAD``, ``loss.HEAD`` and ``learning_rate``."""


@dataclass(frozen=True)
class TrialRow:
    """A trial and its epochs."""

    name: str
    status: str
    texts: Mapping[str, str | None]
    """``parent``, ``reason``, ``message``; and ``conv`` where the campaign fixes it."""
    numbers: Mapping[str, float | int | None]
    """``objective``, ``score.GOAL`` where there are several goals, ``val_mae.HEAD``, and costs."""
    values: Mapping[str, Scalar]
    """Searched values that are active."""
    scores: tuple[float, ...]
    """Result for each goal; empty if one is missing."""
    epochs: Sequence[EpochRow]
    """All epochs; one that was lost and trained again occurs twice."""

    @property
    def results(self) -> dict[str, float | int]:
        """Known numbers, without the times of start and end.

        Returns:
            Number by name, see ``numbers``.
        """
        times = ("started", "ended")
        return {k: v for k, v in self.numbers.items() if v is not None and k not in times}

    @property
    def curve(self) -> list[EpochRow]:
        """Epochs in order; of an epoch that was trained twice, the later record."""
        last = {epoch.epoch: epoch for epoch in self.epochs}
        return [last[number] for number in sorted(last)]


def unit_of(name: str, units: Mapping[str, str]) -> str:
    """Return the unit of a number; empty if it has none.

    Args:
        name: a key of ``TrialRow.numbers`` or ``EpochRow.numbers``.
        units: unit by target.
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
    return [_trial_row(facts, trial, heads) for trial in facts.trials.values()]


def _trial_row(facts: Facts, one: TrialHistory, heads: Sequence[str]) -> TrialRow:
    trial = one.trial
    names = goal_names(facts)
    scores = trial.score if isinstance(trial.score, tuple) else (trial.score,)
    known = tuple(score for score in scores if score is not None)
    numbers: dict[str, float | int | None] = {"objective": trial.objective}
    if len(names) > 1:
        parts = scores if len(scores) == len(names) else (None,) * len(names)
        numbers |= {f"score.{name}": s for name, s in zip(names, parts, strict=True)}
    numbers |= {f"val_mae.{head}": trial.val_mae.get(head) for head in heads}
    texts = {"parent": trial.parent, "reason": trial.reason, "message": trial.message}
    if "model.conv" not in trial.values and (conv := find_conv(trial, facts.config)):
        texts["conv"] = conv
    return TrialRow(
        name=escape_controls(trial.name),
        status=trial.status,
        texts={key: None if t is None else escape_controls(str(t)) for key, t in texts.items()},
        numbers=numbers | _costs(one),
        values=sanitize_values(trial.values),
        scores=known if len(known) == len(scores) else (),
        epochs=_epoch_rows(facts, one),
    )


def _costs(one: TrialHistory) -> dict[str, float | int | None]:
    trial, attempts = one.trial, one.attempts
    trained = [a.train_seconds for a in attempts if a.train_seconds is not None]
    ends = [a.ended for a in attempts if a.ended is not None]
    return {
        "epochs": trial.epoch,
        "ranks": trial.width or None,
        "attempts": len(attempts),
        "parameters": one.parameters,
        "peak_bytes": one.peak_bytes,
        "slot_seconds": trial.slot_seconds,
        "train_seconds": sum(trained) if trained else None,
        "energy": trial.energy,
        "energy_share": trial.metered_share,
        "started": attempts[0].placed if attempts else None,
        "ended": max(ends) if ends and trial.status not in ("running", "queued") else None,
    }


def _epoch_rows(facts: Facts, trial: TrialHistory) -> list[EpochRow]:
    records = _read_epoch_records(facts, trial)
    rows = []
    for epoch in trial.epochs:
        number = epoch["reached"]
        time = epoch["time"]
        placed = [a.number for a in trial.attempts if a.placed <= time]
        attempt = placed[-1] if placed else 0
        record = records.get((attempt, number), {})
        raw = {
            "objective": epoch["objective"],
            "best_objective": epoch["best_objective"],
            "epoch_seconds": epoch["seconds"],
            "learning_rate": record.get("learning_rate"),
        }
        for name in ("val_mae", "loss"):
            by_head = record.get(name)
            if isinstance(by_head, Mapping):
                raw |= {f"{name}.{escape_controls(str(h))}": v for h, v in by_head.items()}
        finite = {key: finite_number(value) for key, value in raw.items()}
        numbers = {key: value for key, value in finite.items() if value is not None}
        rows.append(EpochRow(attempt, number, time, epoch["width"], numbers))
    return rows


def _read_epoch_records(facts: Facts, trial: TrialHistory) -> dict[tuple[int, int], dict[str, Any]]:
    """Read epoch records of a trial by attempt and epoch; skip unreadable files."""
    if "/" in trial.name or trial.name.startswith("."):
        return {}
    folder = facts.run.trial(trial.name)
    epochs = {}
    for attempt in trial.attempts:
        try:
            records = list(read_records(folder.attempt(attempt.number) / "metrics.jsonl"))
        except (OSError, ValueError):
            continue  # the journal holds the essential numbers
        for record in records:
            if isinstance(record, dict) and record.get("record") == "epoch":
                epochs[attempt.number, record["epoch"]] = record
    return epochs


@dataclass(frozen=True)
class TypedColumn:
    """A column of a table; every value is None or of the column's type."""

    title: str
    """Name with unit: ``val_mae.energy [eV]``."""
    kind: Literal["string", "int64", "float64", "bool_"]
    """Arrow's name of the type."""
    values: Sequence[Scalar | None]
    unit: str = ""


TypedTable = list[TypedColumn]


def tables_of(facts: Facts) -> dict[str, TypedTable]:
    """Return the tables of a campaign.

    Returns:
        ``trials``, in the order of proposal, and ``epochs``, in the order of training.
    """
    rows = trial_rows(facts)
    space = dict.fromkeys(f"params.{escape_controls(key)}" for key in facts.config.space)
    trials: list[dict[str, Scalar | None]] = [
        {
            "trial": row.name,
            "parent": row.texts["parent"],
            "status": row.status,
            "reason": row.texts["reason"],
            **row.numbers,
            **space,
            **{f"params.{key}": value for key, value in row.values.items()},
            **({"conv": row.texts["conv"]} if "conv" in row.texts else {}),
            "message": row.texts["message"],
        }
        for row in rows
    ]
    epochs: list[dict[str, Scalar | None]] = []
    for row in rows:
        for e in row.epochs:
            first = (row.name, e.attempt, e.epoch, e.time, e.width)
            epochs.append({**dict(zip(_EPOCH_COLUMNS, first, strict=True)), **e.numbers})
    return {
        "trials": _typed_table(trials, list(trials[0]) if trials else [], facts.units),
        "epochs": _typed_table(epochs, _EPOCH_COLUMNS, facts.units),
    }


_PANDAS = {"string": "str", "int64": "Int64", "float64": "float64", "bool_": "boolean"}
"""Type in pandas by ``TypedColumn.kind``; each can lack a value."""

_TIMES = ("started", "ended", "time")
"""Columns that are moments."""


def make_run_frame(facts: Facts, table: Literal["trials", "epochs"]) -> "pandas.DataFrame":
    """Return a table of a campaign as a pandas DataFrame with short titles.

    ``val_mae.HEAD`` becomes ``val_mae_HEAD``, a searched ``params.model.conv`` its shortest name,
    ``conv``, unless another column has it. Times are moments in UTC; ``frame.attrs["units"]`` has
    the units.

    Args:
        facts: content of the run directory.
        table: which one, see ``tables_of``.

    Raises:
        ConfigError: pandas is not installed.
    """
    columns = {column.title.partition(" [")[0]: column for column in tables_of(facts)[table]}
    keys = [name.removeprefix("params.") for name in columns if name.startswith("params.")]
    plain = {name: name.replace(".", "_") for name in columns if not name.startswith("params.")}
    short = {key: name for key, name in short_keys(keys).items() if name not in plain.values()}
    titles = plain | {f"params.{key}": short.get(key, key) for key in keys}
    moments = [name for name in _TIMES if name in columns]
    kinds = {titles[name]: _PANDAS[column.kind] for name, column in columns.items()}
    return make_frame(
        {titles[name]: column.values for name, column in columns.items()},
        {titles[name]: column.unit for name, column in columns.items() if name not in moments},
        kinds | dict.fromkeys(moments, DATES),
    )


def _typed_table(
    rows: Sequence[Mapping[str, Scalar | None]], first: Sequence[str], units: Mapping[str, str]
) -> TypedTable:
    """Turn rows into columns.

    Args:
        rows: values by name; a row may lack some.
        first: names of the first columns; the others follow in the order of the rows.
        units: unit by target.
    """
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    return [_typed_column(name, [row.get(name) for row in rows], units) for name in names]


def _typed_column(
    name: str, values: Sequence[Scalar | None], units: Mapping[str, str]
) -> TypedColumn:
    """Make a column; searched values get the narrowest type that fits, mixed types are text."""
    unit = unit_of(name, units)
    known = [value for value in values if value is not None]
    title = f"{name} [{unit}]" if unit else name
    searched = name.startswith("params.")
    if name in _TEXTS:
        return TypedColumn(title, "string", values)
    if name in _WHOLE or (searched and _are_whole(known)):
        return TypedColumn(title, "int64", values, unit)
    if not searched:
        return TypedColumn(title, "float64", values, unit)
    if known and all(isinstance(value, bool) for value in known):
        return TypedColumn(title, "bool_", values)
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in known):
        texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        return TypedColumn(title, "string", texts)
    return TypedColumn(title, "float64", [None if v is None else float(v) for v in values])


def _are_whole(values: Sequence[Scalar]) -> bool:
    """Check whether there is at least one value, and all are 64-bit integers."""
    return bool(values) and all(type(v) is int and abs(v) <= _LARGEST for v in values)
