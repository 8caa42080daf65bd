"""Principal neighbourhood aggregation: several statistics of messages, scaled by degree.

Shapes: N nodes, P pairs of edges, F features.
"""

import math

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import Config
from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import AGGREGATIONS, PNAOptions, aggregator_copies
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import aggregate_messages

SMALL = 0.25
"""Scale below which a spread is flattened to 0: the plain root of a variance would rise from 0 so
steeply that forces jump where the first neighbour enters."""


class Aggregation(nn.Module):
    """Aggregate messages by mean, spread, maximum and minimum: plain, amplified and attenuated.

    Messages are weighted by their envelope, and the node itself counts as one neighbour with a zero
    message. Results therefore do not jump when an atom crosses the cutoff: mean and extremes of a
    single vanishing message are 0.
    Source: Corso et al. (2020), arXiv:2004.05718, eqs. 5-8; degrees are sums of envelopes.
    """

    typical: Tensor

    def __init__(self, features: int, degree: float, options: Config) -> None:
        """Build the map from all statistics to F channels.

        Args:
            features: channels per node, F.
            degree: mean number of neighbours in the training data, the reference of the scaling.
            options: options of the conv; ``scalers`` adds amplified and attenuated copies.
        """
        super().__init__()
        self.copies = aggregator_copies(options)
        self.mix = nn.Linear(AGGREGATIONS * self.copies * features, features)
        self.register_buffer("typical", torch.tensor(math.log(degree + 2.0)))

    def forward(
        self,
        received: Tensor,
        sent: Tensor,
        measured: Tensor | None,
        filters: Tensor | None,
        edges: Edges,
    ) -> Tensor:
        """Aggregate messages ``(received_i + sent_j + measured_ij) * filter_ij``, [N, F].

        Args:
            received: of the nodes, read at the receiver, [N, F].
            sent: of the nodes, read at the sender, [N, F].
            measured: of the pairs, [P, F]; None adds nothing.
            filters: of the pairs, [P, F]; None for 1.
            edges: geometry of the batch.
        """
        sums, squares, largest, smallest = aggregate_messages(
            received, sent, measured, filters, edges.pair_envelope, edges.links
        )
        degree = edges.sum_messages(edges.envelope)
        mean, square = sums / (1.0 + degree), squares / (1.0 + degree)
        spread = (square - mean.square() + SMALL**2).sqrt() - SMALL
        statistics = torch.cat((mean, spread, largest, smallest), dim=-1)
        if self.copies > 1:
            amplify = torch.log(degree + 2.0) / self.typical
            statistics = torch.cat((statistics, statistics * amplify, statistics / amplify), dim=-1)
        mixed: Tensor = self.mix(statistics)
        return mixed


class PNAConv(nn.Module):
    """Send a linear map of both ends and their distance, and aggregate it in several ways.

    The map is split into parts for nodes and pairs, whose results are added on the edges.
    Source: Corso et al. (2020), arXiv:2004.05718, eq. 9.
    """

    smooth = False
    """Where neighbours are alike, the gradients of maxima and minima over them have a step."""

    def __init__(self, dimensions: Dimensions, options: PNAOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.measure = nn.Linear(dimensions.basis_size, features, bias=False)
        self.aggregate = Aggregation(features, dimensions.degree, options)
        self.update = nn.Linear(2 * features, features)

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> tuple[Tensor, None]:
        """Aggregate messages of the neighbours in several ways and mix them with the node.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: None: this conv carries nothing from layer to layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and None.
        """
        measured = self.measure(edges.pair_basis)
        gathered = self.aggregate(self.receive(scalars), self.send(scalars), measured, None, edges)
        return self.update(torch.cat((scalars, gathered), dim=-1)), None
