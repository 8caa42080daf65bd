"""What a head starts from, and the unit it counts in.

Shapes: G graphs, N nodes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.model import MAX_ELEMENT, HeadConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.pooling import pool_mean, pool_sum


class Baseline(nn.Module):
    """Turn a head's number into the target's unit: ``number * std + mean + elements``.

    The part of the elements is a lookup by atomic number, averaged over the nodes of a
    graph (summed for total energies), as in a linear regression over the composition.
    """

    mean: Tensor
    std: Tensor
    elements: Tensor

    def __init__(self, target: Mapping[str, Any], head: HeadConfig) -> None:
        """Take the numbers over from the target's statistics."""
        super().__init__()
        self.level, self.total = target["level"], target.get("energy") == "total"
        fitted = target.get("elements") if head.baseline == "elements" else None
        by_number = fitted["by_number"] if fitted else [0.0] * (MAX_ELEMENT + 1)
        self.register_buffer("elements", torch.tensor(by_number, dtype=torch.float32))
        start = fitted or target
        self.register_buffer("mean", torch.tensor(float(start["mean"])))
        self.register_buffer("std", torch.tensor(float(start["std"]) or 1.0))

    def forward(self, numbers: Tensor, batch: Batch) -> Tensor:
        """Give the prediction in the target's unit, fp64, of the shape of ``numbers``.

        The sum over many atoms has more digits than fp32: the head's small number would drown.
        """
        shift = self.elements.double()[batch.numbers].unsqueeze(-1)
        if self.level == "graph":
            shift = (pool_sum if self.total else pool_mean)(shift, batch)
        return torch.addcmul(self.mean.double() + shift, numbers.double(), self.std.double())
