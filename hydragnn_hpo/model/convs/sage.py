"""Sample and aggregate convolution, without the sampling.

Shapes: N nodes, E edges, P pairs of edges, F features.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import SAGEOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.row_products import RowLinear
from hydragnn_hpo.model.scatter import segment_max


class SAGEConv(nn.Module):
    """Combine each node with the mean, sum or maximum of its neighbours.

    A neighbour is weighted by its envelope; in the mean, the node itself counts as one neighbour
    with a zero message.
    Source: Hamilton et al. (2017), arXiv:1706.02216, algorithm 1 and eq. 3; SiLU replaces ReLU.
    """

    def __init__(self, dimensions: Dimensions, options: SAGEOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, self.aggregation = dimensions.features, options.aggregation
        self.own = RowLinear(features, features, bias=False)
        self.heard = RowLinear(features, features)
        self.pool = RowLinear(features, features) if options.aggregation == "max" else None

    def forward(
        self, scalars: Tensor, state: Tensor | None, edges: Edges
    ) -> tuple[Tensor, Tensor | None]:
        """Combine each node with the aggregate of its neighbours.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: divisor of the mean, 1 + sum of envelopes, [N, 1]; None in the first layer and
                for sum and maximum.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the divisor for the next layer.
        """
        if self.aggregation == "mean" and state is None:
            state = 1.0 + edges.sum_messages(edges.envelope)
        gathered = self._gathered(scalars, edges)
        gathered = gathered if state is None else gathered / state
        return F.silu(self.own(scalars) + self.heard(gathered)), state

    def _gathered(self, scalars: Tensor, edges: Edges) -> Tensor:
        if self.pool is None:
            return edges.faded_sum(scalars)
        messages = F.silu(self.pool(scalars))
        return segment_max(edges.at_sender(messages) * edges.envelope, edges.links)
