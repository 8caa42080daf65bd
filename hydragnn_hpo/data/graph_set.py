"""What the trainer needs of graphs, wherever they lie.

In memory or mapped (``Columns``), in windows of a store on disk, spread over hosts, or several
data sets as one: the order of graphs, the shares of ranks and the batches come out the same.

Shapes: G graphs.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns


class GraphSet(Protocol):
    """Graphs by row, with what decides when and where each is used held in memory."""

    @property
    def stats(self) -> dict[str, Any]:
        """The content of ``stats.json``."""

    @property
    def levels(self) -> dict[str, str]:
        """Whether a property belongs to the ``graph`` or to each ``node``."""

    @property
    def split(self) -> NDArray[np.int8]:
        """Index into ``config.SPLITS``, [G]; -1 outside of all splits."""

    @property
    def group(self) -> NDArray[np.int32]:
        """Number of each structure's group, [G]."""

    @property
    def windows(self) -> NDArray[np.int64] | None:
        """First graph of each window, and the end: what is read from disk as one."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the rows of a target that each graph has: 0 or 1, or nodes, [G]."""

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory, in the order of ``rows``."""
