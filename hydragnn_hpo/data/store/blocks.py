"""Which host of several holds which windows of a store, and where in its memory.

Pure arithmetic: every rank knows where each row of each host lies without asking.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.store.arrays import COUNTS, LIGHT, OFFSETS, PERS, Arrays, Per
from hydragnn_hpo.data.store.index import Index

_LINE = 64
"""Bytes that arrays are aligned to."""

Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of an array."""


@dataclass(frozen=True)
class Block:
    """Arrays end to end in one piece of memory."""

    kinds: dict[str, Kind]

    @cached_property
    def places(self) -> dict[str, int]:
        """First byte of each array."""
        places, end = {}, 0
        for name, kind in self.kinds.items():
            places[name], end = end, end + _aligned(kind)
        return places

    @property
    def nbytes(self) -> int:
        """Bytes of the block, a multiple of the alignment."""
        return sum(_aligned(kind) for kind in self.kinds.values())

    def arrays(self, memory: NDArray[np.uint8]) -> Arrays:
        """Give the arrays as views into the memory of a block, [nbytes]."""
        return {
            name: np.ndarray(shape, dtype, memory.data, self.places[name])
            for name, (dtype, shape) in self.kinds.items()
        }


def _aligned(kind: Kind) -> int:
    dtype, shape = kind
    return -(-dtype.itemsize * math.prod(shape) // _LINE) * _LINE


@dataclass(frozen=True)
class Share:
    """A run of windows that one host holds."""

    first: int
    """First window."""
    last: int
    """One after the last window."""
    start: tuple[int, ...]
    """Graphs, nodes, edges and characters before it, in the order of ``PERS``."""
    block: Block
    """Where its arrays lie."""


def shares_of(index: Index, hosts: int) -> list[Share]:
    """Cut a store into one share per host, about equal in bytes; some may be empty."""
    sizes = index.windows[:, : len(PERS)] @ index.row_bytes
    middle = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middle, np.arange(hosts + 1) * (sizes.sum() / hosts)).tolist()
    cuts[0], cuts[-1] = 0, len(sizes)
    return [_share(index, first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def _share(index: Index, first: int, last: int) -> Share:
    start, end = index.starts[first], index.starts[last]
    rows = dict(zip(PERS, (end - start).tolist(), strict=True))
    kinds = heavy_kinds(index, rows)
    return Share(first, last, tuple(start.tolist()), Block(kinds))


def heavy_pers(index: Index) -> dict[str, Per]:
    """Give what a row stands for in the arrays that only one host holds."""
    whole = {*LIGHT, *COUNTS.values()}
    pers = {column.name: column.per for column in index.columns if column.name not in whole}
    return pers | {"edge_translation": "edge"}


def heavy_kinds(index: Index, rows: Mapping[Per, int]) -> dict[str, Kind]:
    """Give the arrays that only one host holds, with as many rows as told."""
    kinds: dict[str, Kind] = {c.name: (c.dtype, c.shape) for c in index.columns}
    kinds["edge_translation"] = (np.dtype(np.float32), (3,))
    return {
        name: (kinds[name][0], (rows[per], *kinds[name][1]))
        for name, per in heavy_pers(index).items()
    }


def light_block(index: Index, targets: Mapping[str, str]) -> Block:
    """Give the arrays that every host holds whole.

    Args:
        index: of the store.
        targets: by name.
    """
    graphs = index.num_graphs
    types = {column.name: column.dtype for column in index.columns}
    kinds: dict[str, Kind] = {
        name: (np.dtype(np.int64), (graphs + 1,)) for name in OFFSETS.values()
    }
    kinds |= {name: (types[name], (graphs,)) for name in ("split", "group")}
    kinds |= {f"known.{name}": (np.dtype(np.int32), (graphs,)) for name in targets}
    return Block(kinds)
