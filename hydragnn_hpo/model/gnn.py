"""The multi-headed GNN."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.model import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.heads import HEADS
from hydragnn_hpo.model.trunk import Trunk


class MultiHeadGNN(nn.Module):
    """One trunk, one head per target.

    Outputs are in the targets' own units: each head's number is multiplied by the
    target's standard deviation and shifted by its mean, both fitted on the training
    split and kept as buffers.
    """

    def __init__(
        self,
        model: ModelConfig,
        heads: Mapping[str, HeadConfig],
        targets: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Build the net; parameters come from torch's global generator.

        Args:
            model: the trunk.
            heads: heads by the name of their target.
            targets: the store's target statistics (``level shape mean std``) by name.
        """
        super().__init__()
        self.trunk = Trunk(model)
        self.heads = nn.ModuleDict()
        for name, head in heads.items():
            target = targets[name]
            self.heads[name] = HEADS[target["level"], target["shape"]](model.features, head)
            self.register_buffer(f"mean_{name}", torch.tensor(float(target["mean"])))
            self.register_buffer(f"std_{name}", torch.tensor(float(target["std"]) or 1.0))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict every target: [G, w] or [N, w] with w = 1 or 3, in the target's unit."""
        scalars, vectors = self.trunk(batch)
        return {
            name: head(scalars, vectors, batch) * self.std(name) + self.get_buffer(f"mean_{name}")
            for name, head in self.heads.items()
        }

    def std(self, name: str) -> Tensor:
        """Give the target's standard deviation on the training split, in its unit."""
        return self.get_buffer(f"std_{name}")
