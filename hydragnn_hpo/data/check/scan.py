"""What looking at a data set keeps in memory: no positions and no edges.

Shapes: G graphs, N nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Names, offsets
from hydragnn_hpo.data.store.arrays import Arrays, joined
from hydragnn_hpo.data.store.index import Index
from hydragnn_hpo.data.store.parts import WindowReader

_LIGHT = ("numbers", "num_nodes", "num_edges", "split", "group", "id_size", "id_text")


@dataclass(frozen=True, eq=False)
class Scan:
    """The light columns of a store, and one number per value of every target."""

    stats: dict[str, Any]
    """The content of ``stats.json``."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""

    num_nodes: NDArray[np.int32]
    """Nodes of each graph, [G]."""

    num_edges: NDArray[np.int32]
    """Edges of each graph, [G]."""

    split: NDArray[np.int8]
    """Index into ``SPLITS``, [G]."""

    group: NDArray[np.int32]
    """Group of each structure, [G]."""

    ids: Names
    """Names of the structures."""

    attributes: dict[str, NDArray[np.float64]]
    """Known properties of whole structures, [G]."""

    scores: dict[str, NDArray[np.float64]]
    """A scalar target's value, the norm of a vector or tensor, [G] or [N]; NaN where missing."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return len(self.num_nodes)

    @cached_property
    def node_offset(self) -> NDArray[np.int64]:
        """First node of each graph, and the end, [G + 1]."""
        return offsets(self.num_nodes.astype(np.int64))

    @property
    def graph_of_node(self) -> NDArray[np.int64]:
        """Row of each node's graph, [N]."""
        return np.repeat(np.arange(self.num_graphs), self.num_nodes)


def windows_of(index: Index, names: tuple[str, ...] | None = None) -> Iterator[Arrays]:
    """Give the windows of a store one by one, each compared with its checksums.

    Args:
        index: of the store.
        names: only these columns; all if left out.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    with WindowReader(index) as reader:
        for window in range(len(index.windows)):
            yield reader.read(window, window + 1, names)


def scan_store(index: Index, stats: dict[str, Any]) -> Scan:
    """Read the light columns of a store, window by window.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    there = [column.name for column in index.columns]
    wanted = ("target.", "attribute.")
    names = (*_LIGHT, *(name for name in there if name.startswith(wanted)))
    found = joined([_light(arrays) for arrays in windows_of(index, names)])
    named = {name.partition(".")[::2]: array for name, array in found.items()}
    return Scan(
        stats=stats,
        numbers=found["numbers"],
        num_nodes=found["num_nodes"],
        num_edges=found["num_edges"],
        split=found["split"],
        group=found["group"],
        ids=Names(found["id_text"], offsets(found["id_size"])),
        attributes={name: v for (kind, name), v in named.items() if kind == "attribute"},
        scores={name: v for (kind, name), v in named.items() if kind == "target"},
    )


def _light(arrays: Arrays) -> Arrays:
    """Put one number in place of every value of a target."""
    return {
        name: score_of(array) if name.startswith("target.") else array
        for name, array in arrays.items()
    }


def score_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give one number per row: the value of a scalar, the norm of a vector or tensor."""
    if values.shape[1] == 1:
        return values[:, 0]
    return np.asarray(np.linalg.norm(values, axis=1), dtype=np.float64)
