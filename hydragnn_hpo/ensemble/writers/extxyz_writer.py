"""Extended XYZ: the structures themselves, with predictions in ``info`` and ``arrays``.

A head whose name has a meaning for ASE (``energy`` would become the total energy) is written as
``predicted_energy``. The most probable class of a head ``phase`` is ``phase_class``; in names of
classes of atoms spaces become ``_``, and a missing one is ``-``. A structure that could not be
predicted is left out.

Shapes: N nodes of one structure.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from ase.calculators.calculator import all_properties
from ase.data import chemical_symbols
from ase.io.extxyz import key_val_dict_to_str

from hydragnn_hpo.ensemble.predict_output import (
    OutputColumns,
    PredictedRows,
    Share,
    Writer,
    split_nodes,
)
from hydragnn_hpo.ensemble.prediction import name_components
from hydragnn_hpo.ensemble.structure_batches import KeptValues

RESERVED = {*all_properties, "charge", "magmom", "id", "trust", "units", "pos", "positions"}
RESERVED |= {"species", "numbers", "Z", "tags", "momenta", "momentum", "masses", "mass"}
RESERVED |= {"Lattice", "Properties", "pbc"}
"""Names that ASE interprets when it reads extxyz."""

Block = tuple[str, np.ndarray]
"""Name of a quantity, and its values, [R, w]."""


class ExtxyzWriter(Writer):
    """Writes ``NAME.extxyz``."""

    def __init__(self, layout: OutputColumns) -> None:
        """Store the columns, and render their units, which are the same in every frame."""
        super().__init__(layout)
        units = layout.manifest.units().items()
        info = {"units": " ".join(f"{name}={unit}" for name, unit in units)}
        self._units = key_val_dict_to_str(info)  # type: ignore[no-untyped-call]

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the frames of some structures."""
        return {"": "".join(frame for rows in some for frame in self._frames(rows)).encode()}

    def _frames(self, rows: PredictedRows) -> Iterator[str]:
        structures, prediction = rows.structures, rows.prediction
        columns = structures.columns
        graph = [block for name in self.layout.names("graph") for block in self._of(name, rows)]
        node = [block for name in self.layout.names("node") for block in self._of(name, rows)]
        split = [split_nodes(columns, values) for _, values in node]
        classes = self._classes("graph", rows)
        atom_classes = self._classes("node", rows)
        properties = "".join(f":{name}:R:{values.shape[1]}" for name, values in node)
        properties += "".join(f":{name}:S:1" for name in atom_classes)
        words = [
            split_nodes(columns, np.array(each)) for each in map(_words, atom_classes.values())
        ]
        numbers = split_nodes(columns, columns.numbers)
        positions = split_nodes(columns, columns.positions)
        for row, place in enumerate(rows.good()):
            info: KeptValues = {"id": structures.ids[place], "trust": prediction.trust[row]}
            kept = structures.kept[place] if self.layout.keep else {}
            info |= {name: one for name, of in classes.items() if (one := of[row])}
            info |= {f"kept_{k}" if k in RESERVED else k: value for k, value in kept.items()}
            texts = key_val_dict_to_str(info)  # type: ignore[no-untyped-call]
            values_text = " ".join(_pair(name, values[row].tolist()) for name, values in graph)
            yield _frame(
                f"{texts} {self._units} {values_text}",
                f"species:S:1:pos:R:3{properties}",
                (columns.cell[row], columns.pbc[row]),
                numbers[row],
                np.hstack([positions[row], *[values[row] for values in split]]),
                [values[row] for values in words],
            )

    def _classes(self, level: str, rows: PredictedRows) -> dict[str, list[str | None]]:
        """Return the names of the most probable classes of the rows, by the name in the file."""
        heads = rows.prediction.heads
        named = {n: self.layout.name_classes(n, heads[n]) for n in self.layout.names(level)}
        return {f"{name}_class": each for name, each in named.items() if each is not None}

    def _of(self, name: str, rows: PredictedRows) -> list[Block]:
        """Return the quantities of a head (mean, std, ends of intervals, ...), one block each."""
        layout = self.layout
        head = rows.prediction.heads[name]
        values = layout.values(name, head)
        axes = name_components(layout.manifest.heads[name])
        titles = layout.titles(name)
        blocks = []
        first = 0
        while first < len(titles):
            title = titles[first].removesuffix(axes[0])
            single = titles[first] in (f"{name}_std", f"{name}_std_epistemic")
            width = 1 if single else len(axes)
            shown = f"predicted_{title}" if title in RESERVED else title
            blocks.append((shown, values[:, first : first + width]))
            first += width
        return blocks


def _words(names: Sequence[str | None]) -> list[str]:
    """Return names of classes as words of a line, which spaces part."""
    return ["_".join((name or "").split()) or "-" for name in names]


def _pair(name: str, values: list[float]) -> str:
    if len(values) == 1:
        return f"{name}={values[0]!r}"
    return f'{name}="{" ".join(map(repr, values))}"'


def _frame(
    comment: str,
    properties: str,
    box: tuple[np.ndarray, np.ndarray],
    numbers: np.ndarray,
    values: np.ndarray,
    words: Sequence[np.ndarray],
) -> str:
    """Render one frame.

    Args:
        comment: keys and values of the second line besides ``Lattice``, ``Properties``, ``pbc``.
        properties: names and types of the columns, as extended XYZ writes them.
        box: lattice vectors as rows in angstrom, [3, 3], and the periodic directions, [3].
        numbers: atomic numbers, [N].
        values: positions in angstrom, then the columns of node-level heads, [N, columns].
        words: columns of text after these, [N] each.
    """
    cell, pbc = box
    head = ""
    if cell.any():
        head = 'Lattice="' + " ".join(f"{x:.10g}" for x in cell.ravel().tolist()) + '" '
    periodic = " ".join("FT"[flag] for flag in pbc.astype(int).tolist())
    lines = [str(len(numbers)), f'{head}Properties={properties} {comment} pbc="{periodic}"']
    form = "%-2s" + " %.10g" * values.shape[1]
    symbols = [chemical_symbols[z] for z in numbers.tolist()]
    rows = [form % (s, *row) for s, row in zip(symbols, values.tolist(), strict=True)]
    lines += [" ".join(cells) for cells in zip(rows, *words, strict=True)]
    return "\n".join(lines) + "\n"
