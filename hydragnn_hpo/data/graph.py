"""One structure as a graph.

Shapes: N nodes, E edges. An edge points from its sender (column 0) to its receiver
(column 1); every directed pair stands once per direction, so ``i -> j`` and ``j -> i`` are
two edges. The vector from sender to receiver is
``positions[receiver] + edge_shift @ cell - positions[sender]``.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Graph:
    """A structure with its edges and its properties, in our own units."""

    id: str
    """Name of the structure."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""

    positions: NDArray[np.float64]
    """Positions in angstrom, [N, 3]."""

    cell: NDArray[np.float64]
    """Lattice vectors as rows in angstrom, [3, 3]; zeros where there are none."""

    pbc: NDArray[np.bool_]
    """Periodic directions, [3]."""

    edges: NDArray[np.int32]
    """Sender and receiver, [E, 2]."""

    edge_shift: NDArray[np.int16]
    """Lattice vectors between the images of receiver and sender, [E, 3]."""

    targets: dict[str, NDArray[np.float64]]
    """Properties by name, [width] or [N, width]; absent where missing."""

    group: str
    """Structures of one group stay in one split."""

    published: str | None
    """The published split this structure belongs to, if there is one."""

    attributes: dict[str, float] = field(default_factory=dict)
    """Known properties of the whole structure by name, in our own units."""

    laplacian: NDArray[np.float32] | None = None
    """Laplacian positional encodings, [N, k], where they are wanted."""
