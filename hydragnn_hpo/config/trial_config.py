"""One training of one configuration. Read by ``training.trial``."""

from typing import Annotated, Literal, Self

from annotated_types import Len
from pydantic import NonNegativeInt, PositiveInt, model_validator

from hydragnn_hpo.config.data_config import Name
from hydragnn_hpo.config.data_mixture import DataSets, MixedConfig, check_ratios
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.parallel_config import ParallelConfig
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.training_config import TrainConfig

Access = Literal["auto", "stage", "windows", "distributed"]
"""Staged on the host, read in windows from disk, or spread over the memory of all hosts."""

INTERRUPTED = 3
"""Exit code of a rank that was asked to end and left a checkpoint."""

PEER_LOST = 4
"""Exit code of a rank that ended because another rank of its trial was lost."""

DISK_FULL = 5
"""Exit code of a rank that found no room for its files: no result, it may go on later."""

HALVED = 6
"""Exit code of a rank that ran out of memory while gradients were sent: its trial goes on from its
checkpoint, with steps in more pieces."""

STALE = 7
"""Exit code of a rank that waited for another one for too long, and has named it."""

FILES_AWAY = 8
"""Exit code of a rank whose file server was away: no result, it goes on from its checkpoint."""


class TrialDataConfig(MixedConfig):
    """Where graphs are. Read by ``training.trial``."""

    store: str
    """Path of the graph store, absolute or relative to the trial's directory."""

    access: Access = "auto"
    """How its graphs are reached; never changes a result, see ``data.store_access``."""


class TrialConfig(Config):
    """Everything that decides a trial's result: the content of ``trial.toml``."""

    trial: str = "trial"
    """Name of the trial."""

    seed: NonNegativeInt = 0
    """Seed of the initial weights and of the order of graphs."""

    data: DataSets[TrialDataConfig]
    """The graphs: one ``[data]`` table, or ``[[data]]`` for each of several data sets."""

    shared: tuple[Name, ...] = ()
    """Targets that several data sets have in common, under one name and one head."""

    model: ModelConfig
    """The trunk."""

    heads: Annotated[dict[str, HeadConfig], Len(1)]
    """Heads by the name of their target."""

    training: TrainConfig = TrainConfig()
    """Optimizer, schedule, batches."""

    parallel: ParallelConfig = ParallelConfig()
    """How ranks share the work."""

    @model_validator(mode="after")
    def _budgets_go_without_ratios(self) -> Self:
        check_ratios(self.data)
        if self.training.global_batch is None and self.data[0].ratio is not None:
            raise ValueError(
                "data sets with ratios go with training.global_batch, not with a budget of atoms "
                "or edges: drop one."
            )
        return self


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
