"""Forms of ``passes`` and aggregations as loops that Triton compiles, for CUDA and ROCm devices.

Torch's operations write the products of all edges to the memory of the device and read them again
to sum them. Loops that gather, multiply and sum tiles of edges do not. They read fp16, bf16, fp32
and fp64, and compute in fp32, or in fp64 where an argument is fp64.

A loop is compiled at its first use for each type and width, in about a second, and kept in the
cache of Triton (``TRITON_CACHE_DIR``), which only its user writes to. With ``TRITON_INTERPRET=1``
in the environment Triton interprets loops on a CPU, for tests.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hydragnn_hpo.kernels.eager_passes import (
    Arguments,
    FormSlopes,
    Slopes,
    without_filters,
    without_vectors,
)
from hydragnn_hpo.kernels.triton_coupling_loops import TRITON_COUPLINGS
from hydragnn_hpo.kernels.triton_edge_loops import EDGE_FUNCTION_LOOPS
from hydragnn_hpo.kernels.triton_gate_loops import GATE_LOOPS
from hydragnn_hpo.kernels.triton_loops import EXACT, LOOPS

ALL_LOOPS = LOOPS | EDGE_FUNCTION_LOOPS | GATE_LOOPS | TRITON_COUPLINGS
"""Loop by name."""

_ALL_FEATURES = (
    *("vectors_by_edge", "attended_by_weight", "aggregate_slopes_by_pair"),
    *("gate_numbers", "product_slopes_by_pair", "gate_slopes_by_edge", "updated_by_edge"),
    *("coupled_by_edge", "triplets_by_triplet"),
)
"""Loops that sum over features, so that a program takes all of them and not a block."""

_ROWS, _FEATURES, _NUMBERS = 16, 64, 4096
"""Most edges, features, and numbers of a tile: 32 numbers for each of the 128 threads."""

Constants = dict[str, int | float | tl.dtype]
"""What a loop is compiled for: sizes, and whether it has a term; the type in which it computes."""


def choose_constants(inputs: Sequence[Tensor], width: int, components: int = 1) -> Constants:
    """Return the constants that every loop is compiled for.

    Args:
        inputs: arrays that are read; their types decide in which type loops compute.
        width: features of a row, F.
        components: components of a row, C.
    """
    features = min(triton.next_power_of_2(max(width, 1)), _FEATURES)
    rows = _NUMBERS // (features * triton.next_power_of_2(components))
    exact = any(each.dtype is torch.float64 for each in inputs)
    return {
        "F": width,
        "TILE_E": max(1, min(_ROWS, rows)),
        "TILE_F": features,
        "COMPUTE": tl.float64 if exact else tl.float32,
    }


def compute_type(constants: Constants) -> torch.dtype:
    """Return the type in which loops compute."""
    return torch.float64 if constants["COMPUTE"] is tl.float64 else torch.float32


def run_loop(
    name: str,
    arrays: Sequence[Tensor],
    numbers: Sequence[int],
    rows: int,
    **constants: int | float | tl.dtype,
) -> None:
    """Run a loop: programs share rows, and, where it takes one block of features, features.

    Args:
        name: key of ``ALL_LOOPS``.
        arrays: in the order of its arguments; results come last and are contiguous.
        numbers: numbers that it takes after the arrays.
        rows: nodes, one for each program, or pairs or edges, a tile for each program.
        **constants: for which it is compiled.
    """
    loop = ALL_LOOPS[name]
    per_program = 1 if "starts" in loop.arg_names else constants["TILE_E"]
    blocks = 1 if name in _ALL_FEATURES else triton.cdiv(constants["F"], constants["TILE_F"])
    grid = (triton.cdiv(rows, per_program), blocks)
    if 0 in grid:
        return
    given = [each.detach().contiguous() for each in arrays]
    with torch.cuda.device_of(given[-1]):  # type: ignore[no-untyped-call]
        loop[grid](*given, *numbers, **constants, enable_fp_fusion=name not in EXACT)


def empty_like(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that a loop overwrites."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def count_ways(edges: int, pairs: int) -> int:
    """Return 2 if some pairs have an edge each way, else 1."""
    return 2 if edges > pairs else 1


def filtered_by_triton(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the form of ``eager_passes.filtered_slopes``; see there."""
    values, filters, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 3
    arrays: tuple[Tensor, ...]
    pairs = filters.shape[0]
    components = values.shape[1] if values.dim() == 3 else 1
    constants = choose_constants([values], values.shape[-1], components) | {"C": components}
    by_node = constants | {"TILE_C": triton.next_power_of_2(components)}
    if needed[0]:
        slopes[0] = empty_like(values)
        arrays = grad, filters, r, by_s, s_starts, slopes[0]
        run_loop("filtered_by_node", arrays, [pairs], values.shape[0], **by_node)
    if needed[1]:
        slopes[1] = empty_like(filters)
        arrays = values, grad, s, r, slopes[1]
        constants["WAYS"] = count_ways(len(s), pairs)
        sizes = [pairs, len(s)]
        run_loop("filtered_by_pair", arrays, sizes, pairs, **constants)
    if needed[2]:
        slopes[2] = empty_like(values)
        arrays = values, filters, s, by_r, r_starts, slopes[2]
        run_loop("filtered_by_node", arrays, [pairs], values.shape[0], **by_node)
    return slopes


