"""CSV: a row per structure, and in ``NAME.nodes.csv`` a row per atom."""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ase.data import chemical_symbols

from hydragnn_hpo.ensemble.predict_output import (
    OutputColumns,
    OutputFormat,
    PredictedRows,
    Share,
    Writer,
    split_nodes,
)
from hydragnn_hpo.ensemble.prediction import STRUCTURE_INDEX, HeadPrediction
from hydragnn_hpo.files import write_pieces

NODES = ".nodes"
"""Part of the name of the file with values per atom, before its suffix."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet program takes for the beginning of a formula.

Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection, 2026-11-22.
"""


class CsvWriter(Writer):
    """Writes ``NAME.csv`` and, where there are node-level heads, ``NAME.nodes.csv``."""

    def __init__(self, layout: OutputColumns) -> None:
        """Store the columns, and the heads of each of the two files."""
        super().__init__(layout)
        self._graph = layout.names("graph")
        self._node = layout.names("node")

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the lines of some structures."""
        share = {"": _text(line for rows in some for line in self._lines(rows))}
        if self._node:
            sizes = (len(rows.structures.ids) for rows in some)
            starts = itertools.accumulate(sizes, initial=0)
            pairs = zip(some, starts, strict=False)
            share[NODES] = _text(line for rows, start in pairs for line in self._atoms(rows, start))
        return share

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the line with the titles, then the lines of all structures."""
        yield _text([["id", *self._titles(self._graph), "trust", "error", *self.layout.keep]])
        yield from shares

    def join(self, shares: Callable[[], Iterator[Share]], out: Path) -> list[Path]:
        """Write both files, see ``Writer.join``; the main one last, which marks completion."""
        written = []
        if self._node:
            written.append(out.with_suffix(NODES + OutputFormat.CSV))
            titles = ["id", STRUCTURE_INDEX, "atom", "element", *self._titles(self._node)]
            lines = _count_structures(shares())
            write_pieces(written[0], itertools.chain([_text([titles])], lines))
        return [*super().join(shares, out), *written]

    def _titles(self, heads: list[str]) -> list[str]:
        """Return the titles of the columns of some heads; the class has that of its head."""
        return [title for name in heads for title in self.layout.all_titles(name)]

    def _cells(self, name: str, head: HeadPrediction) -> list[list[str]]:
        """Return the cells of each row of a head, in the order of its titles."""
        rows = [[_number(v) for v in row] for row in self.layout.values(name, head).tolist()]
        named = self.layout.name_classes(name, head)
        if named is None:
            return rows
        return [[_inert(own or ""), *row] for own, row in zip(named, rows, strict=True)]

    def _lines(self, rows: PredictedRows) -> Iterator[list[str]]:
        """Yield the cells of each structure, good or bad."""
        layout, prediction = self.layout, rows.prediction
        columns = [self._cells(name, prediction.heads[name]) for name in self._graph]
        empty = [""] * len(self._titles(self._graph))
        for place, row, name, error in rows.each():
            kept = rows.structures.kept[place] if layout.keep else {}
            tail = [_cell(kept.get(key, "")) for key in layout.keep]
            if row is None:
                yield [_inert(name), *empty, "", _inert(str(error)), *tail]
            else:
                cells = [cell for of_head in columns for cell in of_head[row]]
                yield [_inert(name), *cells, prediction.trust[row], "", *tail]

    def _atoms(self, rows: PredictedRows, before: int) -> Iterator[list[str]]:
        """Yield the cells of each atom of the good structures.

        Args:
            rows: structures and their predictions.
            before: number of structures before them in the chunk.
        """
        columns = rows.structures.columns
        heads = [self._cells(name, rows.prediction.heads[name]) for name in self._node]
        numbers = split_nodes(columns, columns.numbers)
        for row, place in enumerate(rows.good()):
            name = _inert(rows.structures.ids[place])
            first = int(columns.node_offset[row])
            for atom, z in enumerate(numbers[row].tolist()):
                cells = [cell for of_head in heads for cell in of_head[first + atom]]
                yield [name, str(before + place), str(atom), chemical_symbols[z], *cells]


def _count_structures(shares: Iterable[Share]) -> Iterator[bytes]:
    """Yield the lines of atoms with the number of their structure in the whole output."""
    before = 0
    for share in shares:
        lines = csv.reader(io.StringIO(share[NODES].decode(), newline=""))
        yield _text([line[0], str(before + int(line[1])), *line[2:]] for line in lines)
        before += sum(1 for _ in csv.reader(io.StringIO(share[""].decode(), newline="")))


def _number(value: float) -> str:
    """Return ten digits of a number, or nothing for one that is missing."""
    return "" if math.isnan(value) else f"{value:.10g}"


def _cell(value: str | int | float) -> str:
    return _inert(value) if isinstance(value, str) else str(value)


def _inert(text: str) -> str:
    """Return a text, with a quote before it if a spreadsheet would take it for a formula."""
    return "'" + text if text.startswith(_FORMULA) else text


def _text(lines: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
