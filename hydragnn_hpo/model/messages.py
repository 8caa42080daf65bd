"""What convs send: messages between nodes, weighed, activated and summed at their receivers.

All passes over edges that a conv takes, in this package or in one of yours, come from here or are
methods of ``Edges``. Each runs torch's operations, which are the reference, or compiled loops, as
``Links.kernels`` says, and can be differentiated twice.

Shapes: N nodes, E edges, P pairs of edges (a filter may have a row for each edge instead: P = E),
C components, F features, T triplets, S functions of their angles. The activation of ends is
``slope * x + (1 - slope) * silu(x)``, which is SiLU for 0.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.kernels import Links as Links
from hydragnn_hpo.kernels import aggregate_messages as aggregate_messages
from hydragnn_hpo.kernels import apply_edge_function, differentiate_form
from hydragnn_hpo.kernels.activations import ShiftedSoftplus as ShiftedSoftplus
from hydragnn_hpo.kernels.activations import leaky_silu as leaky_silu
from hydragnn_hpo.kernels.activations import silu as silu
from hydragnn_hpo.kernels.eager_gates import silu_of_norm as silu_of_norm


def filtered_sum(values: Tensor, filters: Tensor, links: Links) -> Tensor:
    """Sum filtered neighbours: ``out_i = sum_j filter_ij * value_j``.

    Args:
        values: of the nodes, [N, F] or [N, C, F].
        filters: of the pairs, [P, F].
        links: sender and receiver of every edge.

    Returns:
        [N, F] or [N, C, F].
    """
    return differentiate_form("filtered", (values, filters), links)


def directed_sum(values: Tensor, filters: Tensor, directions: Tensor, links: Links) -> Tensor:
    """Sum directions times filtered neighbours: ``out_i = sum_j direction_ij x filter_ij value_j``.

    Args:
        values: of the nodes, [N, F].
        filters: of the pairs, [P, F].
        directions: unit vectors of the edges, [E, 3].
        links: sender and receiver of every edge.

    Returns:
        Vectors of the nodes, [N, 3, F].
    """
    return differentiate_form("directed", (values, filters, directions), links)


def vector_messages_sum(
    values: Tensor,
    filters: Tensor,
    directions: Tensor,
    vectors: Tensor,
    vector_filters: Tensor,
    links: Links,
) -> Tensor:
    """Return ``directed_sum(values, ...) + filtered_sum(vectors, ...)`` in one pass over the edges.

    Args:
        values: of the nodes, [N, F].
        filters: of ``values``, of the pairs, [P, F].
        directions: unit vectors of the edges, [E, 3].
        vectors: of the nodes, [N, 3, F].
        vector_filters: of ``vectors``, of the shape of ``filters``.
        links: sender and receiver of every edge.

    Returns:
        Vectors of the nodes, [N, 3, F].
    """
    return differentiate_form(
        "vectors", (values, filters, directions, vectors, vector_filters), links
    )


def weighted_sum(values: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum neighbours by weights of the edges: ``out_i = sum_j weight_ij * value_j``.

    Args:
        values: of the nodes, [N, F]; head h owns the h-th of H equal parts of the channels.
        weights: of the pairs, [P, H].
        links: sender and receiver of every edge.

    Returns:
        [N, F].
    """
    if weights.shape[1] == 1:  # torch's own kernel is as quick as a loop
        links = replace(links, kernels="eager")
    return differentiate_form("weighted", (values, weights), links)


