"""Continuous-filter convolution.

Shapes: N nodes, E edges, F features, K radial functions, W filters.
"""

from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import SchNetOptions
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import ShiftedSoftplus, activate_rows, filtered_sum


class SchNetConv(nn.Module):
    """Mix each node with its neighbours by filters computed from their distance.

    ``x_i' = out(sum_j into(x_j) * W(d_ij))``, where the filters ``W`` are a perceptron of radial
    functions times the envelope.
    Source: Schuett et al. (2017), arXiv:1706.08566.
    """

    def __init__(self, dimensions: Dimensions, options: SchNetOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, filters = dimensions.features, options.filters
        self.filter = nn.Sequential(
            nn.Linear(dimensions.basis_size, filters),
            ShiftedSoftplus(),
            nn.Linear(filters, filters),
        )
        self.into = nn.Linear(features, filters, bias=False)
        self.out = nn.Sequential(
            nn.Linear(filters, features), ShiftedSoftplus(), nn.Linear(features, features)
        )

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Sum neighbours through filters of their distance, then mix the channels.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        expand, _, mix = self.filter
        hidden = activate_rows(expand(edges.pair_basis), edges.links, "softplus")
        filters = mix(hidden) * edges.pair_envelope
        gathered = filtered_sum(self.into(scalars), filters, edges.links)
        return self.out(gathered), None
