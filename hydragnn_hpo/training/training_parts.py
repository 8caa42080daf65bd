"""The parts of a training: model, optimizer, batches, steps, checkpoints, built by one function.

The trunk starts with random weights or those of another trial. The model is then replicated on the
ranks or sharded over them.

Shapes: G graphs of the data set, H heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import ParallelConfig, TrialConfig, count_components, parse_config
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.data.batch_sampler import BatchSampler, predict_graph_costs
from hydragnn_hpo.data.mixture import Mixture
from hydragnn_hpo.errors import ConfigError, DataError, HydraError, StorageError, answer_of
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.model import MultiHeadGNN, rename_weights
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.checkpoint_saver import CheckpointSaver
from hydragnn_hpo.training.cuda_graphs import Replays, can_replay
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.divergence import DivergenceGuard
from hydragnn_hpo.training.evaluate import BatchFeed, batch_error_sums
from hydragnn_hpo.training.micro_batches import MicroBatches
from hydragnn_hpo.training.optim import LearningRateSchedule, make_optimizer
from hydragnn_hpo.training.parallel import (
    AveragedModel,
    ModelParallelism,
    ReplicatedModel,
    recompute_rounds,
)
from hydragnn_hpo.training.precision import DTYPES, set_matmul_precision
from hydragnn_hpo.training.stepper import Stepper
from hydragnn_hpo.training.timers import EpochTimers, Stragglers, make_timers
from hydragnn_hpo.training.train_state import AveragedWeights, TrainState

_TRUNK = "trunk."


def check_model(question: Path, answer: Path) -> None:
    """Build the model of a trial before there are data, and write what is wrong with it.

    The entry point of the process in which ``campaign.campaign_checks`` imports a user's conv.

    Args:
        question: JSON file with the trial's ``config`` and its ``targets``.
        answer: JSON file to write, see ``errors.answer_of``; empty if nothing is wrong.
    """
    stats = read_json(question)
    config = parse_config(stats["config"], TrialConfig, where="the trial")
    try:
        build_model(config, stats)
    except HydraError as error:
        write_json(answer, answer_of(error))
    else:
        write_json(answer, {})


def build_model(config: TrialConfig, stats: Mapping[str, Any]) -> MultiHeadGNN:
    """Build the model of a trial; random initial weights depend only on the trial's seed.

    With ``training.start_from`` the trunk's weights are those of another trial's best epoch; with
    ``training.freeze_trunk`` they are not trained.

    Args:
        config: of the trial.
        stats: ``StoreStats``, of which ``targets`` must be there.

    Raises:
        ConfigError: the checkpoint cannot be read, or the shape of its trunk differs.
    """
    training = config.training
    torch.manual_seed(config.seed)
    model = MultiHeadGNN(
        config.model,
        config.heads,
        stats["targets"],
        stats=stats,
        learn_weights=training.balance == "uncertainty",
    ).to(DTYPES[training.precision])
    if training.start_from is not None:
        _copy_trunk(model, Path(training.start_from), config.model.conv)
    model.trunk.requires_grad_(not training.freeze_trunk)
    return model


def _copy_trunk(model: MultiHeadGNN, path: Path, conv: str) -> None:
    """Copy a checkpoint's trunk into a model of this conv."""
    try:
        tensors, _ = checkpoint.read_checkpoint(path)
    except StorageError as error:
        raise ConfigError(f"training.start_from: {error}") from error
    tensors = rename_weights(tensors, conv)
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


def parallelize(
    model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks, *, replays: bool
) -> ModelParallelism:
    """Replicate or shard a model over the ranks; every rank calls this with the same weights.

    Args:
        model: the model, on this rank's device.
        config: how weights are sharded, and whether rounds are recomputed in the backward pass.
        ranks: this rank among the others.
        replays: whether passes are replayed as CUDA graphs.

    Raises:
        ConfigError: a user's conv has a parameter that cannot be sharded.
    """
    if config.recompute:
        recompute_rounds(model.trunk)
    if config.is_sharded(ranks.world):
        # Importing torch's sharding takes half a second, and most trials do not shard.
        from hydragnn_hpo.training.sharded import ShardedModel

        return ShardedModel(model, config, ranks)
    if ranks.world == 1:
        return ModelParallelism(model, config, ranks)
    return (AveragedModel if replays else ReplicatedModel)(model, config, ranks)


def make_sampler(config: TrialConfig, graphs: GraphSet) -> BatchSampler:
    """Build the sampler that assigns graphs to the steps of a trial."""
    ends = graphs.ends.tolist() if isinstance(graphs, Mixture) else ()
    ratios = [entry.ratio for entry in config.data]
    return BatchSampler.of(graphs, config.training, config.seed, ratios, ends)


