"""Principal neighbourhood aggregation with a vector channel.

Shapes: N nodes, E edges, P pairs, F features, K radial functions. Vectors are [N, 3, F].
"""

from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.painn import sent_channels
from hydragnn_hpo.config.convs.pnaeq import PNAEqOptions
from hydragnn_hpo.model.aggregation import Aggregation
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.mlp import mlp
from hydragnn_hpo.model.polar import RadialFilters, VectorUpdate, pass_vectors
from hydragnn_hpo.model.sums import times


class PNAEqConv(nn.Module):
    """Scalars are aggregated in several ways, vectors as in PaiNN; then both talk.

    Source: Corso et al. (2020), arXiv:2004.05718, eqs. 5-9; Schuett et al. (2021),
    arXiv:2102.03150, eqs. 8-10.
    """

    def __init__(self, dimensions: Dimensions, options: PNAEqOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.sent = sent_channels(dimensions)
        self.send = mlp((features, features, self.sent * features))
        self.receive = nn.Linear(features, features)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent)
        self.aggregate = Aggregation(features, dimensions.degree, options)
        self.update = VectorUpdate(features, nn.SiLU)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Give the change of the scalars, [N, F], and the new vectors, [N, 3, F]."""
        to_scalar, *to_vectors = self.filters(edges.pair_basis)
        say, *turn = self.send(scalars).chunk(self.sent, dim=-1)
        said = times(edges.joined(self.receive(scalars), say), to_scalar)
        heard = self.aggregate(said, edges)
        faded = [each * edges.pair_envelope for each in to_vectors]
        vectors = pass_vectors(state, turn, faded, edges)
        answer, vectors = self.update(scalars + heard, vectors)
        return heard + answer, vectors
