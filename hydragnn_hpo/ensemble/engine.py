"""Engines that predict with all members, and batches shared by members of several cutoffs.

Graphs are gathered once at the longest cutoff, with their edges in pairs: edge k leads from a to b
and edge k + P from b to a. Batches of shorter cutoffs are subsets of that batch.

Shapes: G graphs, N nodes, E edges, P pairs (an edge without a reverse is one), R rows of a head,
w its components.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import COMPUTED, TrialConfig, TrialHeads, count_parameters, parse_config
from hydragnn_hpo.config.convs.spec import is_user_conv
from hydragnn_hpo.data import Batch, GraphSet, make_batch
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.file_records import TargetStats
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training.memory import is_out_of_memory, release_memory
from hydragnn_hpo.training.precision import DTYPES

logger = logging.getLogger(__name__)

AUTO = "auto"
"""Name that stands for an automatically chosen device."""

_DEVICE_KINDS = ("cpu", "cuda", "xpu")
"""Kinds of devices that members can predict on, as torch names them."""

EDGES_PER_BATCH = 40_000
"""Approximate number of edges plus nodes of a batch."""

Key = tuple[float, torch.dtype, int | None]
"""Properties of a member that determine its batch: cutoff in angstrom, type, neighbour cap."""

Targets = Mapping[str, TargetStats]
"""Statistics of the targets on the training split, by head."""


def squared_lengths(batch: Batch) -> Tensor:
    """Return the squared length of each pair of a batch in pairs, in angstrom squared, [P]."""
    pairs = batch.num_pairs
    sender, receiver = batch.edge_index[:, :pairs]
    ends = (batch.positions.index_select(0, end) for end in (receiver, sender))
    vectors = torch.sub(*ends) + batch.edge_shift[:pairs]
    return vectors.square().sum(1)


def cut_to_cutoff(batch: Batch, squared: Tensor, cutoff: float) -> Batch:
    """Cut a batch in pairs to a shorter cutoff.

    Both edges of a pair are kept or dropped together. Rounding may differ from ``make_batch`` only
    for edges at the cutoff, where every message has weight 0.

    Args:
        batch: batch in pairs, with all edges up to ``cutoff``.
        squared: squared lengths of its pairs, in angstrom squared, [P].
        cutoff: new cutoff in angstrom.
    """
    near = squared <= cutoff * cutoff
    kept = near.nonzero().squeeze(1)
    if len(kept) == len(near):
        return batch
    rest = batch.edge_index.shape[1] - len(near)
    both = torch.cat((near, near[:rest]))
    again = kept[kept < rest]
    rows = torch.cat((kept, again + len(near)))
    by_receiver, receiver_starts = _cut_order(batch.by_receiver, batch.receiver_starts, both)
    by_sender, sender_starts = _cut_order(batch.by_sender, batch.sender_starts, both)
    return replace(
        batch,
        edge_index=batch.edge_index.index_select(1, rows),
        edge_shift=batch.edge_shift.index_select(0, rows),
        by_receiver=by_receiver,
        receiver_starts=receiver_starts,
        by_sender=by_sender,
        sender_starts=sender_starts,
        num_lone=len(kept) - len(again),
    )


def _cut_order(order: Tensor | None, starts: Tensor | None, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Cut edges sorted by one end, and where those of each node begin, to the edges kept.

    Args:
        order: edges sorted by that end, [E].
        starts: position in ``order`` where those of each node begin, and the end, [N + 1].
        kept: which edges are kept, bool, [E].

    Returns:
        Order and starts of the kept edges.
    """
    assert order is not None
    assert starts is not None
    place = kept.cumsum(0) - 1  # new index of each kept edge
    stays = kept.index_select(0, order)
    # number of kept edges before each position: new start of each node's edges
    passed = torch.cat((stays.new_zeros(1, dtype=torch.int64), stays.cumsum(0)))
    return place.index_select(0, order[stays]), passed.index_select(0, starts)


