"""JSON: one object, or a line per structure; a missing or infinite number is null.

Shapes: R rows of a head, w components.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypedDict

import numpy as np

from hydragnn_hpo.ensemble.predict_output import (
    OutputColumns,
    PredictedRows,
    Share,
    Writer,
    split_nodes,
)
from hydragnn_hpo.ensemble.prediction import HeadPrediction
from hydragnn_hpo.ensemble.structure_batches import KeptValues
from hydragnn_hpo.metrics_log import replace_nonfinite

Value = float | list[float] | list[list[float]]
"""A quantity of one structure: a number, [w], [N] or [N, w]."""

Named = str | None | list[str | None]
"""The most probable class of one structure, or of each atom, [N]; None where it is missing."""

Quantities = dict[str, Value | Named | dict[str, Value]]
"""Quantities of one head and structure, in the head's unit: ``mean``, ``std``, ``std_epistemic``,
``lo90``, ``hi90`` and so on; ``class``, the most probable one, of heads that predict classes; and
``members``, their values by trial, if the output has them."""


class StructureRecord(TypedDict, total=False):
    """One structure; ``id`` and ``error`` are always present."""

    id: str
    """Name."""
    error: str | None
    """Reason why the structure could not be predicted; None if it was."""
    kept: KeptValues
    """Values copied from the input, if the output copies any."""
    trust: str
    """``ok``, or the reason not to trust the predictions; missing if there are none."""
    heads: dict[str, Quantities]
    """Predictions by head; missing if it was not predicted."""


class JsonLinesWriter(Writer):
    """Writes ``NAME.jsonl``: first units and provenance, then a ``StructureRecord`` per line."""

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the lines of some structures."""
        return {"": b"".join(line + b"\n" for line in _lines(self.layout, some))}

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the first line, then the lines of all structures."""
        yield _line(self.layout.describe()) + b"\n"
        yield from shares


class JsonWriter(Writer):
    """Writes ``NAME.json``: units, provenance and ``structures``, a ``StructureRecord`` each."""

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the records of some structures separated by commas."""
        return {"": b",\n".join(_lines(self.layout, some))}

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield one object around the records of all structures."""
        yield _line(self.layout.describe())[:-1] + b', "structures": [\n'
        before = b""
        for some in shares:
            if some:
                yield before + some
                before = b",\n"
        yield b"\n]}\n"


def describe_rows(layout: OutputColumns, rows: PredictedRows) -> Iterator[StructureRecord]:
    """Yield the record of each structure, good or bad; numbers may be NaN or infinite."""
    predicted = rows.prediction.heads.items()
    heads = {name: _quantities(layout, name, head, rows) for name, head in predicted}
    for place, row, name, error in rows.each():
        record: StructureRecord = {"id": name, "error": error}
        if layout.keep:
            record["kept"] = rows.structures.kept[place]
        if row is not None:
            record["trust"] = rows.prediction.trust[row]
            record["heads"] = {name: quantities[row] for name, quantities in heads.items()}
        yield record


def _lines(layout: OutputColumns, some: Iterable[PredictedRows]) -> Iterator[bytes]:
    return (_line(record) for rows in some for record in describe_rows(layout, rows))


def _quantities(
    layout: OutputColumns, name: str, head: HeadPrediction, rows: PredictedRows
) -> list[Quantities]:
    """Return the quantities of one head for each structure that was predicted.

    Args:
        layout: the columns.
        name: name of the head.
        head: prediction of the head, R rows.
        rows: the structures.
    """
    node = layout.manifest.heads[name].level == "node"

    def each(array: np.ndarray) -> list[Value]:
        """Return the value of each structure; one component needs no list."""
        flat = array[:, 0] if array.shape[1] == 1 else array
        if not node:
            return list(flat.tolist())
        return [part.tolist() for part in split_nodes(rows.structures.columns, flat)]

    bounds = {**head.bounds, 90: (head.lo90, head.hi90)}
    parts = {"mean": head.mean, "std": head.std, "std_epistemic": head.std_epistemic}
    for level in layout.levels:
        parts[f"lo{level}"], parts[f"hi{level}"] = bounds[level]
    values = {key: each(array) for key, array in parts.items()}
    members = {trial: each(head.members[trial]) for trial in layout.trials(name)}
    named = _name_classes(layout, name, head, rows)
    by_structure: list[Quantities] = []
    for row in range(rows.structures.columns.num_graphs):
        quantities: Quantities = {} if named is None else {"class": named[row]}
        quantities |= {key: of_all[row] for key, of_all in values.items()}
        if layout.members:
            quantities["members"] = {trial: of_all[row] for trial, of_all in members.items()}
        by_structure.append(quantities)
    return by_structure


def _name_classes(
    layout: OutputColumns, name: str, head: HeadPrediction, rows: PredictedRows
) -> list[Named] | None:
    """Name the most probable class of each structure, or of its atoms.

    Args:
        layout: the columns.
        name: name of the head.
        head: prediction of the head, R rows.
        rows: the structures.

    Returns:
        None for a head that predicts no classes.
    """
    named = layout.name_classes(name, head)
    if named is None or layout.manifest.heads[name].level == "graph":
        return None if named is None else [*named]
    ends = rows.structures.columns.node_offset.tolist()
    return [named[a:b] for a, b in pairwise(ends)]


def _line(value: dict[str, dict[str, str]] | StructureRecord) -> bytes:
    return json.dumps(replace_nonfinite(value), allow_nan=False).encode()
