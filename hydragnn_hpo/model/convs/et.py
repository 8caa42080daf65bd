"""Equivariant transformer: attention along the edges without a softmax, with a vector channel.

As in ``model.scatter``, autograd functions keep only their inputs for the backward pass. Each
computes its gradients by the others, so gradients can be differentiated again (forces).

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges),
F features, H heads; head h owns the h-th of H equal parts of the features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import ETOptions, sent_channels
from hydragnn_hpo.model.convs.painn import RadialFilters, VectorUpdate, send_vectors
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.scatter import Gradients, Links, apply_function, reverse_links, scale_rows


def edge_scores(
    received: Tensor, sent: Tensor, filters: Tensor, links: Links, heads: int
) -> Tensor:
    """Return the attention scores of edges, ``sum_f received_i sent_j filter_ij``, [E, H].

    Args:
        received: queries of the nodes, read at the receiver, [N, F].
        sent: keys of the nodes, read at the sender, [N, F].
        filters: one row per edge, [E, F], or one for both edges of a pair, [E / 2, F].
        links: sender and receiver of every edge.
        heads: number of heads, H; each sums over its own part of the features.
    """
    like = received.new_empty(0, heads)
    return apply_function(_EdgeScores, received, sent, filters, like, *links.arrays)


def attention_sum(values: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum attended neighbours: ``out_i = sum_j weight_ij filter_ij value_j``, [N, F].

    Args:
        values: values of the nodes, [N, F].
        filters: one row per edge, [E, F], or one for both edges of a pair, [E / 2, F].
        weights: attention weight of each edge and head, [E, H].
        links: sender and receiver of every edge.
    """
    return apply_function(_AttentionSum, values, filters, weights, *links.arrays)


