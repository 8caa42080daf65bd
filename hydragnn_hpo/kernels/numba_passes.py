"""Forms of ``passes`` as loops that numba compiles, for CPUs.

Torch's operations write the products of all edges to memory and read them again to sum them. Loops
that gather, multiply and sum edge by edge do not. Each loop has one thread and sums in
a fixed order, so results repeat bit by bit on one machine (Law 5), and the sums of a node do not
depend on the other graphs of a batch (Law 7).

A loop is compiled at its first use, for one dtype, see ``compiled_loops``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydragnn_hpo.kernels.change_loops import LOOPS as CHANGE_LOOPS
from hydragnn_hpo.kernels.compiled_loops import CompiledLoops
from hydragnn_hpo.kernels.coupling_loops import COUPLING_LOOPS
from hydragnn_hpo.kernels.eager_passes import (
    Arguments,
    FormCurvature,
    FormSlopes,
    Seconds,
    Slopes,
    without_filters,
    without_vectors,
)
from hydragnn_hpo.kernels.edge_loops import LOOPS as EDGE_LOOPS
from hydragnn_hpo.kernels.gate_loops import LOOPS as GATE_LOOPS
from hydragnn_hpo.kernels.geometry_loops import LOOPS as GEOMETRY_LOOPS
from hydragnn_hpo.kernels.numba_loops import EXACT
from hydragnn_hpo.kernels.numba_loops import LOOPS as PRODUCT_LOOPS
from hydragnn_hpo.kernels.scatter import Links, Segments

LOOPS = {
    **{**PRODUCT_LOOPS, **COUPLING_LOOPS, **CHANGE_LOOPS},
    **{**EDGE_LOOPS, **GATE_LOOPS, **GEOMETRY_LOOPS},
}
"""All loops and their signatures."""

KERNELS = CompiledLoops(LOOPS, exact=EXACT)
"""The same as machine code."""


def run_loop(name: str, *inputs: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop on tensors and tuples of them; its results must be contiguous."""
    arrays = [
        tuple(map(_as_array, each)) if isinstance(each, tuple) else _as_array(each)
        for each in inputs
    ]
    last: Any = arrays[-1]
    last = last[0] if isinstance(last, tuple) else last
    KERNELS.compile(name, "float32" if last.itemsize == 4 else "float64")(*arrays)


