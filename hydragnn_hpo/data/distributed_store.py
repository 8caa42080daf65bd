"""A store in the memory of many hosts: each host holds a share, and all ranks read all shares.

*Light* arrays, which every host holds whole, are those of ``columns.LIGHT`` and counts of known
targets; all others are *heavy* and lie on one host each.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import (
    COUNTS,
    LIGHT,
    OFFSETS,
    PERS,
    Arrays,
    Columns,
    Per,
    columns_from,
    compute_translations,
    count_known,
    offsets,
    rows_of_split,
)
from hydragnn_hpo.data.mpi_ranks import (
    Poller,
    SharedMemory,
    Wanted,
    group_by_host,
    run_or_fail_together,
)
from hydragnn_hpo.data.store_index import (
    RUN_BYTES,
    Index,
    find_runs,
    read_checked_stats,
    read_index,
)
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.file_records import StoreStats

_LINE = 64
"""Alignment of arrays in bytes."""

Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of an array, rows included."""


@dataclass(frozen=True)
class MemoryBlock:
    """Layout of arrays end to end in one block of memory."""

    kinds: dict[str, Kind]
    """Type and shape of each array, by name."""

    @cached_property
    def places(self) -> dict[str, int]:
        """First byte of each array in the block.

        Returns:
            Positions in bytes, by name.
        """
        places = {}
        end = 0
        for name, kind in self.kinds.items():
            places[name], end = end, end + _aligned(kind)
        return places

    @property
    def nbytes(self) -> int:
        """Bytes of the block, a multiple of the alignment."""
        return sum(_aligned(kind) for kind in self.kinds.values())

    def arrays(self, memory: NDArray[np.uint8]) -> Arrays:
        """Return the arrays as views into a block, by name.

        Args:
            memory: bytes of the block, [nbytes].
        """
        return {
            name: np.ndarray(shape, dtype, memory.data, self.places[name])
            for name, (dtype, shape) in self.kinds.items()
        }