def vectors_by_triton(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the form of ``eager_passes.vectors_slopes``; see there.

    Args:
        arguments: as there; without rows in the vectors and their filters, their term is left out.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, directions, vectors, vector_filters, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 6
    arrays: tuple[Tensor, ...]
    (nodes, width) = values.shape
    pairs = filters.shape[0]
    shared = choose_constants([values], width)
    carrying = shared | {"CARRIES": vectors.shape[0] > 0}
    if needed[5]:
        slopes[5] = values.new_empty(nodes, 3, width)
        arrays = *arguments[:5], s, by_r, r_starts, slopes[5]
        run_loop("vectors_by_receiver", arrays, [pairs], nodes, **carrying)
    if needed[0] or needed[3]:
        slopes[0] = empty_like(values)
        slopes[3] = empty_like(vectors)
        given = filters, directions, vector_filters, grad, r, by_s, s_starts
        arrays = *given, slopes[0], slopes[3]
        run_loop("vectors_by_sender", arrays, [pairs], nodes, **carrying)
    if needed[1] or needed[4]:
        slopes[1] = empty_like(filters)
        slopes[4] = empty_like(vector_filters)
        arrays = values, directions, vectors, grad, s, r, slopes[1], slopes[4]
        ways = count_ways(len(s), pairs)
        run_loop("vectors_by_pair", arrays, [pairs, len(s)], pairs, **carrying, WAYS=ways)
    if needed[2]:
        slopes[2] = empty_like(directions)
        arrays = values, filters, grad, s, r, slopes[2]
        edges = directions.shape[0]
        run_loop("vectors_by_edge", arrays, [pairs, edges], edges, **shared)
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


def attended_by_triton(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the form of ``eager_passes.attended_slopes``; see there.

    Args:
        arguments: as there; without rows in the filters, weights are those of pairs.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, weights, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 4
    arrays: tuple[Tensor, ...]
    (nodes, width) = values.shape
    heads = weights.shape[1]
    edges = len(s)
    filtered = filters.shape[0] > 0
    pairs = filters.shape[0] if filtered else weights.shape[0]
    shared = choose_constants([values], width) | {"HEADS": heads}
    if needed[0]:
        slopes[0] = empty_like(values)
        arrays = grad, filters, weights, r, by_s, s_starts, slopes[0]
        run_loop("attended_by_node", arrays, [pairs], nodes, **shared, FILTERED=filtered)
    if needed[1]:
        slopes[1] = empty_like(filters)
        arrays = (values, weights, grad, s, r, slopes[1])
        ways = count_ways(edges, pairs)
        run_loop("attended_by_pair", arrays, [pairs, edges], pairs, **shared, WAYS=ways)
    if needed[2]:
        slopes[2] = empty_like(weights)
        rows, ways = (edges, 1) if filtered else (pairs, count_ways(edges, pairs))
        own = shared | choose_constants([values], width // heads) | {"F": width, "WAYS": ways}
        arrays = (values, filters, grad, s, r, slopes[2])
        sizes = [pairs, edges, rows]
        run_loop("attended_by_weight", arrays, sizes, rows, **own, FILTERED=filtered)
    if needed[3]:
        slopes[3] = empty_like(values)
        arrays = values, filters, weights, s, by_r, r_starts, slopes[3]
        run_loop("attended_by_node", arrays, [pairs], nodes, **shared, FILTERED=filtered)
    return slopes


def coupled_by_triton(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the form of ``eager_passes.coupled_slopes``; see there."""
    values, filters, mixing, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    (nodes, num_values, width) = values.shape
    pairs = filters.shape[0]
    edges = len(s)
    num_sums = mixing.shape[1]
    slopes = list[Any]([None] * 4)
    constants = choose_constants([values], width)
    arrays: tuple[Tensor, ...]
    forth = constants | {"VALUES": num_values, "SUMS": num_sums}
    if needed[0]:
        slopes[0] = empty_like(values)
        back = constants | {"VALUES": num_sums, "SUMS": num_values, "BACK": True}
        arrays = grad, filters, mixing, r, by_s, s_starts, slopes[0]
        run_loop("coupled_by_node", arrays, [pairs], nodes, **back)
    if needed[1]:
        slopes[1] = empty_like(filters)
        ways = count_ways(edges, pairs)
        arrays = values, mixing, grad, s, r, slopes[1]
        run_loop("coupled_by_pair", arrays, [pairs, edges], pairs, **forth, WAYS=ways)
    if needed[2]:
        slopes[2] = empty_like(mixing)
        arrays = values, filters, grad, s, r, slopes[2]
        run_loop("coupled_by_edge", arrays, [pairs, edges], edges, **forth)
    if needed[3]:
        slopes[3] = values.new_empty(nodes, num_sums, width)
        arrays = values, filters, mixing, s, by_r, r_starts, slopes[3]
        run_loop("coupled_by_node", arrays, [pairs], nodes, **forth, BACK=False)
    return slopes


def triplets_by_triton(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate the form of ``eager_passes.triplets_slopes``; see there."""
    messages, filters, weights, grad = arguments
    first, second, by_second, starts, by_first, first_starts = links
    (functions, pairs, width) = filters.shape
    edges = messages.shape[0]
    slopes = list[Any]([None] * 4)
    arrays = tuple[Tensor, ...]()
    constants = choose_constants([messages], width) | {"FUNCTIONS": functions}
    if needed[0]:
        slopes[0] = empty_like(messages)
        arrays = filters, weights, grad, second, by_first, first_starts, slopes[0]
        run_loop("triplets_by_first", arrays, [pairs], edges, **constants)
    if needed[1]:
        slopes[1] = empty_like(filters)
        ways = count_ways(edges, pairs)
        arrays = messages, weights, grad, second, by_first, first_starts, slopes[1]
        run_loop("triplets_by_pair", arrays, [pairs, edges], pairs, **constants, WAYS=ways)
    if needed[2]:
        slopes[2] = empty_like(weights)
        arrays = (messages, filters, grad, first, second, slopes[2])
        sizes = [pairs, len(first)]
        run_loop("triplets_by_triplet", arrays, sizes, len(first), **constants)
    if needed[3]:
        slopes[3] = empty_like(messages)
        arrays = messages, filters, weights, first, by_second, starts, slopes[3]
        run_loop("triplets_by_second", arrays, [pairs], edges, **constants)
    return slopes


TRITON_FORMS: dict[str, FormSlopes] = {
    "filtered": filtered_by_triton,
    "directed": without_vectors(vectors_by_triton),
    "vectors": vectors_by_triton,
    "weighted": without_filters(attended_by_triton),
    "attended": attended_by_triton,
    "coupled": coupled_by_triton,
    "triplets": triplets_by_triton,
}
"""Implementation of each form."""


def aggregate_by_triton(inputs: Sequence[Tensor], links: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Aggregate messages in four ways.

    Args:
        inputs: received, sent, measured, filters, weights, see ``aggregation``; the third and
            fourth may be without rows.
        links: the six tensors of ``Links.arrays``.

    Returns:
        Both sums, both extremes, and the share of each message that reaches these, [N, 2, F] each,
        in the type in which loops compute.
    """
    received, weights = inputs[0], inputs[4]
    sender, _, order, starts, _, _ = links
    nodes, width = received.shape
    constants, dtype = _constants_of_messages(inputs)
    results = received.new_empty(3, nodes, 2, width, dtype=dtype).unbind()
    arrays = *inputs, sender, order, starts, *results
    run_loop("aggregate", arrays, [weights.shape[0]], nodes, **constants)
    return results


def _constants_of_messages(inputs: Sequence[Tensor]) -> tuple[Constants, torch.dtype]:
    """Return the constants of aggregating loops, and the type in which they compute."""
    constants = choose_constants(inputs, inputs[0].shape[1])
    terms = {"MEASURED": inputs[2].shape[0] > 0, "FILTERED": inputs[3].shape[0] > 0}
    return constants | terms, compute_type(constants)


def aggregate_slopes_by_triton(
    inputs: Sequence[Tensor],
    links: Sequence[Tensor],
    reached: tuple[Tensor, Tensor],
    needed: Sequence[bool],
) -> Slopes:
    """Differentiate the aggregates by the five inputs.

    Args:
        inputs: as ``aggregate_by_triton`` takes them.
        links: the six tensors of ``Links.arrays``.
        reached: the extremes, [N, 2, F], and the gradients of both sums, and of both extremes
            times the share of each message that reaches them, [N, 4, F].
        needed: whether the derivative by each input is needed.
    """
    s, r, by_r, r_starts, by_s, s_starts = links
    constants, _ = _constants_of_messages(inputs)
    nodes, pairs = inputs[0].shape[0], inputs[4].shape[0]
    slopes = [empty_like(each) for each in inputs]
    for slot, edges in ((0, (s, by_r, r_starts)), (1, (r, by_s, s_starts))):
        if needed[slot]:
            arrays = *inputs, *edges, *reached, slopes[slot]
            settings = constants | {"RECEIVES": slot == 0}
            run_loop("aggregate_slopes_by_node", arrays, [pairs], nodes, **settings)
    if any(needed[2:]):
        arrays = (*inputs, s, r, *reached, *slopes[2:])
        sizes = [pairs, len(s)]
        settings = constants | {"WAYS": count_ways(len(s), pairs)}
        run_loop("aggregate_slopes_by_pair", arrays, sizes, pairs, **settings)
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]
