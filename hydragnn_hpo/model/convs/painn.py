"""PaiNN: messages of scalars and vectors; other convs with vectors share its blocks.

Shapes: N nodes, E edges, P pairs of edges, F features, K radial functions. Vectors are [N, 3, F].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import PaiNNOptions, sent_channels
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.messages import (
    ShiftedSoftplus,
    directed_sum,
    filtered_sum,
    vector_messages_sum,
)


def send_vectors(
    vectors: Tensor | None,
    nodes: Sequence[Tensor],
    filters: Sequence[Tensor],
    edges: Edges,
) -> Tensor:
    """Send directions and vectors to neighbours.

    ``v_i + sum_j W1_ij n1_j r_ij + W2_ij n2_j v_j``, with filters ``W``, factors ``n`` of the
    sender, and directions ``r``.

    Args:
        vectors: vectors of the nodes, [N, 3, F]; None in the first layer.
        nodes: factors of the sender for directions and, where there are vectors, for its vectors;
            one or two tensors [N, F].
        filters: one filter of the pairs for each of ``nodes``, 0 from the cutoff on, [P, F] each.
        edges: geometry of the batch.

    Returns:
        New vectors of the nodes, [N, 3, F].

    Source: Schuett et al. (2021), arXiv:2102.03150, eq. 8.
    """
    directions, links = edges.directions, edges.links
    if vectors is None:
        return directed_sum(nodes[0], filters[0], directions, links)
    carried = vectors * nodes[1].unsqueeze(1)
    sums = vector_messages_sum(nodes[0], filters[0], directions, carried, filters[1], links)
    return vectors + sums


class RadialFilters(nn.Module):
    """Filters of each pair's distance, smooth at the cutoff.

    Each filter has its own map: slices of the output of one common map would be strided and slower.
    """

    def __init__(self, basis_size: int, features: int, count: int) -> None:
        """Build ``count`` maps; the envelope, a column of their input, serves as their bias."""
        super().__init__()
        self.maps = nn.ModuleList(
            nn.Linear(basis_size + 1, features, bias=False) for _ in range(count)
        )

    def forward(self, edges: Edges) -> list[Tensor]:
        """Return ``count`` filters, [P, F] each."""
        basis = edges.faded_basis
        return [each(basis) for each in self.maps]


class VectorUpdate(nn.Module):
    """Mix the scalars and vectors of a node.

    ``s' = shift + mixed <left, right>`` and ``v' = v + scale left``, where left and right are mixes
    of v, and shift, mixed and scale come from s and the length of right.
    Source: Schuett et al. (2021), arXiv:2102.03150, eqs. 9 and 10.
    """

    def __init__(self, features: int, activation: type[nn.Module]) -> None:
        """Build the mix of vector channels and the perceptron."""
        super().__init__()
        self.mix = nn.Linear(features, 2 * features, bias=False)
        self.context = mlp((2 * features, features, 3 * features), activation)

    def forward(self, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Mix scalars, [N, F], and vectors, [N, 3, F], inside each node.

        Returns:
            The change of the scalars, [N, F], and the new vectors, [N, 3, F].
        """
        left, right = self.mix(vectors).chunk(2, dim=-1)
        length = (right.square().sum(dim=1) + 1e-8).sqrt()
        scale, mixed, shift = self.context(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
        inner = (left * right).sum(dim=1)
        return shift + mixed * inner, vectors + left * scale.unsqueeze(1)


PAINN_ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "ssp": ShiftedSoftplus}


class PaiNNConv(nn.Module):
    """One message block and one update block.

    Scalars are invariant under rotation; vectors rotate with the structure. The message block is
    ``s_i + sum_j W_ij phi(s_j)``, and that of ``send_vectors``.
    Source: Schuett et al. (2021), arXiv:2102.03150, eqs. 7-10.
    """

    def __init__(self, dimensions: Dimensions, options: PaiNNOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        activation = PAINN_ACTIVATIONS[options.activation]
        self.sent = sent_channels(dimensions)
        self.send = mlp((features, features, self.sent * features), activation)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent)
        self.update = VectorUpdate(features, activation)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Run one message block and one update block.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: vectors of the nodes, [N, 3, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new vectors, [N, 3, F].
        """
        to_scalar, *to_vectors = self.filters(edges)
        scalar_values, *vector_values = self.send(scalars).chunk(self.sent, dim=-1)
        message = filtered_sum(scalar_values, to_scalar, edges.links)
        vectors = send_vectors(state, vector_values, to_vectors, edges)
        change, vectors = self.update(scalars + message, vectors)
        return message + change, vectors