def _aligned(kind: Kind) -> int:
    dtype, shape = kind
    return -(-dtype.itemsize * math.prod(shape) // _LINE) * _LINE


@dataclass(frozen=True)
class HostShare:
    """A run of windows that one host holds."""

    first: int
    """First window."""
    last: int
    """One after the last window."""
    start: tuple[int, ...]
    """Graphs, nodes, edges and characters before the share, in the order of ``PERS``, [4]."""
    block: MemoryBlock
    """Layout of the heavy arrays of the share."""


def assign_windows(index: Index, hosts: int) -> list[HostShare]:
    """Cut a store into one share per host, about equal in bytes; some may be empty."""
    sizes = index.windows[:, : len(PERS)] @ index.row_bytes
    middle = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middle, np.arange(hosts + 1) * (sizes.sum() / hosts)).tolist()
    cuts[0] = 0
    cuts[-1] = len(sizes)
    return [_make_share(index, first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def _make_share(index: Index, first: int, last: int) -> HostShare:
    start, end = index.starts[first], index.starts[last]
    rows = dict(zip(PERS, (end - start).tolist(), strict=True))
    kinds = heavy_kinds(index, rows)
    return HostShare(first, last, tuple(start.tolist()), MemoryBlock(kinds))


def heavy_pers(index: Index) -> dict[str, Per]:
    """List the heavy arrays.

    Returns:
        What a row stands for in each, by name.
    """
    whole = {*LIGHT, *COUNTS.values()}
    pers = {column.name: column.per for column in index.columns if column.name not in whole}
    return pers | {"edge_translation": "edge"}


def heavy_kinds(index: Index, rows: Mapping[Per, int]) -> dict[str, Kind]:
    """Return type and shape of each heavy array.

    Args:
        index: index of the store.
        rows: number of graphs, nodes, edges and characters.

    Returns:
        Types and shapes by name.
    """
    kinds: dict[str, Kind] = {c.name: (c.dtype, c.shape) for c in index.columns}
    kinds["edge_translation"] = (np.dtype(np.float32), (3,))
    return {
        name: (kinds[name][0], (rows[per], *kinds[name][1]))
        for name, per in heavy_pers(index).items()
    }


def light_block(index: Index, targets: Iterable[str]) -> MemoryBlock:
    """Return the layout of the light arrays.

    Args:
        index: index of the store.
        targets: names of the targets; there is a ``known.NAME`` for each, see ``GraphSet.known``.
    """
    graphs = index.num_graphs
    types = {column.name: column.dtype for column in index.columns}
    kinds: dict[str, Kind] = {
        name: (np.dtype(np.int64), (graphs + 1,)) for name in OFFSETS.values()
    }
    kinds |= {name: (types[name], (graphs,)) for name in ("split", "group")}
    kinds |= {f"known.{name}": (np.dtype(np.int32), (graphs,)) for name in targets}
    return MemoryBlock(kinds)


class DistributedStore:
    """A store in the memory of the hosts of a communicator; a ``GraphSet``.

    Creating and closing it is collective, everything else is not. Threads may share it. If a rank
    ends without closing it, other ranks that read its share wait forever.
    """

    def __init__(self, store: Path, comm: Any = None) -> None:
        """Load the store; every host reads only its share. Collective.

        Args:
            store: path of the store, the same on every rank.
            comm: communicator of mpi4py; None means all ranks.

        Raises:
            DataError: the store is damaged; every rank raises it.
            StorageError: a host lacks memory; every rank raises it.
        """
        from mpi4py import MPI

        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._index, self.stats = _broadcast_index(self._comm, store)
        self._hosts = group_by_host(self._comm)
        targets = self.stats["targets"]
        self.levels: dict[str, str] = {name: target["level"] for name, target in targets.items()}
        self.windows: NDArray[np.int64] | None = self._index.starts[:, 0]
        self._shares = assign_windows(self._index, self._hosts.total)
        self._first = np.array([share.start[0] for share in self._shares[1:]], dtype=np.int64)
        self._pers = heavy_pers(self._index)
        self._mine = self._shares[self._hosts.number]
        block = self._mine.block
        light = light_block(self._index, self.levels)
        self._memory = SharedMemory(self._comm, self._hosts, block.nbytes, light.nbytes)
        self._heavy = block.arrays(self._memory.own)
        self._light = light.arrays(self._memory.common)
        try:
            run_or_fail_together(self._comm, self._load)
        except BaseException:
            self._memory.free()
            raise
        self._spread()
        self._memory.expose()
        self._poller = Poller(self._comm, needed=self._hosts.total > 1 and self._leads)
        self.split: NDArray[np.int8] = self._light["split"]
        self.group: NDArray[np.int32] = self._light["group"]

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return self._index.num_graphs

    @property
    def _leads(self) -> bool:
        return bool(self._hosts.host.rank == 0)

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return np.diff(self._light["node_offset"])

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return np.diff(self._light["edge_offset"])

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the known rows of a target in each graph, [G]: at most 1, or its nodes."""
        return self._light[f"known.{name}"].astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into the memory of this rank, in the order of ``rows``.

        Raises:
            IndexError: a row does not exist.
        """
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.num_graphs):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self.num_graphs} graphs")
        spans: dict[Per, NDArray[np.int64]] = {"graph": np.arange(len(rows) + 1)}
        for per, name in OFFSETS.items():
            spans[per] = offsets(self._light[name][rows + 1] - self._light[name][rows])
        kinds = heavy_kinds(self._index, {per: int(spans[per][-1]) for per in PERS})
        arrays: Arrays = {name: np.empty(shape, dtype) for name, (dtype, shape) in kinds.items()}
        owner = np.searchsorted(self._first, rows, side="right")
        wanted: dict[int, Wanted] = {}
        for begin, end in _find_host_runs(rows, owner):
            host = int(owner[begin])
            into = {per: slice(*spans[per][[begin, end]].tolist()) for per in PERS}
            source = self._source(host, int(rows[begin]), int(rows[end - 1]) + 1)
            if host == self._hosts.number:
                for name, per in self._pers.items():
                    arrays[name][into[per]] = self._heavy[name][source[per]]
            else:
                pieces, places = self._remote_pieces(host, arrays, into, source)
                wanted.setdefault(host, ([], []))[0].extend(pieces)
                wanted[host][1].extend(places)
        self._memory.fetch(wanted)
        arrays |= {"split": self.split[rows], "group": self.group[rows]}
        return columns_from(
            arrays | {name: spans[per] for per, name in OFFSETS.items()}, self.stats
        )

    def _source(self, host: int, first: int, last: int) -> dict[Per, slice]:
        """Return where graphs ``first`` to ``last`` (not included) lie in the share of a host."""
        start = dict(zip(PERS, self._shares[host].start, strict=True))
        rows: dict[Per, slice] = {"graph": slice(first - start["graph"], last - start["graph"])}
        for per, name in OFFSETS.items():
            offset = self._light[name]
            rows[per] = slice(int(offset[first]) - start[per], int(offset[last]) - start[per])
        return rows

    def _remote_pieces(
        self, host: int, arrays: Arrays, into: dict[Per, slice], source: dict[Per, slice]
    ) -> Wanted:
        """Return what to read from another host.

        Args:
            host: number of the host.
            arrays: arrays to fill, by name.
            into: rows to fill.
            source: the same rows in the share of the host.
        """
        places = self._shares[host].block.places
        pieces, first_bytes = [], []
        for name, per in self._pers.items():
            piece = arrays[name][into[per]]
            if piece.size:
                pieces.append(piece)
                row_bytes = piece.nbytes // len(piece)
                first_bytes.append(places[name] + source[per].start * row_bytes)
        return pieces, first_bytes

    def _load(self) -> None:
        """Read the windows that this rank adds to the share of its host."""
        mine = self._mine
        host = self._hosts.host
        with WindowReader(self._index) as reader:
            runs = find_runs(self._index, RUN_BYTES, mine.first, mine.last)
            for first, last in runs[host.rank :: host.size]:
                arrays = reader.read(first, last)
                arrays["edge_translation"] = compute_translations(arrays)
                self._place(arrays, first, last)

    def _place(self, arrays: Arrays, first: int, last: int) -> None:
        """Copy windows ``first`` to ``last`` (not included) into the memory of this host."""
        begin, end = self._index.starts[[first, last]]
        rows = {per: slice(*pair) for per, *pair in zip(PERS, begin, end, strict=True)}
        start = dict(zip(PERS, self._mine.start, strict=True))
        for name, per in self._pers.items():
            inside = slice(rows[per].start - start[per], rows[per].stop - start[per])
            self._heavy[name][inside] = arrays[name]
        graphs = rows["graph"]
        for name in ("split", "group"):
            self._light[name][graphs] = arrays[name]
        for per, name in OFFSETS.items():
            ends = offsets(arrays[COUNTS[per]]) + rows[per].start
            self._light[name][graphs.start : graphs.stop + 1] = ends
        for name, level in self.levels.items():
            counts = count_known(arrays[f"mask.{name}"], level, arrays["num_nodes"])
            self._light[f"known.{name}"][graphs] = counts

    def _spread(self) -> None:
        """Send the light arrays of each host's share to all hosts; collective."""
        self._memory.meet()  # the leader sends what the other ranks of its host have written
        if self._leads:
            starts = [*(share.start[0] for share in self._shares), self.num_graphs]
            for name, array in self._light.items():
                whole = array
                if name in OFFSETS.values():
                    # There is one offset more than graphs: each share sends the ends of its
                    # graphs, and the first offset is 0.
                    array[0] = 0
                    whole = array[1:]
                _all_gather(self._hosts.leaders, whole, starts)
        self._memory.meet()  # the other ranks read what the leader has received

    def close(self) -> None:
        """Free the memory; collective. Afterwards no graphs can be taken."""
        # The thread calls MPI on a communicator that is freed next.
        self._poller.stop()
        self._memory.free()


