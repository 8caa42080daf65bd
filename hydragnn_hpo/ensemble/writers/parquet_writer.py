"""Parquet: a row per structure, with predictions for its atoms as lists.

The metadata of a column holds its unit, and that of the schema the provenance.

Shapes: G graphs, N nodes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hydragnn_hpo.data import offsets
from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows, Share, Writer
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.optional_packages import explain_missing

if TYPE_CHECKING:
    import pyarrow

    Column: TypeAlias = list[str] | list[str | None] | pyarrow.Array

ROW_GROUP = 1 << 16
"""Minimum number of rows written together, which a reader can skip as a unit."""


class ParquetWriter(Writer):
    """Writes ``NAME.parquet``."""

    def __init__(self, layout: OutputColumns) -> None:
        """Make the schema.

        Raises:
            MissingPackage: pyarrow is not installed.
        """
        super().__init__(layout)
        with explain_missing():
            import pyarrow
            import pyarrow.parquet
        self._arrow: Any = pyarrow
        self._parquet: Any = pyarrow.parquet
        self._schema = self._make_schema()

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the table of some structures as an Arrow file."""
        arrow = self._arrow
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_file(sink, self._schema) as writer:
            for rows in some:
                writer.write_table(arrow.table(self._columns(rows), schema=self._schema))
        return {"": sink.getvalue().to_pybytes()}

    def join(self, shares: Callable[[], Iterator[Share]], out: Path) -> list[Path]:
        """Write the file under a temporary name, and rename it when it is complete."""
        with whole_file(out) as file, self._parquet.ParquetWriter(file, self._schema) as writer:
            for table in self._groups(shares()):
                writer.write_table(table, row_group_size=ROW_GROUP)
        return [out]

    def _groups(self, shares: Iterator[Share]) -> Iterator["pyarrow.Table"]:
        """Yield tables of at least ``ROW_GROUP`` rows, except the last one."""
        held: list[pyarrow.Table] = []
        for share in shares:
            with self._arrow.ipc.open_file(self._arrow.BufferReader(share[""])) as reader:
                held.append(reader.read_all())
            if sum(table.num_rows for table in held) >= ROW_GROUP:
                yield self._arrow.concat_tables(held)
                held = []
        if held:
            yield self._arrow.concat_tables(held)

    def _make_schema(self) -> "pyarrow.Schema":
        arrow, layout = self._arrow, self.layout
        fields = [arrow.field("id", arrow.string(), nullable=False)]
        for level in ("graph", "node"):
            fields += [field for name in layout.names(level) for field in self._fields(name)]
        if layout.names("node"):
            fields.append(arrow.field("numbers", arrow.list_(arrow.int16())))
        fields += [arrow.field(key, arrow.string()) for key in ("trust", "error", *layout.keep)]
        record = layout.describe()
        about = {"provenance": record["provenance"], "units": record["units"]}
        return arrow.schema(fields, {"hydragnn_hpo": json.dumps(about)})

    def _fields(self, name: str) -> Iterator["pyarrow.Field"]:
        """Yield the columns of a head: the name of a class, then the numbers."""
        arrow = self._arrow
        entry = self.layout.manifest.heads[name]
        text = arrow.string()
        number = arrow.float64()
        if entry.level == "node":
            text, number = arrow.list_(text), arrow.list_(number)
        if entry.classes is not None:
            yield arrow.field(name, text)
        for title in self.layout.titles(name):
            yield arrow.field(title, number, True, {"unit": entry.shown_unit})

    def _columns(self, rows: PredictedRows) -> dict[str, "Column"]:
        """Return the columns of some structures by name; null where nothing is predicted."""
        arrow, layout, structures = self._arrow, self.layout, rows.structures
        total = len(structures.ids)
        bad = np.isin(np.arange(total), list(structures.errors))
        where = np.cumsum(~bad) - 1  # row of the prediction; arbitrary where masked as bad
        table: dict[str, Column] = {"id": list(structures.ids)}
        for name in layout.names("graph"):
            head = rows.prediction.heads[name]
            if (named := layout.name_classes(name, head)) is not None:
                good = iter(named)
                table[name] = [None if wrong else next(good) for wrong in bad]
            values = layout.values(name, head)
            for title, column in zip(layout.titles(name), values.T, strict=True):
                spread = column[where] if len(column) else np.zeros(total)
                table[title] = arrow.array(spread, mask=bad | np.isnan(spread))
        counts = np.zeros(total, dtype=np.int64)
        counts[~bad] = rows.num_nodes
        starts = arrow.array(offsets(counts).astype(np.int32))
        for title, flat in self._of_atoms(rows):
            table[title] = arrow.ListArray.from_arrays(starts, flat, mask=arrow.array(bad))
        trust = iter(rows.prediction.trust)
        table["trust"] = [None if wrong else next(trust) for wrong in bad]
        table["error"] = [structures.errors.get(place) for place in range(total)]
        for key in layout.keep:
            table[key] = [str(kept[key]) if key in kept else None for kept in structures.kept]
        return table

    def _of_atoms(self, rows: PredictedRows) -> Iterator[tuple[str, "pyarrow.Array"]]:
        """Yield titles and values of all atoms of the good structures; null for what is missing."""
        arrow, layout = self._arrow, self.layout
        if layout.names("node"):
            yield "numbers", arrow.array(rows.structures.columns.numbers)
        for name in layout.names("node"):
            head = rows.prediction.heads[name]
            if (named := layout.name_classes(name, head)) is not None:
                yield name, arrow.array(named, arrow.string())
            columns = np.ascontiguousarray(layout.values(name, head).T)
            for title, column in zip(layout.titles(name), columns, strict=True):
                yield title, arrow.array(column, from_pandas=True)  # NaN: null