@dataclass(frozen=True)
class TrainingParts:
    """What a training works with, on this rank; no part is replaced while it trains."""

    config: TrialConfig
    """The trial."""
    ranks: Ranks
    """This rank among the others."""
    record: Callable[..., None]
    """Called with the kind and the values of each record, on every rank."""
    model: MultiHeadGNN
    """The model, on this rank's device."""
    state: TrainState
    """The model over all ranks, its optimizer, and averaged weights."""
    schedule: LearningRateSchedule
    """Learning rate of every step."""
    feed: BatchFeed
    """Makes batches of the data set, also for validation and predictions."""
    micro: MicroBatches
    """Splits steps into pieces that fit into memory."""
    order: BatchSampler
    """Which graphs are in which step."""
    stds: dict[str, float]
    """Standard deviation of each head's target, in its unit; 1 for a constant target."""
    val: np.ndarray
    """Graphs of the validation split, int64, [n]."""
    guard: DivergenceGuard
    """Ends a diverged training."""
    meter: EpochTimers
    """Times the regions of an epoch."""
    stragglers: Stragglers
    """Finds slow ranks."""
    stepper: Stepper
    """Takes optimizer steps; its ``counts`` are the known components of each graph's targets."""
    val_replays: Replays | None
    """Passes of the validation as CUDA graphs; None if they run kernel by kernel."""
    saver: CheckpointSaver
    """Writes and reads checkpoints."""
    losses: Tensor
    """Sum of each head's loss over this rank's steps in the current epoch, fp64, [H]."""


def build_parts(
    config: TrialConfig,
    graphs: GraphSet,
    ranks: Ranks,
    record: Callable[..., None] = lambda *_, **__: None,
) -> TrainingParts:
    """Build all parts of a training at epoch 0; every rank calls this.

    Args:
        config: the trial.
        graphs: the data set, or several united into one.
        ranks: this rank among the others.
        record: called with the kind and the values of each record, on every rank.

    Raises:
        ConfigError: the model cannot be built, see ``build_model`` and ``parallelize``.
        DataError: no structure of the validation split has the target of a head.
    """
    ranks = replace(ranks, tensor=config.parallel.tensor_ranks(ranks.world))
    device = ranks.device
    training = config.training
    set_matmul_precision(training.precision)
    model = build_model(config, graphs.stats).to(device)
    replays = can_replay(config, ranks, fixed_shapes=model.fixed_shapes)
    net = parallelize(model, config.parallel, ranks, replays=replays)
    average = AveragedWeights(model, training.ema) if training.ema else None
    state = TrainState(net, make_optimizer(model, training), average)
    costs = predict_graph_costs(graphs, config.model)
    feed = BatchFeed(config, graphs, ranks, costs, net.is_collective, pads=replays)
    order = make_sampler(config, graphs)
    total_steps = order.steps_per_epoch * training.epochs
    guard = DivergenceGuard(model, device)
    meter = make_timers(device)
    return TrainingParts(
        config=config,
        ranks=ranks,
        record=record,
        model=model,
        state=state,
        schedule=LearningRateSchedule(training, total_steps, order.graphs_per_step),
        feed=feed,
        micro=MicroBatches(feed, training.micro_batches, record),
        order=order,
        stds={name: float(graphs.stats["targets"][name]["std"]) or 1.0 for name in config.heads},
        val=graphs.indices_of("val"),
        guard=guard,
        meter=meter,
        stragglers=Stragglers(),
        stepper=_make_stepper(config, graphs, state, guard=guard, meter=meter, replays=replays),
        val_replays=Replays(partial(batch_error_sums, model, feed), device) if replays else None,
        saver=CheckpointSaver(
            state, ranks, record, conv=config.model.conv, every=training.checkpoint_seconds
        ),
        losses=torch.zeros(len(config.heads), dtype=torch.float64, device=device),
    )


def _count_known(graphs: GraphSet, name: str) -> np.ndarray:
    """Return the number of known components of a target in each graph, [G]; 1 for a class."""
    target = graphs.stats["targets"][name]
    width = 1 if target["shape"] == "class" else count_components(target)
    counted: np.ndarray = graphs.known(name) * width
    return counted


def _make_stepper(
    config: TrialConfig,
    graphs: GraphSet,
    state: TrainState,
    *,
    guard: DivergenceGuard,
    meter: EpochTimers,
    replays: bool,
) -> Stepper:
    """Make the stepper, with the known targets of each graph and the mean weight of structures.

    Args:
        config: the trial.
        graphs: the data set.
        state: the model over all ranks, and its optimizer.
        guard: checks the gradients.
        meter: times each region of a step.
        replays: whether micro-batches are replayed as CUDA graphs.

    Raises:
        DataError: no structure of the validation split has the target of a head.
    """
    counts = {name: _count_known(graphs, name) for name in config.heads}
    _check_val(counts, graphs.indices_of("val"))
    name = config.training.weight_by
    mean = 1.0 if name is None else graphs.stats["attributes"][name]["mean"]
    return Stepper(
        config, state, counts=counts, guard=guard, meter=meter, mean_weight=mean, replays=replays
    )


def _check_val(counts: Mapping[str, np.ndarray], val: np.ndarray) -> None:
    """Check that each head has a target in the validation split."""
    for name, known in counts.items():
        if not known[val].sum():
            raise DataError(
                f"head '{name}': no structure of the validation split has this target; "
                "drop the head, or add structures that have it."
            )