@dataclass(frozen=True)
class Member:
    """A net that is ready to predict, and its share in the mean of each head."""

    trial: str
    """Name of the trial."""
    weights: Mapping[str, float]
    """Share of the member in the mean of each head it contributes to, by head, > 0."""
    model: MultiHeadGNN
    """The net, in evaluation mode, without gradients of its weights."""
    cutoff: float
    """Longest edge that the net uses, in angstrom."""
    dtype: torch.dtype
    """Floating point type of its weights."""
    max_neighbors: int | None = None
    """Maximum number of neighbours of a node; None for no cap."""
    signature: str = ""
    """What the net computes, without weights and type, as JSON; members of one signature share
    code and can be stacked. Empty for a user's own conv, whose code is unknown."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The targets that the net predicts.

        Returns:
            Names of all heads of the net, also of those in which the member has no weight.
        """
        return tuple(self.model.baselines)

    def in_precision(self, precision: str) -> Self:
        """Return the member in ``fp32`` or ``fp64``; its net is converted in place."""
        dtype = DTYPES[precision]
        return replace(self, model=self.model.to(dtype), dtype=dtype)


def make_member(
    config: TrialConfig,
    tensors: Mapping[str, Tensor],
    targets: Targets,
    *,
    weights: Mapping[str, float],
    where: str,
) -> Member:
    """Build a trial's net, and load its weights.

    The weights are counted first, so that a configuration cannot allocate more memory than its
    weights take on disk.

    Args:
        config: configuration of the trial.
        tensors: weights and buffers by name, including the baseline per element.
        targets: statistics of all targets of the trial.
        weights: share in the mean by head, > 0.
        where: file named in the error.

    Raises:
        DataError: configuration, heads and weights do not fit, or a weight is not finite.
    """
    _check_fits(config, tensors, targets, where)
    dtype = DTYPES[config.training.precision]
    with torch.random.fork_rng(devices=[]):
        model = _build_net(config, targets).to(dtype)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()[:150]
        raise DataError(
            f"{where}: the weights of trial '{config.trial}' do not fit its configuration "
            f"({reason}); build the ensemble again."
        ) from error
    model.eval().requires_grad_(False)
    cap = config.model.max_neighbors
    signature = signature_of(config, targets)
    return Member(config.trial, weights, model, config.model.cutoff, dtype, cap, signature)


def keep_heads(
    tensors: Mapping[str, Tensor], config: TrialConfig, targets: Targets
) -> dict[str, Tensor]:
    """Return the weights that a net has without the heads that were removed from its configuration.

    Args:
        tensors: weights and buffers by name, of all heads that were trained.
        config: configuration of the trial, with the heads to keep.
        targets: statistics of the targets of these heads.

    Returns:
        Tensors by name.
    """
    fresh = _build_net(config, targets).state_dict()
    # the weights of the heads in the loss are one tensor, which no prediction reads
    return {
        name: tensors[name] if tensors[name].shape == value.shape else value
        for name, value in fresh.items()
        if name in tensors
    }


def _build_net(config: TrialConfig, targets: Targets) -> MultiHeadGNN:
    """Build a trial's net, with the kernels that this machine has."""
    plan = config.model.model_copy(update={"kernels": "auto"})
    learned = config.training.balance == "uncertainty"
    return MultiHeadGNN(plan, config.heads, targets, learn_weights=learned)


def signature_of(config: TrialConfig, targets: Targets) -> str:
    """Describe as JSON what a trial's net computes, without weights and type.

    Returns:
        Equal texts for nets that differ only in their weights; empty for a user's own conv.
    """
    if is_user_conv(config.model.conv):
        return ""
    parts = {
        "model": config.model.model_dump(mode="json", exclude={"kernels"}),
        "heads": {
            name: [
                head.model_dump(
                    mode="json", exclude={"weight", "stage_two_weight", "loss", "beta"}
                ),
                {key: targets[name].get(key) for key in (*COMPUTED, "sum")},
            ]
            for name, head in config.heads.items()
        },
        "learned": config.training.balance == "uncertainty",
    }
    return json.dumps(parts, sort_keys=True)


