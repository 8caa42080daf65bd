"""Edges of a batch: lengths and directions, the smooth cutoff (Law 8), and radial functions.

A pair is the two directed edges of one bond, in rows p and P + p, or one edge without a reverse, in
one of the last rows before P. Values that depend on the length alone are computed once per pair. In
a batch without pairs every edge is its own pair: P = E.

Shapes: N nodes, E edges, P pairs of edges, F features, K radial functions.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.kernels import Links, Neighbors, choose_kernels
from hydragnn_hpo.model.messages import filtered_sum, weighted_sum


def envelope(lengths: Tensor, cutoff: float) -> Tensor:
    """Fall from 1 at contact to 0 at the cutoff, where first and second derivative are 0.

    Args:
        lengths: edge lengths in angstrom, [E].
        cutoff: cutoff radius in angstrom, > 0.

    Returns:
        Weight of each edge, dimensionless, [E]; exactly 0 from ``cutoff`` on.

    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 8 with p = 6.
    """
    x = (lengths / cutoff).clamp(max=1.0)  # beyond the cutoff x = 1, where the result is exactly 0
    x3 = x * x * x
    x6 = x3 * x3
    return 1.0 - 28.0 * x6 + 48.0 * x6 * x - 21.0 * x6 * x * x


class BesselBasis(nn.Module):
    """Spherical Bessel functions of order zero that vanish at the cutoff.

    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 7.
    """

    frequencies: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        """Fix the frequencies n pi / cutoff for n = 1 .. ``size`` = K; they are not learned.

        ``cutoff`` is in angstrom.
        """
        super().__init__()
        frequencies = torch.arange(1, size + 1, dtype=torch.float64) * math.pi / cutoff
        self.register_buffer("frequencies", frequencies.to(torch.get_default_dtype()), False)
        self.scale = math.sqrt(2.0 / cutoff)

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, [E], to dimensionless [E, K]; finite at length 0."""
        length = lengths.clamp(min=1e-6).unsqueeze(-1)
        return self.scale * torch.sin(self.frequencies * length) / length


