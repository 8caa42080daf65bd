"""What a node knows beyond its neighbours: attributes, its place in its graph, all other nodes.

Encodings are of the graph as it is stored: of a crystal, the graph of one cell, where an atom and
its images are one node. A supercell therefore has other encodings.

Shapes: G graphs, N nodes, E edges, n nodes of the largest graph, A attributes, k encodings,
F features, h heads.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import Padding, apply_without_autocast, mlp


class GraphAttributes(nn.Module):
    """The attributes of a batch's graphs, centred and scaled as in the training data."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: tuple[str, ...], stats: Mapping[str, Mapping[str, Any]]) -> None:
        """Take centre and spread over, as buffers; 0 and 1 where they are not known."""
        super().__init__()
        self.names = names
        of_name = [stats.get(name, {}) for name in names]
        self.register_buffer("mean", torch.tensor([float(s.get("mean", 0.0)) for s in of_name]))
        spread = [float(s.get("std", 1.0)) or 1.0 for s in of_name]
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

    def __init__(self, features: int, num_attributes: int) -> None:
        """Build the linear map back to the width."""
        super().__init__()
        self.map = nn.Linear(features + num_attributes, features)

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Return the new embedding, [N, F]."""
        per_node = known.index_select(0, batch.graph_of_node)
        result: Tensor = self.map(torch.cat((scalars, per_node), dim=-1))
        return result


class FiLM(nn.Module):
    """Scale and shift the channels of a round by what is known.

    Source: Perez et al. (2018), arXiv:1709.07871, eq. 2.
    """

    def __init__(self, features: int, num_attributes: int) -> None:
        """Build the perceptron that makes scale and shift."""
        super().__init__()
        self.map = mlp((num_attributes, features, 2 * features))

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Return the changed channels, [N, F]."""
        per_node = self.map(known).index_select(0, batch.graph_of_node)
        scale, shift = per_node.chunk(2, dim=-1)
        result: Tensor = scalars * (1.0 + scale) + shift
        return result


class LaplacianEncoding(nn.Module):
    """Eigenvectors of the graph's Laplacian, from the store, through a perceptron.

    Source: Dwivedi et al. (2023), JMLR 24, 43, section 4.1.
    """

    def __init__(self, size: int, features: int) -> None:
        """Build the perceptron."""
        super().__init__()
        self.size = size
        self.map = mlp((size, features, features))

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Encode, [N, F].

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


class RandomWalkEncoding(nn.Module):
    """Chances that a walker is back after 1 .. k steps, through a linear map.

    The walker stays with weight 1 and takes an edge with the weight of its envelope, so that
    nothing jumps when an atom crosses the cutoff.
    Source: Dwivedi et al. (2022), arXiv:2110.07875, eq. 12.
    """

    def __init__(self, size: int, features: int) -> None:
        """Build the map."""
        super().__init__()
        self.size = size
        self.map = nn.Linear(size, features)

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Encode, [N, F]."""
        result: Tensor = self.map(self.returns(Padding.of(batch), edges))
        return result

    def returns(self, padding: Padding, edges: Edges) -> Tensor:
        """Return the chances to be back, [N, k]."""
        graphs, longest = padding.is_node.shape
        weight = edges.envelope.squeeze(-1)
        at, to = padding.place[edges.sender], padding.place[edges.receiver]
        flat = weight.new_zeros(graphs * longest * longest)
        joined = flat.index_add(0, at * longest + to % max(longest, 1), weight)
        stay = torch.eye(longest, dtype=weight.dtype, device=weight.device)
        step = joined.view(graphs, longest, longest) + stay
        step = step / step.sum(dim=-1, keepdim=True)
        walk, back = step, []
        for _ in range(self.size):
            back.append(walk.diagonal(dim1=-2, dim2=-1))
            walk = apply_without_autocast(torch.bmm, walk, step)
        return padding.nodes(torch.stack(back, dim=-1))


ENCODINGS: dict[str, type[LaplacianEncoding | RandomWalkEncoding]] = {
    "laplacian": LaplacianEncoding,
    "random_walk": RandomWalkEncoding,
}
"""Positional encodings by the name a trial gives."""


class GlobalAttention(nn.Module):
    """Softmax attention within each graph; other graphs of a batch are masked (Law 7).

    It sees features, not places, so periodic structures are welcome: a supercell attends to
    copies of the same nodes and gives the same answer.
    Source: Rampasek et al. (2022), arXiv:2205.12454; Vaswani et al. (2017), arXiv:1706.03762.
    """

    def __init__(self, features: int, heads: int) -> None:
        """Build the maps to queries, keys and values, and the one that joins heads."""
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.join = nn.Linear(features, features)

    def forward(self, scalars: Tensor, padding: Padding) -> Tensor:
        """Return what each node receives from its whole graph, [N, F].

        Written out, not torch's fused kernel: that one cannot be differentiated twice.
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
    """What ``gps`` adds to a round: attention in parallel, then a perceptron on each node."""

    def __init__(self, features: int, heads: int, norm: nn.Module) -> None:
        """Build attention and perceptron; ``norm`` stands before the perceptron."""
        super().__init__()
        self.attend = GlobalAttention(features, heads)
        self.norm = norm
        self.mix = mlp((features, 2 * features, features))

    def forward(self, scalars: Tensor, before: Tensor, padding: Padding, batch: Batch) -> Tensor:
        """Return the scalars after attention and perceptron, [N, F].

        Args:
            scalars: after the conv of the round, [N, F].
            before: what the conv of the round was given, [N, F].
            padding: the nodes as one block per graph.
            batch: whose nodes they are.
        """
        scalars = scalars + self.attend(before, padding)
        mixed: Tensor = self.mix(self.norm(scalars, batch))
        return scalars + mixed