def attention_sum(values: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum attended neighbours: ``out_i = sum_j weight_ij filter_ij value_j``, [N, F].

    Args:
        values: of the nodes, [N, F]; head h owns the h-th of H equal parts of the channels.
        filters: of the pairs, [P, F].
        weights: attention weight of each edge and head, [E, H].
        links: sender and receiver of every edge.
    """
    return differentiate_form("attended", (values, filters, weights), links)


def edge_scores(
    received: Tensor, sent: Tensor, filters: Tensor, links: Links, heads: int
) -> Tensor:
    """Return the attention scores of edges, ``sum_f received_i sent_j filter_ij``, [E, H].

    Args:
        received: queries of the nodes, read at the receiver, [N, F].
        sent: keys of the nodes, read at the sender, [N, F].
        filters: of the pairs, [P, F].
        links: sender and receiver of every edge.
        heads: number of heads, H; each sums over its own part of the features.
    """
    shape = received.new_empty(1).expand(links.sender.shape[0], heads)
    return differentiate_form("attended", (sent, filters, shape, received), links, slot=2)


def coupled_sum(values: Tensor, filters: Tensor, mixing: Tensor, links: Links) -> Tensor:
    """Sum coupled neighbours: ``out_i[b] = sum_j filter_ij sum_a mixing_ij[b, a] value_j[a]``.

    Args:
        values: of the nodes, [N, A, F].
        filters: of the pairs, [P, F].
        mixing: one matrix per edge, from components of the sender to those of the sum, [E, B, A].
        links: sender and receiver of every edge.

    Returns:
        Sums at the nodes, [N, B, F].
    """
    return differentiate_form("coupled", (values, filters, mixing), links)


def triplet_sum(messages: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum over triplets: ``out_ji = sum_k message_kj * sum_s weight_kji,s filter_s,kj``.

    Args:
        messages: of the edges, [E, F].
        filters: of the pairs, for each function of the angle, [S, P, F].
        weights: functions of the angles, [T, S].
        links: first edge (the sender) and second edge (the receiver) of every triplet, sorted by
            the second.

    Returns:
        Sums at the second edges, [E, F].
    """
    return differentiate_form("triplets", (messages, filters, weights), links)


def activate_ends(
    received: Tensor, sent: Tensor, measured: Tensor, links: Links, slope: float = 0.0
) -> Tensor:
    """Activate for each edge the sum of values of both ends and of its pair, [E, F].

    Args:
        received: of the nodes, read at the receiver, [N, F].
        sent: of the nodes, read at the sender, [N, F].
        measured: of the pairs, [P, F].
        links: sender and receiver of every edge.
        slope: of the activation far below zero, 0 to 1.
    """
    activated: Tensor = apply_edge_function("bent_ends", (received, sent, measured), links, slope)
    return activated


def gated_linear_sum(
    hidden: Tensor, last: nn.Linear, gate: nn.Linear | None, weights: Tensor, links: Links
) -> Tensor:
    """Sum ``weight * sigmoid(gate(message)) * message``, where ``message = silu(last(hidden))``.

    Args:
        hidden: of the edges, [E, F].
        last: map of F to F features.
        gate: map of F features to 1; None for no gate.
        weights: of the pairs, [P, 1].
        links: sender and receiver of every edge.

    Returns:
        Sums of the receivers, [N, F].
    """
    parts = () if gate is None else (gate.weight, gate.bias)
    # Loops add the bias as they activate; torch adds it in the product.
    in_loops = links.usable_kernels((hidden, weights, last.bias, *parts)) != "eager"
    product = F.linear(hidden, last.weight) if in_loops else last(hidden)
    inputs = (product, weights, last.bias, *parts)
    total: Tensor = apply_edge_function("gated_sum", inputs, links, float(not in_loops))
    return total


def gated_product_sum(
    received: Tensor,
    sent: Tensor,
    measured: Tensor,
    weights: Tensor,
    links: Links,
    activation: str = "softplus",
) -> Tensor:
    """Sum ``weight * sigmoid(gate) * activation(content)``, both of both ends and the pair.

    Args:
        received: of the nodes, read at the receiver: gate, then content, [N, 2 F].
        sent: of the nodes, read at the sender, [N, 2 F].
        measured: of the pairs, [P, 2 F].
        weights: of the pairs, [P, 1].
        links: sender and receiver of every edge.
        activation: ``softplus`` or ``silu``.

    Returns:
        Sums of the receivers, [N, F].
    """
    inputs = (received, sent, measured, weights)
    option = float(activation == "softplus")
    total: Tensor = apply_edge_function("product_sum", inputs, links, option)
    return total


def update_gated_edges(
    product: Tensor,
    nodes: Tensor,
    weights: Tensor,
    features: Tensor,
    norm: nn.LayerNorm | None,
    links: Links,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum ``g_ij = weight * sigmoid(m_ij)`` and ``g_ij v_j``; add ``silu(norm(m_ij))`` to edges.

    Args:
        product: of the edges, [E, F].
        nodes: r, s and v of the nodes, [N, 3 F]: ``m_ij = product_ij + r_i + s_j``.
        weights: of the pairs, [P, 1].
        features: of the edges, [E, F].
        norm: layer norm of F features; None where no later layer reads the edges.
        links: sender and receiver of every edge.

    Returns:
        Sums of ``g v`` and of ``g`` at the receivers, [N, F] each, and the new features of the
        edges, [E, F]; None where no later layer reads them.
    """
    absent = product.new_empty(0, product.shape[1])
    rest = (absent, absent[:, 0], absent[:, 0]) if norm is None else (features, *norm.parameters())
    gated, gates, updated = apply_edge_function(
        "gated_edges", (product, nodes, weights, *rest), links
    )
    return gated, gates, None if norm is None else updated


def activate_rows(values: Tensor, links: Links, activation: str = "silu") -> Tensor:
    """Activate each number.

    Args:
        values: of the pairs, [P, F], or of the edges, [E, F].
        links: sender and receiver of every edge.
        activation: ``silu``, or ``softplus``, which is taken minus ln 2.
    """
    option = float(activation == "softplus")
    activated: Tensor = apply_edge_function("active_rows", (values,), links, option)
    return activated
