"""Fill batches up to sizes that recur.

A CUDA graph runs the same kernels on the same memory, so batches that share one must have equal
shapes. Filler at the end of a batch rounds its numbers of graphs, nodes and pairs of edges up to
four significant bits, by an eighth at most. Filler graphs have no targets, and no edge leads from
filler to another node, so that predictions, losses and gradients are those without filler.

Shapes: G graphs, N nodes, E edges, P pairs of edges of a batch; g, n and p of its filler.
"""

from dataclasses import replace

import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch, Filler

_BITS = 4
"""Significant bits of a padded size."""

_LENGTH = 1.0
"""Length of filler edges in angstrom: not 0, where an edge has no direction."""


def round_up(size: int) -> int:
    """Round a size up to four significant bits."""
    step = 1 << max(size.bit_length() - _BITS, 0)
    return -(-size // step) * step


def choose_filler(graphs: int, nodes: int, pairs: int) -> Filler:
    """Choose the filler of a batch.

    Its nodes have about as many edges as others, since a node of many would hold up its kernel. A
    padded batch has more nodes than graphs, so that the number of rows tells what they are of.

    Args:
        graphs: number of graphs, G.
        nodes: number of nodes, N.
        pairs: number of pairs of edges, P.
    """
    more_graphs = round_up(graphs + 1) - graphs
    more_pairs = round_up(pairs) - pairs
    enough = -(-more_pairs * nodes // max(pairs, 1))
    least = max(nodes + max(more_graphs, enough), graphs + more_graphs + 1)
    return Filler(more_graphs, round_up(least) - nodes, more_pairs)


def pad_batch(batch: Batch) -> Batch:
    """Fill a batch up to a size that recurs.

    Args:
        batch: its edges may be in pairs.

    Returns:
        The batch with filler behind the graphs, the nodes, and either half of the edges. It is
        unchanged if edges are not in pairs, if one has no reverse, or if there are no graphs, or
        none of several nodes.
    """
    graphs = batch.num_graphs
    nodes = len(batch.numbers)
    pairs = batch.num_pairs
    if batch.by_receiver is None or batch.num_lone or graphs in (0, nodes):
        return batch
    filler = choose_filler(graphs, nodes, pairs)
    sender, receiver, shift = _filler_edges(filler, batch.positions.device)
    shift = shift.to(batch.edge_shift.dtype)
    first = torch.stack((sender, receiver)) + nodes
    halves = batch.edge_index[:, :pairs], first, batch.edge_index[:, pairs:], first.flip(0)
    shifts = batch.edge_shift[:pairs], shift, batch.edge_shift[pairs:], -shift
    by_receiver, receiver_starts = _append_order(
        batch.by_receiver, batch.receiver_starts, torch.cat((receiver, sender)), filler
    )
    by_sender, sender_starts = _append_order(
        batch.by_sender, batch.sender_starts, torch.cat((sender, receiver)), filler
    )
    return replace(
        _pad_rows(batch, filler),
        edge_index=torch.cat(halves, 1),
        edge_shift=torch.cat(shifts),
        by_receiver=by_receiver,
        receiver_starts=receiver_starts,
        by_sender=by_sender,
        sender_starts=sender_starts,
        filler=filler,
    )


def _append_order(
    order: Tensor | None, starts: Tensor | None, ends: Tensor, filler: Filler
) -> tuple[Tensor, Tensor]:
    """Append the edges of the filler, sorted by one end, to those of a batch.

    Args:
        order: edges of the batch sorted by that end, [E].
        starts: position in ``order`` where those of each node begin, and the end, [N + 1].
        ends: that end of the filler's edges, counted from 0, of both halves, [2p].
        filler: sizes of the filler.

    Returns:
        Order and starts of the padded batch, [E + 2p] and [N + n + 1].
    """
    assert order is not None
    assert starts is not None
    pairs = len(order) // 2
    behind = ends.argsort(stable=True)
    more = torch.searchsorted(ends[behind], torch.arange(filler.nodes + 1, device=ends.device))
    placed = torch.where(order < pairs, order, order + filler.pairs)
    behind = torch.where(behind < filler.pairs, behind + pairs, behind + 2 * pairs)
    return torch.cat((placed, behind)), torch.cat((starts, more[1:] + 2 * pairs))


def _filler_edges(filler: Filler, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Lead edges around rings of filler nodes, each ring in a direction of its own.

    Returns:
        Sender and receiver of the first edge of each pair, [p] each, and its shift, [p, 3].
    """
    number = torch.arange(filler.pairs, device=device)
    ring, sender = number // filler.nodes + 1, number % filler.nodes
    receiver = (sender + ring) % filler.nodes
    angle = ring * (torch.pi / (2 + filler.pairs // filler.nodes))
    shift = _LENGTH * torch.stack((angle.cos(), angle.sin(), torch.zeros_like(angle)), dim=1)
    return sender, receiver, shift


def _pad_rows(batch: Batch, filler: Filler) -> Batch:
    """Append filler to everything of graphs and nodes.

    Elements, encodings, cells and attributes are those of the first node or graph, which are known
    to be possible. The last graph has all nodes that are left.
    """
    last = batch.num_graphs + filler.graphs - 1
    node = torch.arange(filler.nodes, device=batch.positions.device)
    graph = (node + batch.num_graphs).clamp(max=last)

    def missing(rows: Tensor) -> Tensor:
        of_graphs = len(rows) == batch.num_graphs
        return _append_zeros(rows, filler.graphs if of_graphs else filler.nodes)

    return replace(
        batch,
        num_graphs=last + 1,
        numbers=_repeat_first(batch.numbers, filler.nodes),
        positions=_append_zeros(batch.positions, filler.nodes),
        graph_of_node=torch.cat((batch.graph_of_node, graph)),
        graph_index=_append_zeros(batch.graph_index, filler.graphs),
        node_counts=_append_counts(batch.node_counts, filler),
        targets={name: missing(rows) for name, rows in batch.targets.items()},
        masks={name: missing(rows) for name, rows in batch.masks.items()},
        attributes={
            name: _repeat_first(rows, filler.graphs) for name, rows in batch.attributes.items()
        },
        cell=None if batch.cell is None else _repeat_first(batch.cell, filler.graphs),
        laplacian=(
            None if batch.laplacian is None else _repeat_first(batch.laplacian, filler.nodes)
        ),
        features={n: _repeat_first(rows, filler.nodes) for n, rows in batch.features.items()},
    )


def _append_counts(counts: Tensor | None, filler: Filler) -> Tensor | None:
    """Append the numbers of nodes of the filler's graphs, [G, 1] to [G + g, 1]."""
    if counts is None:
        return None
    more = counts.new_ones(filler.graphs, 1)
    more[-1] += filler.nodes - filler.graphs
    return torch.cat((counts, more))


def _append_zeros(rows: Tensor, count: int) -> Tensor:
    return torch.cat((rows, rows.new_zeros(count, *rows.shape[1:])))


def _repeat_first(rows: Tensor, count: int) -> Tensor:
    return torch.cat((rows, rows[:1].expand(count, *rows.shape[1:])))


def cut_filler(rows: Tensor, batch: Batch) -> Tensor:
    """Cut the filler's rows off what was predicted for a padded batch.

    Args:
        rows: of the graphs or the nodes, [G + g, ...] or [N + n, ...].
        batch: the padded batch.

    Returns:
        [G, ...] or [N, ...].
    """
    if batch.filler is None:
        return rows
    of_graphs = len(rows) == batch.num_graphs
    return rows[: len(rows) - (batch.filler.graphs if of_graphs else batch.filler.nodes)]
