"""Global attention: every node of a graph attends to all nodes of that graph.

Shapes: G graphs, N nodes, n nodes of the largest graph, F features, h heads.
"""

import math

from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.pooling import Padding


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
        """Give what each node hears from its whole graph, [N, F].

        Written out, not torch's fused kernel: that one cannot be differentiated twice.
        """
        block = padding.block(self.project(scalars))
        channels = scalars.shape[1] // self.heads
        split = block.view(*block.shape[:2], 3, self.heads, channels).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        score = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        others = ~padding.is_node[:, None, None, :]
        weights = score.masked_fill(others, float("-inf")).softmax(dim=-1)
        heard = (weights @ value).transpose(1, 2).flatten(-2)
        result: Tensor = self.join(padding.nodes(heard))
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
        """Give the scalars after attention and perceptron, [N, F].

        Args:
            scalars: after the conv of the round, [N, F].
            before: what the conv of the round was given, [N, F].
            padding: the nodes as one block per graph.
            batch: whose nodes they are.
        """
        scalars = scalars + self.attend(before, padding)
        mixed: Tensor = self.mix(self.norm(scalars, batch))
        return scalars + mixed