def _all_gather(leaders: Any, whole: NDArray[Any], starts: list[int]) -> None:
    """Fill an array of which each leader has its own rows; collective over the leaders.

    Args:
        leaders: communicator of the leaders.
        whole: the array, [rows].
        starts: first row of each leader, and the end.
    """
    from mpi4py import MPI

    row = MPI.BYTE.Create_contiguous(whole.itemsize).Commit()
    counts = np.diff(starts).tolist()
    leaders.Allgatherv(MPI.IN_PLACE, [whole.view(np.uint8), counts, starts[:-1], row])
    row.Free()


def _find_host_runs(rows: NDArray[np.int64], owner: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut rows into runs of consecutive rows on one host.

    Args:
        rows: rows of graphs, in any order.
        owner: number of the host of each.

    Returns:
        First position in ``rows``, and one after the last, of each run.
    """
    if not len(rows):
        return []
    breaks = (np.diff(rows) != 1) | (np.diff(owner) != 0)
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    return list(zip(cuts, cuts[1:], strict=False))


def _broadcast_index(comm: Any, store: Path) -> tuple[Index, StoreStats]:
    """Read the index and statistics of a store on rank 0, and return them on all; collective."""

    def read() -> tuple[Index, StoreStats] | None:
        if comm.rank:
            return None
        index = read_index(store)
        return index, read_checked_stats(index)

    shared: tuple[Index, StoreStats] = comm.bcast(run_or_fail_together(comm, read))
    return shared
