"""What structures consist of: names, elements and groups, without positions and edges.

Shapes: G structures, N atoms of all of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from ase.data import chemical_symbols
from ase.formula import Formula
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns


@dataclass(frozen=True, eq=False)
class Compositions:
    """Names, atoms and groups of structures."""

    names: tuple[str, ...]
    """Name of each structure, [G]."""
    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""
    sizes: NDArray[np.int64]
    """Number of atoms of each structure, [G]."""
    groups: NDArray[np.int64]
    """Number of each structure's group, [G]; structures of one group are not independent."""

    @classmethod
    def of(cls, columns: Columns) -> "Compositions":
        """Return the compositions of some graphs."""
        names = tuple(columns.ids)
        return cls(names, columns.numbers, columns.num_nodes(), columns.group.astype(np.int64))

    @classmethod
    def join(cls, pieces: Sequence["Compositions"]) -> "Compositions":
        """Join compositions, piece after piece."""
        return cls(
            tuple(name for piece in pieces for name in piece.names),
            np.concatenate([np.zeros(0, np.int16), *(piece.numbers for piece in pieces)]),
            np.concatenate([np.zeros(0, np.int64), *(piece.sizes for piece in pieces)]),
            np.concatenate([np.zeros(0, np.int64), *(piece.groups for piece in pieces)]),
        )

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First atom of each structure, [G]."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def graph_of_atom(self) -> NDArray[np.int64]:
        """Structure of each atom, [N]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def formulas(self) -> tuple[str, ...]:
        """Formulas in Hill's order.

        Returns:
            One for each structure, [G].
        """
        ends = np.cumsum(self.sizes)
        each = [self.numbers[a:b].tolist() for a, b in zip(self.starts, ends, strict=True)]
        return tuple(map(format_formula, each))


def format_formula(numbers: Sequence[int]) -> str:
    """Return the formula of some atoms in Hill's order, such as ``CH4O``.

    >>> format_formula([8, 6, 1, 1, 1, 1])
    'CH4O'
    """
    counts = Counter(chemical_symbols[number] for number in numbers)
    return str(Formula.from_dict(dict(counts)).format("hill"))
