"""Make batches of graphs by index arithmetic over columns, ahead of their use.

Shapes: G graphs, N nodes, E edges of the batch.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from torch import Tensor

from hydragnn_hpo.data.columns import Columns, GraphSet, Runs, translations

IntArray = NDArray[np.int64]

PAIR_TOLERANCE = 1e-3
"""Shifts of an edge and its reverse cancel to this, in angstrom."""

SHELL_TOLERANCE = 1e-3
"""Neighbours this little (angstrom) beyond the last one kept are of its shell and stay too."""


def cap_neighbors(
    edge_index: NDArray[np.int64], lengths: NDArray[np.float64], num_nodes: int, cap: int
) -> NDArray[np.bool_]:
    """Mark the edges that stay when every node keeps about its ``cap`` nearest neighbours, [E].

    A node keeps whole shells: all neighbours as near as its ``cap``-th one, so that more than
    ``cap`` may stay but nothing depends on the order of nodes or on a rotation. An edge stays if
    one of its ends keeps it: ``i -> j`` and ``j -> i`` stay or go together.

    Args:
        edge_index: sender and receiver, both directions of every pair, [2, E].
        lengths: angstrom, [E].
        num_nodes: N.
        cap: neighbours.
    """
    sender, receiver = edge_index
    counts = np.bincount(receiver, minlength=num_nodes)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    # One number sorts by receiver, then length, several times faster than two; it is good to
    # about 1e-10 angstrom.
    stride = 1.0 + lengths.max(initial=0.0)
    ordered = np.sort(receiver * stride + lengths)
    reach = np.full(num_nodes, np.inf)
    crowded = np.flatnonzero(counts > cap)
    reach[crowded] = ordered[first[crowded] + cap - 1] - crowded * stride + SHELL_TOLERANCE
    kept: NDArray[np.bool_] = lengths <= np.maximum(reach[sender], reach[receiver])
    return kept


def pair_edges(
    edge_index: IntArray, shift: NDArray[np.floating], num_nodes: int
) -> IntArray | None:
    """Lay edges out in pairs, in time linear in their number.

    Args:
        edge_index: sender and receiver, sorted by receiver, sender and integer shift, [2, E].
        shift: translations of the receivers in angstrom, [E, 3].
        num_nodes: N.

    Returns:
        Two permutations, [2, E]. The first lays the edges out: row p of its first half is an
        edge, row p of its second half the reverse of that edge. The second gives the rows of
        that layout in the order of their receivers. None where the edges are no such pairs:
        a graph from elsewhere may have an edge without its reverse, or another order.
    """
    sender, receiver = edge_index
    if len(sender) % 2 or (np.diff(receiver) < 0).any():
        return None
    ahead = np.flatnonzero(receiver > sender)
    behind = np.flatnonzero(receiver < sender)
    loops = np.flatnonzero(receiver == sender)
    if len(ahead) != len(behind) or len(loops) % 2:
        return None
    reverse = _sort_by_sender(sender, receiver, behind, num_nodes)
    keys = receiver[ahead] * num_nodes + sender[ahead]
    reverse = reverse[_reverse_equal_runs(keys)]
    mirror = _reverse_equal_runs(sender[loops])
    half = mirror > np.arange(len(loops))
    layout = np.concatenate((ahead, loops[half], reverse, loops[mirror[half]]))
    if not _is_paired(edge_index, shift, layout):
        return None
    order = np.empty_like(layout)
    order[layout] = np.arange(len(layout))
    return np.stack((layout, order))


def _sort_by_sender(
    sender: IntArray, receiver: IntArray, rows: IntArray, num_nodes: int
) -> IntArray:
    """Sort edges by sender, then receiver; equal ones keep their order. A counting sort."""
    starts = np.searchsorted(receiver[rows], np.arange(num_nodes + 1))
    table = csr_array((rows, sender[rows], starts), shape=(num_nodes, num_nodes))
    found: IntArray = table.tocsc().data
    return found


def _reverse_equal_runs(keys: IntArray) -> IntArray:
    """Return places such that each run of equal, neighbouring keys is read backwards."""
    places = np.arange(len(keys))
    borders = np.flatnonzero(np.diff(keys)) + 1
    if len(borders) == len(keys) - 1:
        return places
    starts = np.concatenate(([0], borders, [len(keys)]))[: len(borders) + 2]
    lengths = np.diff(starts)
    mirrored: IntArray = np.repeat(starts[:-1] + starts[1:] - 1, lengths) - places
    return mirrored


def _is_paired(edge_index: IntArray, shift: NDArray[np.floating], layout: IntArray) -> bool:
    """Check that both halves are permutations of all edges, turned round row by row."""
    if len(layout) != edge_index.shape[1]:
        return False
    first, second = np.split(layout, 2)
    turned = edge_index.take(second, axis=1)[::-1]
    if not np.array_equal(edge_index.take(first, axis=1), turned):
        return False
    rest = np.abs(shift.take(first, axis=0) + shift.take(second, axis=0))
    return bool(rest.max(initial=0.0) < PAIR_TOLERANCE)


@dataclass(frozen=True, eq=False)
class Batch:
    """Disjoint graphs as one; edges point from ``edge_index[0]`` to ``edge_index[1]``."""

    numbers: Tensor
    """Atomic numbers, long, [N]."""

    positions: Tensor
    """Positions in angstrom, [N, 3]."""

    edge_index: Tensor
    """Sender and receiver, long, [2, E]."""

    edge_shift: Tensor
    """What to add to the receiver's position to reach its image, in angstrom, [E, 3]."""

    graph_of_node: Tensor
    """Graph of each node, long, [N]."""

    num_graphs: int
    """Number of graphs, G; they may have no nodes only when G is 0."""

    targets: dict[str, Tensor]
    """Properties by name, [G, width] or [N, width]; 0 where missing. They are fp64: a total energy
    of many atoms has more digits than fp32."""

    masks: dict[str, Tensor]
    """Where a property is known, bool, [G] or [N]."""

    graph_index: Tensor
    """Rows of the graphs in the columns, long, [G]."""

    attributes: dict[str, Tensor] = field(default_factory=dict)
    """Known properties of whole graphs by name, [G]."""

    laplacian: Tensor | None = None
    """Laplacian positional encodings, [N, k], where the store has them."""

    cell: Tensor | None = None
    """Lattice vectors as rows in angstrom, [G, 3, 3]; 0 where there is no lattice."""

    pairs: Tensor | None = None
    """Layout of the edges in pairs and its inverse, [2, E], see ``pair_edges``; only on request,
    and only where every edge has its reverse."""

    order: Tensor | None = None
    """Edges in the order of their receivers, [E], where they lie in pairs already: row p + E / 2 is
    row p turned round. Then there is no ``pairs``."""

    starts: Tensor | None = None
    """Where each node's edges begin in that order, and the end, [N + 1]."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """Return the same batch in page-locked memory, from where a GPU copies by itself."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
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
    """Gather graphs into one batch; no objects in between.

    Args:
        graphs: in memory, memory-mapped, or anything that gives ``Columns``.
        indices: rows of the graphs, in the order wanted; may be empty.
        cutoff: longest edge kept, in angstrom; ``None`` keeps them all.
        dtype: of positions, shifts and attributes; targets are fp64.
        targets: names of the properties to carry.
        max_neighbors: cap on the neighbours of a node, see ``cap_neighbors``.
        pairs: lay the edges out in pairs, as a net wants them.
    """
    columns, inside, rows = _in_memory(graphs, indices)
    nodes, edges = Runs(columns.node_offset, inside), Runs(columns.edge_offset, inside)
    positions = nodes.of(columns.positions)
    edge_index = _edge_index(edges, columns.edges, nodes.starts)
    shift = _shift(columns, inside, edges, dtype == torch.float64)
    if _reaches_beyond(columns, cutoff) or max_neighbors is not None:
        keep = _near(edge_index, positions, shift, cutoff, max_neighbors)
        edge_index, shift = edge_index.take(keep, axis=1), shift.take(keep, axis=0)
    batch = Batch(
        numbers=torch.from_numpy(nodes.of(columns.numbers, np.int64)),
        positions=torch.from_numpy(positions).to(dtype),
        **_edges(edge_index, shift, len(positions), pairs),
        graph_of_node=torch.from_numpy(np.repeat(np.arange(len(rows)), nodes.counts)),
        num_graphs=len(rows),
        graph_index=torch.from_numpy(rows.copy()),
        **_properties(columns, targets, inside, nodes),
        **_conditions(columns, inside, nodes, dtype),
    )
    return _checked(batch)


