"""Members that differ only in their weights, stacked into one call for a GPU.

Small nets leave a GPU idle: launching an operation takes longer than computing it. Stacked members
launch each operation once for all of them; other members run on several streams. On a CPU it is
quicker to run members one by one.

Shapes: G graphs, N nodes, E edges, P pairs (E / 2), M members, R rows of a head.
"""

import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call, stack_module_state, vmap

from hydragnn_hpo.data import Batch, GraphSet, pad_batch
from hydragnn_hpo.data.batch_layout import cut_filler
from hydragnn_hpo.ensemble.engine import Key, Member, batches_by_key, key_of, run_member
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training.cuda_graphs import Replays

Tensors = dict[str, Tensor]
"""Inputs of a net by name, see ``to_tensors``, or its outputs, see ``engine.run_member``."""
Net = Callable[[Tensors], Tensors]
"""Function from the inputs of a net to its outputs."""
Stack = Callable[[Tensors], dict[str, Tensors]]
"""Members as one function: from inputs to the outputs of each member, by trial."""

SAME = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Tolerance between engines, relative to the largest value of a head."""

ATTRIBUTE = "attribute:"
"""Prefix of the names of attributes of graphs among the inputs of a net."""

FEATURES_OF = "features:"
"""Prefix of the names of foundation models, for their features among the inputs of a net."""

STREAMS = 4
"""Number of streams on which members that cannot be stacked run concurrently on a GPU."""

_aten: Any = torch.ops.aten

logger = logging.getLogger(__name__)


class CannotStack(Exception):
    """Members cannot be stacked; the message says why."""


class FunctionalModel(nn.Module):
    """A net as a function of the named tensors of a batch with edges in pairs."""

    def __init__(self, model: MultiHeadGNN) -> None:
        """Wrap a net; its weights are shared, not copied."""
        super().__init__()
        self.model = model

    def forward(self, tensors: Tensors) -> Tensors:
        """Return every head, [R, w], and the variances that heads predict, [R, 1], by name."""
        sender, receiver = tensors["ends"]
        shift = tensors["shift"]
        order = tensors["order"].view(-1)
        half = sender.shape[0]
        batch = Batch(
            numbers=tensors["numbers"],
            positions=tensors["positions"],
            edge_index=torch.stack((torch.cat((sender, receiver)), torch.cat((receiver, sender)))),
            edge_shift=torch.cat((shift, -shift)),
            graph_of_node=tensors["graph_of_node"],
            num_graphs=tensors["graph_index"].shape[0],
            targets={},
            masks={},
            graph_index=tensors["graph_index"],
            attributes={
                name.removeprefix(ATTRIBUTE): values
                for name, values in tensors.items()
                if name.startswith(ATTRIBUTE)
            },
            laplacian=tensors.get("laplacian"),
            features={
                name.removeprefix(FEATURES_OF): values
                for name, values in tensors.items()
                if name.startswith(FEATURES_OF)
            },
            by_receiver=order,
            receiver_starts=tensors["starts"],
            by_sender=torch.where(order < half, order + half, order - half),
            sender_starts=tensors["starts"],
        )
        outputs: Tensors = self.model(batch)
        return outputs


def to_tensors(batch: Batch) -> Tensors | None:
    """Return the tensors of a batch by name; None if traced code cannot process the batch.

    Traced code needs edges in pairs, each with its reverse, and at least two graphs, nodes and
    pairs: torch treats sizes 0 and 1 as constants.
    """
    half = batch.edge_index.shape[1] // 2
    few = min(batch.num_graphs, len(batch.numbers), half)
    order, starts = batch.by_receiver, batch.receiver_starts
    if order is None or starts is None or batch.num_lone or few < 2:
        return None
    tensors = {
        "numbers": batch.numbers,
        "positions": batch.positions,
        "ends": batch.edge_index[:, :half].contiguous(),
        "shift": batch.edge_shift[:half],
        "graph_of_node": batch.graph_of_node,
        "graph_index": batch.graph_index,
        "order": order.view(2, half),
        "starts": starts,
    }
    tensors |= {f"{ATTRIBUTE}{name}": value for name, value in batch.attributes.items()}
    tensors |= {f"{FEATURES_OF}{name}": value for name, value in batch.features.items()}
    return tensors if batch.laplacian is None else {**tensors, "laplacian": batch.laplacian}


def export_model(model: MultiHeadGNN, tensors: Tensors) -> ExportedProgram:
    """Trace a net for any number of graphs, nodes and edges.

    Args:
        model: the net.
        tensors: inputs to trace with; other inputs must have the same names and types.

    Raises:
        Exception: torch cannot trace the net for all sizes; the class of the error varies.
    """
    graphs, nodes, pairs = (
        Dim(name, min=2, max=2**31 - 1) for name in ("graphs", "nodes", "pairs")
    )
    sizes = {
        "numbers": {0: nodes},
        "positions": {0: nodes},
        "ends": {1: pairs},
        "shift": {0: pairs},
        "graph_of_node": {0: nodes},
        "graph_index": {0: graphs},
        "order": {1: pairs},
        "starts": {0: nodes + 1},
        "laplacian": {0: nodes},
    }
    sizes |= {name: {0: graphs} for name in tensors if name.startswith(ATTRIBUTE)}
    sizes |= {name: {0: nodes} for name in tensors if name.startswith(FEATURES_OF)}
    dynamic = {name: sizes.get(name, {}) for name in tensors}
    with torch.no_grad():
        return torch.export.export(
            FunctionalModel(model), (tensors,), dynamic_shapes=(dynamic,), strict=False
        )


def run_eagerly(member: Member) -> Net:
    """Return a function that runs a member's net on the same tensors without tracing."""

    def net(tensors: Tensors) -> Tensors:
        with torch.inference_mode():
            outputs: Tensors = FunctionalModel(member.model)(tensors)
        return outputs

    return net


