"""Sample and aggregate convolution, without the sampling.

Shapes: N nodes, E edges, P pairs of edges, F features.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import SAGEOptions
from hydragnn_hpo.model.edges import Edges


class SAGEConv(nn.Module):
    """Combine each node with the mean, sum or maximum of its neighbours.

    ``x_i' = silu(own(x_i) + neighbors(aggregate_j(x_j)))``; the maximum is that of ``pool(x_j)``.
    A neighbour is weighted by its envelope; the mean is that of ``Edges.faded_mean``.
    Source: Hamilton et al. (2017), arXiv:1706.02216, algorithm 1 and eq. 3; SiLU replaces ReLU.
    """

    def __init__(self, dimensions: Dimensions, options: SAGEOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, self.aggregation = dimensions.features, options.aggregation
        self.own = nn.Linear(features, features, bias=False)
        self.neighbors = nn.Linear(features, features)
        self.pool = nn.Linear(features, features) if options.aggregation == "max" else None

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Combine each node with the aggregate of its neighbours.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        gathered = self._gathered(scalars, edges)
        return F.silu(self.own(scalars) + self.neighbors(gathered)), None

    def _gathered(self, scalars: Tensor, edges: Edges) -> Tensor:
        if self.aggregation == "mean":
            return edges.faded_mean(scalars)
        if self.pool is None:
            return edges.faded_sum(scalars)
        pooled = edges.at_sender(F.silu(self.pool(scalars)))
        return edges.links.largest(pooled * edges.envelope)
