"""Principal neighbourhood aggregation of radially filtered messages.

Shapes: N nodes, E edges, P pairs, F features, K radial functions.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import PNAPlusOptions
from hydragnn_hpo.model.convs.pna import Aggregation
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp


class PNAPlusConv(nn.Module):
    """Aggregate as in ``pna``, with every message multiplied by a filter of the distance.

    Source: Corso et al. (2020), arXiv:2004.05718, eq. 9; the filters are those of Gasteiger
    et al. (2020), arXiv:2003.03123, as in HydraGNN's stack of this name.
    """

    smooth = False
    """Where neighbours are alike, the gradients of maxima and minima over them have a step."""

    def __init__(self, dimensions: Dimensions, options: PNAPlusOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.measure = nn.Linear(dimensions.basis_size, features, bias=False)
        self.filter = mlp((dimensions.basis_size, features, features))
        self.aggregate = Aggregation(features, dimensions.degree, options)
        self.update = nn.Linear(2 * features, features)

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Aggregate filtered messages in several ways and mix them with the node.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        basis = edges.pair_basis
        measured = self.measure(basis)
        filters = self.filter(basis)
        ends = (self.receive(scalars), self.send(scalars))
        gathered = self.aggregate(*ends, measured, filters, edges)
        return self.update(torch.cat((scalars, gathered), dim=-1)), None
