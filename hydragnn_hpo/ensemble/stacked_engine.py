"""Members of one signature as one net, and unlike ones side by side: for GPUs.

Small nets leave a GPU idle: launching an operation takes longer than computing it. Weights of
members that differ in nothing else are stacked, so that each operation is launched once for all
of them; unlike members are launched on several streams. On a CPU one by one is quicker.

Shapes: M members, R rows of a head.
"""

import itertools
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from hydragnn_hpo.data import Batch, GraphSet
from hydragnn_hpo.ensemble.engine import Member, batches_by_key, key_of, run_member
from hydragnn_hpo.ensemble.functional_model import (
    FunctionalModel,
    Tensors,
    check_same_output,
    export_model,
    run_eagerly,
    to_tensors,
)

logger = logging.getLogger(__name__)

STREAMS = 4
"""Unlike members that are launched side by side on a GPU."""

_aten: Any = torch.ops.aten


class StackedEngine:
    """Members of one signature in one call; the others one by one, on a GPU on several streams."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Take members whose nets are on ``device``."""
        self.members = tuple(members)
        self.device = device
        self.groups = group_by_signature(self.members)
        self._stacks: dict[str, Stack | None] = {}

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs, in their order."""
        made = batches_by_key(list(map(key_of, self.members)), graphs, indices, self.device)
        found: dict[str, Tensors] = {}
        alone: list[Member] = []
        for group in self.groups:
            batch = made[key_of(group[0])]
            outputs = self._run_stacked(group, batch) if len(group) > 1 else None
            if outputs is None:
                alone += group
            else:
                found |= outputs
        found |= run_on_streams([(member, made[key_of(member)]) for member in alone], self.device)
        for member in self.members:
            yield member, found[member.trial]

    def _run_stacked(self, group: Sequence[Member], batch: Batch) -> dict[str, Tensors] | None:
        """Run members of one signature together; ``None`` where they must run one by one."""
        first, tensors = group[0], to_tensors(batch)
        if tensors is None:
            return None
        if first.trial not in self._stacks:
            self._stacks[first.trial] = _stack(group, tensors)
        stack = self._stacks[first.trial]
        return None if stack is None else stack(tensors)


def group_by_signature(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """Group members that differ in their weights alone, in the order of the first ones."""
    groups: dict[object, list[Member]] = {}
    for number, member in enumerate(members):
        fits = member.signature and not member.model.energies
        key = (member.signature, member.dtype) if fits else number
        groups.setdefault(key, []).append(member)
    return [tuple(group) for group in groups.values()]


class Stack:
    """Members that differ in their weights alone, as one net."""

    def __init__(self, group: Sequence[Member], tensors: Tensors) -> None:
        """Stack their weights and trace the first of them.

        Args:
            group: the members.
            tensors: inputs to trace with.
        """
        self.trials = [member.trial for member in group]
        program = export_model(group[0].model, tensors).run_decompositions(_STACKABLE_SUMS)
        net: nn.Module = program.module(check_guards=False)
        known = {name for name, _ in itertools.chain(net.named_parameters(), net.named_buffers())}
        parameters, buffers = stack_module_state([FunctionalModel(m.model) for m in group])
        stacked = {**parameters, **buffers}
        self.net = net
        self.weights = {name: stacked[name].detach() for name in sorted(known & set(stacked))}

    def __call__(self, tensors: Tensors) -> dict[str, Tensors]:
        """Return the heads of each member, by trial."""

        def one(weights: Tensors) -> Tensors:
            found: Tensors = functional_call(self.net, weights, (tensors,))
            return found

        with torch.no_grad():
            found = vmap(one)(self.weights)
        return {
            trial: {name: values[row] for name, values in found.items()}
            for row, trial in enumerate(self.trials)
        }


def _stack(group: Sequence[Member], tensors: Tensors) -> Stack | None:
    """Stack members, and compare their outputs with those of each alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own ways while it traces
            stack = Stack(group, tensors)
            found = stack(tensors)
        for member in group:
            check_same_output(found[member.trial], run_eagerly(member)(tensors), member.dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:  # torch's tracers raise errors of every class
        why = str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
        logger.warning("members %s are not stacked: %s.", ", ".join(m.trial for m in group), why)
        return None
    return stack


def run_on_streams(
    pairs: Sequence[tuple[Member, Batch]], device: torch.device
) -> dict[str, Tensors]:
    """Run members, each with its batch: on a GPU a few at a time, on a CPU one by one."""
    if device.type != "cuda":
        return {member.trial: run_member(member, batch) for member, batch in pairs}
    here = torch.cuda.current_stream(device)
    count = min(STREAMS, len(pairs))
    streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
    found: dict[str, Tensors] = {}
    for stream in streams:
        stream.wait_stream(here)
    for (member, batch), stream in zip(pairs, itertools.cycle(streams)):
        with torch.cuda.stream(stream):
            found[member.trial] = run_member(member, batch)
    for stream in streams:
        here.wait_stream(stream)
    for outputs in found.values():
        for values in outputs.values():
            values.record_stream(here)
    return found


def _embedding_bag(
    rows: Tensor,
    index: Tensor,
    starts: Tensor,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    ends: bool = False,
    padding: int = -1,
) -> tuple[Tensor, ...]:
    """Sum segments of rows by ``index_add``: ``embedding_bag`` cannot be stacked."""
    assert mode == 0
    assert ends
    place = torch.arange(index.shape[0], device=index.device)
    segment = torch.searchsorted(starts, place, right=True) - 1
    taken = rows.index_select(0, index)
    if weights is not None:
        taken = taken * weights.unsqueeze(-1)
    zeros = taken.new_zeros(starts.shape[0] - 1, rows.shape[1])
    empty = index.new_zeros(0)
    return zeros.index_add(0, segment, taken), empty, empty, empty


_STACKABLE_SUMS = {
    _aten.embedding_bag.default: _embedding_bag,
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
}
"""Replacements of torch operations that ``vmap`` cannot stack."""
