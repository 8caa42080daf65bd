"""The trunk: rounds of message passing, conditioned on charge, spin or other graph attributes.

Shapes: G graphs, N nodes, A attributes, F features.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import MAX_ELEMENT, ModelConfig
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.attention import GlobalRound
from hydragnn_hpo.model.conv_registry import carries_vectors, find_conv, options_of, reads_lengths
from hydragnn_hpo.model.edges import BASES, Edges, envelope, pair_vectors
from hydragnn_hpo.model.encodings import build_encoding
from hydragnn_hpo.model.layers import build_norm, mlp
from hydragnn_hpo.model.pooling import Padding


class GraphAttributes(nn.Module):
    """The attributes of a batch's graphs, centred and scaled as in the training data."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: tuple[str, ...], stats: Mapping[str, Mapping[str, Any]]) -> None:
        """Take centre and spread over, as buffers; 0 and 1 where they are not known."""
        super().__init__()
        self.names = names
        found = [stats.get(name, {}) for name in names]
        self.register_buffer("mean", torch.tensor([float(s.get("mean", 0.0)) for s in found]))
        spread = [float(s.get("std", 1.0)) or 1.0 for s in found]
        self.register_buffer("std", torch.tensor(spread))

    def forward(self, batch: Batch) -> Tensor:
        """Return the attributes side by side, [G, A].

        Raises:
            ConfigError: the graphs lack one.
        """
        for name in self.names:
            if name not in batch.attributes:
                raise ConfigError(
                    f"the model is conditioned on '{name}', which the structures do not have: add "
                    "it to them, and to the attributes of their card."
                )
        values = torch.stack([batch.attributes[name] for name in self.names], dim=-1)
        return (values - self.mean) / self.std


class ConcatConditioning(nn.Module):
    """Mix the attributes into the embedding of every node: ``concat``."""

    def __init__(self, features: int, told: int) -> None:
        """Build the linear map back to the width."""
        super().__init__()
        self.map = nn.Linear(features + told, features)

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Return the new embedding, [N, F]."""
        per_node = known.index_select(0, batch.graph_of_node)
        result: Tensor = self.map(torch.cat((scalars, per_node), dim=-1))
        return result


class FiLM(nn.Module):
    """Scale and shift the channels of a round by what is known.

    Source: Perez et al. (2018), arXiv:1709.07871, eq. 2.
    """

    def __init__(self, features: int, told: int) -> None:
        """Build the perceptron that makes scale and shift."""
        super().__init__()
        self.map = mlp((told, features, 2 * features))

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Return the changed channels, [N, F]."""
        per_node = self.map(known).index_select(0, batch.graph_of_node)
        scale, shift = per_node.chunk(2, dim=-1)
        result: Tensor = scalars * (1.0 + scale) + shift
        return result


class TrunkFeatures(NamedTuple):
    """What a trunk knows of the nodes, for heads."""

    scalars: Tensor
    """Invariant features, [N, F]."""
    vectors: Tensor
    """Vectors that turn with the structure, [N, 3, F]; zeros if the conv has none."""
    state: Any
    """What the conv carries beside the scalars."""
    edges: Edges
    """The geometry."""
    known: Tensor | None
    """Attributes of the graphs, centred and scaled, [G, A]."""


class RoundContext(NamedTuple):
    """What a round is told beside its own features."""

    batch: Batch
    """The graphs."""
    edges: Edges
    """The geometry."""
    known: Tensor | None
    """Attributes of the graphs, centred and scaled, [G, A]."""
    padding: Padding | None
    """The nodes as one block per graph, for global attention."""


Round = Callable[[int, Tensor, Any, RoundContext], tuple[Tensor, Any]]


