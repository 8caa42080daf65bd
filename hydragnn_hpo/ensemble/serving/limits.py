"""How much one request may ask for, and how many may wait.

Shapes: N nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Limits:
    """What a service takes on; beyond, it refuses before the work is done."""

    body_bytes: int = 8_000_000
    """Largest body of a request."""
    structures: int = 1_000
    """Most structures in a request."""
    atoms: int = 2_000
    """Most atoms in a structure."""
    edges: int = 500_000
    """Most edges in the graph of a structure."""
    seconds: float = 60.0
    """Time for a request, its body included."""
    waiting: int = 32
    """Most requests at a time, the one that is worked on included."""

    @property
    def pairs(self) -> int:
        """Give the most pairs of atoms and images that a search for edges may have to try."""
        return 40 * self.edges


class Refused(Exception):
    """A request is not answered; the client gets the status and the sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        """Take the HTTP status and what the client is told."""
        super().__init__(sentence)
        self.status = status


def possible_pairs(atoms: int, cell: np.ndarray, pbc: Sequence[bool], cutoff: float) -> float:
    """Bound the edges of a structure without looking for them.

    Along a periodic direction whose lattice planes are h apart, an atom has at most
    2 cutoff / h + 1 images of another one within the cutoff.

    Args:
        atoms: N.
        cell: lattice vectors as rows in angstrom, [3, 3].
        pbc: periodic directions.
        cutoff: longest edge in angstrom.

    Returns:
        N^2 times the images; infinite where the lattice spans nothing.
    """
    periodic = cell[np.asarray(pbc, dtype=bool)]
    if not len(periodic):
        return float(atoms) ** 2
    if not np.isfinite(periodic).all() or np.linalg.matrix_rank(periodic) < len(periodic):
        return float("inf")
    heights = 1.0 / np.linalg.norm(np.linalg.pinv(periodic), axis=0)
    return float(atoms) ** 2 * float(np.prod(2.0 * cutoff / heights + 1.0))
