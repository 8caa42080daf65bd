"""Replay passes of a net as CUDA graphs: one launch in place of hundreds.

A step of a small net launches some 300 kernels. On an H100 these take 1.4 ms, and to launch them
one by one takes Python 10 to 20 ms. A CUDA graph is a recording of kernels with the memory that
they read and write, so a batch is first padded to a size that recurs (``data.batch_layout``) and
copied to the recording's inputs. The first recording of a pass is checked against the same kernels
launched singly on moved atoms; if it is wrong, nothing is replayed. In training a padded batch is
replayed from the first of its size on; so, up to ``MOST`` sizes, a step does not depend on those
before it, and a resumed training repeats an unbroken one (Law 5). ROCm has the same under the same
names.
"""

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hydragnn_hpo.config import TrialConfig
from hydragnn_hpo.data import Batch
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.memory import is_out_of_memory

logger = logging.getLogger(__name__)

Outputs = dict[str, Tensor]
"""Results of a pass by name."""

Sums = Callable[[], Sequence[Tensor]]
"""Lists the tensors that a pass adds to."""

Pass = Callable[[Batch, Tensor], Outputs]
"""Work on a batch and some numbers, [k], both on the device, that waits for nothing."""

MOST = 24
"""Sizes of batches that a pass is recorded for; others run kernel by kernel."""

SAME = {torch.float64: 1e-9}
"""Tolerance of the check by type, relative to the norm; 1e-3 for others, since kernels may add in
another order."""

WARM_UPS = 1
"""Passes before a recording, in which kernels are compiled and libraries take their memory."""


def can_replay(config: TrialConfig, ranks: Ranks, *, fixed_shapes: bool) -> bool:
    """Check whether the steps of a training can be replayed.

    Args:
        config: the trial.
        ranks: this rank among the others; if weights are sharded, passes send them.
        fixed_shapes: ``MultiHeadGNN.fixed_shapes``.
    """
    return (
        config.training.cuda_graphs
        and fixed_shapes
        and ranks.device.type == "cuda"
        and not config.parallel.is_sharded(ranks.world)
        and not config.parallel.recompute
    )


