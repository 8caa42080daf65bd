"""One model over all ranks of a trial: replicas (DDP), overlapped all-reduce, recomputed rounds.

Also tensors that a rank holds whole or in part, as optimizers see them. ``DTensor`` is imported
where there are some: that takes half a second, and most trials have none.
"""

import contextlib
import functools
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from hydragnn_hpo.config import ParallelConfig
from hydragnn_hpo.model import MultiHeadGNN, Round, RoundContext, Trunk
from hydragnn_hpo.training.ddp import Ranks, keep_until_exit
from hydragnn_hpo.training.timers import EpochTimers


def is_dtensor(tensor: Tensor) -> bool:
    """Check whether a tensor is spread over ranks: a ``DTensor``."""
    return hasattr(tensor, "placements")


def has_dtensors(tensors: Iterable[Tensor]) -> bool:
    """Check whether any tensor is spread over ranks."""
    return any(map(is_dtensor, tensors))


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: changes of the one are changes of the other."""
    part: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return part


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return what this rank holds of the gradients of parameters that have one."""
    return [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]


def as_dtensor(tensor: Tensor, like: Tensor) -> Tensor:
    """Declare what this rank holds to be its part of a tensor that is spread as ``like`` is."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        tensor,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def gather_dtensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that is spread over ranks; every rank calls this."""
    if not is_dtensor(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def distribute_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Take this rank's part of what all ranks hold, as ``like`` is spread; nothing is sent."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    held = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return held.redistribute(placements=like.placements)


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy what all ranks hold, or what is spread alike, into a tensor."""
    if is_dtensor(target) and not is_dtensor(source):
        source = distribute_like(source.to(target), target)
    target.copy_(source)


Mark = float | torch.cuda.Event
"""A moment: seconds on a CPU, an event on a GPU."""

Span = tuple[float, float]
"""Beginning and end, in seconds."""


class TimedAllReduce:
    """Averages gradients over ranks, as DDP does by itself, and notes when.

    The last piece is sent when the last gradient is there: what is sent after that moment,
    nothing hides. On a GPU events are read when they have passed, steps later: nobody waits.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with no step."""
        self._on_device = device.type == "cuda"
        self._step: list[list[Mark]] = []
        self._waiting: deque[list[list[Mark]]] = deque()

    def average(self, world: int, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average a piece of the gradient over ``world`` ranks; a hook of DDP."""
        marks = [self._mark()]
        self._step.append(marks)

        def done(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            averaged = future.value()[0]
            marks.append(self._mark())
            return averaged

        work = dist.all_reduce(bucket.buffer().div_(world), async_op=True)
        assert work is not None
        average: torch.futures.Future[Tensor] = work.get_future().then(done)
        return average

    def take_times(self) -> Span:
        """Call after the backward pass of a step.

        Returns:
            Seconds in which something was being sent, and of these the seconds after the last
            gradient had been computed; of the steps whose times are known by now.
        """
        self._waiting.append(self._step)
        self._step, sent, exposed = [], 0.0, 0.0
        while self._waiting and all(_has_passed(marks[-1]) for marks in self._waiting[0]):
            step = self._waiting.popleft()
            total, after = measure_overlap([_span(marks, step[0][0]) for marks in step])
            sent, exposed = sent + total, exposed + after
        return sent, exposed

    def _mark(self) -> Mark:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def measure_overlap(pieces: Sequence[Span]) -> Span:
    """Measure how long something was under way, and how long after the last piece had set out.

    Args:
        pieces: when each piece set out, and when it had arrived.

    Returns:
        Seconds in which at least one was under way, and of these the ones after all had set out.
    """
    total, reached = 0.0, float("-inf")
    for first, last in sorted(pieces):
        total += max(last - max(first, reached), 0.0)
        reached = max(reached, last)
    ready = max((first for first, _ in pieces), default=reached)
    return total, max(reached - ready, 0.0) if pieces else 0.0


def _has_passed(mark: Mark) -> bool:
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def _span(marks: list[Mark], origin: Mark) -> Span:
    first, last = (_seconds(mark, origin) for mark in marks)
    return first, last


def _seconds(mark: Mark, origin: Mark) -> float:
    """Return the seconds since a moment of the same kind."""
    if isinstance(mark, float) and isinstance(origin, float):
        return mark - origin
    assert isinstance(mark, torch.cuda.Event)
    assert isinstance(origin, torch.cuda.Event)
    return float(origin.elapsed_time(mark)) / 1e3


MIB = 2**20

BUCKETS, SMALLEST_MB, LARGEST_MB = 4, 1.0, 25.0
"""A gradient is sent in about so many pieces, none smaller or larger than this, MiB: the first of
them travel while the rest is computed, and each costs a collective."""


class ModelParallelism:
    """A model whose gradients are those of the whole step: the plain one, of a single rank."""

    is_collective = False
    """Whether every forward pass is a collective: all ranks must take equally many."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Take a model over; every rank calls this with the same weights."""
        self.model, self.config, self.ranks = model, config, ranks
        self.wrapped: nn.Module = model

    def gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        return contextlib.nullcontext()

    def add_communication_seconds(self, meter: EpochTimers) -> None:
        """Report to a meter what sending took, after the last backward pass of a step."""

    def gradient_norm(self) -> Tensor:
        """Return the length of the whole gradient."""
        return nn.utils.get_total_norm(self.gradients())

    def clip_gradients(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient down where it is longer than ``limit``."""
        if norm.device.type == "cpu" and limit / (float(norm) + 1e-6) >= 1.0:
            return  # nothing to do; on a GPU it is quicker to do it than to ask
        nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)

    @functools.cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The weights as they are between steps; to find them takes as long as to use them."""
        return list(self.model.parameters())

    def gradients(self) -> list[Tensor]:
        """Return what there is of gradients, sharded ones as they are."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def full_state(self) -> dict[str, Tensor]:
        """Copy the whole weights and buffers, on this rank's device; every rank calls this.

        Where they are sharded, only rank 0 gets them, in its host's memory, the others nothing.
        """
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def load_full_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load whole weights and buffers, as ``full_state`` returns them; every rank calls this."""
        self.model.load_state_dict(dict(tensors))


class ReplicatedModel(ModelParallelism):
    """Every rank holds the whole model; gradients are averaged while they are computed (DDP)."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Take a model over; every rank calls this with the same weights.

        ``static_graph`` is left off: a step in several pieces fails with it (torch 2.13), and no
        time was gained without them. Nor is ``find_unused_parameters`` needed: every parameter
        that learns is in every loss, with gradient 0 where no target is known.
        """
        super().__init__(model, config, ranks)
        # The gradient of a map to one number is one row, whose rows torch counts in another way.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        ddp = DistributedDataParallel(
            model,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_mb or bucket_mb(model),
        )
        self.wrapped, self._ddp = ddp, ddp
        self._all_reduce = TimedAllReduce(ranks.device)
        ddp.register_comm_hook(ranks.world, self._all_reduce.average)
        keep_until_exit(ddp)

    def gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        return contextlib.nullcontext() if last else self._ddp.no_sync()

    def add_communication_seconds(self, meter: EpochTimers) -> None:
        """Report to a meter what sending took, after the last backward pass of a step."""
        communication, exposed = self._all_reduce.take_times()
        meter.add("communication", communication)
        meter.add("exposed", exposed)


def bucket_mb(model: nn.Module) -> float:
    """Choose the size of the pieces in which a model's gradient is sent, MiB."""
    learned = (p for p in model.parameters() if p.requires_grad)
    size = sum(p.numel() * p.element_size() for p in learned) / MIB
    return min(max(size / BUCKETS, SMALLEST_MB), LARGEST_MB)


def recompute_rounds(trunk: Trunk) -> None:
    """Make every round of a trunk keep its inputs alone until the backward pass.

    The same operations run twice on the same numbers, so that nothing changes but time and
    memory. Forces are differentiated twice: the first pass keeps what it computed again, because
    the second goes through it, and little memory is won.

    Source: Chen et al. (2016), arXiv:1604.06174.
    """
    setattr(trunk, "go", _checkpointed_round)  # noqa: B010 - a method of one net is replaced on purpose


def _checkpointed_round(
    take: Round, layer: int, scalars: Tensor, state: Any, place: RoundContext
) -> tuple[Tensor, Any]:
    if not torch.is_grad_enabled():
        return take(layer, scalars, state, place)
    outputs: tuple[Tensor, Any] = checkpoint(
        take, layer, scalars, state, place, use_reentrant=False
    )
    return outputs
