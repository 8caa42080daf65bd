"""Spherical harmonics, their couplings, and sums over neighbours of coupled features.

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges),
F features, A components of a sender's features, B components of a sum over neighbours.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.config.convs.vector import start
from hydragnn_hpo.model.scatter import Gradients, Links, apply_function, reverse_links

Array = np.ndarray


def spherical_harmonics(directions: Tensor, max_ell: int) -> Tensor:
    """Return the real spherical harmonics of unit vectors, of every degree up to ``max_ell``.

    Args:
        directions: unit vectors x, y, z, or zeros, [E, 3].
        max_ell: highest degree, 0 to 3.

    Returns:
        [E, (max_ell + 1)^2]; degree l starts at column l^2 and its squares sum to 2l + 1. Its
        columns are in the order of ``config.convs.vector.ORDERS``: degree 1 is sqrt(3) (x, y, z).

    Source: Homeier and Steinborn (1996), J. Mol. Struct. THEOCHEM 368, 31, apart from the scale.
    """
    x, y, z = directions.unbind(-1)
    columns = [torch.ones_like(x)]
    if max_ell >= 1:
        columns += [math.sqrt(3) * each for each in (x, y, z)]
    if max_ell >= 2:
        columns += _degree_two(x, y, z)
    if max_ell >= 3:
        columns += _degree_three(x, y, z)
    return torch.stack(columns, dim=-1)


def _degree_two(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    a, b = math.sqrt(15), math.sqrt(5) / 2
    flat = x * x + y * y
    middle = b * (2 * z * z - flat)
    return [a * x * y, a * y * z, middle, a * x * z, a / 2 * (x * x - y * y)]


def _degree_three(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    a, b = math.sqrt(105), math.sqrt(7) / 2
    c, d = math.sqrt(35 / 8), math.sqrt(21 / 8)
    xx, yy, zz = x * x, y * y, z * z
    ring = d * (4 * zz - xx - yy)
    return [
        c * y * (3 * xx - yy),
        a * x * y * z,
        ring * y,
        b * z * (2 * zz - 3 * (xx + yy)),
        ring * x,
        a / 2 * z * (xx - yy),
        c * x * (xx - 3 * yy),
    ]


@cache
def coupling_coefficients(first: int, second: int, third: int) -> Array:
    """Return the coupling of two harmonics to a third: ``out_c = sum_ab C_cab left_a right_b``.

    The mean over the sphere of the product of three harmonics is, for natural parity, a
    Clebsch-Gordan coefficient up to a factor. The factor is chosen so that the squares of the
    coefficients of one output component sum to 1.

    Args:
        first: degree of the left factor, >= 0.
        second: degree of the right factor, >= 0.
        third: degree of the product; ``first + second + third`` is even.

    Returns:
        [2 third + 1, 2 first + 1, 2 second + 1], fp64.

    Source: Homeier and Steinborn (1996), J. Mol. Struct. THEOCHEM 368, 31.
    """
    values, weights = _sphere_quadrature(max(first, second, third))
    left, right, out = (values[:, start(ell) : start(ell + 1)] for ell in (first, second, third))
    mean = np.einsum("e,ec,ea,eb->cab", weights, out, left, right)
    mean[np.abs(mean) < 1e-12] = 0.0
    scaled: Array = mean * math.sqrt((2 * third + 1) / np.square(mean).sum())
    return scaled


@cache
def _sphere_quadrature(max_ell: int) -> tuple[Array, Array]:
    """Return a quadrature of the sphere that is exact for products of three harmonics.

    Returns:
        Harmonics at its points, [points, (max_ell + 1)^2], and weights that sum to 1, [points].
    """
    heights, along = np.polynomial.legendre.leggauss(2 * max_ell + 1)
    turns = np.arange(4 * max_ell + 1) * (2 * math.pi / (4 * max_ell + 1))
    z, angle = (grid.ravel() for grid in np.meshgrid(heights, turns, indexing="ij"))
    radius = np.sqrt(1.0 - z * z)
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle), z), axis=-1)
    weights = np.repeat(along, len(turns)) / (2 * len(turns))
    return spherical_harmonics(torch.from_numpy(points), max_ell).numpy(), weights


def coupled_sum(values: Tensor, filters: Tensor, mixing: Tensor, links: Links) -> Tensor:
    """Sum coupled neighbours: ``out_i[b] = sum_j filter_ij sum_a mixing_ij[b, a] value_j[a]``.

    Args:
        values: features of the nodes, [N, A, F].
        filters: one row per edge, [E, F], or one for both edges of a pair, [E / 2, F].
        mixing: one matrix per edge, from components of the sender to those of the sum, [E, B, A].
        links: sender and receiver of every edge.

    Returns:
        Sums at the nodes, [N, B, F].
    """
    return apply_function(_CoupledSum, values, filters, mixing, *links.arrays)


def _gather_matrix_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather rows through a 2D view, which torch copies many times faster than 3D tensors."""
    matrix = values.reshape(values.shape[0], values.shape[1] * values.shape[2])
    return matrix.index_select(0, index).view(index.shape[0], *values.shape[1:])


