"""How much of sending gradients hides behind computing them."""

import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]

Mark = float | torch.cuda.Event
"""A moment: seconds on a CPU, an event on a GPU."""

Span = tuple[float, float]
"""Beginning and end, in seconds."""


class Overheard:
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
        told: torch.futures.Future[Tensor] = work.get_future().then(done)
        return told

    def take(self) -> Span:
        """Call after the backward pass of a step.

        Returns:
            Seconds in which something was being sent, and of these the seconds after the last
            gradient had been computed; of the steps whose times are known by now.
        """
        self._waiting.append(self._step)
        self._step, sent, exposed = [], 0.0, 0.0
        while self._waiting and all(_has_passed(marks[-1]) for marks in self._waiting[0]):
            step = self._waiting.popleft()
            total, after = sending([_span(marks, step[0][0]) for marks in step])
            sent, exposed = sent + total, exposed + after
        return sent, exposed

    def _mark(self) -> Mark:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def sending(pieces: Sequence[Span]) -> Span:
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
    """Give the seconds since a moment of the same kind."""
    if isinstance(mark, float) and isinstance(origin, float):
        return mark - origin
    assert isinstance(mark, torch.cuda.Event)
    assert isinstance(origin, torch.cuda.Event)
    return float(origin.elapsed_time(mark)) / 1e3
