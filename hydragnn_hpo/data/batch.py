"""Make batches of graphs by index arithmetic over columns, and prefetch them in a thread.

Shapes: G graphs, N nodes, E edges of the batch.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hydragnn_hpo.data.columns import Columns, GraphSet, Runs, translations
from hydragnn_hpo.kernels import pair_edges

SHELL_TOLERANCE = 1e-3
"""Thickness of a shell in angstrom: neighbours that are farther away than the last one within a cap
by at most this distance are kept too."""


def cap_neighbors(
    edge_index: NDArray[np.int64], lengths: NDArray[np.float64], num_nodes: int, cap: int
) -> NDArray[np.bool_]:
    """Mark the edges to keep when every node keeps about its ``cap`` nearest neighbours.

    A node keeps whole shells: all neighbours as near as its ``cap``-th one. So it may keep more
    than ``cap``, and the result depends neither on the order of nodes nor on a rotation. An edge is
    kept if one of its ends keeps it: ``i -> j`` and ``j -> i`` are kept or dropped together.

    Args:
        edge_index: sender and receiver, both directions of every pair, [2, E].
        lengths: lengths of the edges in angstrom, [E].
        num_nodes: number of nodes, N.
        cap: number of nearest neighbours of a node.

    Returns:
        True for edges to keep, [E].
    """
    sender, receiver = edge_index
    counts = np.bincount(receiver, minlength=num_nodes)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    # One sort key orders edges by receiver, then length, several times faster than two keys; its
    # rounding error is about 1e-10 angstrom.
    stride = 1.0 + lengths.max(initial=0.0)
    ordered = np.sort(receiver * stride + lengths)
    reach = np.full(num_nodes, np.inf)
    crowded = np.flatnonzero(counts > cap)
    reach[crowded] = ordered[first[crowded] + cap - 1] - crowded * stride + SHELL_TOLERANCE
    kept: NDArray[np.bool_] = lengths <= np.maximum(reach[sender], reach[receiver])
    return kept


class Filler(NamedTuple):
    """Sizes of what a batch is filled up with."""

    graphs: int
    """Graphs without targets, which come last."""
    nodes: int
    """Nodes of these."""
    pairs: int
    """Edges between these, each with its reverse."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Several graphs as one disconnected graph, with their targets."""

    numbers: Tensor
    """Atomic numbers, long, [N]."""

    positions: Tensor
    """Positions in angstrom, [N, 3]."""

    edge_index: Tensor
    """Sender and receiver, long, [2, E]."""

    edge_shift: Tensor
    """Shift from the receiver to its image at the end of the edge, in angstrom, [E, 3]."""

    graph_of_node: Tensor
    """Graph of each node, long, [N]."""

    num_graphs: int
    """Number of graphs, G, each with at least one node; may be 0."""

    targets: dict[str, Tensor]
    """Properties by name, [G, width] or [N, width]; 0 where missing. They are fp64: fp32
    has too few digits for the total energy of many atoms."""

    masks: dict[str, Tensor]
    """Where a property is known, bool, [G] or [N]."""

    graph_index: Tensor
    """Rows of the graphs in the columns, long, [G]."""

    node_counts: Tensor | None = None
    """Number of nodes of each graph, at least 1, fp32, [G, 1]; None where they are not counted."""

    attributes: dict[str, Tensor] = field(default_factory=dict)
    """Known properties of whole graphs by name, [G]."""

    laplacian: Tensor | None = None
    """Laplacian positional encodings, [N, k], where the store has them."""

    features: dict[str, Tensor] = field(default_factory=dict)
    """Features of foundation models by their name, [N, F], where they are known."""

    cell: Tensor | None = None
    """Lattice vectors as rows in angstrom, [G, 3, 3]; 0 where there is no lattice."""

    by_receiver: Tensor | None = None
    """Edges sorted by receiver, [E], where they are in pairs: row p + P reverses row p. None where
    pairs were not requested, or edges were not sorted."""

    receiver_starts: Tensor | None = None
    """First edge of each node in ``by_receiver``, and the end, [N + 1]; None without pairs."""

    by_sender: Tensor | None = None
    """Edges sorted by sender, [E]; None without pairs."""

    sender_starts: Tensor | None = None
    """First edge of each node in ``by_sender``, and the end, [N + 1]; None without pairs."""

    num_lone: int = 0
    """Number of edges without a reverse, the last of the first P, where edges are in pairs."""

    filler: Filler | None = None
    """What the batch is filled up with to a size that recurs, see ``batch_layout``."""

    @property
    def num_real_graphs(self) -> int:
        """Number of graphs that are no filler."""
        return self.num_graphs - (self.filler.graphs if self.filler else 0)

    @property
    def num_pairs(self) -> int:
        """Number of pairs, P, where an edge without a reverse is one; E without a layout."""
        edges = self.edge_index.shape[1]
        return edges if self.by_receiver is None else (edges + self.num_lone) // 2

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the same batch on a device.

        Args:
            device: the device.
            non_blocking: whether to return before copies from page-locked memory are finished.
        """
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """Return the same batch in page-locked memory, which a GPU copies from asynchronously."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
            elif isinstance(value, dict):
                changed[name] = {key: change(tensor) for key, tensor in value.items()}
        return replace(self, **changed)


