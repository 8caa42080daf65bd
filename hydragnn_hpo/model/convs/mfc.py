"""Molecular fingerprint convolution: weights that depend on the number of neighbours.

Shapes: N nodes, E edges, F features, D highest degree, W width of the rows of a product.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import MFCOptions
from hydragnn_hpo.model.edges import Edges


class DegreeGroups(NamedTuple):
    """The nodes sorted by degree; the same in all layers."""

    order: Tensor
    """Nodes in the order of their degrees, int64, [N]."""
    back: Tensor
    """Row of each node in that order, int64, [N]."""
    counts: tuple[int, ...]
    """How many nodes have a degree between d and d + 1, for d from 0 to D - 1."""
    share: Tensor
    """Share of the matrix of d + 1 for each node, 0 to 1, in that order, [N, 1]."""


def group_by_degree(edges: Edges, highest: int) -> DegreeGroups:
    """Sort nodes by degree, the sum of their envelopes; above ``highest`` it counts as that."""
    degree = edges.sum_messages(edges.envelope)
    lower = degree.detach().clamp(max=highest - 1).floor()
    near = (degree - lower).clamp(max=1.0)
    share = near**3 * (10.0 - 15.0 * near + 6.0 * near * near)
    whole = lower.flatten().long()
    order = torch.argsort(whole, stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    counts = torch.bincount(whole, minlength=highest)
    return DegreeGroups(order, back, tuple(counts.tolist()), share.index_select(0, order))


class MFCConv(nn.Module):
    """Map a node and the sum of its neighbours by matrices that depend on the node's degree.

    The degree is the sum of envelopes. Between two integers both matrices are blended by a
    polynomial of fifth order, whose first two derivatives vanish at both ends.
    Source: Duvenaud et al. (2015), arXiv:1509.09292, algorithm 2, with separate weights for the
    node itself.
    """

    exports = False
    """``torch.export`` cannot trace tensors whose number of rows depends on values."""

    def __init__(self, dimensions: Dimensions, options: MFCOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, self.highest = dimensions.features, options.max_degree
        shape = (self.highest + 1, 2 * features, features)
        bound = features**-0.5
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(
        self, scalars: Tensor, state: DegreeGroups | None, edges: Edges
    ) -> tuple[Tensor, DegreeGroups]:
        """Map each node and the sum of its neighbours by the matrices of its degree.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: the nodes grouped by degree; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the groups, which all layers share.
        """
        state = group_by_degree(edges, self.highest) if state is None else state
        gathered = edges.faded_sum(scalars)
        both = torch.cat((gathered, scalars), dim=1).index_select(0, state.order)
        higher = both * state.share
        mixed = apply_per_degree(both - higher, higher, self.weight, state.counts)
        return F.silu(mixed.index_select(0, state.back) + self.bias), state


def apply_per_degree(
    lower: Tensor, higher: Tensor, weight: Tensor, counts: tuple[int, ...]
) -> Tensor:
    """Multiply rows in groups: those of group d by the matrices of d and of d + 1.

    Args:
        lower: rows that the matrix of d multiplies, one group after the other, [N, W].
        higher: rows that the matrix of d + 1 multiplies, [N, W].
        weight: matrices, [D + 1, W, F].
        counts: number of rows of each group, D of them.

    Returns:
        The sum of both products, [N, F].
    """
    matrices = weight.unbind(0)
    groups = zip(
        lower.split_with_sizes(counts),
        higher.split_with_sizes(counts),
        matrices,
        matrices[1:],
        strict=False,
    )
    return torch.cat([torch.addmm(a @ low, b, high) for a, b, low, high in groups])