def _in_memory(
    graphs: GraphSet, indices: ArrayLike
) -> tuple[Columns, NDArray[np.int64], NDArray[np.int64]]:
    """Return columns that hold the graphs, their rows there, and the rows that were asked for."""
    rows = np.asarray(indices, dtype=np.int64).reshape(-1)
    if isinstance(graphs, Columns):
        return graphs, rows, rows
    return graphs.take(rows), np.arange(len(rows)), rows


def _conditions(
    columns: Columns, rows: NDArray[np.int64], nodes: Runs, dtype: torch.dtype
) -> dict[str, Any]:
    """Gather what models may be conditioned on."""
    attributes = {
        name: torch.from_numpy(value[rows]).to(dtype) for name, value in columns.attributes.items()
    }
    codes = columns.laplacian
    return {
        "attributes": attributes,
        "cell": torch.from_numpy(columns.cell[rows]).to(dtype),
        "laplacian": None if codes is None else torch.from_numpy(nodes.of(codes)).to(dtype),
    }


def _edge_index(
    runs: Runs, edges: NDArray[np.int32], first_node: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return sender and receiver counted over the whole batch, [2, E].

    Two 32-bit numbers are one 64-bit word: sender below, receiver above (little endian). The
    first node of a graph is added to both at once, and the halves come apart by a mask and a
    shift; casts and strides would cost several times more.
    """
    words = runs.of(edges).view("<i8")[:, 0]
    words += np.repeat(first_node[:-1] * ((1 << 32) + 1), runs.counts)
    result = np.empty((2, len(words)), dtype=np.int64)
    np.bitwise_and(words, 0xFFFFFFFF, out=result[0])
    np.right_shift(words, 32, out=result[1])
    return result


def _shift(columns: Columns, rows: NDArray[np.int64], runs: Runs, fp64: bool) -> NDArray[Any]:
    """Return the shifts of the edges in angstrom, [E, 3]."""
    if columns.edge_translation is not None and not fp64:
        return runs.of(columns.edge_translation)
    shifts, ends = runs.of(columns.edge_shift, np.float64), runs.starts.tolist()
    return translations(shifts, columns.cell[rows], ends).astype(np.float64 if fp64 else np.float32)


def _edges(
    edge_index: NDArray[np.int64], shift: NDArray[Any], num_nodes: int, pairs: bool
) -> dict[str, Any]:
    """Return the edges, and on wish their layout in pairs where they are such."""
    layout = pair_edges(edge_index, shift, num_nodes) if pairs else None
    return {
        "edge_index": torch.from_numpy(edge_index),
        "edge_shift": torch.from_numpy(shift),
        "pairs": None if layout is None else torch.from_numpy(layout),
    }


def _reaches_beyond(columns: Columns, cutoff: float | None) -> bool:
    """Check whether the columns may hold edges longer than the cutoff."""
    return cutoff is not None and cutoff < columns.stats.get("cutoff", np.inf)


def _near(
    edge_index: NDArray[np.int64],
    positions: NDArray[np.float64],
    shift: NDArray[Any],
    cutoff: float | None,
    max_neighbors: int | None,
) -> NDArray[np.int64]:
    """Return the edges within the cutoff and the cap, ascending."""
    squared = _squared_lengths(edge_index, positions, shift)
    near = np.flatnonzero(squared <= (np.inf if cutoff is None else cutoff * cutoff))
    if max_neighbors is not None:
        lengths = np.sqrt(squared[near], dtype=np.float64)
        near = near[
            cap_neighbors(edge_index.take(near, axis=1), lengths, len(positions), max_neighbors)
        ]
    return near


def _squared_lengths(
    edge_index: NDArray[np.int64], positions: NDArray[np.float64], shift: NDArray[Any]
) -> NDArray[Any]:
    """Return squared lengths in the type of the shifts, [E].

    A row of four fp32 is copied as one 16-byte number, several times faster than as a row. What
    fp32 decides otherwise lies at the cutoff, where every message has weight 0.
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
    for axis in range(3):  # long strides are quicker than many rows of three
        component = vectors[:, axis] + shift[:, axis]
        squared += component * component
    return squared


def _properties(
    columns: Columns, names: Sequence[str], rows: NDArray[np.int64], nodes: Runs
) -> dict[str, Any]:
    """Gather properties with zeros for the missing ones, and their masks."""
    values: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name in names:
        mask, value = columns.masks[name], columns.targets[name]
        node = columns.levels[name] == "node"
        known, found = (nodes.of(mask), nodes.of(value)) if node else (mask[rows], value[rows])
        found[~known] = 0.0
        masks[name], values[name] = torch.from_numpy(known), torch.from_numpy(found)
    return {"targets": values, "masks": masks}


def _checked(batch: Batch) -> Batch:
    """Check shapes, once for everything downstream."""
    num_nodes, num_edges = len(batch.numbers), batch.edge_index.shape[1]
    assert batch.positions.shape == (num_nodes, 3)
    assert batch.edge_index.shape == (2, num_edges)
    assert batch.edge_shift.shape == (num_edges, 3)
    assert batch.graph_of_node.shape == (num_nodes,)
    for name, value in batch.targets.items():
        assert len(value) in (batch.num_graphs, num_nodes), name
        assert value.dim() == 2, name
        assert batch.masks[name].shape == value.shape[:1], name
    return batch


T = TypeVar("T")
S = TypeVar("S")

_LOOK_SECONDS = 0.1
"""How often a thread that waits for room looks whether it is still wanted."""


class _End:
    """What the thread says last: nothing more, or an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Prefetcher(Generic[T]):
    """Gives ``make(item)`` for every item in order, made up to ``depth`` items ahead.

    What ``make`` raises, the consumer meets at that item. Who stops early closes it, or leaves
    the ``with``: the thread ends after the item it is at.
    """

    def __init__(self, make: Callable[[S], T], items: Iterable[S], depth: int) -> None:
        """Start the thread; 0 makes each item when it is asked for, without a thread."""
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
                self._queue.put(item, timeout=_LOOK_SECONDS)
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