def make_batch(
    graphs: GraphSet,
    indices: ArrayLike,
    *,
    cutoff: float | None,
    dtype: torch.dtype = torch.float32,
    targets: Sequence[str] = (),
    max_neighbors: int | None = None,
    pairs: bool = False,
) -> Batch:
    """Copy graphs into one batch, without a Python object per graph.

    Args:
        graphs: graphs to copy from; ``Columns`` are read in place.
        indices: rows of the graphs, in the order of the batch, [G]; may be empty, may repeat.
        cutoff: longest edge to keep in angstrom; None keeps all.
        dtype: type of positions, shifts, cells, attributes and encodings; targets are fp64.
        targets: names of the properties to include.
        max_neighbors: cap on the neighbours of a node, see ``cap_neighbors``; None sets no cap.
        pairs: whether to lay edges out in pairs, where they are sorted.
    """
    columns, inside, rows = _to_columns(graphs, indices)
    nodes = Runs(columns.node_offset, inside)
    positions = nodes.of(columns.positions)
    edges = _edge_index_and_shift(columns, inside, nodes, dtype == torch.float64)
    edge_index, shift = _cut_edges(columns, *edges, positions, cutoff, max_neighbors)
    values, masks = _gather_targets(columns, targets, inside, nodes)
    batch = Batch(
        numbers=torch.from_numpy(nodes.of(columns.numbers, np.int64)),
        positions=torch.from_numpy(positions).to(dtype),
        edge_index=torch.from_numpy(edge_index),
        edge_shift=torch.from_numpy(shift),
        graph_of_node=torch.from_numpy(np.repeat(np.arange(len(rows)), nodes.counts)),
        num_graphs=len(rows),
        graph_index=torch.from_numpy(rows.copy()),
        node_counts=torch.from_numpy(nodes.counts).clamp(min=1).float().unsqueeze(1),
        targets=values,
        masks=masks,
    )
    return _add_conditions(lay_out_pairs(batch) if pairs else batch, columns, inside, nodes)


def lay_out_pairs(batch: Batch) -> Batch:
    """Return the same graphs with their edges in pairs; unchanged if edges are not sorted."""
    laid = pair_edges(batch.edge_index.numpy(), batch.edge_shift.numpy(), len(batch.numbers))
    if laid is None:
        return batch
    return replace(
        batch,
        edge_index=torch.from_numpy(laid.ends),
        edge_shift=torch.from_numpy(laid.shift),
        by_receiver=torch.from_numpy(laid.by_receiver),
        receiver_starts=torch.from_numpy(laid.receiver_starts),
        by_sender=torch.from_numpy(laid.by_sender),
        sender_starts=torch.from_numpy(laid.sender_starts),
        num_lone=laid.num_lone,
    )