def _check_fits(
    config: TrialConfig, tensors: Mapping[str, Tensor], targets: Targets, where: str
) -> None:
    """Raise ``DataError`` if configuration, heads and weights do not fit, before building a net."""
    try:
        parse_config(
            {"heads": config.heads, "targets": targets, "model": config.model}, TrialHeads, where
        )
    except ConfigError as error:
        raise DataError(str(error)) from error
    wanted = count_parameters(config.model, config.heads, targets)
    count = sum(v.numel() for v in tensors.values())
    if wanted > count:
        raise DataError(
            f"{where}: trial '{config.trial}' has {count} weights, its configuration makes "
            f"{wanted}; build the ensemble again."
        )
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise DataError(
            f"{where}: trial '{config.trial}' has weights that are not finite; build the "
            "ensemble again."
        )


def pieces(columns: GraphSet, indices: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Divide graphs into batches, in order.

    Args:
        columns: G graphs or more.
        indices: positions of the graphs wanted, [G].
        limit: approximate number of edges plus nodes of a batch.

    Yields:
        Positions of the graphs of each batch.
    """
    size = np.cumsum(columns.num_edges()[indices] + columns.num_nodes()[indices])
    group = (size - 1) // limit
    yield from np.split(indices, np.flatnonzero(np.diff(group)) + 1) if len(indices) else ()


def key_of(member: Member) -> Key:
    """Return the key of a member's batch; members with equal keys share the batch."""
    return member.cutoff, member.dtype, member.max_neighbors


def member_batches(
    members: Iterable[Member], columns: GraphSet, indices: np.ndarray, device: torch.device
) -> Iterator[tuple[Member, Batch]]:
    """Pair members with batches of some graphs, each with edges up to the member's cutoff.

    Members of long cutoffs come first, others in their order, so that few batches are in memory.

    Args:
        members: the members; those with equal keys share a batch.
        columns: graphs with edges up to the longest cutoff of the members.
        indices: positions of the graphs wanted, [G].
        device: device of the batches.
    """
    several = tuple(members)
    for key, batch in batches_by_key(list(map(key_of, several)), columns, indices, device):
        for member in several:
            if key_of(member) == key:
                yield member, batch


def batches_by_key(
    keys: Sequence[Key], graphs: GraphSet, indices: np.ndarray, device: torch.device
) -> Iterator[tuple[Key, Batch]]:
    """Gather graphs once per type at the longest cutoff, and derive batches of shorter ones.

    A batch with a cap on neighbours is gathered separately: the cap applies within the cutoff.

    Args:
        keys: keys of the members.
        graphs: graphs with edges up to the longest cutoff.
        indices: positions of the graphs wanted, [G].
        device: device of the batches.

    Yields:
        Each key with its batch, those of the longest cutoff first. Only the longest batch of each
        type is kept while others are made.
    """
    whole: dict[torch.dtype, tuple[Batch, Tensor]] = {}
    # longest first: batches of shorter cutoffs are cut out of the longest of their type
    for cutoff, dtype, cap in sorted(dict.fromkeys(keys), key=lambda key: -key[0]):
        if cap is None and dtype in whole:
            yield (cutoff, dtype, cap), cut_to_cutoff(*whole[dtype], cutoff)
            continue
        batch = make_batch(
            graphs, indices, cutoff=cutoff, dtype=dtype, max_neighbors=cap, pairs=True
        )
        batch = batch.to(device)
        if cap is None and batch.by_receiver is not None:
            whole[dtype] = batch, squared_lengths(batch)
        yield (cutoff, dtype, cap), batch


class Engine(Protocol):
    """Predicts with all members; outputs equal those of single members within 1e-5."""

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads, [R, w], and variances, [R, 1], in the order of the members.

        Args:
            graphs: graphs with edges up to the longest cutoff of the members.
            indices: positions of the graphs of the batch, [G].
        """


def predict_in_halves(
    engine: Engine, graphs: GraphSet, indices: np.ndarray, device: torch.device
) -> list[tuple[Member, dict[str, Tensor]]]:
    """Predict a batch of graphs, or its halves, and halves of these, where memory runs out.

    Args:
        engine: predicts with all members, in the same order for each batch.
        graphs: graphs with edges up to the longest cutoff of the members.
        indices: positions of the graphs of the batch, [G].
        device: device whose unused memory is released before the halves are predicted.

    Returns:
        Each member with its heads and variances.
    """
    try:
        return list(engine.predict(graphs, indices))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(indices) < 2:
            raise
        logger.warning("out of memory: %d structures are predicted in two halves.", len(indices))
    # Outside the handler: the caught error keeps the tensors of the failed pass alive.
    release_memory(device)
    first, second = (
        predict_in_halves(engine, graphs, half, device) for half in np.array_split(indices, 2)
    )
    return [
        (member, {name: torch.cat((values, others[name])) for name, values in heads.items()})
        for (member, heads), (_, others) in zip(first, second, strict=True)
    ]


class EagerEngine:
    """Runs members one after the other; those with equal keys share a batch."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Keep members whose nets are on ``device``."""
        self.members = tuple(members)
        self.device = device

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs."""
        pairs = member_batches(self.members, graphs, indices, self.device)
        by_trial = {member.trial: run_member(member, batch) for member, batch in pairs}
        for member in self.members:
            yield member, by_trial[member.trial]


def run_member(member: Member, batch: Batch) -> dict[str, Tensor]:
    """Run a member on a batch.

    Returns:
        Heads by name, [R, w], and variances by ``variance_key`` of their head, [R, 1].
    """
    # heads that are derivatives enable autograd, which inference mode forbids
    quiet = torch.no_grad if member.model.energies else torch.inference_mode
    with quiet():
        outputs: dict[str, Tensor] = member.model(batch)
    return outputs


def device_of(named: str) -> str:
    """Return the single device that a text names, see ``devices_of``.

    Raises:
        ConfigError: this host has no such device, or several are named.
    """
    first, *others = devices_of(named)
    if others:
        count = len(others) + 1
        raise ConfigError(f"device {named}: names {count} devices; name only one here, as {first}.")
    return first


def devices_of(named: str) -> list[str]:
    """Return the devices that a text names.

    Args:
        named: ``auto`` (the device of this rank's slot, else the first accelerator, else the CPU),
            or torch's names of devices, separated by commas.

    Raises:
        ConfigError: this host does not have one of the devices.
    """
    if named == AUTO:
        return [os.environ.get("HYDRAGNN_HPO_DEVICE") or _first_accelerator() or "cpu"]
    names = [name.strip() for name in named.split(",")]
    for name in names:
        _check_device(name)
    return names


def _first_accelerator() -> str | None:
    device = torch.accelerator.current_accelerator(check_available=True)
    return f"{device.type}:0" if device is not None and device.type in _DEVICE_KINDS else None


def _check_device(name: str) -> None:
    first = _first_accelerator()
    here = f"cpu, {first}" if first else "cpu"
    if name.partition(":")[0] not in _DEVICE_KINDS:
        raise ConfigError(f"device {name!r}: not one that can be used; choose {here}.")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, ValueError):
        raise ConfigError(f"device {name!r}: torch finds none; choose {here}.") from None


def as_array(values: Tensor) -> np.ndarray:
    """Convert a tensor on any device to an fp64 array of the same shape."""
    array: np.ndarray = values.detach().double().cpu().numpy()
    return array
