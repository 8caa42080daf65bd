"""Kinds of structures that may have intervals of their own: by size, by chemistry.

Shapes: G graphs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from ase.data import atomic_numbers

from hydragnn_hpo.data import Columns

By = Literal["all", "size", "chemistry"]

_FAMILIES = {
    "oxygen": ("O",),
    "halogen": ("F", "Cl", "Br", "I", "At"),
    "chalcogen": ("S", "Se", "Te", "Po"),
    "pnictogen": ("N", "P", "As", "Sb"),
}
"""Elements that make anions: what a structure holds of them names its chemistry."""


@dataclass(frozen=True)
class Strata:
    """Kinds of structures, told apart before anything is predicted."""

    by: By = "all"
    """Not at all, by the number of atoms, or by the anions among the elements."""
    edges: tuple[int, ...] = ()
    """For ``size``: most atoms of each kind but the last, rising."""

    def names(self, columns: Columns) -> np.ndarray:
        """Return the name of each structure's kind, [G]; of all the same for ``all``."""
        if self.by == "size":
            return self.of_sizes(columns.num_nodes())
        if self.by == "chemistry":
            return _chemistries(columns)
        return np.full(columns.num_graphs, "all")

    def of_sizes(self, atoms: np.ndarray) -> np.ndarray:
        """Return the name of each structure's kind by its number of atoms, [G]."""
        starts = (1, *(edge + 1 for edge in self.edges))
        names = [f"{a} to {b} atoms" for a, b in zip(starts, self.edges, strict=False)]
        names.append(f"{starts[-1]} or more atoms")
        return np.array(names)[np.searchsorted(self.edges, atoms)]


def size_strata(atoms: np.ndarray) -> Strata:
    """Cut by size so that each third of some structures has its own kind.

    Args:
        atoms: numbers of atoms of the structures to calibrate on, [G].
    """
    thirds = np.quantile(atoms, (1 / 3, 2 / 3), method="inverted_cdf").astype(int)
    edges = sorted(set(thirds.tolist()) - {int(atoms.max())})
    return Strata("size", tuple(edges))


def _chemistries(columns: Columns) -> np.ndarray:
    """Return names: ``organic`` (carbon and hydrogen), by their anions, or ``no anion``."""
    table = np.zeros(128, dtype=np.int64)
    for bit, family in enumerate((("C",), ("H",), *_FAMILIES.values())):
        for symbol in family:
            table[atomic_numbers[symbol]] |= 1 << bit
    if not columns.num_graphs:
        return np.zeros(0, dtype="U1")
    found = np.bitwise_or.reduceat(table[columns.numbers], columns.node_offset[:-1])
    kinds, place = np.unique(found, return_inverse=True)
    return np.array([_named(int(kind)) for kind in kinds])[place]


def _named(kind: int) -> str:
    if kind & 3 == 3:
        return "organic"
    names = [name for bit, name in enumerate(_FAMILIES, start=2) if kind & (1 << bit)]
    return "+".join(names) or "no anion"
