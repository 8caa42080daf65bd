"""The memory of a rank, from dimensions. Read by ``placement`` and ``training.micro_batches``."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hydragnn_hpo.config.model_size import differentiates, kept_bytes
from hydragnn_hpo.config.training_config import TrainConfig
from hydragnn_hpo.config.trial_config import TrialConfig

FULL = 0.8
"""Share of the memory that a step may be expected to take."""

EDGE, NODE = 20.0, 6.0
"""Numbers beside the layers': of geometry per edge; of heads per node, feature and head."""

DERIVATIVES = 2.5
"""Training on forces keeps two passes: 2.0 (mace) to 3.5 (alignn) times as much was measured."""

HALF = 0.7
"""What is kept with ``bf16``: products are in 2 bytes, sums and norms in 4."""

HEAP = 1.6
"""Resident memory over that of the tensors on a CPU, where freed blocks do not fit the next
ones: 1.35 to 1.66 was measured with glibc."""

STATES = {"adamw": 2, "adam": 2, "lamb": 2, "muon": 2, "sgd": 1}
"""Most numbers that an optimizer keeps per parameter."""


class PassBytes(NamedTuple):
    """What a forward and backward pass takes at its peak, in bytes on a GPU."""

    node: float
    """Per node."""
    edge: float
    """Per edge."""
    triplet: float
    """Per triplet."""
    square: float
    """Per node of a graph, times the nodes of that graph."""


def pass_bytes(config: TrialConfig, targets: Mapping[str, Any]) -> PassBytes:
    """Estimate what each part of a graph takes.

    What the layers keep, as each conv counts it, and once more that of a single layer, which is
    about what the backward pass holds while it goes through one.
    """
    model, recompute = config.model, config.parallel.recompute
    once, per_layer = kept_bytes(model, 0.0, 0.0), 1.0 / model.layers
    node, edge, triplet = (
        (kept_bytes(model, *sizes) - once) * ((per_layer if recompute else 1.0) + per_layer)
        for sizes in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    )
    node += 4.0 * NODE * len(config.heads) * model.features
    if recompute:
        node += 4.0 * (4.0 if model.spec.vectors else 1.0) * model.layers * model.features
    attended = model.attention != "none"
    square = 12.0 * model.layers * model.attention_heads if attended else 0.0
    times = kept_factor(config, targets)
    return PassBytes(times * node, times * (edge + 4.0 * EDGE), times * triplet, times * square)


def kept_factor(config: TrialConfig, targets: Mapping[str, Any]) -> float:
    """Return how much more than a plain pass in fp32 a trial keeps."""
    precision = {"fp64": 2.0, "bf16": HALF}.get(config.training.precision, 1.0)
    return precision * (DERIVATIVES if differentiates(config.heads, targets) else 1.0)


def weight_copies(training: TrainConfig, *, cpu: bool) -> int:
    """Count how many numbers are held per weight of a rank, the weight itself included.

    Gradient, optimizer, average and best weights; on a CPU also what is being written down.
    """
    lasting = 1 + STATES[training.optimizer] + bool(training.ema) + 1
    return lasting + 1 + (lasting if cpu else 0)
