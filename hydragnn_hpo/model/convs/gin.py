"""Graph isomorphism convolution.

Shapes: N nodes, E edges, F features.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import GINOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp


class GINConv(nn.Module):
    """Pass the sum of a node and its neighbours through a perceptron.

    A neighbour is weighted by its envelope, the node itself by 1 + eps.
    Source: Xu et al. (2019), arXiv:1810.00826, eq. 4.1.
    """

    def __init__(self, dimensions: Dimensions, options: GINOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.eps = nn.Parameter(torch.zeros(1)) if options.learn_eps else None
        self.update = mlp((features, features, features))

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Add the neighbours to each node and pass the sum through the perceptron.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        if self.eps is None:
            return self.update(edges.faded_sum(scalars) + scalars), None
        return self.update(edges.faded_sum(scalars, 1.0 + self.eps)), None
