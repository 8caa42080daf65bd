"""Inputs beyond the neighbours: graph attributes, positional encodings, attention to all nodes.

Encodings describe the stored graph. For a crystal this is the graph of one cell, in which an atom
and its periodic images are one node, so a supercell of the same crystal has other encodings.

Shapes: G graphs, N nodes, E edges, n nodes of the largest graph, A attributes, k encodings,
F features, h heads.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import ModelConfig
from hydragnn_hpo.config.trunk_specs import feature_columns
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import AttributeStats, FeatureStats
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import Padding, apply_without_autocast, mlp

_NOT_KNOWN: AttributeStats = {"mean": 0.0, "std": 1.0}


class GraphAttributes(nn.Module):
    """The attributes of a batch's graphs, centred and scaled as in the training data."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: tuple[str, ...], stats: Mapping[str, AttributeStats]) -> None:
        """Store means and standard deviations as fp32 buffers.

        Args:
            names: names of the A attributes.
            stats: mean and standard deviation of the attributes, by name; 0 and 1 for a missing
                one, as in a net whose buffers are then loaded from a file.
        """
        super().__init__()
        self.names = names
        of_name = [stats.get(name, _NOT_KNOWN) for name in names]
        self.register_buffer("mean", torch.tensor([float(s["mean"]) for s in of_name]))
        self.register_buffer("std", torch.tensor([float(s["std"]) or 1.0 for s in of_name]))

    def forward(self, batch: Batch) -> Tensor:
        """Return the attributes, centred and scaled, [G, A].

        Raises:
            ConfigError: the graphs lack an attribute.
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
    """Mix the attributes into the embedding of every node; ``concat`` in the config."""

    def __init__(self, features: int, num_attributes: int) -> None:
        """Build the linear map from F + A numbers to F."""
        super().__init__()
        self.map = nn.Linear(features + num_attributes, features)

    def forward(self, scalars: Tensor, attributes: Tensor, batch: Batch) -> Tensor:
        """Return the new embedding, [N, F].

        Args:
            scalars: features of the nodes, [N, F].
            attributes: attributes of the graphs, centred and scaled, [G, A].
            batch: assigns each node to its graph.
        """
        per_node = attributes.index_select(0, batch.graph_of_node)
        result: Tensor = self.map(torch.cat((scalars, per_node), dim=-1))
        return result


class FiLM(nn.Module):
    """Scale and shift a round's channels by functions of the attributes; ``film`` in the config.

    Source: Perez et al. (2018), arXiv:1709.07871, eq. 2.
    """

    def __init__(self, features: int, num_attributes: int) -> None:
        """Build the perceptron from A attributes to F scales and F shifts."""
        super().__init__()
        self.map = mlp((num_attributes, features, 2 * features))

    def forward(self, scalars: Tensor, attributes: Tensor, batch: Batch) -> Tensor:
        """Return the scaled and shifted channels, [N, F].

        Args:
            scalars: features of the nodes, [N, F].
            attributes: attributes of the graphs, centred and scaled, [G, A].
            batch: assigns each node to its graph.
        """
        per_node = self.map(attributes).index_select(0, batch.graph_of_node)
        scale, shift = per_node.chunk(2, dim=-1)
        result: Tensor = scalars * (1.0 + scale) + shift
        return result


class LaplacianEncoding(nn.Module):
    """Encode nodes by eigenvectors of the graph's Laplacian, which the store holds.

    Source: Dwivedi et al. (2023), JMLR 24, 43, section 4.1.
    """

    def __init__(self, size: int, features: int) -> None:
        """Build the perceptron from the first ``size`` = k eigenvectors."""
        super().__init__()
        self.size = size
        self.map = mlp((size, features, features))

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Return the encodings of the nodes, [N, F].

        Raises:
            ConfigError: the graphs hold fewer eigenvectors.
        """
        held = 0 if batch.laplacian is None else batch.laplacian.shape[1]
        if batch.laplacian is None or held < self.size:
            raise ConfigError(
                f"the graphs hold {held} Laplacian encodings, the model needs {self.size}: build "
                "them with graphs.laplacian in the card."
            )
        result: Tensor = self.map(batch.laplacian[:, : self.size])
        return result


FARTHEST_FEATURE = 6.0
"""Standard deviations beyond which a feature is cut: far outside of the data nets extrapolate."""


