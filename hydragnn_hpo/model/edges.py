"""The edges of a batch as every conv sees them.

Edges come in pairs: row p and row P + p are one bond seen from its two ends. What depends on
the length alone is kept once per pair.

Shapes: N nodes, E edges, P pairs (E / 2, or E where edges are no pairs), F features,
K radial functions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model import sums
from hydragnn_hpo.model.sums import Links, laid_links, links_of, paired_links


@dataclass(frozen=True, eq=False)
class Edges:
    """Geometry of the edges; ``sender`` sends to ``receiver``."""

    links: Links
    """Both ends of every edge."""
    directions: Tensor
    """Unit vectors from sender to receiver, [E, 3]; they turn with the structure."""
    pair_lengths: Tensor
    """Lengths in angstrom, [P]."""
    pair_basis: Tensor
    """Radial functions of the length, [P, K]."""
    pair_envelope: Tensor
    """Weight that takes every message smoothly to 0 at the cutoff, [P, 1]."""

    @property
    def sender(self) -> Tensor:
        """Node that sends, [E]."""
        return self.links.sender

    @property
    def receiver(self) -> Tensor:
        """Node that receives, [E]."""
        return self.links.receiver

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return self.links.num_nodes

    @property
    def paired(self) -> bool:
        """Whether rows p and P + p are one bond."""
        return self.pair_lengths.shape[0] * 2 == self.sender.shape[0]

    @property
    def lengths(self) -> Tensor:
        """Lengths in angstrom, [E]."""
        return self.expand_pairs(self.pair_lengths)

    @property
    def basis(self) -> Tensor:
        """Radial functions of the length, [E, K]."""
        return self.expand_pairs(self.pair_basis)

    @property
    def envelope(self) -> Tensor:
        """Weight that takes every message smoothly to 0 at the cutoff, [E, 1]."""
        return self.expand_pairs(self.pair_envelope)

    @property
    def faded_basis(self) -> Tensor:
        """Radial functions times envelope, and the envelope itself, [P, K + 1].

        A linear map of these without bias is a linear map of the basis with bias, times the
        envelope: every filter comes out smooth and none is multiplied.
        """
        return torch.cat((self.pair_basis * self.pair_envelope, self.pair_envelope), dim=-1)

    def expand_pairs(self, values: Tensor) -> Tensor:
        """Give both edges of a pair its values: [P, ...] to [E, ...]."""
        return torch.cat((values, values)) if self.paired else values

    def at_sender(self, values: Tensor) -> Tensor:
        """Give each edge the row of the node that sends: [N, ...] to [E, ...]."""
        return sums.take(values, self.links, "sender")

    def at_receiver(self, values: Tensor) -> Tensor:
        """Give each edge the row of the node that receives: [N, ...] to [E, ...]."""
        return sums.take(values, self.links, "receiver")

    def sum_ends(self, receiver: Tensor, sender: Tensor, pair: Tensor | None = None) -> Tensor:
        """Add what both ends and the pair bring to each edge, [E, F].

        Args:
            receiver: of the node that receives, [N, F].
            sender: of the node that sends, [N, F].
            pair: of the pair, [P, F].
        """
        return sums.joined(receiver, sender, pair, self.links)

    def sum_messages(self, messages: Tensor) -> Tensor:
        """Sum the messages that each node receives: [E, ...] to [N, ...]."""
        return sums.add(messages, self.links)

    def filtered_sum(self, values: Tensor, filters: Tensor) -> Tensor:
        """Sum over neighbours ``filter_ij * value_j``, see ``sums.filtered``."""
        return sums.filtered(values, filters, self.links)

    def filter_senders(self, values: Tensor, filters: Tensor) -> Tensor:
        """Give each edge ``filter_ij * value_j``, [E, F], see ``sums.scaled``."""
        return sums.scaled(values, filters, self.links)

    def outer_sum(self, messages: Tensor, components: Tensor) -> Tensor:
        """Sum over neighbours ``components_ij x message_ij``, see ``sums.spread``."""
        return sums.spread(messages, components, self.links)


def pair_vectors(batch: Batch) -> tuple[Links, Tensor]:
    """Give the links of a batch's edges, and the vectors of pairs in angstrom, [P, 3].

    A vector leads from sender to receiver. Periodic images count through the batch's shifts.
    Positions and shifts may require a gradient.
    """
    num_nodes = batch.positions.shape[0]
    sender, receiver = batch.edge_index
    if batch.order is not None and batch.starts is not None:
        links, rows = laid_links(sender, receiver, batch.order, batch.starts), None
    elif batch.pairs is None:
        links, rows = links_of(sender, receiver, num_nodes), None
    else:
        first, order = batch.pairs
        rows = first[: first.shape[0] // 2]
        sender, receiver = batch.edge_index.index_select(1, first)  # 7 times quicker than [first]
        links = paired_links(sender, receiver, order, num_nodes)
    shift = batch.edge_shift if rows is None else batch.edge_shift.index_select(0, rows)
    if batch.order is not None:
        shift = shift[: shift.shape[0] // 2]
    count = shift.shape[0]
    ends = (links.receiver[:count], links.sender[:count])
    to, start = (batch.positions.index_select(0, end) for end in ends)
    return links, to - start + shift