def _scale_heads(rows: Tensor, weights: Tensor) -> Tensor:
    """Multiply each head's part of the rows by the weight of the head, in place."""
    edges, heads = weights.shape
    rows.view(edges, heads, rows.shape[1] // heads).mul_(weights.unsqueeze(2))
    return rows


class _EdgeScores(Function):
    """Autograd function of ``edge_scores``."""

    @staticmethod
    def forward(
        ctx: Any, received: Tensor, sent: Tensor, filters: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        """Multiply queries, keys and filters, and sum over each head's channels.

        Args:
            ctx: keeps the inputs for ``backward``.
            received: queries of the nodes, [N, F].
            sent: keys of the nodes, [N, F].
            filters: one row per edge or pair, [P, F].
            like: any tensor with H columns.
            links: the six tensors of ``Links.arrays``.

        Returns:
            [E, H].
        """
        ctx.save_for_backward(received, sent, filters, *links)
        sender, receiver = links[:2]
        rows = received.index_select(0, receiver).mul_(sent.index_select(0, sender))
        heads = like.shape[1]
        parts = scale_rows(rows, filters).view(rows.shape[0], heads, rows.shape[1] // heads)
        return parts.sum(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        received, sent, filters, *links = ctx.saved_tensors
        to_received = to_sent = to_filters = None
        if ctx.needs_input_grad[0]:
            to_received = apply_function(_AttentionSum, sent, filters, grad, *links)
        if ctx.needs_input_grad[1]:
            to_sent = apply_function(_AttentionSum, received, filters, grad, *reverse_links(links))
        if ctx.needs_input_grad[2]:
            to_filters = apply_function(
                _AttentionFilterGradient, received, sent, grad, filters, *links
            )
        return to_received, to_sent, to_filters, *[None] * 7


class _AttentionSum(Function):
    """Autograd function of ``attention_sum``."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, filters: Tensor, weights: Tensor, *links: Tensor
    ) -> Tensor:
        """Filter and weigh the senders' rows, and sum them at the receivers.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: values of the nodes, [N, F].
            filters: one row per edge or pair, [P, F].
            weights: attention weight of each edge and head, [E, H].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [N, F].
        """
        ctx.save_for_backward(values, filters, weights, *links)
        sender, _, order, starts, _, _ = links
        if not values.numel() or not order.numel():
            return torch.zeros_like(values)
        rows = _scale_heads(scale_rows(values.index_select(0, sender), filters), weights)
        sums: Tensor = torch.embedding_bag(rows, order, starts, False, 0, False, None, True)[0]
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, filters, weights, *links = ctx.saved_tensors
        to_values = to_filters = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(_AttentionSum, grad, filters, weights, *reverse_links(links))
        if ctx.needs_input_grad[1]:
            to_filters = apply_function(
                _AttentionFilterGradient, grad, values, weights, filters, *links
            )
        if ctx.needs_input_grad[2]:
            to_weights = apply_function(_EdgeScores, grad, values, filters, weights, *links)
        return to_values, to_filters, to_weights, *[None] * 6


class _AttentionFilterGradient(Function):
    """Filter gradient of both functions above: ``weight_ij received_i sent_j``, summed by pair."""

    @staticmethod
    def forward(
        ctx: Any, received: Tensor, sent: Tensor, weights: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        """Multiply weighted rows of both ends, and add both edges of a pair.

        Args:
            ctx: keeps the inputs for ``backward``.
            received: rows of the nodes, read at the receiver, [N, F].
            sent: rows of the nodes, read at the sender, [N, F].
            weights: attention weight of each edge and head, [E, H].
            like: filters whose shape the result takes, [P, F].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [P, F].
        """
        ctx.save_for_backward(received, sent, weights, *links)
        sender, receiver = links[:2]
        rows = received.index_select(0, receiver).mul_(sent.index_select(0, sender))
        rows = _scale_heads(rows, weights)
        return rows if rows.shape == like.shape else rows.view(-1, *like.shape).sum(0)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Gradients:
        received, sent, weights, *links = ctx.saved_tensors
        to_received = to_sent = to_weights = None
        if ctx.needs_input_grad[0]:
            to_received = apply_function(_AttentionSum, sent, second, weights, *links)
        if ctx.needs_input_grad[1]:
            to_sent = apply_function(
                _AttentionSum, received, second, weights, *reverse_links(links)
            )
        if ctx.needs_input_grad[2]:
            to_weights = apply_function(_EdgeScores, received, sent, second, weights, *links)
        return to_received, to_sent, to_weights, *[None] * 7


class ETConv(nn.Module):
    """Attend to neighbours by dot products that include a filter of the distance.

    There is no softmax: a neighbour's weight is ``1 + silu(query . key)`` times the envelope, so
    it neither depends on the other neighbours nor jumps when one of them leaves. The added 1 makes
    an untrained net a plain sum over neighbours; the update block is PaiNN's. Measurements showed
    that both help.

    Source: Thoelke and De Fabritiis (2022), arXiv:2202.02541, eqs. 6-8, which have no 1; Schuett
    et al. (2021), arXiv:2102.03150, eqs. 9 and 10.
    """

    scale: Tensor

    def __init__(self, dimensions: Dimensions, options: ETOptions) -> None:
        """Build one layer; the heads divide the features."""
        super().__init__()
        features, self.heads = dimensions.features, options.heads
        self.register_buffer("scale", torch.tensor(max(dimensions.degree, 1.0) ** -0.5))
        self.query = nn.Linear(features, features)
        self.key = nn.Linear(features, features)
        self.near = nn.Linear(dimensions.basis_size, features)
        self.sent = sent_channels(dimensions)
        self.send = nn.Linear(features, self.sent * features)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent)
        self.out = nn.Linear(features, features)
        self.update = VectorUpdate(features, nn.SiLU)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Attend to the neighbours, send vectors, and mix both in each node.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: vectors of the nodes, [N, 3, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new vectors, [N, 3, F].
        """
        near = F.silu(self.near(edges.pair_basis))
        match = edge_scores(self.query(scalars), self.key(scalars), near, edges.links, self.heads)
        to_scalar, *to_vectors = self.filters(edges)
        scalar_values, *vector_values = (self.send(scalars) * self.scale).chunk(self.sent, dim=-1)
        message = self.out(
            attention_sum(scalar_values, to_scalar, 1.0 + F.silu(match), edges.links)
        )
        vectors = send_vectors(state, vector_values, to_vectors, edges)
        change, vectors = self.update(scalars + message, vectors)
        return message + change, vectors