def check_same_output(outputs: Tensors, expected: Tensors, dtype: torch.dtype) -> None:
    """Compare the outputs of traced code with those of the net itself.

    Args:
        outputs: outputs of traced code.
        expected: outputs of the net.
        dtype: type of the net's weights, which decides the tolerance, see ``SAME``.

    Raises:
        CannotStack: values differ by more than the tolerance, or heads differ.
    """
    if set(outputs) != set(expected):
        raise CannotStack(
            f"it answers {', '.join(outputs)} where the net answers {', '.join(expected)}"
        )
    for name, values in expected.items():
        off = (outputs[name] - values).abs().max() / values.abs().max().clamp(min=1e-30)
        if not float(off) <= SAME[dtype]:
            raise CannotStack(f"its answers for {name} are {float(off):.1e} off, relative")


class StackedEngine:
    """Runs members of one signature in one call, and the others one by one or on GPU streams.

    On a GPU all members that share a batch are recorded as one CUDA graph for each size of padded
    batches that comes twice. Members are stacked at the first batch that traced code can process.
    """

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Group members whose nets are on ``device``; nothing is traced yet."""
        self.members = tuple(members)
        self.device = device
        self.groups = group_by_signature(self.members)
        self._stacks: dict[str, Stack | None] = {}
        """Stack by trial of the group's first member; None if the group cannot be stacked."""
        self.replays = self._make_replays() if device.type == "cuda" else {}
        """Recorded passes of the members whose shapes are fixed, by the key of their batch."""

    def _make_replays(self) -> dict[Key, Replays]:
        groups = [group for group in self.groups if group[0].model.fixed_shapes]
        by_key: dict[Key, list[tuple[Member, ...]]] = {}
        for group in groups:
            by_key.setdefault(key_of(group[0]), []).append(group)
        return {
            key: Replays(partial(self._run_recorded, alike), self.device, singly=1)
            for key, alike in by_key.items()
        }

    def predict(self, graphs: GraphSet, indices: np.ndarray) -> Iterator[tuple[Member, Tensors]]:
        """Yield each member's heads and variances for one batch of graphs, in their order."""
        keys = [key_of(member) for member in self.members]
        batches = dict(batches_by_key(keys, graphs, indices, self.device))
        by_trial: dict[str, Tensors] = {}
        for key, replays in self.replays.items():
            by_trial |= _replay(replays, pad_batch(batches[key]))
        rest = [group for group in self.groups if group[0].trial not in by_trial]
        by_trial |= self._run_groups([(group, batches[key_of(group[0])]) for group in rest])
        for member in self.members:
            yield member, by_trial[member.trial]

    def _run_recorded(
        self, groups: Sequence[tuple[Member, ...]], batch: Batch, _: Tensor
    ) -> Tensors:
        """Run groups that share a batch; a pass to replay.

        Returns:
            Heads and variances by ``TRIAL/NAME``.
        """
        by_trial = self._run_groups([(group, batch) for group in groups])
        return {
            f"{trial}/{name}": values
            for trial, outputs in by_trial.items()
            for name, values in outputs.items()
        }

    def _run_groups(self, pairs: Sequence[tuple[tuple[Member, ...], Batch]]) -> dict[str, Tensors]:
        """Run groups of members, each with its batch.

        Returns:
            Heads and variances of each member by trial.
        """
        by_trial: dict[str, Tensors] = {}
        alone: list[tuple[Member, Batch]] = []
        for group, batch in pairs:
            outputs = self._run_stacked(group, batch) if len(group) > 1 else None
            if outputs is None:
                alone += [(member, batch) for member in group]
            else:
                by_trial |= outputs
        return by_trial | run_on_streams(alone, self.device)

    def _run_stacked(self, group: Sequence[Member], batch: Batch) -> dict[str, Tensors] | None:
        """Run members of one signature in one call; return None if they cannot be stacked."""
        first = group[0]
        tensors = to_tensors(batch)
        if tensors is None:
            return None
        if first.trial not in self._stacks:
            self._stacks[first.trial] = stack_members(group, tensors)
        stack = self._stacks[first.trial]
        return None if stack is None else stack(tensors)