class Trunk(nn.Module):
    """Node features from elements and geometry.

    Each round is ``scalars + conv(norm(scalars))``. A norm acts on one node or one graph, so
    that batches and ranks cannot change the mathematics (Laws 1 and 7).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        state_is_read: bool,
        degree: float = 12.0,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Build the layers; parameters come from torch's global generator.

        Args:
            config: the trunk.
            state_is_read: whether a head reads the state after the last layer.
            degree: mean number of neighbours in the training data.
            attributes: mean and std of known properties of whole structures, by name.

        Raises:
            ConfigError: a user's conv cannot be imported, or its options are wrong.
        """
        super().__init__()
        features = config.features
        self.cutoff, self.has_vectors = config.cutoff, carries_vectors(config.conv)
        self.embedding = nn.Embedding(MAX_ELEMENT + 1, features)
        seen = reads_lengths(config.conv)
        self.basis = BASES[config.basis](config.basis_size, config.cutoff) if seen else None
        conv, options = find_conv(config.conv), options_of(config)
        self.norms = nn.ModuleList(build_norm(config.norm, features) for _ in range(config.layers))
        self.convs = nn.ModuleList(
            conv(dimensions, options) for dimensions in config.dimensions(state_is_read, degree)
        )
        self.encoding = build_encoding(config)
        self._build_conditioning(config, attributes or {})
        rounds = config.layers if config.attention == "gps" else 0
        self.rounds = nn.ModuleList(
            GlobalRound(features, config.attention_heads, build_norm(config.norm, features))
            for _ in range(rounds)
        )

    def _build_conditioning(
        self, config: ModelConfig, stats: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Build what tells the rounds of the attributes."""
        features, told = config.features, len(config.attributes)
        self.known = GraphAttributes(config.attributes, stats) if told else None
        beside = told and config.conditioning == "concat"
        self.beside = ConcatConditioning(features, told) if beside else None
        films = config.layers if told and config.conditioning == "film" else 0
        self.films = nn.ModuleList(FiLM(features, told) for _ in range(films))

    def edges(self, batch: Batch) -> Edges:
        """Expand the geometry once for all layers."""
        links, vectors = pair_vectors(batch)
        lengths, basis = torch.linalg.vector_norm(vectors, dim=-1), self.basis
        directions = vectors / lengths.clamp(min=1e-6).unsqueeze(-1)
        if links.sender.shape[0] > lengths.shape[0]:
            directions = torch.cat((directions, -directions))
        return Edges(
            links=links,
            directions=directions,
            pair_lengths=lengths,
            pair_basis=lengths.new_zeros(lengths.shape[0], 0) if basis is None else basis(lengths),
            pair_envelope=envelope(lengths, self.cutoff).unsqueeze(-1),
        )

    def forward(self, batch: Batch) -> TrunkFeatures:
        """Return what heads read."""
        edges = self.edges(batch)
        known = None if self.known is None else self.known(batch)
        scalars = self._embedded(batch, edges, known)
        padding = Padding.of(batch) if len(self.rounds) else None
        state, place = None, RoundContext(batch, edges, known, padding)
        for layer in range(len(self.convs)):
            scalars, state = self.go(self.round, layer, scalars, state, place)
        return TrunkFeatures(scalars, self._vectors(scalars, state), state, edges, known)

    def go(
        self, take: Round, layer: int, scalars: Tensor, state: Any, place: RoundContext
    ) -> tuple[Tensor, Any]:
        """Take a round; a trainer puts another way here, see ``recompute_rounds``."""
        return take(layer, scalars, state, place)

    def round(
        self, layer: int, scalars: Tensor, state: Any, place: RoundContext
    ) -> tuple[Tensor, Any]:
        """Return scalars, [N, F], and the conv's state after one round of message passing."""
        before = self.norms[layer](scalars, place.batch)
        if place.known is not None and len(self.films):
            before = self.films[layer](before, place.known, place.batch)
        change, state = self.convs[layer](before, state, place.edges)
        scalars = scalars + change
        if place.padding is not None:
            scalars = self.rounds[layer](scalars, before, place.padding, place.batch)
        return scalars, state

    def _embedded(self, batch: Batch, edges: Edges, known: Tensor | None) -> Tensor:
        scalars: Tensor = self.embedding(batch.numbers)
        if self.encoding is not None:
            scalars = scalars + self.encoding(batch, edges)
        if self.beside is not None and known is not None:
            scalars = self.beside(scalars, known, batch)
        return scalars

    def _vectors(self, scalars: Tensor, state: Any) -> Tensor:
        if self.has_vectors and state is not None:
            vectors: Tensor = state[:, :3]
            return vectors
        return scalars.new_zeros(()).expand(scalars.shape[0], 3, scalars.shape[1])
