"""Read graphs from the windows of a store on demand, with the latest windows kept in memory.

Shapes: G graphs, E edges, W windows.
"""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

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
    join_arrays,
    offsets,
    rows_of_split,
)
from hydragnn_hpo.data.store_index import (
    RUN_BYTES,
    Index,
    find_runs,
    read_checked_stats,
    read_index,
)
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.host_info import free_bytes

MEMORY = "HYDRAGNN_HPO_WINDOW_MEMORY"
"""Environment variable with the bytes of windows that a process may keep."""

_MOST = 1 << 30
"""Largest size in bytes of kept windows where ``HYDRAGNN_HPO_WINDOW_MEMORY`` is not set."""


class WindowCache:
    """A store read in windows; a ``GraphSet``. Threads may share it."""

    def __init__(self, store: Path | Index, memory: int | None = None) -> None:
        """Read the sizes, splits and groups of all graphs: a few dozen bytes per graph.

        Args:
            store: the store, or its index.
            memory: bytes of windows to keep. None means ``HYDRAGNN_HPO_WINDOW_MEMORY``; where
                that is not set, this process's share of a quarter of the host's free memory, but
                at most 1 GiB.

        Raises:
            DataError: the store is damaged.
            ConfigError: the environment variable is not a number of bytes.
        """
        index = read_index(store) if isinstance(store, Path) else store
        self.index = index
        self.memory = _default_memory() if memory is None else memory
        self.stats: StoreStats = read_checked_stats(index)
        targets = self.stats["targets"]
        self.levels: dict[str, str] = {name: target["level"] for name, target in targets.items()}
        self.windows: NDArray[np.int64] | None = index.starts[:, 0]
        self._reader = _Reader(index)
        light = self._reader.read(0, len(index.windows), LIGHT)
        self.split: NDArray[np.int8] = light["split"]
        self.group: NDArray[np.int32] = light["group"]
        self._num_nodes, self._num_edges = light["num_nodes"], light["num_edges"]
        self._known: dict[str, NDArray[np.int32]] = {}
        self._kept: OrderedDict[int, Arrays] = OrderedDict()
        self._pers: dict[str, Per] = {c.name: c.per for c in index.columns}
        self._pers["edge_translation"] = "edge"
        # Bytes of each window in memory, with offsets (three int64 per graph) and edge
        # translations (three fp32 per edge), which are derived.
        self._sizes = index.windows[:, : len(PERS)] @ (index.row_bytes + [24, 0, 12, 0])
        self._held = 0
        self._lock = threading.Lock()

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return self.index.num_graphs

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return self._num_nodes.astype(np.int64)

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return self._num_edges.astype(np.int64)

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the known rows of a target in each graph, [G]: at most 1, or its nodes.

        The first call for a target reads its mask in the whole store.
        """
        with self._lock:
            if name not in self._known:
                self._known[name] = self._count_known(name)
            return self._known[name].astype(np.int64)

    def _count_known(self, name: str) -> NDArray[np.int32]:
        if name not in self.levels:
            raise KeyError(name)
        counts = np.empty(self.num_graphs, dtype=np.int32)
        for first, last in find_runs(self.index, RUN_BYTES):
            mask = self._reader.read(first, last, [f"mask.{name}"])[f"mask.{name}"]
            graphs = slice(*self.index.starts[[first, last], 0])
            counts[graphs] = count_known(mask, self.levels[name], self._num_nodes[graphs])
        return counts

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory, in the order of ``rows``.

        Raises:
            DataError: a window is damaged.
            IndexError: a row does not exist.
        """
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        if not len(rows):
            return columns_from(_make_empty(self.index), self.stats)
        if rows.min() < 0 or rows.max() >= self.num_graphs:
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self.num_graphs} graphs")
        window = np.searchsorted(self.index.starts[:, 0], rows, side="right") - 1
        numbers = np.unique(window)
        group = np.cumsum(self._sizes[numbers]) // max(self.memory, 1)
        if group[0] == group[-1]:
            return columns_from(self._gather(rows, window), self.stats)
        # More windows than may be held at once: copy in the order of windows, then sort back.
        order = np.argsort(window, kind="stable")
        cuts = np.searchsorted(window[order], numbers[1:][np.diff(group) > 0])
        pieces = [self._gather(rows[some], window[some]) for some in np.split(order, cuts)]
        back = np.empty_like(order)
        back[order] = np.arange(len(rows))
        return columns_from(join_arrays(pieces), self.stats).take(back)

    def _gather(self, rows: NDArray[np.int64], window: NDArray[np.int64]) -> Arrays:
        """Copy graphs out of their windows, which are all in memory at once.

        Args:
            rows: graphs, in the order of the copy.
            window: number of the window of each graph.
        """
        held = dict(self._fetch(np.unique(window).tolist()))
        owners = [held[number] for number in window.tolist()]
        inside = (rows - self.index.starts[window, 0]).tolist()
        slices = {"graph": [slice(row, row + 1) for row in inside]}
        for per, name in OFFSETS.items():
            ends = [owner[name] for owner in owners]
            pairs = zip(ends, inside, strict=True)
            slices[per] = [slice(end[row], end[row + 1]) for end, row in pairs]
        copied: Arrays = {
            name: np.concatenate(
                [owner[name][mine] for owner, mine in zip(owners, slices[per], strict=True)]
            )
            for name, per in self._pers.items()
        }
        return copied

    def _fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """Yield windows by number, ascending; adjacent ones that are not kept are read together."""
        done = 0
        while done < len(numbers):
            with self._lock:  # released between runs, so that threads alternate
                windows = self._fetch_run(numbers[done:])
            yield from windows
            done += len(windows)

    def _fetch_run(self, numbers: Sequence[int]) -> list[tuple[int, Arrays]]:
        """Return the first of the windows, and the next ones that can be read in the same run."""
        first = numbers[0]
        if first in self._kept:
            self._kept.move_to_end(first)
            return [(first, self._kept[first])]
        last = first + 1
        size = int(self._sizes[first])
        for number in numbers[1:]:
            size += int(self._sizes[number])
            if number != last or number in self._kept or size > min(RUN_BYTES, self.memory):
                break
            last = number + 1
        windows = list(enumerate(self._read(first, last), start=first))
        for number, arrays in windows:
            self._keep(number, arrays)
        return windows

    def _read(self, first: int, last: int) -> list[Arrays]:
        """Read a run of windows; each is a copy, so that its memory can be freed separately."""
        run = self._reader.read(first, last)
        run["edge_translation"] = compute_translations(run)
        starts = self.index.starts[first : last + 1] - self.index.starts[first]
        windows = []
        for begin, end in zip(starts, starts[1:], strict=False):
            rows = {per: slice(*pair) for per, *pair in zip(PERS, begin, end, strict=True)}
            window = {name: run[name][rows[per]].copy() for name, per in self._pers.items()}
            for per, name in OFFSETS.items():
                window[name] = offsets(window[COUNTS[per]])
            windows.append(window)
        return windows

    def _keep(self, number: int, arrays: Arrays) -> None:
        """Keep a window, and drop the least recently used ones beyond the memory limit."""
        size = _count_bytes(arrays)
        if size > self.memory:
            return
        self._kept[number] = arrays
        self._held += size
        while self._held > self.memory:
            self._held -= _count_bytes(self._kept.popitem(last=False)[1])

    def memory_for(self, shuffled: int) -> int:
        """Return the bytes to keep so that an epoch reads each window about once.

        Args:
            shuffled: training graphs that are shuffled at once, see ``data.batch_sampler``.
        """
        train = len(self.indices_of("train"))
        return int(self._sizes.sum() * min(1.0, shuffled / max(train, 1)))

    def close(self) -> None:
        """Close the files and drop all windows; reading opens the files again."""
        with self._lock:
            self._reader.close()
            self._kept.clear()
            self._held = 0


