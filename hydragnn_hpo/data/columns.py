"""Types of graphs: one graph, many graphs as ragged columns, and the protocol of graph sets.

An edge points from its sender (column 0) to its receiver (column 1). Neighbours have one edge per
direction: ``i -> j`` and ``j -> i`` are two edges. The vector from sender to receiver
is ``positions[receiver] + edge_shift @ cell - positions[sender]``.

Shapes: G graphs, N nodes, E edges (of all graphs together).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS, TargetConfig
from hydragnn_hpo.errors import DataError, unknown
from hydragnn_hpo.file_records import StoreStats


@dataclass(frozen=True, eq=False)
class Graph:
    """A structure with its edges and its properties, in the units of this package."""

    id: str
    """Name of the structure, unique in its data set."""

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
    """Shift of the receiver in lattice vectors, [E, 3]; see the top of this module."""

    targets: dict[str, NDArray[np.float64]]
    """Properties by name, [width] or [N, width]; absent where missing."""

    group: str
    """Name of the structure's group; structures of one group stay in one split."""

    published: str | None
    """Name of the structure's published split; None where the data set has none."""

    attributes: dict[str, float] = field(default_factory=dict)
    """Known properties of the whole structure (charge, spin) by name."""

    laplacian: NDArray[np.float32] | None = None
    """Laplacian positional encodings, [N, k]; None where the card asks for none."""


