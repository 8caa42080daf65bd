"""JSON: one object, or a line per structure; no NaN in either."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble.inference import HeadPrediction
from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows, Writer, split_nodes
from hydragnn_hpo.metrics_log import replace_nonfinite


class JsonLinesWriter(Writer):
    """Writes ``NAME.jsonl``: first what the numbers mean, then a line per structure."""

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the lines of some structures."""
        return {"": b"".join(line + b"\n" for line in _lines(self.layout, some))}

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the first line, and the others."""
        yield _line(_describe(self.layout)) + b"\n"
        yield from shares


class JsonWriter(Writer):
    """Writes ``NAME.json``: units, provenance, and a list of structures."""

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the entries of some structures, between commas."""
        return {"": b",\n".join(_lines(self.layout, some))}

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the object around the entries."""
        yield _line(_describe(self.layout))[:-1] + b', "structures": [\n'
        before = b""
        for some in shares:
            if some:
                yield before + some
                before = b",\n"
        yield b"\n]}\n"


def _describe(layout: OutputColumns) -> dict[str, Any]:
    """Return what the numbers mean and where they come from."""
    return {"units": layout.manifest.units(), "provenance": layout.provenance()}


def describe_rows(layout: OutputColumns, rows: PredictedRows) -> Iterator[dict[str, Any]]:
    """Yield what is predicted for each structure as plain data, or why nothing is."""
    predicted = rows.prediction.heads.items()
    heads = {name: _quantities(layout, name, head, rows) for name, head in predicted}
    for place, row, name, error in rows.each():
        entry: dict[str, Any] = {"id": name, "error": error}
        if layout.keep:
            entry["kept"] = rows.structures.kept[place]
        if row is not None:
            entry["trust"] = rows.prediction.trust[row]
            entry["heads"] = {name: _of_row(parts, row) for name, parts in heads.items()}
        yield entry


def _lines(layout: OutputColumns, some: Iterable[PredictedRows]) -> Iterator[bytes]:
    return (_line(entry) for rows in some for entry in describe_rows(layout, rows))


def _quantities(
    layout: OutputColumns, name: str, head: HeadPrediction, rows: PredictedRows
) -> dict[str, Any]:
    """Return by the name of a quantity a value, or a list, for each structure."""
    node = layout.manifest.heads[name].level == "node"

    def each(array: np.ndarray) -> list[Any]:
        flat = array[:, 0] if array.shape[1] == 1 else array
        if not node:
            return list(flat.tolist())
        return [part.tolist() for part in split_nodes(rows.structures.columns, flat)]

    bounds = {**head.bounds, 90: (head.lo90, head.hi90)}
    parts = {"mean": head.mean, "std": head.std, "std_epistemic": head.std_epistemic}
    for level in layout.levels:
        parts[f"lo{level}"], parts[f"hi{level}"] = bounds[level]
    found: dict[str, Any] = {key: each(array) for key, array in parts.items()}
    if layout.members:
        found["members"] = {trial: each(head.members[trial]) for trial in layout.trials(name)}
    return found


def _of_row(parts: dict[str, Any], row: int) -> dict[str, Any]:
    """Return the quantities of one structure; those of members one level deeper."""
    return {
        key: _of_row(values, row) if isinstance(values, dict) else values[row]
        for key, values in parts.items()
    }


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(replace_nonfinite(value), allow_nan=False).encode()
