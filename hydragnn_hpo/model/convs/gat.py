"""Graph attention convolution, version 2 (GATv2).

Shapes: N nodes, E edges, P pairs of edges, F features, K radial functions, H heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import GATOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import activate_ends, leaky_silu, weighted_sum


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
        sent = self.send(scalars)
        received = self.receive(scalars)
        by_head = self._by_head()
        own = _scores(leaky_silu(received + sent, self.slope), by_head)
        measured = self.measure(edges.pair_basis)
        joint = activate_ends(received, sent, measured, edges.links, slope=self.slope)
        lead = _scores(joint, by_head) - edges.at_receiver(own)
        # The largest exponent is subtracted, as in any softmax, so that none overflows.
        top = edges.links.largest(lead.detach())
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


def _scores(joint: Tensor, by_head: Tensor) -> Tensor:
    """Return the score of each head, [E, H], from activated features of both ends, [E, F]."""
    # A product with few rows is four times faster than one with few columns.
    return (by_head @ joint.t()).t().contiguous()