def _replay(replays: Replays, batch: Batch) -> dict[str, Tensors]:
    """Replay members that share a padded batch; return their heads and variances by trial."""
    by_trial: dict[str, Tensors] = {}
    for named, values in replays.run(batch).items():
        trial, _, name = named.rpartition("/")
        by_trial.setdefault(trial, {})[name] = cut_filler(values, batch)
    return by_trial


def group_by_signature(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """Group members that differ only in their weights, in the order of their first members.

    A member with a user's own conv, or with heads that are derivatives, forms its own group, since
    it cannot be stacked.
    """
    groups: dict[object, list[Member]] = {}
    for number, member in enumerate(members):
        can_be_stacked = member.signature and not member.model.energies
        key = (member.signature, member.dtype) if can_be_stacked else number
        groups.setdefault(key, []).append(member)
    return [tuple(group) for group in groups.values()]


def stack_members(group: Sequence[Member], tensors: Tensors) -> Stack | None:
    """Stack members that differ only in their weights; return None if that fails.

    The outputs are compared with those of each member run by itself.

    Args:
        group: the members, two or more.
        tensors: inputs for tracing and for the comparison.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own code while it traces
            stack = _stack(group, tensors)
            outputs = stack(tensors)
        for member in group:
            check_same_output(outputs[member.trial], run_eagerly(member)(tensors), member.dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:  # torch's tracers raise errors of every class
        trials = ", ".join(member.trial for member in group)
        logger.warning("members %s are not stacked: %s.", trials, _first_line(reason))
        return None
    return stack


def _stack(group: Sequence[Member], tensors: Tensors) -> Stack:
    """Stack the members' weights, and trace the net of the first member.

    Returns:
        Function from the inputs to the outputs of each member, by trial.
    """
    program = export_model(group[0].model, tensors).run_decompositions(_STACKABLE_SUMS)
    net: nn.Module = program.module(check_guards=False)
    traced = {name for name, _ in itertools.chain(net.named_parameters(), net.named_buffers())}
    parameters, buffers = stack_module_state([FunctionalModel(m.model) for m in group])
    stacked = {**parameters, **buffers}
    weights = {name: stacked[name].detach() for name in sorted(traced & set(stacked))}

    def run_all(tensors: Tensors) -> dict[str, Tensors]:
        def run_one(weights: Tensors) -> Tensors:
            outputs: Tensors = functional_call(net, weights, (tensors,))
            return outputs

        with torch.no_grad():
            outputs = vmap(run_one)(weights)
        return {
            member.trial: {name: values[row] for name, values in outputs.items()}
            for row, member in enumerate(group)
        }

    return run_all


def _first_line(reason: Exception) -> str:
    return str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__


def run_on_streams(
    pairs: Sequence[tuple[Member, Batch]], device: torch.device
) -> dict[str, Tensors]:
    """Run members, each with its batch: on a GPU up to ``STREAMS`` at a time, else one by one.

    Args:
        pairs: members and batches on ``device``.
        device: device to run them on.

    Returns:
        Heads and variances of each member by trial.
    """
    if device.type != "cuda":
        return {member.trial: run_member(member, batch) for member, batch in pairs}
    here = torch.cuda.current_stream(device)
    count = min(STREAMS, len(pairs))
    streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
    by_trial: dict[str, Tensors] = {}
    for stream in streams:
        stream.wait_stream(here)  # the batches were made on the current stream, and must be ready
    for (member, batch), stream in zip(pairs, itertools.cycle(streams)):
        with torch.cuda.stream(stream):
            by_trial[member.trial] = run_member(member, batch)
    for stream in streams:
        here.wait_stream(stream)
    for outputs in by_trial.values():
        for values in outputs.values():
            values.record_stream(here)  # keeps their memory until the current stream has read them
    return by_trial


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
    """Sum segments of rows by ``index_add``, since ``vmap`` cannot stack ``embedding_bag``.

    Arguments and outputs are those of torch's operation; only sums with ``ends`` are supported.
    """
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
