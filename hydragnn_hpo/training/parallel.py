"""One model over all ranks of a trial: replicas (DDP), overlapped all-reduce, recomputed rounds.

The first functions handle tensors that may be sharded: a ``DTensor``, of which each rank holds a
part. That class is imported only when a tensor is sharded: the import takes half a second, and most
trials do not shard.
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
from hydragnn_hpo.model import MultiHeadGNN, Trunk
from hydragnn_hpo.model.gnn import Round, RoundContext
from hydragnn_hpo.training.ddp import Ranks, keep_until_exit
from hydragnn_hpo.training.timers import EpochTimers


def is_dtensor(tensor: Tensor) -> bool:
    """Check whether a tensor is a ``DTensor``, of which each rank holds a part."""
    return hasattr(tensor, "placements")


def has_dtensors(tensors: Iterable[Tensor]) -> bool:
    """Check whether any tensor is a ``DTensor``."""
    return any(map(is_dtensor, tensors))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory: in-place changes reach both."""
    part: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return part


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each gradient, of the parameters that have one."""
    return [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]


def as_dtensor(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with the layout of ``like``, of which ``tensor`` is this rank's part."""
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
    """Return the whole of a tensor; if it is a ``DTensor``, every rank calls this."""
    if not is_dtensor(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def distribute_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that all ranks hold whole in the layout of ``like``; sends nothing."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    held = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return held.redistribute(placements=like.placements)


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy into ``target`` a tensor that all ranks hold whole, or one of the same layout."""
    if is_dtensor(target) and not is_dtensor(source):
        source = distribute_like(source.to(target), target)
    target.copy_(source)


Mark = float | torch.cuda.Event
"""A time stamp: seconds on a CPU, an event on a GPU."""

Span = tuple[float, float]
"""Start and end, or two durations, in seconds."""


class TimedAllReduce:
    """Averages gradients over ranks, as DDP does by itself, and measures how long that takes.

    DDP sends the last bucket when the last gradient has been computed; from then on communication
    no longer overlaps with computation. On a GPU an event is read only after it has passed, often
    some steps later, so that no step waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        """Start without measurements."""
        self._on_device = device.type == "cuda"
        self._step: list[list[Mark]] = []
        self._waiting: deque[list[list[Mark]]] = deque()

    def average(self, world: int, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over ``world`` ranks, in place; a hook of DDP."""
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

    def average_whole(self, world: int, gradients: Sequence[Tensor]) -> None:
        """Average gradients over ``world`` ranks, in place and all at once; every rank calls it."""
        whole = torch.cat([gradient.flatten() for gradient in gradients]).div_(world)
        marks = [self._mark()]
        self._step.append(marks)
        dist.all_reduce(whole)
        marks.append(self._mark())
        parts = torch.split(whole, [gradient.numel() for gradient in gradients])
        shaped = [part.view_as(each) for part, each in zip(parts, gradients, strict=True)]
        torch._foreach_copy_(list(gradients), shaped)

    def take_times(self) -> Span:
        """Return the times since the last call; call this after each step's backward pass.

        Returns:
            Seconds in which a bucket was being sent, and of these the seconds after the last
            gradient had been computed; sums over the steps whose events have all passed.
        """
        self._waiting.append(self._step)
        self._step = []
        sent = 0.0
        exposed = 0.0
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
    """Measure how long buckets were being sent, and how much of that did not overlap computation.

    Args:
        pieces: times when each bucket was sent and when it had been averaged, in seconds.

    Returns:
        Seconds in which at least one bucket was being sent, and the part of them after the last
        bucket was sent.
    """
    total = 0.0
    reached = float("-inf")
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
    """Return the seconds since a time stamp of the same kind."""
    if isinstance(mark, float) and isinstance(origin, float):
        return mark - origin
    assert isinstance(mark, torch.cuda.Event)
    assert isinstance(origin, torch.cuda.Event)
    return float(origin.elapsed_time(mark)) / 1e3


MIB = 2**20

BUCKETS, SMALLEST_MB, LARGEST_MB = 4, 1.0, 25.0
"""Number of buckets in which a gradient is sent, and limits of their size in MiB. The first buckets
are sent while later gradients are computed, and each bucket costs a collective."""


class ModelParallelism:
    """A model whose gradients are those of the whole step; this class is for a single rank."""

    is_collective = False
    """Whether a forward pass is a collective; all ranks must then run the same number of them."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Wrap a model; every rank calls this with the same weights.

        Args:
            model: on the device of this rank.
            config: how weights are shared.
            ranks: this rank among the others.
        """
        self.model, self.config, self.ranks = model, config, ranks
        self.wrapped: nn.Module = model
        self._all_reduce = TimedAllReduce(ranks.device)

    def gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: gradients are sent in the ``last`` one of a step."""
        return contextlib.nullcontext()

    def average_gradients(self) -> None:
        """Average gradients that no hook has sent over the ranks; every rank calls this."""

    def add_communication_seconds(self, meter: EpochTimers) -> None:
        """Add the seconds of sending to a meter, after the last backward pass of a step."""
        communication, exposed = self._all_reduce.take_times()
        meter.add("communication", communication)
        meter.add("exposed", exposed)

    def gradient_norm(self) -> Tensor:
        """Return the 2-norm of the whole gradient, a scalar; every rank calls this."""
        return nn.utils.get_total_norm(self.gradients())

    def clip_gradients(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient in place so that its ``norm`` is at most ``limit``."""
        if norm.device.type == "cpu" and limit / (float(norm) + 1e-6) >= 1.0:
            return  # nothing to do; on a GPU this test would make it wait
        nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)

    @functools.cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The weights; cached, as listing them takes as long as an update."""
        return list(self.model.parameters())

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the weights that have one; sharded ones stay so."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def full_state(self) -> dict[str, Tensor]:
        """Copy all weights and buffers; every rank calls this.

        Returns:
            Whole tensors by name, on this rank's device. If weights are sharded, in host memory on
            rank 0, and an empty dict on other ranks.
        """
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def load_full_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load whole weights and buffers, as ``full_state`` returns them; every rank calls this."""
        self.model.load_state_dict(dict(tensors))


class AveragedModel(ModelParallelism):
    """Every rank holds the whole model; gradients are averaged at once after a step's last pass.

    Passes are those of the model alone, so they can be recorded as CUDA graphs: hooks of DDP belong
    to the stream on which it was built, and nothing that waits for another stream can be recorded.
    """

    def average_gradients(self) -> None:
        """Average the gradients of a step over the ranks; every rank calls this."""
        self._all_reduce.average_whole(self.ranks.world, self.gradients())


class ReplicatedModel(ModelParallelism):
    """Every rank holds the whole model; gradients are averaged while they are computed (DDP)."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Wrap a model; every rank calls this with the same weights.

        ``static_graph`` is off: with it a step of several micro-batches fails (torch 2.13), and a
        step of one is no faster. ``find_unused_parameters`` is not needed: every trainable
        parameter takes part in every loss, with gradient 0 where no target is known.

        Args:
            model: on the device of this rank.
            config: how weights are shared.
            ranks: this rank among the others.
        """
        super().__init__(model, config, ranks)
        # DDP warns about gradients of a single row, whose stride has no effect.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        ddp = DistributedDataParallel(
            model,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_mb or bucket_mb(model),
        )
        self.wrapped, self._ddp = ddp, ddp
        ddp.register_comm_hook(ranks.world, self._all_reduce.average)
        keep_until_exit(ddp)

    def gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: gradients are sent in the ``last`` one of a step."""
        return contextlib.nullcontext() if last else self._ddp.no_sync()


def bucket_mb(model: nn.Module) -> float:
    """Return the size of the buckets in which a model's gradient is sent, in MiB."""
    learned = (p for p in model.parameters() if p.requires_grad)
    size = sum(p.numel() * p.element_size() for p in learned) / MIB
    return min(max(size / BUCKETS, SMALLEST_MB), LARGEST_MB)


def recompute_rounds(trunk: Trunk) -> None:
    """Make every round of a trunk keep only its inputs until the backward pass.

    The same operations run twice on the same numbers, so only time and memory change. Models with
    forces save little memory: the first of their two backward passes keeps what it recomputed for
    the second.

    Source: Chen et al. (2016), arXiv:1604.06174.
    """
    setattr(trunk, "apply_round", _checkpointed_round)  # noqa: B010 - a method of one net is replaced on purpose


def _checkpointed_round(
    run: Round, layer: int, scalars: Tensor, state: Any, context: RoundContext
) -> tuple[Tensor, Any]:
    if not torch.is_grad_enabled():
        return run(layer, scalars, state, context)
    outputs: tuple[Tensor, Any] = checkpoint(
        run, layer, scalars, state, context, use_reentrant=False
    )
    return outputs