def _as_array(tensor: Tensor) -> Any:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def filtered_loops(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the form of ``eager_passes.filtered_slopes``; see there."""
    values, filters, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 3
    rows = values.shape if values.dim() == 3 else (values.shape[0], 1, values.shape[1])
    if needed[0]:
        slopes[0] = empty_like(values)
        out = slopes[0].view(rows)
        run_loop("filtered_by_node", grad.reshape(rows), filters, (r, by_s, s_starts), out)
    if needed[1]:
        slopes[1] = empty_like(filters)
        run_loop("filtered_by_pair", values.reshape(rows), grad.reshape(rows), (s, r), slopes[1])
    if needed[2]:
        slopes[2] = empty_like(values)
        out = slopes[2].view(rows)
        run_loop("filtered_by_node", values.reshape(rows), filters, (s, by_r, r_starts), out)
    return slopes


def empty_like(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that a loop overwrites."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _space(like: Tensor) -> tuple[Tensor, ...]:
    """Return space for the three components of a node."""
    return like.new_empty(3, like.shape[-1]).unbind()


def vectors_loops(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the form of ``eager_passes.vectors_slopes``; see there.

    Args:
        arguments: as there; without rows in the vectors and their filters, their term is left out.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, directions, vectors, vector_filters, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 6
    if needed[5]:
        slopes[5] = values.new_empty(values.shape[0], 3, values.shape[1])
        given = (*arguments[:5], (s, by_r, r_starts), slopes[5])
        run_loop("vectors_by_receiver", *given, _space(values))
    if needed[0] or needed[3]:
        given = (filters, directions, vector_filters, grad, (r, by_s, s_starts))
        slopes[0] = empty_like(values)
        slopes[3] = empty_like(vectors)
        run_loop("vectors_by_sender", *given, slopes[0], slopes[3], _space(values))
    if needed[1] or needed[4]:
        slopes[1] = empty_like(filters)
        slopes[4] = empty_like(vector_filters)
        run_loop("vectors_by_pair", values, directions, vectors, grad, (s, r), slopes[1], slopes[4])
    if needed[2]:
        slopes[2] = empty_like(directions)
        run_loop("vectors_by_edge", values, filters, grad, (s, r), slopes[2])
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


def attended_loops(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the form of ``eager_passes.attended_slopes``; see there.

    Args:
        arguments: as there; filters without rows are 1, and weights may be of pairs.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, weights, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 4

    def by_head(rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], weights.shape[1], rows.shape[1] // weights.shape[1])

    if needed[0]:
        slopes[0] = empty_like(values)
        edges = (by_head(filters), weights, (r, by_s, s_starts))
        run_loop("attended_by_node", by_head(grad), *edges, by_head(slopes[0]))
    if needed[1]:
        slopes[1] = empty_like(filters)
        ends = (by_head(grad), by_head(values))
        run_loop("attended_by_pair", *ends, weights, (s, r), by_head(slopes[1]))
    if needed[2]:
        slopes[2] = empty_like(weights)
        ends = (by_head(grad), by_head(values))
        run_loop("attended_by_edge", *ends, by_head(filters), (s, r), slopes[2])
    if needed[3]:
        slopes[3] = empty_like(values)
        edges = (by_head(filters), weights, (s, by_r, r_starts))
        run_loop("attended_by_node", by_head(values), *edges, by_head(slopes[3]))
    return slopes


def coupled_loops(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the form of ``eager_passes.coupled_slopes``; see there."""
    values, filters, mixing, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    num_sums, num_values = mixing.shape[1:]
    matrices = mixing.flatten(1)
    slopes = list[Any]([None] * 4)
    if needed[0]:
        slopes[0] = empty_like(values)
        steps = torch.tensor((1, num_values))
        edges = (r, by_s, s_starts)
        run_loop("coupled_by_node", grad, filters, matrices, steps, edges, slopes[0])
    if needed[1]:
        slopes[1] = empty_like(filters)
        run_loop("coupled_by_pair", values, grad, matrices, (s, r), slopes[1])
    if needed[2]:
        slopes[2] = empty_like(mixing)
        run_loop("coupled_by_edge", values, filters, grad, (s, r), slopes[2].flatten(1))
    if needed[3]:
        slopes[3] = values.new_empty(values.shape[0], num_sums, values.shape[2])
        edges = (s, by_r, r_starts)
        steps = torch.tensor((num_values, 1))
        run_loop("coupled_by_node", values, filters, matrices, steps, edges, slopes[3])
    return slopes


def triplets_loops(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the form of ``eager_passes.triplets_slopes``; see there."""
    messages, filters, weights, grad = arguments
    assert 0 < filters.shape[0] <= 8, "what the loops know"
    first, second, by_second, starts, by_first, first_starts = links
    slopes: list[Any] = [None] * 4
    if needed[0] or needed[1]:
        slopes[0] = empty_like(messages)
        slopes[1] = empty_like(filters)
        edges = (second, by_first, first_starts)
        rows = filters.new_empty(filters.shape[::2])
        given = (messages, filters, weights, grad, edges)
        run_loop("triplets_by_first", *given, slopes[0], slopes[1], rows)
    if needed[2]:
        slopes[2] = empty_like(weights)
        run_loop("triplets_by_triplet", messages, filters, grad, (first, second), slopes[2])
    if needed[3]:
        slopes[3] = empty_like(messages)
        edges = (first, by_second, starts)
        run_loop("triplets_by_second", messages, filters, weights, edges, slopes[3])
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


def _pair_with_changes(
    arguments: Arguments, seconds: Seconds, slots: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Return arguments with their changes, which are zeros where there are none."""
    pairs = [(arguments[k], seconds[k]) for k in slots]
    return [(x, torch.zeros_like(x) if each is None else each) for x, each in pairs]


def filtered_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``filtered`` by values and filters; see ``FormCurvature``."""
    values, filters, grad = arguments
    s, _, by_r, r_starts, *_ = links
    (_, moved), (_, tuned) = changing = _pair_with_changes(arguments, seconds, (0, 1))
    slopes = filtered_loops((moved, tuned, grad), links, (*needed[:2], False))
    if needed[2]:
        slopes[2] = empty_like(values)
        rows = values.shape if values.dim() == 3 else (len(values), 1, values.shape[1])
        given = (tuple(each.reshape(rows) for each in changing[0]), (filters, tuned))
        run_loop("filtered_change", *given, (s, by_r, r_starts), slopes[2].view(rows))
    return slopes


def directed_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``directed`` by all but the last; see ``FormCurvature``."""
    values, filters, directions, grad = arguments
    absent = (values.new_empty(0, 3, values.shape[1]), filters[:0])
    given = (values, filters, directions, *absent, grad)
    wanted = (*needed[:3], False, False, needed[3])
    slopes = vectors_changes(given, (*seconds[:3], None, None, None), links, wanted)
    return [*slopes[:3], slopes[5]]


def vectors_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``vectors`` by all but the last; see ``FormCurvature``."""
    grad = arguments[5]
    (s, r, by_r, r_starts, by_s, s_starts) = links
    changing = _pair_with_changes(arguments, seconds, range(5))
    values, filters, directions, vectors, vector_filters = changing
    slopes: list[Any] = [None] * 6
    if needed[5]:
        slopes[5] = empty_like(grad)
        given = (*changing, (s, by_r, r_starts), slopes[5])
        run_loop("vectors_change_by_receiver", *given, _space(grad))
    if needed[0] or needed[3]:
        slopes[0] = empty_like(values[0])
        slopes[3] = empty_like(vectors[0])
        given = (filters, directions, vector_filters[1], grad, (r, by_s, s_starts))
        run_loop("vectors_change_by_sender", *given, slopes[0], slopes[3], _space(grad))
    if needed[1] or needed[4]:
        slopes[1] = empty_like(filters[0])
        slopes[4] = empty_like(vector_filters[0])
        given = (values, directions, vectors[1], grad, (s, r))
        run_loop("vectors_change_by_pair", *given, slopes[1], slopes[4])
    if needed[2]:
        slopes[2] = empty_like(directions[0])
        run_loop("vectors_change_by_edge", values, filters, grad, (s, r), slopes[2])
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


def weighted_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``weighted``; see ``FormCurvature``."""
    values, weights, grad = arguments
    given, late = (values, values[:0], weights, grad), (seconds[0], None, *seconds[1:])
    slopes = attended_changes(given, late, links, (needed[0], False, *needed[1:]))
    return [slopes[0], *slopes[2:]]


def attended_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``attended``; see ``FormCurvature``."""
    s, r, by_r, r_starts, by_s, s_starts = links
    *changing, weights = _pair_with_changes(arguments, seconds, (0, 1, 3, 2))
    heads = weights[0].shape[1]

    def by_head(rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)

    values, filters, grad = (tuple(map(by_head, pair)) for pair in changing)
    slopes = [
        empty_like(each) if need else None for each, need in zip(arguments, needed, strict=True)
    ]
    to_values, to_filters, to_weights, to_grad = slopes
    if to_values is not None:
        edges = (filters, weights, (r, by_s, s_starts))
        run_loop("attended_change_by_node", grad, *edges, by_head(to_values))
    if to_filters is not None:
        given = (grad, values, weights, (s, r))
        run_loop("attended_change_by_pair", *given, by_head(to_filters))
    if to_weights is not None:
        run_loop("attended_change_by_edge", grad, values, filters, (s, r), to_weights)
    if to_grad is not None:
        edges = (filters, weights, (s, by_r, r_starts))
        run_loop("attended_change_by_node", values, *edges, by_head(to_grad))
    return slopes


def triplets_changes(
    arguments: Arguments, seconds: Seconds, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the slopes of ``triplets`` by all but the last; see ``FormCurvature``."""
    grad = arguments[3]
    (first, second, by_second, starts, by_first, first_starts) = links
    messages, filters, weights = changing = _pair_with_changes(arguments, seconds, (0, 1, 2))
    slopes: list[Any] = [None] * 4
    if needed[0] or needed[1]:
        slopes[0] = empty_like(messages[0])
        slopes[1] = empty_like(filters[0])
        count, _, width = filters[0].shape
        given = (*changing, grad, (second, by_first, first_starts), slopes[0], slopes[1])
        run_loop("triplets_change_by_first", *given, grad.new_empty(2 * count, width))
    if needed[2]:
        slopes[2] = empty_like(weights[0])
        ends = (first, second)
        run_loop("triplets_change_by_triplet", messages, filters, grad, ends, slopes[2])
    if needed[3]:
        slopes[3] = empty_like(grad)
        run_loop("triplets_change_by_second", *changing, (first, by_second, starts), slopes[3])
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


def list_triplets(short: Tensor, links: Links) -> Links:
    """Pair short edges as ``model.triplets`` does, by counting.

    Args:
        short: mask of the pairs that are short enough, [P].
        links: sender and receiver of every edge.
    """
    given = (short.long(), (links.sender, links.by_receiver, links.receiver_starts))
    first_starts, second_starts = short.new_zeros(2, len(links.sender) + 1, dtype=torch.long)
    run_loop("count_triplets", *given, first_starts, second_starts)
    first, second, by_first = second_starts.new_empty(3, int(second_starts[-1]))
    run_loop("list_triplets", *given, (first, second), by_first, first_starts.clone())
    by_second = torch.arange(len(first))
    arrays = (first, second, by_second, second_starts, by_first, first_starts)
    return Links(*arrays, kernels=links.kernels)


def measure_pairs(
    nodes: tuple[Tensor, Tensor], links: Links, pairs: int, cutoff: float, *, directed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Measure pairs that need no gradient.

    Args:
        nodes: positions, [N, 3], and shifts of periodic images, [E, 3], in angstrom.
        links: sender and receiver of every edge.
        pairs: P.
        cutoff: length from which envelopes are 0, in angstrom.
        directed: whether directions are wanted.

    Returns:
        Directions, [E, 3] or [0, 3], lengths, [P], and envelopes, [P, 1], see ``edges.Edges``.
    """
    lengths, envelopes = nodes[0].new_empty(2, pairs).unbind()
    directions = lengths.new_empty(len(links.sender) if directed else 0, 3)
    given = (nodes, (links.sender, links.receiver), lengths.new_full((1,), cutoff))
    run_loop("measure_pairs", *given, directions, lengths, envelopes)
    return directions, lengths, envelopes.unsqueeze(-1)


def sort_neighbors(
    links: Links, envelopes: Tensor, *, mean: bool, symmetric: bool
) -> tuple[Segments, Segments]:
    """List the neighbours of all nodes with their weights.

    Args:
        links: sender and receiver of every edge.
        envelopes: of the pairs, [P, 1].
        mean: whether weights are those of means, see ``edges.Edges.faded_mean``.
        symmetric: whether edges that nodes send have the same neighbours and weights as those that
            they receive.

    Returns:
        As ``edges.Edges.faded_neighbors`` has them.
    """
    sender, receiver, by_r, r_starts, by_s, s_starts = links.arrays
    sent = 0 if symmetric else len(sender)
    rows = (torch.empty_like(sender), sender.new_empty(sent))
    weights = (envelopes.new_empty(len(sender)), envelopes.new_empty(sent))
    shares = envelopes.new_empty(links.num_nodes if mean else 0)
    given = ((sender, receiver), (by_r, by_s), r_starts, envelopes.squeeze(-1))
    run_loop("sort_neighbors", *given, rows, weights, shares)
    received = (rows[0], r_starts, weights[0])
    return received, received if symmetric else (rows[1], s_starts, weights[1])


NUMBA_FORMS: dict[str, FormSlopes] = {
    "filtered": filtered_loops,
    "directed": without_vectors(vectors_loops),
    "vectors": vectors_loops,
    "weighted": without_filters(attended_loops),
    "attended": attended_loops,
    "coupled": coupled_loops,
    "triplets": triplets_loops,
}
"""Implementation of each form."""

NUMBA_CURVATURES: dict[str, tuple[FormCurvature, tuple[int, ...]]] = {
    "filtered": (filtered_changes, (0, 1)),
    "directed": (directed_changes, (0, 1, 2)),
    "vectors": (vectors_changes, (0, 1, 2, 3, 4)),
    "weighted": (weighted_changes, (0, 1, 2)),
    "attended": (attended_changes, (0, 1, 2, 3)),
    "triplets": (triplets_changes, (0, 1, 2)),
}
"""Loops for all second derivatives of a form, and the arguments whose slopes it multiplies."""
