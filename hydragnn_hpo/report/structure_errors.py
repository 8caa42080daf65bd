"""Errors by structure, element, size and composition: which predictions are wrong, and where.

Shapes: G structures, N atoms of all of them, R rows of a head with a label, w components.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn_hpo.data import Compositions
from hydragnn_hpo.file_records import DistanceFigures
from hydragnn_hpo.report.charts import Trace
from hydragnn_hpo.uncertainty import compute_distance_figures
from hydragnn_hpo.uncertainty.uncertainty_scores import bins_of_equal_count

Floats = NDArray[np.float64]

BINS = 8
"""Maximum number of ranges of sizes."""


@dataclass(frozen=True, eq=False)
class LabelledHead:
    """Predictions of one head beside their references."""

    unit: str
    is_node: bool
    """Whether a row is an atom; else it is a structure."""
    truth: Floats
    """References in the unit, [R, w]."""
    mean: Floats
    """Predictions in the unit, [R, w]."""
    half: Floats
    """Half the width of the 90 % interval in the unit, [R, 1]."""
    graph: NDArray[np.int64]
    """Structure of each row, [R]."""
    atom: NDArray[np.int64]
    """Atom of each row, counted from 0 within its structure, [R]; 0 where a row is a structure."""
    distance: Floats | None = None
    """Distance of each row to the training set in trunk features, [R]; None if not known."""

    @cached_property
    def error(self) -> Floats:
        """Absolute error of each row in the unit, the mean over its components, [R]."""
        out: Floats = np.abs(self.truth - self.mean).mean(axis=1)
        return out


@dataclass(frozen=True)
class PartError:
    """The error of a part of the rows."""

    label: str
    """An element, a range of sizes, or a group of structures."""
    mae: float
    """Mean absolute error in the unit of the head."""
    structures: int
    """Number of structures in the part."""
    rows: int
    """Number of rows in the part: structures or atoms."""
    share: float
    """Share of the absolute error of all rows, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class StructureErrors:
    """Labelled structures with the predictions of all heads."""

    structures: Compositions
    split: str
    """Split that the structures are of; empty where they come from files."""
    heads: Mapping[str, LabelledHead]
    trust: Sequence[str] = ()
    """``ok`` for each structure, or the reasons not to trust it, [G]; empty where not known."""

    def worst(self, head: str, count: int) -> list[int]:
        """Return the rows of a head with the largest errors, the largest first."""
        error = self.heads[head].error
        order = np.argsort(-error, kind="stable")
        rows: list[int] = order[np.isfinite(error[order])][:count].tolist()
        return rows

    def atom_label(self, graph: int, atom: int) -> str:
        """Return the element and the number of an atom, such as ``C 3``, counted from 0."""
        number = int(self.structures.numbers[self.structures.starts[graph] + atom])
        return f"{chemical_symbols[number]} {atom}"

    def label_rows(self, head: str, rows: np.ndarray) -> Trace:
        """Return what names the points of a chart.

        Args:
            head: name of the head.
            rows: rows of the head, a point each.

        Returns:
            Structures that a click opens, ``text``, and lines under the pointer, ``hovertext``.
        """
        one = self.heads[head]
        known = self.structures
        graphs = one.graph[rows].tolist()
        atoms = one.atom[rows].tolist()
        lines = []
        for graph, atom in zip(graphs, atoms, strict=True):
            at = f", atom {self.atom_label(graph, atom)}" if one.is_node else ""
            lines.append(f"<b>{known.names[graph]}</b> {known.formulas[graph]}{at}")
        return {"text": [known.names[graph] for graph in graphs], "hovertext": lines}

    def by_group(self, head: str) -> list[PartError]:
        """Return the error of each group of structures, the largest share first."""
        groups, first, place = np.unique(
            self.structures.groups, return_index=True, return_inverse=True
        )
        labels = [self.structures.formulas[k] for k in first.tolist()]
        twice = {label for label, count in Counter(labels).items() if count > 1}
        labels = [
            f"{label} (group {group})" if label in twice else label
            for label, group in zip(labels, groups.tolist(), strict=True)
        ]
        return sorted(self._parts(head, labels, place), key=lambda part: -part.share)

    def by_formula(self, head: str) -> list[PartError]:
        """Return the error of each composition, the largest share first."""
        labels, place = np.unique(np.array(self.structures.formulas), return_inverse=True)
        return sorted(self._parts(head, labels.tolist(), place), key=lambda part: -part.share)

    def by_size(self, head: str) -> list[PartError]:
        """Return the error by number of atoms: each number, or ranges with as many structures."""
        sizes = self.structures.sizes
        every = np.unique(sizes)
        if len(every) > BINS:
            ends = np.quantile(sizes, np.arange(1, BINS + 1) / BINS, method="inverted_cdf")
            every = np.unique(ends)
        place = np.searchsorted(every, sizes)
        lows = [int(sizes[place == k].min()) for k in range(len(every))]
        labels = [
            str(low) if low == high else f"{low} to {high}"
            for low, high in zip(lows, every.tolist(), strict=True)
        ]
        return self._parts(head, labels, place)

    def distance_figures(self, head: str) -> DistanceFigures | None:
        """Return the errors of a head against the distance to the training set, if it is known."""
        one = self.heads[head]
        if one.distance is None or not len(one.distance):
            return None
        group = self.structures.groups[one.graph]
        return compute_distance_figures(one.error, one.distance, group)

    def by_distance(self, head: str) -> list[PartError]:
        """Return the error by range of distance to the training set; none if it is not known."""
        one = self.heads[head]
        if one.distance is None:
            return []
        total = float(one.error.sum()) or 1.0
        return [
            PartError(
                f"{one.distance[rows[0]]:.3g} to {one.distance[rows[-1]]:.3g}",
                float(one.error[rows].mean()),
                len(np.unique(one.graph[rows])),
                len(rows),
                float(one.error[rows].sum() / total),
            )
            for rows in bins_of_equal_count(one.distance)
            if len(rows)
        ]

    def _parts(self, head: str, labels: Sequence[str], place: np.ndarray) -> list[PartError]:
        """Return the error of parts of the structures; parts without a label are left out.

        Args:
            head: name of the head.
            labels: labels of the parts.
            place: part of each structure, [G].
        """
        one = self.heads[head]
        part = place[one.graph]
        error = one.error
        rows = np.bincount(part, minlength=len(labels))
        sums = np.bincount(part, weights=error, minlength=len(labels))
        seen = np.bincount(place[np.unique(one.graph)], minlength=len(labels))
        total = float(sums.sum()) or 1.0
        return [
            PartError(
                labels[k],
                float(sums[k] / rows[k]),
                int(seen[k]),
                int(rows[k]),
                float(sums[k] / total),
            )
            for k in np.flatnonzero(rows).tolist()
        ]

    def by_element(self, head: str) -> dict[int, PartError]:
        """Compute the error of each element.

        A row that is an atom counts for its element. A structure counts for all its elements, by
        each one's share of its atoms.

        Returns:
            Errors by atomic number.
        """
        one = self.heads[head]
        known = self.structures
        if one.is_node:
            element = known.numbers[known.starts[one.graph] + one.atom].astype(np.int64)
            graph = one.graph
            weight = np.ones(len(element))
            error = one.error
        else:
            error_of = np.full(len(known.names), np.nan)
            error_of[one.graph] = one.error
            graph = known.graph_of_atom
            element = known.numbers.astype(np.int64)
            labelled = np.isfinite(error_of[graph])
            graph, element = graph[labelled], element[labelled]
            weight = 1.0 / known.sizes[graph]
            error = error_of[graph]
        sums, weights, rows = (
            np.bincount(element, weights=values, minlength=128)
            for values in (weight * error, weight, np.ones(len(element)))
        )
        pairs = np.unique(np.stack([element, graph], axis=1), axis=0)
        structures = np.bincount(pairs[:, 0], minlength=128) if len(pairs) else np.zeros(128, int)
        total = float(sums.sum()) or 1.0
        return {
            number: PartError(
                chemical_symbols[number],
                float(sums[number] / weights[number]),
                int(structures[number]),
                int(rows[number] if one.is_node else structures[number]),
                float(sums[number] / total),
            )
            for number in np.flatnonzero(weights).tolist()
        }
