"""Where a training stands: all that a checkpoint holds beside tensors."""

import math
from dataclasses import dataclass, field


@dataclass
class Progress:
    """Counters, the best epoch so far, and what the epoch that has begun has summed."""

    epoch: int = 0
    """Epochs trained and validated."""
    step: int = 0
    """Steps taken since the training's beginning, so also the position inside the epoch."""
    best_epoch: int = 0
    best_objective: float = math.inf
    best_val: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    lost: int = 0
    """Epochs running in which an error was hopeless, see ``training.watching.guard``."""
    losses: list[list[float]] = field(default_factory=list)
    """Sums of each head's loss in the epoch that has begun, by rank; empty between epochs."""
