"""Where a node stands in its graph: positional and structural encodings.

They are of the graph as it is stored: of a crystal, the graph of one cell, where an atom and
its images are one node. A supercell therefore has other encodings.

Shapes: G graphs, N nodes, E edges, n nodes of the largest graph, k encodings, F features.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import ModelConfig
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.autocast import apply_without_autocast
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.pooling import Padding


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
        """Give the chances to be back, [N, k]."""
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


def build_encoding(config: ModelConfig) -> nn.Module | None:
    """Build the encoding that a trunk is asked for, if any."""
    if config.encoding == "laplacian":
        return LaplacianEncoding(config.encoding_size, config.features)
    if config.encoding == "random_walk":
        return RandomWalkEncoding(config.encoding_size, config.features)
    return None