class FrozenFeatures(nn.Module):
    """Encode nodes by the features that a foundation model gives to them, which is not trained.

    Source of the idea: HackNIP (2025), arXiv:2506.18497.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, config: ModelConfig, stats: Mapping[str, FeatureStats] | None = None
    ) -> None:
        """Build the perceptron, and store means and standard deviations as fp32 buffers.

        Args:
            config: names the model and its layers.
            stats: of all features, by name of the model; None in a net whose buffers are then
                loaded from a file.
        """
        super().__init__()
        self.name = config.embedding
        assert config.trunk_spec is not None, "the model begins from elements alone"
        self.title = config.trunk_spec.title
        self.columns = feature_columns(config.trunk_spec, config.embedding_layers)
        width = self.columns.stop - self.columns.start
        known = stats.get(self.name) if stats else None
        zeros: list[float] = [0.0] * width
        mean = known["mean"][self.columns] if known else zeros
        std = known["std"][self.columns] if known else [1.0] * width
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))
        self.map = mlp((width, config.features, config.features))

    def forward(self, batch: Batch) -> Tensor:
        """Return the encodings of the nodes, [N, F].

        Raises:
            ConfigError: the graphs come without the features.
        """
        if self.name not in batch.features:
            raise ConfigError(
                f"the model begins from features of {self.title}, which the graphs "
                f"come without: run hydragnn-hpo dataset embed STORE --trunk {self.name}."
            )
        values = (batch.features[self.name][:, self.columns] - self.mean) / self.std
        result: Tensor = self.map(values.clamp(-FARTHEST_FEATURE, FARTHEST_FEATURE))
        return result


class RandomWalkEncoding(nn.Module):
    """Encode nodes by the probabilities that a random walk has returned after 1 to k steps.

    In each step the walk stays with weight 1 or follows an edge with the weight of its envelope, so
    the encoding does not jump when an atom crosses the cutoff.
    Source: Dwivedi et al. (2022), arXiv:2110.07875, eq. 12.
    """

    def __init__(self, size: int, features: int) -> None:
        """Build the linear map from the probabilities after 1 to ``size`` = k steps."""
        super().__init__()
        self.size = size
        self.map = nn.Linear(size, features)

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Return the encodings of the nodes, [N, F]."""
        result: Tensor = self.map(self.return_probabilities(Padding.of(batch), edges))
        return result

    def return_probabilities(self, padding: Padding, edges: Edges) -> Tensor:
        """Return the probabilities of being back after 1 to k steps, [N, k]."""
        graphs, longest = padding.is_node.shape
        weight = edges.envelope.squeeze(-1)
        start, end = padding.place[edges.sender], padding.place[edges.receiver]
        flat = weight.new_zeros(graphs * longest * longest)
        # One flat [n, n] matrix per graph. Edges stay within a graph, so ``end % n`` is the column.
        adjacency = flat.index_add(0, start * longest + end % max(longest, 1), weight)
        stay = torch.eye(longest, dtype=weight.dtype, device=weight.device)
        step = adjacency.view(graphs, longest, longest) + stay
        step = step / step.sum(dim=-1, keepdim=True)
        walk = step
        back = []
        for _ in range(self.size):
            back.append(walk.diagonal(dim1=-2, dim2=-1))
            walk = apply_without_autocast(torch.bmm, walk, step)
        return padding.nodes(torch.stack(back, dim=-1))


ENCODINGS: dict[str, type[LaplacianEncoding | RandomWalkEncoding]] = {
    "laplacian": LaplacianEncoding,
    "random_walk": RandomWalkEncoding,
}
"""Positional encodings by ``model.encoding``."""


class GlobalAttention(nn.Module):
    """Softmax attention within each graph.

    Nodes of other graphs are masked, so a prediction does not depend on the batch (Law 7). Scores
    depend on features, not on positions, so periodic structures are treated correctly: in a
    supercell a node attends to copies of the same nodes, which leaves the average unchanged.
    Source: Rampasek et al. (2022), arXiv:2205.12454; Vaswani et al. (2017), arXiv:1706.03762.
    """

    def __init__(self, features: int, heads: int) -> None:
        """Build the map to queries, keys and values, and the map that mixes the h heads."""
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.join = nn.Linear(features, features)

    def forward(self, scalars: Tensor, padding: Padding) -> Tensor:
        """Return the attended features of each node, [N, F].

        The softmax is written out because torch's fused kernel cannot be differentiated twice.
        """
        block = padding.block(self.project(scalars))
        channels = scalars.shape[1] // self.heads
        split = block.view(*block.shape[:2], 3, self.heads, channels).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        score = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        others = ~padding.is_node[:, None, None, :]
        weights = score.masked_fill(others, float("-inf")).softmax(dim=-1)
        attended = (weights @ value).transpose(1, 2).flatten(-2)
        result: Tensor = self.join(padding.nodes(attended))
        return result


class GlobalRound(nn.Module):
    """The part of a ``gps`` round after its conv: global attention, and a perceptron per node."""

    def __init__(self, features: int, heads: int, norm: nn.Module) -> None:
        """Build attention and perceptron.

        Args:
            features: channels per node, F.
            heads: attention heads, h; must divide F.
            norm: normalizes the perceptron's input; called with ``(values, batch)``.
        """
        super().__init__()
        self.attend = GlobalAttention(features, heads)
        self.norm = norm
        self.mix = mlp((features, 2 * features, features))

    def forward(self, scalars: Tensor, before: Tensor, padding: Padding, batch: Batch) -> Tensor:
        """Return the scalars after attention and perceptron, [N, F].

        Args:
            scalars: features after the conv of the round, [N, F].
            before: features before that conv, which the attention reads, [N, F].
            padding: arranges the nodes in one block per graph.
            batch: passed to the norm.
        """
        scalars = scalars + self.attend(before, padding)
        mixed: Tensor = self.mix(self.norm(scalars, batch))
        return scalars + mixed
