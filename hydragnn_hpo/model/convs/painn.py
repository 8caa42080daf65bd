"""Polarizable interaction convolution: scalars and vectors talk to each other.

Shapes: N nodes, E edges, P pairs, F features, K radial functions. Vectors are [N, 3, F].
"""

from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.painn import PaiNNOptions, sent_channels
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import ShiftedSoftplus, mlp
from hydragnn_hpo.model.vectors import RadialFilters, VectorUpdate, send_vectors

ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "ssp": ShiftedSoftplus}


class PaiNNConv(nn.Module):
    """One message block and one update block.

    Scalars are invariant under rotation, vectors turn with the structure.
    Source: Schuett et al. (2021), arXiv:2102.03150, eqs. 7-10.
    """

    def __init__(self, dimensions: Dimensions, options: PaiNNOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, activation = dimensions.features, ACTIVATIONS[options.activation]
        self.sent = sent_channels(dimensions)
        self.send = mlp((features, features, self.sent * features), activation)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent)
        self.update = VectorUpdate(features, activation)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Return the change of the scalars, [N, F], and the new vectors, [N, 3, F]."""
        to_scalar, *to_vectors = self.filters(edges)
        say, *turn = self.send(scalars).chunk(self.sent, dim=-1)
        message = edges.filtered_sum(say, to_scalar)
        vectors = send_vectors(state, turn, to_vectors, edges)
        answer, vectors = self.update(scalars + message, vectors)
        return message + answer, vectors
