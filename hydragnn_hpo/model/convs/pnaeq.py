"""Principal neighbourhood aggregation with a vector channel.

Shapes: N nodes, E edges, P pairs, F features, K radial functions. Vectors are [N, 3, F].
"""

from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import PNAEqOptions, sent_channels
from hydragnn_hpo.model.convs.painn import RadialFilters, VectorUpdate, send_vectors
from hydragnn_hpo.model.convs.pna import Aggregation
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp


class PNAEqConv(nn.Module):
    """Aggregate scalars in several ways and vectors as in PaiNN, and mix both in each node.

    Source: Corso et al. (2020), arXiv:2004.05718, eqs. 5-9; Schuett et al. (2021),
    arXiv:2102.03150, eqs. 8-10.
    """

    smooth = False
    """Where neighbours are alike, the gradients of maxima and minima over them have a step."""

    def __init__(self, dimensions: Dimensions, options: PNAEqOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.sent = sent_channels(dimensions)
        self.send = mlp((features, features, self.sent * features))
        self.receive = nn.Linear(features, features)
        self.filter = nn.Linear(dimensions.basis_size, features)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent - 1)
        self.aggregate = Aggregation(features, dimensions.degree, options)
        self.update = VectorUpdate(features, nn.SiLU)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Aggregate scalars in several ways, send vectors, and mix both in each node.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: vectors of the nodes, [N, 3, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new vectors, [N, 3, F].
        """
        to_vectors = self.filters(edges)
        scalar_values, *vector_values = self.send(scalars).chunk(self.sent, dim=-1)
        filters = self.filter(edges.pair_basis)
        received = self.receive(scalars)
        gathered = self.aggregate(received, scalar_values, None, filters, edges)
        vectors = send_vectors(state, vector_values, to_vectors, edges)
        change, vectors = self.update(scalars + gathered, vectors)
        return gathered + change, vectors