def _weighted_segment_sum(
    rows: Tensor, index: Tensor, starts: Tensor, weights: Tensor | None
) -> Tensor:
    """Sum the weighted rows of each segment by ``embedding_bag``, torch's fastest kernel for it."""
    if not rows.numel() or not index.numel():
        return rows.new_zeros(starts.shape[0] - 1, rows.shape[1])
    sums: Tensor = torch.embedding_bag(rows, index, starts, False, 0, False, weights, True)[0]
    return sums


def _mix_at_edges(values: Tensor, nodes: Tensor, mixing: Tensor) -> Tensor:
    """Mix a node's components at each of its edges: [N, A, F] to [E, B, F]."""
    edges, num_received, num_sent = mixing.shape
    if num_received == num_sent == 1:
        return _gather_matrix_rows(values, nodes).mul_(mixing)
    columns = torch.arange(num_sent, device=nodes.device)
    index = (nodes.unsqueeze(1) * num_sent + columns).unsqueeze(1).expand(-1, num_received, -1)
    starts = torch.arange(0, edges * num_received * num_sent + 1, num_sent, device=nodes.device)
    mixed = _weighted_segment_sum(
        values.reshape(-1, values.shape[2]), index.flatten(), starts, mixing.flatten()
    )
    return mixed.view(edges, num_received, values.shape[2])


def _filter_rows(rows: Tensor, filters: Tensor) -> Tensor:
    """Multiply rows of edges by filters of edges or of pairs, in place."""
    if rows.numel():
        rows.view(-1, *filters.shape[:1], *rows.shape[1:]).mul_(filters.unsqueeze(1))
    return rows


def _sum_components(rows: Tensor, like: Tensor) -> Tensor:
    """Sum [E, A, F] over components and both edges of a pair, to the shape of ``like``, [P, F]."""
    sums = rows.sum(1) if rows.shape[1] > 1 else rows.squeeze(1)
    return sums if sums.shape == like.shape else sums.view(-1, *like.shape).sum(0)


def _sum_at_nodes(rows: Tensor, mixing: Tensor | None, order: Tensor, starts: Tensor) -> Tensor:
    """Apply the matrix of each edge, if any, and sum at the nodes: [E, A, F] to [N, B, F]."""
    nodes, sent, features = starts.shape[0] - 1, *rows.shape[1:]
    if mixing is None:
        return _weighted_segment_sum(rows.flatten(1), order, starts, None).view(
            nodes, sent, features
        )
    index = (order.unsqueeze(1) * sent + torch.arange(sent, device=order.device)).flatten()
    weights = mixing.index_select(0, order).transpose(0, 1).flatten(1).contiguous()
    sums = [
        _weighted_segment_sum(rows.flatten(0, 1), index, starts * sent, each) for each in weights
    ]
    return torch.stack(sums, dim=1)


