"""Graph attention convolution, version 2 (GATv2).

Shapes: N nodes, E edges, P pairs of edges, F features, K radial functions, H heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import GATOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.scatter import Gradients, segment_max, weighted_sum


class GATConv(nn.Module):
    """Weight each neighbour, and the node itself, by learned attention.

    Each neighbour's term of the softmax is multiplied by its envelope. The term of the node itself,
    which has no distance, keeps the softmax defined when no neighbour is left. The activation of
    the score is ``s x + (1 - s) silu(x)`` instead of a leaky ReLU, whose kink would make forces
    jump.
    Source: Brody et al. (2022), arXiv:2105.14491, eqs. 3, 4 and 7.
    """

    def __init__(self, dimensions: Dimensions, options: GATOptions) -> None:
        """Build one layer; the heads divide the features."""
        super().__init__()
        features, self.heads = dimensions.features, options.heads
        self.slope = options.negative_slope
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features)
        self.measure = nn.Linear(dimensions.basis_size, features, bias=False)
        bound = (self.heads / features) ** 0.5
        parts = torch.empty(self.heads, features // self.heads)
        self.attention = nn.Parameter(parts.uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Average the node and its neighbours by attention weights.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        sent, received = self.send(scalars), self.receive(scalars)
        by_head = self._by_head()
        own = _scores(received + sent, by_head, self.slope)
        joint = edges.sum_ends(received, sent, self.measure(edges.pair_basis))
        lead = _scores(joint, by_head, self.slope) - edges.at_receiver(own)
        # The largest exponent is subtracted, as in any softmax, so that none overflows.
        top = segment_max(lead.detach(), edges.links)
        weights = (lead - edges.at_receiver(top)).exp() * edges.envelope
        alone = (-top).exp()
        message = weighted_sum(sent, weights, edges.links) + sent * self._spread(alone)
        message = message / self._spread(alone + edges.sum_messages(weights))
        return F.silu(message + self.bias), None

    def _by_head(self) -> Tensor:
        """Return the map whose row h reads the channels of head h alone, [H, F]."""
        identity = torch.eye(self.heads, dtype=self.bias.dtype, device=self.bias.device)
        return (identity.unsqueeze(2) * self.attention).flatten(1)

    def _spread(self, values: Tensor) -> Tensor:
        """Repeat the value of each head over its channels: [N, H] to [N, F]."""
        return values.repeat_interleave(self.bias.shape[0] // self.heads, dim=1)


def _scores(joint: Tensor, by_head: Tensor, slope: float) -> Tensor:
    """Return the score of each head, [E, H], from summed features of both ends, [E, F]."""
    bent: Tensor = _LeakyScores.apply(joint, slope)  # type: ignore[no-untyped-call]
    # A product with few rows is four times faster than one with few columns.
    return (by_head @ bent.t()).t().contiguous()


class _LeakyScores(Function):
    """``slope * x + (1 - slope) * silu(x)``; saves only x for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        """Blend x and its SiLU.

        Args:
            ctx: keeps the inputs for ``backward``.
            x: summed features of both ends, [E, F].
            slope: share of x, 0 to 1.

        Returns:
            [E, F].
        """
        ctx.save_for_backward(x)
        ctx.slope = slope
        return F.silu(x).lerp_(x, slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            gate = x.sigmoid()
            gradient = grad * (gate * (1.0 + x * (1.0 - gate)))
        else:
            gradient = torch.ops.aten.silu_backward(grad, x)
        return gradient.lerp_(grad, ctx.slope), None