def _add_conditions(batch: Batch, columns: Columns, rows: NDArray[np.int64], nodes: Runs) -> Batch:
    """Check the shapes of a batch, and add the other model inputs: attributes, cells, encodings.

    Args:
        batch: the batch; what is added has the type of its positions.
        columns: graphs.
        rows: rows of the graphs of the batch, [G].
        nodes: where their nodes lie.
    """
    _check_shapes(batch)
    dtype, encodings = batch.positions.dtype, columns.laplacian
    attributes = columns.attributes.items()
    return replace(
        batch,
        attributes={name: torch.from_numpy(value[rows]).to(dtype) for name, value in attributes},
        cell=torch.from_numpy(columns.cell[rows]).to(dtype),
        laplacian=None if encodings is None else torch.from_numpy(nodes.of(encodings)).to(dtype),
        features={
            name: torch.from_numpy(nodes.of(values)).to(dtype)
            for name, values in columns.features.items()
        },
    )


def _to_columns(
    graphs: GraphSet, indices: ArrayLike
) -> tuple[Columns, NDArray[np.int64], NDArray[np.int64]]:
    """Return columns that hold the graphs, their rows in these columns, and in ``graphs``."""
    rows = np.asarray(indices, dtype=np.int64).reshape(-1)
    if isinstance(graphs, Columns):
        return graphs, rows, rows
    return graphs.take(rows), np.arange(len(rows)), rows


