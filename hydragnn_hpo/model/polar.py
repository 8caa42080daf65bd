"""What PaiNN does with vectors, for the convs that carry some.

Shapes: N nodes, E edges, P pairs, F features. Vectors are [N, 3, F].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hydragnn_hpo.model.arrows import arrows
from hydragnn_hpo.model.edges import Edges


def pass_vectors(
    vectors: Tensor | None,
    nodes: Sequence[Tensor],
    filters: Sequence[Tensor],
    edges: Edges,
) -> Tensor:
    """Send directions and vectors to neighbours, [N, 3, F].

    Args:
        vectors: of the nodes; none in the first layer, [N, 3, F].
        nodes: what each node puts on directions, and on its own vectors if there are any,
            [N, F] each.
        filters: what each pair lets through of these, smooth at the cutoff, [P, F] each.
        edges: the geometry.

    Source: Schuett et al. (2021), arXiv:2102.03150, eq. 8.
    """
    messages = edges.filter_senders(nodes[0], filters[0])
    if vectors is None:
        return edges.outer_sum(messages, edges.directions)
    carried = vectors * nodes[1].unsqueeze(1)
    return vectors + arrows(messages, edges.directions, carried, filters[1], edges.links)


class RadialFilters(nn.Module):
    """Filters of each pair's distance, smooth at the cutoff.

    Several maps and not one: slices of its result would be strided, and slower.
    """

    def __init__(self, basis_size: int, features: int, count: int) -> None:
        """Build the maps; the envelope's own column is their bias."""
        super().__init__()
        self.maps = nn.ModuleList(
            nn.Linear(basis_size + 1, features, bias=False) for _ in range(count)
        )

    def forward(self, edges: Edges) -> list[Tensor]:
        """Give ``count`` filters, [P, F] each."""
        basis = edges.faded_basis
        return [each(basis) for each in self.maps]


class VectorUpdate(nn.Module):
    """Let scalars and vectors of a node talk to each other.

    Source: Schuett et al. (2021), arXiv:2102.03150, eqs. 9 and 10.
    """

    def __init__(self, features: int, activation: type[nn.Module]) -> None:
        """Build the mix of vector channels and the perceptron."""
        super().__init__()
        self.mix = nn.Linear(features, 2 * features, bias=False)
        self.talk = nn.Sequential(
            nn.Linear(2 * features, features), activation(), nn.Linear(features, 3 * features)
        )

    def forward(self, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Give the change of the scalars, [N, F], and the new vectors, [N, 3, F]."""
        left, right = self.mix(vectors).chunk(2, dim=-1)
        length = (right.square().sum(dim=1) + 1e-8).sqrt()
        scale, mixed, own = self.talk(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
        inner = (left * right).sum(dim=1)
        return own + mixed * inner, vectors + left * scale.unsqueeze(1)