class _Reader:
    """A ``WindowReader`` that a forked child opens again.

    Otherwise parent and child would share the positions of open files.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._reader = WindowReader(self.index)
        self.close = weakref.finalize(self, _close, self._reader, self._process)

    def read(self, first: int, last: int, names: Sequence[str] | None = None) -> Arrays:
        """Read windows ``first`` to ``last`` (not included), see ``WindowReader.read``.

        Args:
            first: first window.
            last: one after the last window.
            names: columns to read; None means all.
        """
        if self._process != os.getpid() or not self.close.alive:
            self._open()
        return self._reader.read(first, last, names)


def _close(reader: WindowReader, process: int) -> None:
    if process == os.getpid():
        reader.close()


def _make_empty(index: Index) -> Arrays:
    """Return the arrays of a store without graphs."""
    arrays = {c.name: np.zeros((0, *c.shape), dtype=c.dtype) for c in index.columns}
    return arrays | {"edge_translation": np.zeros((0, 3), dtype=np.float32)}


def _count_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _default_memory() -> int:
    """Return the bytes of windows to keep, see ``WindowCache``."""
    text = os.environ.get(MEMORY)
    if text is None:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return min(_MOST, free_bytes() // (4 * max(processes, 1)))
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{MEMORY} is {text!r}; set it to a number of bytes.")
    return int(text)