class GaussianBasis(nn.Module):
    """Equally spaced Gaussians from contact to the cutoff, as wide as their spacing.

    Source: Schuett et al. (2017), arXiv:1706.08566, eq. 6.
    """

    centres: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        """Place ``size`` = K centres from 0 to ``cutoff``, in angstrom; they are not learned."""
        super().__init__()
        centres = torch.linspace(0.0, cutoff, size)
        self.register_buffer("centres", centres, False)
        self.exponent = -0.5 * (max(size - 1, 1) / cutoff) ** 2

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, [E], to dimensionless [E, K]."""
        return torch.exp(self.exponent * (lengths.unsqueeze(-1) - self.centres).square())


BASES = {"bessel": BesselBasis, "gaussian": GaussianBasis}
"""Radial functions by ``model.basis``."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Geometry of the edges of a batch, in the dtype of its positions; an input of every conv."""

    links: Links
    """Sender and receiver of every edge, and the edges sorted by either."""
    directions: Tensor
    """Unit vectors from sender to receiver, [E, 3]; they rotate with the structure. [0, 3] for
    convs that read no more than the envelope."""
    pair_lengths: Tensor
    """Lengths in angstrom, [P]."""
    pair_basis: Tensor
    """Radial functions of the length, [P, K]."""
    pair_envelope: Tensor
    """Weight that takes every message smoothly to 0 at the cutoff, [P, 1]."""

    @property
    def sender(self) -> Tensor:
        """Index of the node that sends, int64, [E]."""
        return self.links.sender

    @property
    def receiver(self) -> Tensor:
        """Index of the node that receives, int64, [E]."""
        return self.links.receiver

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return self.links.num_nodes

    @property
    def paired(self) -> bool:
        """Whether rows p and P + p are the two edges of one bond, where both are there."""
        return self.pair_lengths.shape[0] < self.sender.shape[0]

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

        A linear map of these columns without bias equals a linear map of the basis with bias, times
        the envelope. Filters made this way are smooth at the cutoff without another product.
        """
        return torch.cat((self.pair_basis * self.pair_envelope, self.pair_envelope), dim=-1)

    def expand_pairs(self, values: Tensor) -> Tensor:
        """Repeat values of pairs for both of their edges: [P, ...] to [E, ...]."""
        return self.links.expand_pairs(values)

    def at_sender(self, values: Tensor) -> Tensor:
        """Gather for each edge the row of its sender: [N, ...] to [E, ...]."""
        return self.links.at_sender(values)

    def at_receiver(self, values: Tensor) -> Tensor:
        """Gather for each edge the row of its receiver: [N, ...] to [E, ...]."""
        return self.links.at_receiver(values)

    def sum_ends(self, receiver: Tensor, sender: Tensor, pair: Tensor | None = None) -> Tensor:
        """Add for each edge the values of its receiver, its sender and its pair, [E, F].

        Args:
            receiver: values of nodes, added to the edges that they receive, [N, F].
            sender: values of nodes, added to the edges that they send, [N, F].
            pair: values of the pairs, [P, F]; None adds nothing.
        """
        return self.links.sum_ends(receiver, sender, pair)

    def sum_messages(self, messages: Tensor) -> Tensor:
        """Sum the messages that each node receives: [E, ...] to [N, ...]."""
        return self.links.sum_messages(messages)

    def faded_sum(self, values: Tensor, own: Tensor | None = None) -> Tensor:
        """Sum ``envelope_ij * value_j`` over neighbours j, [N, F] to [N, F].

        Args:
            values: of the nodes, [N, F].
            own: weight of the node itself in its sum, [1]; None for 0.
        """
        if not self._needs_autograd(values):
            return self.faded_neighbors.sum(values, own)
        sums = weighted_sum(values, self.pair_envelope, self.links)
        return sums if own is None else sums + values * own

    def faded_mean(self, values: Tensor) -> Tensor:
        """Divide ``faded_sum`` by 1 + the sum of envelopes, [N, F] to [N, F].

        A node is so one of its neighbours, with a zero message: the mean stays smooth where the
        last neighbour crosses the cutoff.
        """
        if self._needs_autograd(values):
            return self.faded_sum(values) / self.num_faded
        return self.averaged_neighbors.sum(values)

    def _needs_autograd(self, values: Tensor) -> bool:
        """Check whether envelopes have a gradient, or another dtype than ``values``."""
        return self.pair_envelope.requires_grad or self.pair_envelope.dtype is not values.dtype

    @cached_property
    def num_faded(self) -> Tensor:
        """Number of neighbours of each node by their envelopes, itself included, [N, 1]."""
        return 1.0 + self.sum_messages(self.envelope)

    @cached_property
    def faded_neighbors(self) -> Neighbors:
        """Neighbours of all nodes with their envelopes."""
        return Neighbors.of(self.links, self.pair_envelope, mean=False)

    @cached_property
    def averaged_neighbors(self) -> Neighbors:
        """Neighbours of all nodes with weights whose sums are means, see ``faded_mean``."""
        return Neighbors.of(self.links, self.pair_envelope, mean=True)

    def filtered_sum(self, values: Tensor, filters: Tensor) -> Tensor:
        """Sum ``filter_ij * value_j`` over neighbours j, [N, F], see ``messages``."""
        return filtered_sum(values, filters, self.links)

    def filter_senders(self, values: Tensor, filters: Tensor) -> Tensor:
        """Return ``filter_ij * value_j`` of each edge, [E, F]."""
        return self.links.filter_senders(values, filters)

    def outer_sum(self, messages: Tensor, components: Tensor) -> Tensor:
        """Sum ``components_ij x message_ij`` over neighbours j, [N, C, F]."""
        return self.links.outer_sum(messages, components)


def make_edges(links: Links, vectors: Tensor, *, basis: nn.Module | None, cutoff: float) -> Edges:
    """Compute the geometry that convs read.

    Args:
        links: sender and receiver of every edge.
        vectors: vector of each pair from sender to receiver, in angstrom, [P, 3].
        basis: radial functions of the length; None for convs that read no more than the envelope.
        cutoff: length at which messages vanish, in angstrom.
    """
    lengths = torch.linalg.vector_norm(vectors, dim=-1)
    return Edges(
        links=links,
        directions=vectors[:0] if basis is None else _directions(vectors, lengths, links),
        pair_lengths=lengths,
        pair_basis=_expand(basis, lengths),
        pair_envelope=envelope(lengths, cutoff).unsqueeze(-1),
    )


def _directions(vectors: Tensor, lengths: Tensor, links: Links) -> Tensor:
    """Return unit vectors of all edges, [E, 3], from the vectors and lengths of pairs."""
    directions = vectors / lengths.clamp(min=1e-6).unsqueeze(-1)
    rest = links.sender.shape[0] - lengths.shape[0]
    return torch.cat((directions, -directions[:rest])) if rest else directions


def measure_edges(batch: Batch, *, kernels: str, basis: nn.Module | None, cutoff: float) -> Edges:
    """Compute the geometry of a batch that convs read.

    The batch's shifts account for periodic images. Positions and shifts may require a gradient.

    Args:
        batch: the graphs.
        kernels: ``model.kernels``, for passes over these edges.
        basis: radial functions of the length; None for convs that read no more than the envelope.
        cutoff: length at which messages vanish, in angstrom.
    """
    positions, shifts = batch.positions, batch.edge_shift
    kernels = choose_kernels(kernels, positions.device.type, positions.dtype)
    links = _links_of(batch, kernels)
    moves = positions.requires_grad or shifts.requires_grad
    if moves or links.usable_kernels((positions, shifts)) != "numba":
        return make_edges(links, _vectors_of(batch, links), basis=basis, cutoff=cutoff)
    from hydragnn_hpo.kernels.numba_passes import measure_pairs

    directions, lengths, faded = measure_pairs(
        (positions, shifts), links, batch.num_pairs, cutoff, directed=basis is not None
    )
    return Edges(links, directions, lengths, _expand(basis, lengths), faded)


def _expand(basis: nn.Module | None, lengths: Tensor) -> Tensor:
    """Return the radial functions of lengths, [P, K]; K is 0 without a basis."""
    if basis is None:
        return lengths.new_zeros(lengths.shape[0], 0)
    values: Tensor = basis(lengths)
    return values


def pair_vectors(batch: Batch) -> tuple[Links, Tensor]:
    """Return the links of a batch's edges and the vector of each pair.

    Returns:
        Links of all edges, and vectors from sender to receiver in angstrom, [P, 3].
    """
    links = _links_of(batch)
    return links, _vectors_of(batch, links)


def _vectors_of(batch: Batch, links: Links) -> Tensor:
    """Return the vector of each pair from sender to receiver, in angstrom, [P, 3]."""
    count = batch.num_pairs
    ends = (links.receiver[:count], links.sender[:count])
    to, start = (batch.positions.index_select(0, end) for end in ends)
    return to - start + batch.edge_shift[:count]


def _links_of(batch: Batch, kernels: str = "eager") -> Links:
    """Return the links of a batch's edges, sorted here where they are not in pairs.

    Args:
        batch: the graphs.
        kernels: implementation of passes over these edges.
    """
    sender, receiver = batch.edge_index.unbind()
    if batch.by_receiver is None:
        return replace(Links.of(sender, receiver, batch.positions.shape[0]), kernels=kernels)
    assert batch.receiver_starts is not None
    assert batch.by_sender is not None
    assert batch.sender_starts is not None
    starts = batch.receiver_starts
    return Links(
        sender,
        receiver,
        batch.by_receiver,
        starts,
        batch.by_sender,
        batch.sender_starts if batch.num_lone else starts,  # each edge has its reverse
        kernels,
    )