def _edge_index_and_shift(
    columns: Columns, rows: NDArray[np.int64], nodes: Runs, fp64: bool
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return sender and receiver of all edges, [2, E], and their shifts in angstrom, [E, 3]."""
    edges = Runs(columns.edge_offset, rows)
    edge_index = _edge_index(edges, columns.edges, nodes.starts)
    return edge_index, _shift(columns, rows, edges, fp64)


def _edge_index(
    runs: Runs, edges: NDArray[np.int32], first_node: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return sender and receiver, counted over the nodes of the whole batch, [2, E].

    An edge is two 32-bit numbers, read as one 64-bit word: the sender in its lower half, the
    receiver in its upper half (little endian). One addition adds the first node of the graph to
    both, and a mask and a shift separate the halves. Casts and strided copies would take several
    times longer.

    Args:
        runs: where the edges of the graphs lie.
        edges: column of edges, [rows, 2].
        first_node: first node of each graph in the batch, and the end, [G + 1].
    """
    words = runs.of(edges).view("<i8")[:, 0]
    words += np.repeat(first_node[:-1] * ((1 << 32) + 1), runs.counts)
    result = np.empty((2, len(words)), dtype=np.int64)
    np.bitwise_and(words, 0xFFFFFFFF, out=result[0])
    np.right_shift(words, 32, out=result[1])
    return result


def _shift(columns: Columns, rows: NDArray[np.int64], runs: Runs, fp64: bool) -> NDArray[Any]:
    """Return the shifts of the edges in angstrom, [E, 3].

    Args:
        columns: graphs.
        rows: rows of the graphs of the batch, [G].
        runs: where their edges lie.
        fp64: whether shifts are fp64; else they are fp32.
    """
    if columns.edge_translation is not None and not fp64:
        return runs.of(columns.edge_translation)
    shifts = runs.of(columns.edge_shift, np.float64)
    ends = runs.starts.tolist()
    return translations(shifts, columns.cell[rows], ends).astype(np.float64 if fp64 else np.float32)


def _reaches_beyond(columns: Columns, cutoff: float | None) -> bool:
    """Check whether the columns may hold edges longer than the cutoff."""
    return cutoff is not None and cutoff < columns.stats.get("cutoff", np.inf)


def _cut_edges(
    columns: Columns,
    edge_index: NDArray[np.int64],
    shift: NDArray[Any],
    positions: NDArray[np.float64],
    cutoff: float | None,
    max_neighbors: int | None,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the edges within the cutoff and the cap, and their shifts, in the same order.

    Args:
        columns: graphs that the edges are from.
        edge_index: sender and receiver, [2, E].
        shift: shifts of the edges in angstrom, [E, 3].
        positions: angstrom, [N, 3].
        cutoff: angstrom; None sets no limit.
        max_neighbors: see ``cap_neighbors``; None sets no cap.
    """
    if not _reaches_beyond(columns, cutoff) and max_neighbors is None:
        return edge_index, shift
    squared = _squared_lengths(edge_index, positions, shift)
    near = np.flatnonzero(squared <= (np.inf if cutoff is None else cutoff * cutoff))
    if max_neighbors is not None:
        lengths = np.sqrt(squared[near], dtype=np.float64)
        near = near[
            cap_neighbors(edge_index.take(near, axis=1), lengths, len(positions), max_neighbors)
        ]
    return edge_index.take(near, axis=1), shift.take(near, axis=0)


def _squared_lengths(
    edge_index: NDArray[np.int64], positions: NDArray[np.float64], shift: NDArray[Any]
) -> NDArray[Any]:
    """Return squared lengths of edges in angstrom squared, in the type of the shifts, [E].

    In fp32 a row of positions is padded to four numbers and copied as one item of 16 bytes, which
    is several times faster. An edge that fp32 rounding moves across the cutoff has a weight of
    almost 0.
    """
    sender, receiver = edge_index
    if shift.dtype == np.float64:
        vectors = positions[receiver] - positions[sender] + shift
        return np.asarray(np.einsum("ec,ec->e", vectors, vectors))
    padded = np.zeros((len(positions), 4), dtype=np.float32)
    padded[:, :3] = positions
    whole = padded.view(np.complex128)[:, 0]
    ends = (whole.take(end).view(np.float32).reshape(-1, 4) for end in (receiver, sender))
    vectors = np.subtract(*ends)
    squared = np.zeros(len(shift), dtype=np.float32)
    for axis in range(3):  # three long columns are faster than many rows of three
        component = vectors[:, axis] + shift[:, axis]
        squared += component * component
    return squared


def _gather_targets(
    columns: Columns, names: Sequence[str], rows: NDArray[np.int64], nodes: Runs
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copy targets and their masks.

    Args:
        columns: graphs.
        names: names of the targets.
        rows: rows of the graphs of the batch, [G].
        nodes: where their nodes lie.

    Returns:
        Values, [G, width] or [N, width], with 0 where they are missing, and masks, [G] or [N], both
        by name.
    """
    values: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name in names:
        mask, value = columns.masks[name], columns.targets[name]
        node = columns.levels[name] == "node"
        known, copy = (nodes.of(mask), nodes.of(value)) if node else (mask[rows], value[rows])
        copy[~known] = 0.0
        masks[name] = torch.from_numpy(known)
        values[name] = torch.from_numpy(copy)
    return values, masks


def _check_shapes(batch: Batch) -> None:
    """Assert the shapes of a batch, once for all code that uses it."""
    num_nodes = len(batch.numbers)
    num_edges = batch.edge_index.shape[1]
    assert batch.positions.shape == (num_nodes, 3)
    assert batch.edge_index.shape == (2, num_edges)
    assert batch.edge_shift.shape == (num_edges, 3)
    assert batch.graph_of_node.shape == (num_nodes,)
    for name, value in batch.targets.items():
        assert len(value) in (batch.num_graphs, num_nodes), name
        assert value.dim() == 2, name
        assert batch.masks[name].shape == value.shape[:1], name


T = TypeVar("T")
S = TypeVar("S")

_POLL_SECONDS = 0.1
"""Interval at which a thread that waits for room in the queue checks for ``close``."""


class _End:
    """Last item of the queue: all items are made, or making one has raised ``error``."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Prefetcher(Generic[T]):
    """An iterator over ``make(item)`` of every item in order, computed ahead in a thread.

    An error of ``make`` is raised in the consumer when it reaches that item. A consumer that stops
    early calls ``close`` or leaves the ``with`` block; the thread ends after its current item.
    """

    def __init__(self, make: Callable[[S], T], items: Iterable[S], depth: int) -> None:
        """Start the thread.

        Args:
            make: called in the thread, for one item at a time.
            items: its inputs, read in the thread.
            depth: largest number of results made ahead; 0 makes each in the consumer, without a
                thread.
        """
        self._stop = threading.Event()
        self._queue: queue.Queue[T | _End] = queue.Queue(maxsize=max(depth, 1))
        self._plain = map(make, items) if depth == 0 else None
        self._thread: threading.Thread | None = None
        if depth > 0:
            self._thread = threading.Thread(
                target=self._run, args=(make, items), name="look-ahead", daemon=True
            )
            self._thread.start()

    def _run(self, make: Callable[[Any], T], items: Iterable[Any]) -> None:
        try:
            for item in items:
                if not self._put(make(item)):
                    return
            self._put(_End())
        except BaseException as error:
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        if self._plain is not None:
            yield from self._plain
            return
        while True:
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