@dataclass
class Recording:
    """Kernels of a pass for one size of batches, with their memory."""

    batch: Batch
    """Input of the kernels."""
    numbers: Tensor
    """Their other input."""
    run: Callable[[], None]
    """Launches all kernels."""
    outputs: Outputs
    """What they write; the next replay overwrites it."""

    def copy_inputs(self, batch: Batch, numbers: Tensor) -> None:
        """Copy a batch of the same size, and numbers, to the inputs; copies may still be going on.

        Copies from page-locked memory do not wait, and kernels wait for copies.
        """
        for to, source in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            to.copy_(source, non_blocking=True)
        self.numbers.copy_(numbers, non_blocking=True)


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch, in an order that follows from their names."""
    tensors = []
    for _, value in sorted(vars(batch).items()):
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            tensors += [tensor for _, tensor in sorted(value.items())]
    return tensors


def size_of(batch: Batch) -> tuple[object, ...]:
    """Describe what batches have to share to be replayed by one recording.

    Returns:
        Number of graphs, and the shapes of all tensors.
    """
    return batch.num_graphs, *(tensor.shape for tensor in tensors_of(batch))


class Replays:
    """A pass that is recorded once for each size of padded batches, and then replayed."""

    def __init__(
        self,
        work: Pass,
        device: torch.device,
        *,
        unchanged: Callable[[], AbstractContextManager[Sums | None]] = nullcontext,
        singly: int = 0,
    ) -> None:
        """Store the pass; nothing is recorded yet.

        Args:
            work: the pass.
            device: a CUDA or ROCm device.
            unchanged: context in which recordings are made, which restores the tensors that the
                pass adds to; it gives a function that lists them.
            singly: batches of a size that run kernel by kernel before it is recorded, which takes
                as long as some passes.
        """
        self.work, self.device, self.unchanged, self.singly = work, device, unchanged, singly
        self.seen: Counter[tuple[object, ...]] = Counter()
        """Batches so far of each size."""
        self.recordings: dict[tuple[object, ...], Recording] = {}
        self.problem = ""
        """Why passes run kernel by kernel; empty if they are replayed."""
        self._lock = threading.Lock()

    def run(self, batch: Batch, numbers: Tensor | None = None) -> Outputs:
        """Run the pass on a batch, in host memory or on the device.

        Args:
            batch: padded, else it runs kernel by kernel.
            numbers: other inputs, [k]; none if left out.

        Returns:
            New tensors.

        Raises:
            RuntimeError: memory ran out, or the pass itself fails.
        """
        numbers = torch.zeros(0) if numbers is None else numbers
        numbers = numbers.pin_memory() if self.device.type == "cuda" else numbers
        with self._lock:  # of two threads one would overwrite the other's inputs
            recording = self._recording_of(batch, numbers)
            if recording is not None:
                recording.copy_inputs(batch, numbers)
                recording.run()
                return {name: values.clone() for name, values in recording.outputs.items()}
        there = batch.to(self.device, non_blocking=True)
        return self.work(there, numbers.to(self.device, non_blocking=True))

    def _recording_of(self, batch: Batch, numbers: Tensor) -> Recording | None:
        """Return the recording for a batch, which may have to be made; None if there is none."""
        if batch.filler is None or self.problem:
            return None
        size = size_of(batch)
        self.seen[size] += 1
        is_due = self.seen[size] > self.singly and len(self.recordings) < MOST
        if size not in self.recordings and is_due:
            try:
                self.recordings[size] = self._record(batch, numbers)
            except Exception as error:  # torch and Triton raise errors of every class
                self.recordings.clear()
                # an error inside a recording can follow from another one, of memory
                if any(map(is_out_of_memory, filter(None, (error, error.__context__)))):
                    raise
                self.problem = str(error).partition("\n")[0] or type(error).__name__
                logger.warning("no CUDA graphs, kernels are launched singly: %s", self.problem)
        return self.recordings.get(size)

    def _record(self, batch: Batch, numbers: Tensor) -> Recording:
        """Run the pass to warm up, record it, and check the first recording."""
        own = replace(batch).to(self.device)._map_tensors(torch.clone)
        mine = numbers.to(self.device).clone()

        def work() -> Outputs:
            return self.work(replace(own), mine)

        with self.unchanged() as sums:
            run, outputs = record(work, self.device)
            if self.recordings:  # others are of the same code
                return Recording(own, mine, run, outputs)
            for tensor in (own.positions, own.edge_shift, mine):
                tensor.mul_(0.99)
            expected = _results(work, sums)
            _check_same(_results(lambda: (run(), outputs)[1], sums), expected)
        return Recording(own, mine, run, outputs)


def _results(work: Callable[[], Outputs], sums: Sums | None) -> list[Tensor]:
    """Copy what some work returns, and, as one vector, what it adds to tensors."""
    tensors = sums() if sums else []
    for tensor in tensors:
        tensor.zero_()
    outputs = [values.clone() for values in work().values()]
    return [*outputs, torch.cat([tensor.flatten() for tensor in tensors])] if tensors else outputs


def _check_same(replayed: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise ``RuntimeError`` if a recording has other results than its kernels."""
    for values, exact in zip(replayed, expected, strict=True):
        # What has diverged is the same on either side.
        off = (values.double().nan_to_num(0, 0, 0) - exact.double().nan_to_num(0, 0, 0)).norm()
        size = exact.double().nan_to_num(0, 0, 0).norm()
        if off > SAME.get(exact.dtype, 1e-3) * size:
            raise RuntimeError(f"a recording is {float(off / size):.1e} off its kernels, relative")


@functools.cache
def _pool_of(device: torch.device) -> Any:
    """Return the memory that all recordings on a device share: only one of them runs at a time."""
    return torch.cuda.graph_pool_handle()


def record(work: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], None], Outputs]:
    """Record the kernels that some work launches on a device.

    Args:
        work: is called some times; at the last time its kernels are recorded and do not run.
        device: a CUDA or ROCm device.

    Returns:
        A function that launches the kernels, and the tensors that they write.

    Raises:
        RuntimeError: the work waits for the device, or memory ran out.
    """
    with torch.cuda.device(device):
        here = torch.cuda.current_stream()
        other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        other.wait_stream(here)
        with torch.cuda.stream(other):
            for _ in range(WARM_UPS):
                work()
        here.wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        pool = _pool_of(device)
        # Other threads, which make batches in page-locked memory, are not held up.
        with torch.cuda.graph(graph, pool=pool, stream=other, capture_error_mode="thread_local"):
            outputs = work()
    return graph.replay, outputs
