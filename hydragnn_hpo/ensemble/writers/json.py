"""JSON: one object, or a line per structure; no NaN in either."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble.inference import HeadPrediction
from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows, split_nodes
from hydragnn_hpo.files import write_pieces
from hydragnn_hpo.metrics_log import replace_nonfinite


class JsonLinesWriter:
    """Writes ``NAME.jsonl``: first what the numbers mean, then a line per structure."""

    def __init__(self, layout: OutputColumns) -> None:
        """Keep the columns."""
        self._layout = layout

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the lines of some structures."""
        found = (_line(entry) for rows in some for entry in entries(self._layout, rows))
        return {"": b"".join(line + b"\n" for line in found)}

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write the file."""
        write_pieces(out, (piece for piece in self._all(share[""] for share in shares())))
        return [out]

    def head(self, share: str = "") -> bytes:
        """Return the first line."""
        return _line(about(self._layout)) + b"\n"

    def _all(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        yield self.head()
        yield from lines


class JsonWriter:
    """Writes ``NAME.json``: units, provenance, and a list of structures."""

    def __init__(self, layout: OutputColumns) -> None:
        """Keep the columns."""
        self._layout = layout

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the entries of some structures, between commas."""
        found = (_line(entry) for rows in some for entry in entries(self._layout, rows))
        return {"": b",\n".join(found)}

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write the file."""
        write_pieces(out, self.whole(share[""] for share in shares()))
        return [out]

    def whole(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the object around some entries."""
        yield _line(about(self._layout))[:-1] + b', "structures": [\n'
        before = b""
        for some in entries:
            if some:
                yield before + some
                before = b",\n"
        yield b"\n]}\n"


def about(layout: OutputColumns) -> dict[str, Any]:
    """Return what the numbers mean and where they come from."""
    return {"units": layout.manifest.units(), "provenance": layout.provenance()}


def entries(layout: OutputColumns, rows: PredictedRows) -> Iterator[dict[str, Any]]:
    """Yield one entry per structure as plain data."""
    structures, prediction = rows.structures, rows.prediction
    heads = {name: _parts(layout, name, head, rows) for name, head in prediction.heads.items()}
    row = 0
    for place, name in enumerate(structures.ids):
        entry: dict[str, Any] = {"id": name, "error": structures.errors.get(place)}
        if layout.keep:
            entry["kept"] = structures.kept[place]
        if place not in structures.errors:
            entry["trust"] = prediction.trust[row]
            entry["heads"] = {
                name: {key: values[row] for key, values in parts.items() if key != "members"}
                | ({"members": {t: v[row] for t, v in parts["members"].items()}}
                   if layout.members else {})
                for name, parts in heads.items()
            }  # fmt: skip
            row += 1
        yield entry


def _parts(
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
    found["members"] = {trial: each(head.members[trial]) for trial in layout.trials(name)}
    return found


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(replace_nonfinite(value), allow_nan=False).encode()
