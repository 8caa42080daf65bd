"""Crystal graph convolution.

Shapes: N nodes, E edges, P pairs of edges, F features, K radial functions.
"""

from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import CGCNNOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import gated_product_sum


class CGCNNConv(nn.Module):
    """Sum gated linear maps of both ends and their distance.

    Gate and content are linear maps of ``[x_i, x_j, basis_ij]``. One map computes both; it is split
    into parts for nodes and pairs, whose results are added on the edges.
    Source: Xie and Grossman (2018), arXiv:1710.10324, eq. 5, without batch norms.
    """

    def __init__(self, dimensions: Dimensions, options: CGCNNOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.activation = options.activation
        self.receive = nn.Linear(features, 2 * features)
        self.send = nn.Linear(features, 2 * features, bias=False)
        self.measure = nn.Linear(dimensions.basis_size, 2 * features, bias=False)

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Sum the gated messages of the neighbours.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        ends = self.receive(scalars), self.send(scalars)
        measured = self.measure(edges.pair_basis)
        gathered = gated_product_sum(
            *ends, measured, edges.pair_envelope, edges.links, activation=self.activation
        )
        return gathered, None
