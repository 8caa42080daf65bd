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
from torch.func import functional_call, vmap

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.engine import Member, batches_by_key, key_of, run_member
from hydragnn_hpo.ensemble.engines.plain import (
    Plain,
    Tensors,
    check,
    exported,
    plainly,
    tensors_of,
)

logger = logging.getLogger(__name__)

STREAMS = 4
"""Unlike members that are launched side by side on a GPU."""


class Stacked:
    """Members of one signature in one go; the others one by one, on a GPU on several streams."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Take members whose nets are on ``device``."""
        self.members = tuple(members)
        self.device = device
        self.groups = grouped(self.members)
        self._stacks: dict[str, Stack | None] = {}

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Give each member's heads and variances for one batch of graphs, in their order."""
        made = batches_by_key(list(map(key_of, self.members)), graphs, indices, self.device)
        found: dict[str, Tensors] = {}
        alone: list[Member] = []
        for group in self.groups:
            batch = made[key_of(group[0])]
            said = self._together(group, batch) if len(group) > 1 else None
            if said is None:
                alone += group
            else:
                found |= said
        found |= side_by_side([(member, made[key_of(member)]) for member in alone], self.device)
        for member in self.members:
            yield member, found[member.trial]

    def _together(self, group: Sequence[Member], batch: Batch) -> dict[str, Tensors] | None:
        """Ask members of one signature; ``None`` where they are asked one by one."""
        first, tensors = group[0], tensors_of(batch)
        if tensors is None:
            return None
        if first.trial not in self._stacks:
            self._stacks[first.trial] = _prepared(group, tensors)
        stack = self._stacks[first.trial]
        return None if stack is None else stack(tensors)


def grouped(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """Put members together that differ in their weights alone, in the order of the first ones."""
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
        program = exported(group[0].model, tensors).run_decompositions(_PLAIN_SUMS)
        self.net: nn.Module = program.module(check_guards=False)
        known = set(dict(self.net.named_parameters()) | dict(self.net.named_buffers()))
        each = [_numbers(Plain(member.model)) for member in group]
        self.weights = {
            name: torch.stack([numbers[name] for numbers in each])
            for name in sorted(known & set(each[0]))
        }

    def __call__(self, tensors: Tensors) -> dict[str, Tensors]:
        """Give what each member says, by trial."""

        def one(weights: Tensors) -> Tensors:
            found: Tensors = functional_call(self.net, weights, (tensors,))
            return found

        with torch.no_grad():
            found = vmap(one)(self.weights)
        return {
            trial: {name: values[row] for name, values in found.items()}
            for row, trial in enumerate(self.trials)
        }


def _numbers(net: nn.Module) -> Tensors:
    """Give weights and buffers by name."""
    named = itertools.chain(net.named_parameters(), net.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def _prepared(group: Sequence[Member], tensors: Tensors) -> Stack | None:
    """Stack members, and compare what they say with what they say alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own ways while it traces
            stack = Stack(group, tensors)
            found = stack(tensors)
        for member in group:
            check(found[member.trial], plainly(member)(tensors), member.dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:  # torch's tracers raise errors of every class
        why = str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
        logger.warning("members %s are not stacked: %s.", ", ".join(m.trial for m in group), why)
        return None
    return stack


def side_by_side(pairs: Sequence[tuple[Member, Batch]], device: torch.device) -> dict[str, Tensors]:
    """Ask members, each with its batch: on a GPU a few at a time, on a CPU one by one."""
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
    for said in found.values():
        for values in said.values():
            values.record_stream(here)
    return found


def _bag(
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


_aten: Any = torch.ops.aten
_PLAIN_SUMS = {
    _aten.embedding_bag.default: _bag,
    _aten._embedding_bag.default: _bag,
    _aten._embedding_bag_forward_only.default: _bag,
}
"""What stands for torch's quickest sums where weights are stacked."""