class Names(Sequence[str]):
    """Names concatenated in one array of bytes, without a Python object per name."""

    def __init__(self, text: NDArray[np.uint8], offset: NDArray[np.int64]) -> None:
        """Wrap names that are already concatenated.

        Args:
            text: UTF-8 bytes of all names, [C].
            offset: first byte of each name, and the end, [G + 1].
        """
        self.text, self.offset = text, offset

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """Encode and concatenate G names."""
        encoded = [name.encode(errors="backslashreplace") for name in names]
        sizes = np.array([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets(sizes))

    def __len__(self) -> int:
        return len(self.offset) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return bytes(self.text[self.offset[row] : self.offset[row + 1]]).decode()

    def take(self, rows: NDArray[np.int64]) -> "Names":
        """Return the names of some rows, in the order of ``rows``, which may repeat."""
        chars, sizes = ragged_rows(self.offset, rows)
        return Names(self.text[chars], offsets(sizes))


class Runs:
    """Slices of a ragged column, one per chosen graph; they copy at the speed of memory.

    Attributes:
        counts: number of rows of each chosen graph, [G].
        starts: first row of each chosen graph in the copy, and the end, [G + 1].
    """

    def __init__(self, offset: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Find where the graphs begin and end.

        Args:
            offset: first row of every graph of the column, and the end.
            rows: the chosen graphs, G of them, in any order.
        """
        first, last = offset[rows], offset[rows + 1]
        self.counts = last - first
        self.starts = offsets(self.counts)
        self._slices = list(map(slice, first.tolist(), last.tolist()))

    def of(self, column: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
        """Copy the graphs' rows out of a column, end to end.

        Args:
            column: ragged column, [rows, ...].
            dtype: type of the copy; None keeps that of the column.
        """
        if not self._slices:
            return np.zeros((0, *column.shape[1:]), dtype or column.dtype)
        pieces = [column[rows] for rows in self._slices]
        return np.concatenate(pieces, dtype=dtype, casting="unsafe")


def rows_of_split(splits: NDArray[np.int8], split: str) -> NDArray[np.int64]:
    """Return the rows of a split, ascending.

    Args:
        splits: index into ``config.SPLITS`` of each graph, [G].
        split: a name of ``config.SPLITS``.

    Raises:
        DataError: there is no such split.
    """
    if split not in SPLITS:
        raise DataError(unknown("split", split, SPLITS))
    return np.flatnonzero(splits == SPLITS.index(split))


@dataclass(frozen=True, eq=False)
class Columns:
    """Graphs as ragged columns; graph ``g`` has nodes ``node_offset[g]:node_offset[g + 1]``."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""

    positions: NDArray[np.float64]
    """Positions in angstrom, [N, 3]."""

    cell: NDArray[np.float64]
    """Lattice vectors as rows in angstrom, [G, 3, 3]."""

    pbc: NDArray[np.bool_]
    """Periodic directions, [G, 3]."""

    node_offset: NDArray[np.int64]
    """First node of each graph, and the end, [G + 1]."""

    edge_offset: NDArray[np.int64]
    """First edge of each graph, and the end, [G + 1]."""

    edges: NDArray[np.int32]
    """Sender and receiver, counted from the graph's first node, [E, 2]."""

    edge_shift: NDArray[np.int16]
    """Shifts in lattice vectors, [E, 3]; see the top of this module."""

    targets: dict[str, NDArray[np.float64]]
    """Properties by name, [G, width] or [N, width]; NaN where missing."""

    masks: dict[str, NDArray[np.bool_]]
    """Where a property is known, [G] or [N]."""

    levels: dict[str, str]
    """Whether a property belongs to the ``graph`` or to each ``node``."""

    split: NDArray[np.int8]
    """Index into ``config.SPLITS``, [G]; -1 outside of all splits."""

    group: NDArray[np.int32]
    """Number of each structure's group, [G]; structures of one group are not independent."""

    ids: Names
    """Names of the structures."""

    attributes: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Known properties of whole structures by name (charge, spin, temperature), [G]."""

    laplacian: NDArray[np.float32] | None = None
    """Laplacian positional encodings, [N, k], where the card asks for them."""

    features: dict[str, NDArray[np.floating[Any]]] = field(default_factory=dict)
    """Features of foundation models by their name, [N, F]; never in a store, see
    ``data.feature_cache``."""

    edge_translation: NDArray[np.float32] | None = None
    """The shifts in angstrom, [E, 3], derived from ``edge_shift`` and ``cell``; None where each
    batch computes its own."""

    windows: NDArray[np.int64] | None = None
    """First graph of each window of the store, and the end; None means one window."""

    stats: StoreStats = field(default_factory=lambda: cast(StoreStats, {}))
    """Statistics of the data set, the content of ``stats.json``; for graphs without a store, such
    as structures to be predicted, at most the key ``cutoff``."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return len(self.node_offset) - 1

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return np.diff(self.node_offset)

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return np.diff(self.edge_offset)

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the known rows of a target in each graph, [G]: at most 1, or its nodes."""
        mask = self.masks[name]
        if self.levels[name] == "graph":
            return mask.astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))
        counts: NDArray[np.int64] = sums[self.node_offset[1:]] - sums[self.node_offset[:-1]]
        return counts

    def take(self, rows: NDArray[np.int64]) -> "Columns":
        """Copy some graphs, in the order of ``rows``, which may repeat; ``windows`` is dropped."""
        nodes = Runs(self.node_offset, rows)
        edges = Runs(self.edge_offset, rows)

        def take_target(name: str, values: NDArray[Any]) -> NDArray[Any]:
            return values[rows] if self.levels[name] == "graph" else nodes.of(values)

        return Columns(
            **{name: nodes.of(getattr(self, name)) for name in _OF_NODES},
            **{name: edges.of(getattr(self, name)) for name in _OF_EDGES},
            **{name: getattr(self, name)[rows] for name in _OF_GRAPHS},
            node_offset=nodes.starts,
            edge_offset=edges.starts,
            targets={name: take_target(name, value) for name, value in self.targets.items()},
            masks={name: take_target(name, mask) for name, mask in self.masks.items()},
            levels=self.levels,
            ids=self.ids.take(rows),
            attributes={name: value[rows] for name, value in self.attributes.items()},
            laplacian=None if self.laplacian is None else nodes.of(self.laplacian),
            features={name: nodes.of(values) for name, values in self.features.items()},
            edge_translation=(
                None if self.edge_translation is None else edges.of(self.edge_translation)
            ),
            stats=self.stats,
        )


def contain_others(columns: Columns, elements: Collection[int], *, node: bool) -> NDArray[np.bool_]:
    """Check which rows have another element than those given, [R].

    Args:
        columns: some graphs.
        elements: atomic numbers.
        node: True for one row per node, False for one row per graph.
    """
    others: NDArray[np.bool_] = ~np.isin(columns.numbers, list(elements))
    if node:
        return others
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())
    rows: NDArray[np.bool_] = np.bincount(graph[others], minlength=columns.num_graphs) > 0
    return rows


def columns_of(
    graphs: Sequence[Graph],
    targets: Mapping[str, TargetConfig],
    stats: Mapping[str, object] | None = None,
    attributes: Iterable[str] = (),
) -> Columns:
    """Concatenate graphs into columns; none of them is in a split (-1).

    Args:
        graphs: in the order of the rows.
        targets: properties to include, by name; empty for structures to be predicted.
        stats: known statistics, by key of ``StoreStats``; batches read only ``cutoff``. None means
            no statistics.
        attributes: names of the attributes to include; every graph has them.
    """
    nodes = np.array([len(graph.numbers) for graph in graphs], dtype=np.int64)
    values = {name: _join_target(graphs, name, target) for name, target in targets.items()}
    return Columns(
        numbers=_end_to_end([graph.numbers for graph in graphs], (), np.int16),
        positions=_end_to_end([graph.positions for graph in graphs], (3,), np.float64),
        cell=_end_to_end([graph.cell[None] for graph in graphs], (3, 3), np.float64),
        pbc=_end_to_end([graph.pbc[None] for graph in graphs], (3,), np.bool_),
        node_offset=offsets(nodes),
        edge_offset=offsets(np.array([len(graph.edges) for graph in graphs], dtype=np.int64)),
        edges=_end_to_end([graph.edges for graph in graphs], (2,), np.int32),
        edge_shift=_end_to_end([graph.edge_shift for graph in graphs], (3,), np.int16),
        targets=values,
        masks={name: np.all(np.isfinite(value), axis=1) for name, value in values.items()},
        levels={name: target.level for name, target in targets.items()},
        split=np.full(len(graphs), -1, dtype=np.int8),
        group=np.unique([g.group for g in graphs], return_inverse=True)[1].astype(np.int32),
        ids=Names.of(graph.id for graph in graphs),
        attributes={
            name: np.array([graph.attributes[name] for graph in graphs], dtype=np.float64)
            for name in attributes
        },
        laplacian=_join_laplacians(graphs),
        stats=cast(StoreStats, dict(stats or {})),
    )


def offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each ragged piece, and the end, [G + 1].

    Args:
        counts: rows of each piece, [G].
    """
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def translations(
    shifts: NDArray[np.float64], cells: NDArray[np.float64], edge_offset: Sequence[int]
) -> NDArray[np.float64]:
    """Convert the shifts of edges from lattice vectors to angstrom, graph by graph.

    Args:
        shifts: in lattice vectors, [E, 3].
        cells: lattice vectors as rows in angstrom, [G, 3, 3].
        edge_offset: first edge of each graph, and the end, [G + 1].

    Returns:
        Shifts in angstrom, [E, 3].
    """
    result = np.empty(shifts.shape)
    for cell, first, last in zip(cells, edge_offset, edge_offset[1:], strict=False):
        np.dot(shifts[first:last], cell, out=result[first:last])
    return result


def ragged_rows(
    offset: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find all rows of the chosen pieces of a ragged column.

    Args:
        offset: first row of every piece, and the end.
        rows: the chosen pieces, in any order, [G].

    Returns:
        Rows of the column, piece after piece, and the number of rows of each piece, [G].
    """
    first = offset[rows]
    counts = offset[rows + 1] - first
    starts = offsets(counts)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    return np.repeat(first, counts) + within, counts


def _join_laplacians(graphs: Sequence[Graph]) -> NDArray[np.float32] | None:
    pieces = [graph.laplacian for graph in graphs if graph.laplacian is not None]
    if not pieces:
        return None
    return _end_to_end(pieces, (pieces[0].shape[1],), np.float32)


def _join_target(graphs: Sequence[Graph], name: str, target: TargetConfig) -> NDArray[np.float64]:
    """Collect one property, [G, width] or [N, width]; NaN where a structure lacks it."""
    pieces = []
    for graph in graphs:
        rows = 1 if target.level == "graph" else len(graph.numbers)
        value = graph.targets.get(name, np.nan)
        pieces.append(np.broadcast_to(value, (rows, target.width)))
    return _end_to_end(pieces, (target.width,), np.float64)


def _end_to_end(pieces: Sequence[NDArray[Any]], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    if not pieces:
        return np.zeros((0, *shape), dtype=dtype)
    return np.concatenate(pieces).astype(dtype, copy=False)


Arrays = dict[str, NDArray[Any]]
"""Arrays of a store or a part of it by name, see ``arrays_of``."""

Per = Literal["graph", "node", "edge", "char"]
"""What one row of an array stands for; ``char`` is a byte of a structure's name."""

PERS: tuple[Per, ...] = ("graph", "node", "edge", "char")
"""All values of ``Per``, in the order of the columns of every table of sizes."""

_OF_NODES, _OF_EDGES = ("numbers", "positions"), ("edges", "edge_shift")
_OF_GRAPHS = ("cell", "pbc", "split", "group")
"""Arrays that all columns have, by what a row stands for."""

_FIXED: dict[str, Per] = {
    **dict.fromkeys((*_OF_NODES, "laplacian"), "node"),
    **dict.fromkeys(_OF_EDGES, "edge"),
    **dict.fromkeys((*_OF_GRAPHS, "num_nodes", "num_edges", "id_size"), "graph"),
    "id_text": "char",
}

OFFSETS: dict[Per, str] = {"node": "node_offset", "edge": "edge_offset", "char": "id_offset"}
"""Names of the arrays of offsets in memory, by what they count."""

COUNTS: dict[Per, str] = {"node": "num_nodes", "edge": "num_edges", "char": "id_size"}
"""Names of the arrays of counts that a store has instead of offsets, by what they count."""

LIGHT = ("num_nodes", "num_edges", "split", "group")
"""Arrays that every reader keeps whole in memory: graphs are chosen and divided by them."""


def row_kind(name: str, levels: Mapping[str, str]) -> Per:
    """Return what a row of an array stands for.

    Args:
        name: name of the array, see ``arrays_of``.
        levels: ``graph`` or ``node`` by target.
    """
    if name in _FIXED:
        return _FIXED[name]
    kind, _, target = name.partition(".")
    if kind == "attribute":
        return "graph"
    return "graph" if levels[target] == "graph" else "node"


def arrays_of(columns: Columns) -> Arrays:
    """Return columns as the arrays of a store, by name.

    Returns:
        The fields of ``Columns`` under their own names, but ``num_nodes``, ``num_edges`` and
        ``id_size`` (counts, [G]) instead of offsets, ``id_text`` for the bytes of the names, and
        ``target.NAME``, ``mask.NAME``, ``attribute.NAME`` for those of one property. The order is
        that of the columns in a store.
    """
    arrays: Arrays = {
        "numbers": columns.numbers,
        "positions": columns.positions,
        "cell": columns.cell,
        "pbc": columns.pbc,
        "num_nodes": columns.num_nodes().astype(np.int32),
        "num_edges": columns.num_edges().astype(np.int32),
        "edges": columns.edges,
        "edge_shift": columns.edge_shift,
        "split": columns.split,
        "group": columns.group,
        "id_size": np.diff(columns.ids.offset).astype(np.int32),
        "id_text": columns.ids.text,
    }
    arrays |= {f"target.{name}": value for name, value in columns.targets.items()}
    arrays |= {f"mask.{name}": value for name, value in columns.masks.items()}
    arrays |= {f"attribute.{name}": value for name, value in columns.attributes.items()}
    if columns.laplacian is not None:
        arrays["laplacian"] = columns.laplacian
    return arrays


def columns_from(arrays: Arrays, stats: StoreStats) -> Columns:
    """Build columns from named arrays, the inverse of ``arrays_of``.

    Args:
        arrays: those of ``arrays_of``. ``node_offset``, ``edge_offset`` and ``id_offset`` are used
            where they are present, as in a stage, else computed from the counts;
            ``edge_translation`` and ``windows`` are optional.
        stats: statistics of the data set; ``targets`` holds the ``level`` of each target.
    """

    def offset(name: str, sizes: str) -> NDArray[np.int64]:
        return arrays[name] if name in arrays else offsets(arrays[sizes])

    def named(prefix: str) -> Arrays:
        return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

    return Columns(
        **{name: arrays[name] for name in _OF_NODES + _OF_EDGES + _OF_GRAPHS},
        node_offset=offset("node_offset", "num_nodes"),
        edge_offset=offset("edge_offset", "num_edges"),
        ids=Names(arrays["id_text"], offset("id_offset", "id_size")),
        targets=named("target."),
        masks=named("mask."),
        levels={name: target["level"] for name, target in stats["targets"].items()},
        attributes=named("attribute."),
        laplacian=arrays.get("laplacian"),
        features={},
        edge_translation=arrays.get("edge_translation"),
        windows=arrays.get("windows"),
        stats=stats,
    )


def compute_translations(arrays: Arrays) -> NDArray[np.float32]:
    """Return the shifts of all edges in angstrom, [E, 3]."""
    edge_offset = offsets(arrays["num_edges"]).tolist()
    shifts = arrays["edge_shift"].astype(np.float64)
    return translations(shifts, arrays["cell"], edge_offset).astype(np.float32)


def count_known(
    mask: NDArray[np.bool_], level: str, num_nodes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Count the known rows of a target in each graph, [G].

    Args:
        mask: where the target is known, [G] or [N].
        level: level of the target, ``graph`` or ``node``.
        num_nodes: nodes of each graph, [G].
    """
    if level == "graph":
        return mask.astype(np.int32)
    return np.diff(offsets(mask.astype(np.int64))[offsets(num_nodes.astype(np.int64))]).astype(
        np.int32
    )


def join_arrays(pieces: Sequence[Arrays]) -> Arrays:
    """Concatenate one or more pieces of a store, all with the same arrays."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def count_rows(arrays: Arrays) -> NDArray[np.int64]:
    """Count graphs, nodes, edges and characters, in the order of ``PERS``, [4]."""
    rows = [arrays[name].shape[0] for name in ("num_nodes", "numbers", "edges", "id_text")]
    return np.array(rows, dtype=np.int64)


def join_columns(
    parts: Sequence[Columns], *, attributes: Sequence[str], laplacian: bool, stats: StoreStats
) -> Columns:
    """Join graphs with the same targets end to end; ``windows`` are dropped.

    Args:
        parts: the graphs, at least one part.
        attributes: names of the attributes to keep, which all parts have.
        laplacian: whether to keep the positional encodings, which all parts have in one width.
        stats: statistics of the whole.
    """
    translations = [p.edge_translation for p in parts if p.edge_translation is not None]
    names = [part.ids.text for part in parts], [np.diff(part.ids.offset) for part in parts]
    levels = parts[0].levels
    shared = sorted(set.intersection(*(set(part.features) for part in parts)))

    def end_to_end(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    def end_to_end_of(name: str, key: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name)[key] for part in parts])

    return Columns(
        **{name: end_to_end(name) for name in _OF_NODES + _OF_EDGES + _OF_GRAPHS},
        node_offset=offsets(np.concatenate([part.num_nodes() for part in parts])),
        edge_offset=offsets(np.concatenate([part.num_edges() for part in parts])),
        targets={name: end_to_end_of("targets", name) for name in levels},
        masks={name: end_to_end_of("masks", name) for name in levels},
        levels=levels,
        ids=Names(np.concatenate(names[0]), offsets(np.concatenate(names[1]))),
        attributes={name: end_to_end_of("attributes", name) for name in attributes},
        laplacian=end_to_end("laplacian") if laplacian else None,
        features={name: end_to_end_of("features", name) for name in shared},
        edge_translation=np.concatenate(translations) if len(translations) == len(parts) else None,
        stats=stats,
    )


def without_edges(columns: Columns) -> Columns:
    """Return columns without edges, which statistics of targets do not need."""
    return replace(
        columns,
        edges=columns.edges[:0].copy(),  # a view would keep them all in memory
        edge_shift=columns.edge_shift[:0].copy(),
        edge_offset=np.zeros_like(columns.edge_offset),
        edge_translation=None,
    )


LIGHT_PIECE = 512
"""Number of graphs that are read at once to compute the statistics of targets."""


def take_without_edges(graphs: "GraphSet", rows: NDArray[np.int64]) -> list[Columns]:
    """Copy some graphs into memory in pieces, without the edges of any of them."""
    pieces = [rows[i : i + LIGHT_PIECE] for i in range(0, len(rows), LIGHT_PIECE)]
    return [without_edges(graphs.take(piece)) for piece in pieces]


class GraphSet(Protocol):
    """Graphs that are copied by row on request; their sizes and splits are in memory."""

    @property
    def stats(self) -> StoreStats:
        """Statistics of the data set, the content of ``stats.json``."""

    @property
    def levels(self) -> dict[str, str]:
        """Level of each target.

        Returns:
            ``graph`` or ``node`` by name.
        """

    @property
    def split(self) -> NDArray[np.int8]:
        """Index into ``config.SPLITS``, [G]; -1 outside of all splits."""

    @property
    def group(self) -> NDArray[np.int32]:
        """Number of each structure's group, [G]."""

    @property
    def windows(self) -> NDArray[np.int64] | None:
        """First graph of each window, the unit of reading from disk, and the end, [W + 1]."""

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
        """Count the known rows of a target in each graph, [G]: at most 1, or its nodes."""

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory, in the order of ``rows``, which may repeat."""
