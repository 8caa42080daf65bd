"""What the peers of all convs share.

Shapes: N nodes, E edges, F features, K radial functions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch_geometric.utils import scatter


@dataclass(frozen=True)
class Sizes:
    """What every peer is built from."""

    features: int
    basis: int
    cutoff: float
    layers: int
    degree: float
    layer: int = 0


@dataclass(frozen=True)
class Geometry:
    """What every peer reads of the edges: lengths [E], the rest [E, ...]."""

    edge_index: Tensor
    lengths: Tensor
    directions: Tensor
    basis: Tensor
    envelope: Tensor


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def fade(lengths: Tensor, cutoff: float) -> Tensor:
    """Our envelope (Gasteiger et al., 2020, eq. 8)."""
    x = (lengths / cutoff).clamp(max=1.0)
    return 1 - 28 * x**6 + 48 * x**7 - 21 * x**8


def summed(values: Tensor, index: Tensor, size: int) -> Tensor:
    return scatter(values, index, dim=0, dim_size=size, reduce="sum")
