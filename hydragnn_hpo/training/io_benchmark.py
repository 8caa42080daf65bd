"""Measure the bottleneck of a training: reading, feeding or computing (``trial --io``).

Mode ``real`` trains as usual; ``cached`` feeds prepared batches from host memory; ``synthetic``
repeats one batch that stays on the device. The time difference of two modes is the cost of the part
that only one of them includes. Nothing is written, and the weights do not change.

Source: the advice of the OLCF's user guides to train on cached and on synthetic data before a
file system is blamed, docs.olcf.ornl.gov.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import numpy as np
import torch

from hydragnn_hpo.data import Batch, Prefetcher, close
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.trainer import Trainer

IoMode = Literal["real", "cached", "synthetic"]
"""Parts of a step that are measured, see the module's docstring."""

IO_MODES: tuple[IoMode, ...] = get_args(IoMode)
"""All modes; each leaves out more than the previous one."""

SECONDS = 12.0
"""Approximate limit of the time in which each mode is measured, in seconds."""

ROUNDS = 3
"""Rounds of measuring all modes in turn, so that disturbances of the host affect all of them."""

FEWEST = 30
"""Minimum steps of a mode in a round, even if an epoch has fewer, unless ``SECONDS`` is reached."""

WARMUP = 3
"""Steps before the first measurement."""

CACHED = 16
"""Steps whose batches ``cached`` keeps in host memory."""

Pieces = list[Batch]
"""Micro-batches of one step."""


class IoBenchmarkTable(TypedDict):
    """An ``IoBenchmark`` in JSON: the output of ``trial --io --json``."""

    ranks: int
    steps: int
    seconds: dict[str, float]
    graphs_per_second: dict[str, float]
    parts: dict[str, float]
    bottleneck: str
    sentence: str


@dataclass(frozen=True)
class IoBenchmark:
    """Measurements of all modes; seconds are the mean of one step over the measured steps."""

    ranks: int
    """Number of ranks."""
    steps: int
    """Measured steps of each mode."""
    seconds: dict[str, float]
    """Seconds of a whole step, by mode."""
    graphs_per_second: dict[str, float]
    """Graphs per second over all ranks, by mode."""
    parts: dict[str, float]
    """Seconds of a step by part, for the parts that the measured modes separate."""

    @property
    def bottleneck(self) -> str:
        """Name of the part that takes longest."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def sentence(self) -> str:
        """Return the bottleneck and what to do about it."""
        total = sum(self.parts.values()) or 1.0
        share = self.parts[self.bottleneck] / total
        advice = _ADVICE[self.bottleneck]
        if len(self.parts) == 1:
            return "Only computing was measured; --io real shows what it waits for."
        return f"The bottleneck is {self.bottleneck}: {share:.0%} of a step. {advice}"

    def to_plain(self) -> IoBenchmarkTable:
        """Return plain data for JSON."""
        return {
            "ranks": self.ranks,
            "steps": self.steps,
            "seconds": self.seconds,
            "graphs_per_second": self.graphs_per_second,
            "parts": self.parts,
            "bottleneck": self.bottleneck,
            "sentence": self.sentence,
        }


_ADVICE = {
    "reading and batching": "Stage the store on a faster disk, or give a rank a core more.",
    "feeding": "Steps are small for the way to the device: take larger ones.",
    "computing": "Faster reading or feeding would change little.",
}


def measure_io(trial: TrialDir, mode: IoMode) -> IoBenchmark | None:
    """Measure a trial in a mode and in all modes that leave out more; every rank calls this.

    Returns:
        The measurements; None on all ranks except 0.

    Raises:
        ConfigError: the trial's configuration is wrong or does not fit its data.
    """
    from hydragnn_hpo.training.trial import load_trial

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    ranks = join_ranks()
    config, graphs = load_trial(trial)
    measured = measure_trainer(Trainer(config, graphs, ranks), IO_MODES[IO_MODES.index(mode) :])
    ranks.barrier()
    close(graphs)
    return measured if ranks.first else None


def measure_trainer(trainer: Trainer, modes: tuple[IoMode, ...]) -> IoBenchmark:
    """Measure a trainer at epoch 0 in some modes; every rank calls this."""
    runs = _StepRunner(trainer)
    runs.real(runs.steps[:1])
    pace = runs.timed(runs.real, runs.steps[:WARMUP]) / len(runs.steps[:WARMUP])
    count = max(min(int(SECONDS / ROUNDS / pace), max(len(runs.steps) // ROUNDS, FEWEST)), 1)
    endless = itertools.cycle(runs.steps)
    taken = dict.fromkeys(modes, 0.0)
    sizes = dict.fromkeys(modes, 0)
    for _ in range(ROUNDS):
        steps = list(itertools.islice(endless, count))
        for mode in modes:
            run, chosen = runs.of(mode, steps)
            taken[mode] += runs.timed(run, chosen)
            sizes[mode] += sum(map(len, chosen))
    seconds: dict[str, float] = {mode: taken[mode] / (ROUNDS * count) for mode in modes}
    return IoBenchmark(
        ranks=trainer.ranks.world,
        steps=ROUNDS * count,
        seconds=seconds,
        graphs_per_second={mode: sizes[mode] / taken[mode] for mode in modes},
        parts=split_seconds(seconds),
    )


def split_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each part: the differences between modes, at least 0.

    Args:
        seconds: of a step, by mode.

    Returns:
        Seconds of a step by part, for the parts that these modes separate.
    """
    parts = {"computing": seconds["synthetic"]}
    if "cached" in seconds:
        parts["feeding"] = max(seconds["cached"] - seconds["synthetic"], 0.0)
    if "real" in seconds:
        parts["reading and batching"] = max(seconds["real"] - seconds["cached"], 0.0)
    return parts


