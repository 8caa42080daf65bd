"""One training of one configuration. Read by ``training.trial``."""

from typing import Annotated

from annotated_types import Len
from pydantic import NonNegativeInt, PositiveInt

from hydragnn_hpo.config.model import HeadConfig, ModelConfig
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.training import TrainConfig

INTERRUPTED = 3
"""Exit code of a rank that was asked to end and left a checkpoint."""

PEER_LOST = 4
"""Exit code of a rank that ended because another rank of its trial was lost."""

DISK_FULL = 5
"""Exit code of a rank that found no room for its files: no result, it may go on later."""


class TrialDataConfig(Config):
    """Where the graphs are. Read by ``training.trial``."""

    store: str
    """Path of the graph store, absolute or relative to the trial's directory."""


class TrialConfig(Config):
    """Everything that decides a trial's result: the content of ``trial.toml``."""

    trial: str = "trial"
    """Name of the trial."""

    seed: NonNegativeInt = 0
    """Seed of the initial weights and of the order of graphs."""

    data: TrialDataConfig
    """The graphs."""

    model: ModelConfig
    """The trunk."""

    heads: Annotated[dict[str, HeadConfig], Len(1)]
    """Heads by the name of their target."""

    training: TrainConfig = TrainConfig()
    """Optimizer, schedule, batches."""


class PlacementConfig(Config):
    """Where and how far one attempt runs: ``placement.toml``. Read by ``training.trial``."""

    attempt: PositiveInt
    """Number of this start of the trial, from 1."""

    epochs: PositiveInt
    """Train up to this epoch (the rung), counted from the first attempt."""

    width: PositiveInt = 1
    """Ranks."""

    slots: tuple[str, ...] = ()
    """Slots that the ranks occupy, ``host:index``."""

    reason: str = ""
    """Why the planner chose this."""
