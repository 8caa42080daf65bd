"""Trials and epochs as typed columns."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.report.exporting.rows import (
    EpochRow,
    TrialRow,
    epoch_rows,
    trial_rows,
    unit_of,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.text import shown

KINDS = {"text": str, "whole": int, "real": float, "truth": bool}
"""Kinds of columns."""

_WHOLE = ("epochs", "ranks", "attempts", "parameters", "peak_bytes")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Column:
    """A column: every value is None or of its kind."""

    name: str
    kind: str
    """A key of ``KINDS``."""
    unit: str
    values: list[Any]

    @property
    def title(self) -> str:
        """Name with unit: ``val_mae.energy [eV]``."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


Table = list[Column]


def tables_of(facts: Facts) -> dict[str, Table]:
    """Give the tables of a campaign by name."""
    units = facts.units
    return {
        "trials": _trials(trial_rows(facts), units, [shown(key) for key in facts.config.space]),
        "epochs": _epochs(list(epoch_rows(facts)), units),
    }


def _trials(rows: Sequence[TrialRow], units: Mapping[str, str], space: list[str]) -> Table:
    table = [
        Column("trial", "text", "", [row.name for row in rows]),
        Column("parent", "text", "", [row.texts["parent"] for row in rows]),
        Column("status", "text", "", [row.status for row in rows]),
        Column("reason", "text", "", [row.texts["reason"] for row in rows]),
    ]
    for name in _keys(row.numbers for row in rows):
        kind = "whole" if name in _WHOLE else "real"
        values = [row.numbers.get(name) for row in rows]
        table.append(Column(name, kind, unit_of(name, units), values))
    for key in _keys([space, *(row.values for row in rows)]):
        kind, found = _typed([row.values.get(key) for row in rows])
        table.append(Column(f"params.{key}", kind, "", found))
    table.append(Column("message", "text", "", [row.texts["message"] for row in rows]))
    return table


def _epochs(rows: Sequence[EpochRow], units: Mapping[str, str]) -> Table:
    table = [
        Column("trial", "text", "", [row.trial for row in rows]),
        Column("attempt", "whole", "", [row.attempt for row in rows]),
        Column("epoch", "whole", "", [row.epoch for row in rows]),
        Column("time", "real", unit_of("time", units), [row.time for row in rows]),
        Column("ranks", "whole", "", [row.width for row in rows]),
    ]
    for name in _keys(row.numbers for row in rows):
        values = [row.numbers.get(name) for row in rows]
        table.append(Column(name, "real", unit_of(name, units), values))
    return table


def _keys(rows: Iterable[Iterable[str]]) -> list[str]:
    """Give all keys, in the order in which they were met."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _typed(values: list[Any]) -> tuple[str, list[Any]]:
    """Find the narrowest kind that holds all values; mixed ones become text."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there):
        return "truth", values
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in there):
        return "text", [None if v is None else _text(v) for v in values]
    if there and all(isinstance(value, int) and abs(value) <= _LARGEST for value in there):
        return "whole", values
    return "real", [None if value is None else float(value) for value in values]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
