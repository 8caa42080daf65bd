"""CSV: a row per structure, and in ``NAME.nodes.csv`` a row per atom."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ase.data import chemical_symbols

from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows, split_nodes
from hydragnn_hpo.files import write_pieces

NODES = ".nodes"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a table program takes for the beginning of a formula.

Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection, 2026-11-22.
"""


class CsvWriter:
    """Writes ``NAME.csv`` and, where there are node-level heads, ``NAME.nodes.csv``."""

    def __init__(self, layout: OutputColumns) -> None:
        """Keep the columns."""
        self._layout = layout
        self._graph, self._node = layout.names("graph"), layout.names("node")

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the lines of some structures."""
        shares = {"": _text(line for rows in some for line in self._lines(rows))}
        if self._node:
            shares[NODES] = _text(line for rows in some for line in self._atoms(rows))
        return shares

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write the files, the one with the structures last."""
        written = []
        if self._node:
            nodes = out.with_suffix(f"{NODES}.csv")
            write_pieces(nodes, self._with_head((share[NODES] for share in shares()), NODES))
            written.append(nodes)
        write_pieces(out, self._with_head((share[""] for share in shares()), ""))
        return [out, *written]

    def head(self, share: str = "") -> bytes:
        """Return the line with the titles."""
        names = self._node if share == NODES else self._graph
        titles = [title for name in names for title in self._layout.titles(name)]
        if share == NODES:
            return _text([["id", "atom", "element", *titles]])
        return _text([["id", *titles, "trust", "error", *self._layout.keep]])

    def _with_head(self, lines: Iterable[bytes], share: str) -> Iterator[bytes]:
        yield self.head(share)
        yield from lines

    def _lines(self, rows: PredictedRows) -> Iterator[list[str]]:
        layout, prediction = self._layout, rows.prediction
        columns = [layout.values(name, prediction.heads[name]) for name in self._graph]
        empty = [""] * sum(len(layout.titles(name)) for name in self._graph)
        row = 0
        for place, name in enumerate(rows.structures.ids):
            kept = rows.structures.kept[place] if layout.keep else {}
            tail = [_cell(kept.get(key, "")) for key in layout.keep]
            error = rows.structures.errors.get(place)
            if error is not None:
                yield [_inert(name), *empty, "", _inert(error), *tail]
                continue
            cells = [f"{value:.10g}" for array in columns for value in array[row].tolist()]
            yield [_inert(name), *cells, prediction.trust[row], "", *tail]
            row += 1

    def _atoms(self, rows: PredictedRows) -> Iterator[list[str]]:
        layout, columns = self._layout, rows.structures.columns
        heads = [
            split_nodes(columns, layout.values(name, rows.prediction.heads[name]))
            for name in self._node
        ]
        numbers = split_nodes(columns, columns.numbers)
        for row, place in enumerate(rows.good()):
            name = _inert(rows.structures.ids[place])
            for atom, z in enumerate(numbers[row].tolist()):
                cells = [f"{v:.10g}" for head in heads for v in head[row][atom].tolist()]
                yield [name, str(atom), chemical_symbols[z], *cells]


def _cell(value: Any) -> str:
    return _inert(value) if isinstance(value, str) else str(value)


def _inert(text: str) -> str:
    """Return a text that no table program takes for a formula."""
    return "'" + text if text.startswith(_FORMULA) else text


def _text(lines: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
