"""Principal neighbourhood aggregation.

Shapes: N nodes, E edges, P pairs, F features, K radial functions.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.pna import PNAOptions
from hydragnn_hpo.model.aggregation import Aggregation
from hydragnn_hpo.model.edges import Edges


class PNAConv(nn.Module):
    """Send a linear map of both ends and their distance, and aggregate it in several ways.

    The map is taken apart: nodes and pairs pass through it before they meet on the edges.
    Source: Corso et al. (2020), arXiv:2004.05718, eq. 9.
    """

    def __init__(self, dimensions: Dimensions, options: PNAOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.measure = nn.Linear(dimensions.basis_size, features, bias=False)
        self.aggregate = Aggregation(features, dimensions.degree, options)
        self.update = nn.Linear(2 * features, features)

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Return the change of the scalars, [N, F]; there is no state."""
        messages = edges.sum_ends(
            self.receive(scalars), self.send(scalars), self.measure(edges.pair_basis)
        )
        gathered = self.aggregate(messages, edges)
        return self.update(torch.cat((scalars, gathered), dim=-1)), None
