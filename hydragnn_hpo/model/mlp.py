"""Multi-layer perceptron, the only one."""

from collections.abc import Callable, Sequence

from torch import nn


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    """Chain linear maps through ``widths``, with a non-linearity between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers.extend((nn.Linear(inputs, outputs), activation()))
    return nn.Sequential(*layers[:-1])
