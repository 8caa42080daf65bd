"""A store in the memory of many hosts: each holds a share, and all ranks read from all.

A host's share is a run of windows in memory that its ranks have in common. Rows of the own host
are copied from there, rows of others are fetched by one-sided communication. What decides which
graph is used when is held whole on every host.

Where the network cannot read memory by itself, the owner's MPI library answers, and only while it
is called; the owner may be waiting for another library in a collective of the training. So the
leader of each host has a thread that calls it now and then.

Shapes: G graphs.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, offsets, rows_of_split
from hydragnn_hpo.data.store.arrays import (
    COUNTS,
    OFFSETS,
    PERS,
    Arrays,
    Per,
    columns_from,
    known_of,
    translations_of,
)
from hydragnn_hpo.data.store.blocks import (
    heavy_kinds,
    heavy_pers,
    light_block,
    shares_of,
)
from hydragnn_hpo.data.store.hosts import hosts_of
from hydragnn_hpo.data.store.index import RUN_BYTES, Index, read_index, runs_of, stats_of
from hydragnn_hpo.data.store.parts import WindowReader
from hydragnn_hpo.data.store.ranks import Poller, SharedMemory, Wanted, together


class Distributed:
    """A store over the memory of the hosts of a communicator; a ``GraphSet``.

    Making and closing one is collective, everything else is not. Threads may share it. A rank
    that ends without closing it leaves others waiting who still take graphs.
    """

    def __init__(self, store: Path, comm: Any = None) -> None:
        """Load the store; every host reads its share only.

        Args:
            store: the store, the same on every rank.
            comm: of mpi4py; all ranks if left out.

        Raises:
            DataError: the store is damaged; every rank raises it.
            StorageError: a host lacks memory; every rank raises it.
        """
        from mpi4py import MPI

        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._index, self.stats = _read_once(self._comm, store)
        self._hosts = hosts_of(self._comm)
        self.levels = {name: target["level"] for name, target in self.stats["targets"].items()}
        self.windows: NDArray[np.int64] | None = self._index.starts[:, 0]
        self._shares = shares_of(self._index, self._hosts.total)
        self._first = np.array([share.start[0] for share in self._shares[1:]], dtype=np.int64)
        self._pers = heavy_pers(self._index)
        self._mine = self._shares[self._hosts.number]
        block, light = self._mine.block, light_block(self._index, self.levels)
        self._memory = SharedMemory(self._comm, self._hosts, block.nbytes, light.nbytes)
        self._heavy = block.arrays(self._memory.own)
        self._light = light.arrays(self._memory.common)
        try:
            together(self._comm, self._load)
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
        """Give the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return np.diff(self._light["node_offset"])

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return np.diff(self._light["edge_offset"])

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the rows of a target that each graph has: 0 or 1, or nodes, [G]."""
        return self._light[f"known.{name}"].astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory of this rank, in the order of ``rows``.

        Raises:
            IndexError: there is no such row.
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
        for begin, end in _runs(rows, owner):
            host = int(owner[begin])
            into = {per: slice(*spans[per][[begin, end]].tolist()) for per in PERS}
            source = self._source(host, int(rows[begin]), int(rows[end - 1]) + 1)
            if host == self._hosts.number:
                for name, per in self._pers.items():
                    arrays[name][into[per]] = self._heavy[name][source[per]]
            else:
                pieces, places = self._want(host, arrays, into, source)
                wanted.setdefault(host, ([], []))[0].extend(pieces)
                wanted[host][1].extend(places)
        self._memory.fetch(wanted)
        arrays |= {"split": self.split[rows], "group": self.group[rows]}
        return columns_from(
            arrays | {name: spans[per] for per, name in OFFSETS.items()}, self.stats
        )

    def _source(self, host: int, first: int, last: int) -> dict[Per, slice]:
        """Give where rows ``first`` to ``last`` lie in a host's share."""
        start = dict(zip(PERS, self._shares[host].start, strict=True))
        found: dict[Per, slice] = {"graph": slice(first - start["graph"], last - start["graph"])}
        for per, name in OFFSETS.items():
            offset = self._light[name]
            found[per] = slice(int(offset[first]) - start[per], int(offset[last]) - start[per])
        return found

    def _want(
        self, host: int, arrays: Arrays, into: dict[Per, slice], source: dict[Per, slice]
    ) -> Wanted:
        """Tell where the rows of another host go, and where they lie there."""
        places = self._shares[host].block.places
        pieces, found = [], []
        for name, per in self._pers.items():
            piece = arrays[name][into[per]]
            if piece.size:
                pieces.append(piece)
                found.append(places[name] + source[per].start * (piece.nbytes // len(piece)))
        return pieces, found

    def _load(self) -> None:
        """Read what this rank brings into the share of its host."""
        mine = self._mine
        host = self._hosts.host
        with WindowReader(self._index) as reader:
            runs = runs_of(self._index, RUN_BYTES, mine.first, mine.last)
            for first, last in runs[host.rank :: host.size]:
                arrays = reader.read(first, last)
                arrays["edge_translation"] = translations_of(arrays)
                self._place(arrays, first, last)

    def _place(self, arrays: Arrays, first: int, last: int) -> None:
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
            counts = known_of(arrays[f"mask.{name}"], level, arrays["num_nodes"])
            self._light[f"known.{name}"][graphs] = counts

    def _spread(self) -> None:
        """Bring what all hosts hold whole from each to all."""
        self._memory.meet()
        if self._leads:
            starts = [*(share.start[0] for share in self._shares), self.num_graphs]
            for name, array in self._light.items():
                whole = array
                if name in OFFSETS.values():
                    # A share ends with the first offset of the next one, the first is nobody's.
                    array[0], whole = 0, array[1:]
                _gather(self._hosts.leaders, whole, starts)
        self._memory.meet()

    def close(self) -> None:
        """Give the memory back; all ranks call it together, and take nothing afterwards."""
        self._poller.stop()
        self._memory.free()


def _gather(leaders: Any, whole: NDArray[Any], starts: list[int]) -> None:
    """Fill an array of which each leader has its own rows."""
    from mpi4py import MPI

    row = MPI.BYTE.Create_contiguous(whole.itemsize).Commit()
    counts = np.diff(starts).tolist()
    leaders.Allgatherv(MPI.IN_PLACE, [whole.view(np.uint8), counts, starts[:-1], row])
    row.Free()


def _runs(rows: NDArray[np.int64], owner: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Give where rows follow each other on one host: first place, and one after the last."""
    if not len(rows):
        return []
    breaks = (np.diff(rows) != 1) | (np.diff(owner) != 0)
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    return list(zip(cuts, cuts[1:], strict=False))


def _read_once(comm: Any, store: Path) -> tuple[Index, dict[str, Any]]:
    """Read on rank 0 what the store says about itself, for all."""

    def read() -> tuple[Index, dict[str, Any]] | None:
        if comm.rank:
            return None
        index = read_index(store)
        return index, stats_of(index)

    found: tuple[Index, dict[str, Any]] = comm.bcast(together(comm, read))
    return found