class _StepRunner:
    """Takes steps of the first epoch in one of the modes, with a learning rate of 0."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.device = trainer.ranks.device
        self.steps = trainer.order.steps(0)
        costs = [float(trainer.feed.costs[step].sum()) for step in self.steps]
        self.typical = self.steps[int(np.argsort(costs)[len(costs) // 2])]
        self._cached: list[tuple[np.ndarray, Pieces]] = []
        self._on_device: Pieces = []
        trainer.model.train()

    def of(
        self, mode: IoMode, steps: list[np.ndarray]
    ) -> tuple[Callable[[list[np.ndarray]], None], list[np.ndarray]]:
        """Return the function of a mode, and the graphs of its steps.

        Args:
            mode: to measure.
            steps: graphs of the steps that a training would take.

        Returns:
            A function that takes steps, and the graphs to call it with in place of ``steps``.
        """
        if mode == "real":
            return self.real, steps
        if mode == "cached":
            made = self.trainer.micro.make_batches
            self._cached = self._cached or [(step, made(step)) for step in self.steps[:CACHED]]
            repeated = itertools.islice(itertools.cycle(self._cached), len(steps))
            return self.cached, [step for step, _ in repeated]
        if not self._on_device:
            made = self.trainer.micro.make_batches
            self._on_device = [piece.to(self.device) for piece in made(self.typical)]
        return self.synthetic, [self.typical] * len(steps)

    def real(self, steps: list[np.ndarray]) -> None:
        """Read and make batches as a training does."""
        trainer = self.trainer
        with Prefetcher(trainer.micro.make_ahead, steps, trainer.prefetch_depth()) as made:
            self._take(zip(steps, made, strict=True))

    def cached(self, steps: list[np.ndarray]) -> None:
        """Feed batches that are in host memory."""
        self._take(itertools.islice(itertools.cycle(self._cached), len(steps)))

    def synthetic(self, steps: list[np.ndarray]) -> None:
        """Compute one batch that is on the device."""
        self._take((step, self._on_device) for step in steps)

    def _take(self, steps: Iterable[tuple[np.ndarray, Pieces]]) -> None:
        trainer = self.trainer
        for indices, pieces in steps:
            trainer.micro.take_step(
                indices,
                pieces,
                trainer.stepper,
                lambda made, graphs=indices: trainer.stepper.take_step(  # type: ignore[misc]
                    graphs, made, rate=0.0, epoch=1, step=0
                ),
            )

    def timed(self, run: Callable[[list[np.ndarray]], None], steps: list[np.ndarray]) -> float:
        """Return the seconds that the slowest rank needs for some steps."""
        self._wait()
        begin = time.perf_counter()
        run(steps)
        self._wait()
        passed = torch.tensor(time.perf_counter() - begin, device=self.device)
        return float(self.trainer.ranks.max(passed))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
