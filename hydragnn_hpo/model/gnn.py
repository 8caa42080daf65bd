"""The multi-headed GNN."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hydragnn_hpo.config.model import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.baseline import Baseline
from hydragnn_hpo.model.heads import HEADS
from hydragnn_hpo.model.trunk import Trunk


class MultiHeadGNN(nn.Module):
    """One trunk, one head per target.

    Outputs are in the targets' own units: each head predicts what is left after a baseline
    (the mean, and by default one number per element), in units of the spread that is left.
    Both were fitted on the training split and are kept as buffers.
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
            targets: the store's target statistics (``level shape mean std``, and ``elements``
                with ``by_number mean std`` where a baseline per element exists) by name.

        Raises:
            ConfigError: a target has a name that torch does not give away.
        """
        super().__init__()
        vectors = any(targets[name]["shape"] == "vector" for name in heads)
        self.trunk = Trunk(model, vectors=vectors)
        self.heads = nn.ModuleDict()
        self.baselines = nn.ModuleDict()
        for name, head in heads.items():
            if hasattr(self.heads, name):
                raise ConfigError(
                    f"head '{name}': torch keeps this name for itself; give the target another "
                    f'name in the card, with key = "{name}" if the file calls it so.'
                )
            target = targets[name]
            build = HEADS[target["level"], target["shape"]]
            self.heads[name] = build(model.features, head, target.get("energy") == "total")
            self.baselines[name] = Baseline(target, head)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict every target: [G, w] or [N, w] with w = 1 or 3, in the target's unit."""
        scalars, vectors = self.trunk(batch)
        return {
            name: self.baselines[name](head(scalars, vectors, batch), batch)
            for name, head in self.heads.items()
        }

    def std(self, name: str) -> Tensor:
        """Give the spread of a target around its baseline on the training split, in its unit."""
        spread: Tensor = self.baselines[name].get_buffer("std")
        return spread
