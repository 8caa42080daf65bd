"""Initial weights of a training, fresh or from another trial's trunk, spread over its ranks."""

from pathlib import Path

import torch

from hydragnn_hpo.config import ParallelConfig, TrialConfig
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.parallel import ModelParallelism, ReplicatedModel, recompute_rounds
from hydragnn_hpo.training.precision import DTYPES

_TRUNK = "trunk."


def build_model(config: TrialConfig, graphs: GraphSet) -> MultiHeadGNN:
    """Build the net of a trial; its initial weights depend on the trial's seed alone.

    With ``training.start_from`` the trunk is that of another trial's best epoch, and with
    ``training.freeze_trunk`` it stays so.

    Raises:
        ConfigError: the checkpoint cannot be read, or its trunk has another shape.
    """
    training, stats = config.training, graphs.stats
    torch.manual_seed(config.seed)
    model = MultiHeadGNN(
        config.model,
        config.heads,
        stats["targets"],
        stats=stats,
        learn_weights=training.balance == "uncertainty",
    ).to(DTYPES[training.precision])
    if training.start_from is not None:
        _copy_trunk(model, Path(training.start_from))
    model.trunk.requires_grad_(not training.freeze_trunk)
    return model


def _copy_trunk(model: MultiHeadGNN, path: Path) -> None:
    """Copy a checkpoint's trunk into a model."""
    try:
        tensors, _ = checkpoint.read_checkpoint(path)
    except StorageError as error:
        raise ConfigError(f"training.start_from: {error}") from error
    trunk = {k.removeprefix(_TRUNK): v for k, v in tensors.items() if k.startswith(_TRUNK)}
    own = model.trunk.state_dict()
    differing = {
        name
        for name in own.keys() | trunk.keys()
        if name not in own or name not in trunk or own[name].shape != trunk[name].shape
    }
    if differing:
        raise ConfigError(
            f"training.start_from: the trunk in {path} has another shape (at {min(differing)}): "
            "give this trial the same [model]."
        )
    model.trunk.load_state_dict(trunk)


def parallelize(model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> ModelParallelism:
    """Spread a model over the ranks; every rank calls this with the same weights.

    Raises:
        ConfigError: a user's conv has a parameter that cannot be sharded.
    """
    if config.recompute:
        recompute_rounds(model.trunk)
    if config.is_sharded(ranks.world):
        # torch's sharding takes half a second to import, and most trials have none.
        from hydragnn_hpo.training.sharded import ShardedModel

        return ShardedModel(model, config, ranks)
    return (
        ReplicatedModel(model, config, ranks)
        if ranks.world > 1
        else ModelParallelism(model, config, ranks)
    )