class _CoupledSum(Function):
    """Autograd function of ``coupled_sum``."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, filters: Tensor, mixing: Tensor, *links: Tensor
    ) -> Tensor:
        """Mix components before or after the sum over neighbours, whichever has fewer of them.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: features of the nodes, [N, A, F].
            filters: one row per edge or pair, [P, F].
            mixing: one matrix per edge, [E, B, A].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [N, B, F].
        """
        ctx.save_for_backward(values, filters, mixing, *links)
        sender, _, order, starts, _, _ = links
        if mixing.shape[2] <= mixing.shape[1]:
            rows = _filter_rows(_gather_matrix_rows(values, sender), filters)
            return _sum_at_nodes(rows, mixing, order, starts)
        rows = _filter_rows(_mix_at_edges(values, sender, mixing), filters)
        return _sum_at_nodes(rows, None, order, starts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, filters, mixing, *links = ctx.saved_tensors
        to_values = to_filters = to_mixing = None
        if ctx.needs_input_grad[0]:
            back = mixing.transpose(1, 2).contiguous()
            to_values = apply_function(_CoupledSum, grad, filters, back, *reverse_links(links))
        if ctx.needs_input_grad[1]:
            to_filters = apply_function(
                _FilterGradientOfCoupled, values, grad, mixing, filters, *links
            )
        if ctx.needs_input_grad[2]:
            to_mixing = apply_function(_MixingGradient, values, grad, filters, *links)
        return to_values, to_filters, to_mixing, *[None] * 6


class _FilterGradientOfCoupled(Function):
    """Filter gradient of ``coupled_sum``: ``sum_ab grad_i[b] mixing_ij[b, a] value_j[a]``."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, grad: Tensor, mixing: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        """Multiply mixed values by gradients, and sum over components and pairs.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: features of the nodes, [N, A, F].
            grad: gradient of the sums, [N, B, F].
            mixing: one matrix per edge, [E, B, A].
            like: filters whose shape the result takes, [P, F].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [P, F].
        """
        ctx.save_for_backward(values, grad, mixing, *links)
        sender, receiver = links[:2]
        if mixing.shape[2] <= mixing.shape[1]:
            back = mixing.transpose(1, 2).contiguous()
            rows = _mix_at_edges(grad, receiver, back).mul_(_gather_matrix_rows(values, sender))
        else:
            rows = _mix_at_edges(values, sender, mixing).mul_(_gather_matrix_rows(grad, receiver))
        return _sum_components(rows, like)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Gradients:
        values, grad, mixing, *links = ctx.saved_tensors
        back = mixing.transpose(1, 2).contiguous()
        to_values = apply_function(_CoupledSum, grad, second, back, *reverse_links(links))
        to_grad = apply_function(_CoupledSum, values, second, mixing, *links)
        to_mixing = None
        if ctx.needs_input_grad[2]:
            to_mixing = apply_function(_MixingGradient, values, grad, second, *links)
        return to_values, to_grad, to_mixing, None, *[None] * 6


class _MixingGradient(Function):
    """Gradient of ``coupled_sum`` for its matrices: ``sum_f grad_i[b] filter_ij value_j[a]``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, filters: Tensor, *links: Tensor) -> Tensor:
        """Multiply filtered values by gradients, and sum over channels.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: features of the nodes, [N, A, F].
            grad: gradient of the sums, [N, B, F].
            filters: one row per edge or pair, [P, F].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [E, B, A].
        """
        ctx.save_for_backward(values, grad, filters, *links)
        sender, receiver = links[:2]
        rows = _filter_rows(_gather_matrix_rows(values, sender), filters)
        return torch.bmm(_gather_matrix_rows(grad, receiver), rows.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Gradients:
        values, grad, filters, *links = ctx.saved_tensors
        back = second.transpose(1, 2).contiguous()
        to_values = apply_function(_CoupledSum, grad, filters, back, *reverse_links(links))
        to_grad = apply_function(_CoupledSum, values, filters, second, *links)
        to_filters = apply_function(_FilterGradientOfCoupled, values, grad, second, filters, *links)
        return to_values, to_grad, to_filters, *[None] * 6
