"""E(n)-equivariant graph convolution, in its invariant form with fixed coordinates.

Shapes: N nodes, E edges, F features, K radial functions.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import EGNNOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.messages import activate_ends, gated_linear_sum


class EGNNConv(nn.Module):
    """Send to each node a function of both ends and their distance.

    ``m_ij = phi_e(x_i, x_j, d_ij)``, ``m_i = sum_j w_ij sigmoid(gate(m_ij)) m_ij`` with envelopes
    ``w``, and ``x_i' = phi_x(x_i, m_i)``.
    The first linear map of the message is split into parts for nodes and basis, whose results are
    added on the edges: the same function, with F * F operations per node instead of per edge.
    Source: Satorras et al. (2021), arXiv:2102.09844, eqs. 3, 5, 6 and 8.
    """

    def __init__(self, dimensions: Dimensions, options: EGNNOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.measure = nn.Linear(dimensions.basis_size, features, bias=False)
        self.message = nn.Linear(features, features)
        self.gate = nn.Linear(features, 1) if options.attention else None
        self.update = mlp((2 * features, features, features))

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Sum gated messages of the neighbours and update each node from the sum.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        links, weights = edges.links, edges.pair_envelope
        measured = self.measure(edges.pair_basis)
        hidden = activate_ends(self.receive(scalars), self.send(scalars), measured, links)
        gathered = gated_linear_sum(hidden, self.message, self.gate, weights, links)
        return self.update(torch.cat((scalars, gathered), dim=-1)), None
