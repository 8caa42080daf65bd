"""Which part of a training is the bottleneck: reading, feeding or computing (``trial --io``).

``real`` trains as ever; ``cached`` feeds batches that were made before, from the host's memory;
``synthetic`` takes one step's batch again and again, which stays on the device. What each leaves
out costs the difference. Nothing is written, and the weights stay as they are.

Source: the advice of the OLCF's user guides to train on cached and on synthetic data before a
file system is blamed, docs.olcf.ornl.gov.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from hydragnn_hpo.data import Batch, Prefetcher, close
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.trainer import Trainer

Way = Literal["real", "cached", "synthetic"]
WAYS: tuple[Way, ...] = get_args(Way)

SECONDS = 12.0
"""About how long each way is measured at most."""

ROUNDS = 3
"""Turns in which the ways are measured, so that all of them meet the same disturbances."""

FEWEST = 30
"""Steps of a turn, also where an epoch has fewer, as far as the time allows."""

WARMUP = 3
"""Steps that are taken before anything is measured."""

CACHED = 16
"""Steps whose batches are kept in the host's memory."""

Pieces = list[Batch]


@dataclass(frozen=True)
class IoBenchmark:
    """What was measured; seconds are those of one step, means over the measured steps."""

    ranks: int
    steps: int
    """Steps of each way."""
    seconds: dict[str, float]
    """Of a whole step, by way."""
    graphs_per_second: dict[str, float]
    """Of all ranks, by way."""
    parts: dict[str, float]
    """Seconds of a step by part, as far as the ways tell them apart."""

    @property
    def bottleneck(self) -> str:
        """Name the part that takes longest."""
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

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**asdict(self), "bottleneck": self.bottleneck, "sentence": self.sentence}


_ADVICE = {
    "reading and batching": "Stage the store on a faster disk, or give a rank a core more.",
    "feeding": "Steps are small for the way to the device: take larger ones.",
    "computing": "Faster reading or feeding would change little.",
}


def measure_io(trial: TrialDir, way: Way) -> IoBenchmark | None:
    """Measure a trial the given way and those that leave out more; every rank calls this.

    Returns:
        What was measured; None but on rank 0.

    Raises:
        ConfigError: the trial cannot be trained as it is written.
    """
    from hydragnn_hpo.training.trial import load_trial

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    ranks = join_ranks()
    config, graphs = load_trial(trial)
    measured = measure_trainer(Trainer(config, graphs, ranks), WAYS[WAYS.index(way) :])
    ranks.barrier()
    close(graphs)
    return measured if ranks.first else None


def measure_trainer(trainer: Trainer, ways: tuple[Way, ...]) -> IoBenchmark:
    """Measure a trainer that stands at its beginning."""
    runs = _StepRunner(trainer)
    runs.real(runs.steps[:1])
    pace = runs.timed(runs.real, runs.steps[:WARMUP]) / len(runs.steps[:WARMUP])
    count = max(min(int(SECONDS / ROUNDS / pace), max(len(runs.steps) // ROUNDS, FEWEST)), 1)
    endless = itertools.cycle(runs.steps)
    taken, sizes = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for _ in range(ROUNDS):
        steps = list(itertools.islice(endless, count))
        for way in ways:
            run, chosen = runs.of(way, steps)
            taken[way] += runs.timed(run, chosen)
            sizes[way] += sum(map(len, chosen))
    seconds: dict[str, float] = {way: taken[way] / (ROUNDS * count) for way in ways}
    return IoBenchmark(
        ranks=trainer.ranks.world,
        steps=ROUNDS * count,
        seconds=seconds,
        graphs_per_second={way: sizes[way] / taken[way] for way in ways},
        parts=split_seconds(seconds),
    )


def split_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each part: what a way leaves out costs the difference, at least 0."""
    parts = {"computing": seconds["synthetic"]}
    if "cached" in seconds:
        parts["feeding"] = max(seconds["cached"] - seconds["synthetic"], 0.0)
    if "real" in seconds:
        parts["reading and batching"] = max(seconds["real"] - seconds["cached"], 0.0)
    return parts


class _StepRunner:
    """Takes steps of the first epoch in one of the ways, at a learning rate of 0."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.device = trainer, trainer.ranks.device
        self.steps = trainer.order.steps(0)
        costs = [float(trainer.feed.costs[step].sum()) for step in self.steps]
        self.typical = self.steps[int(np.argsort(costs)[len(costs) // 2])]
        self._kept: list[tuple[np.ndarray, Pieces]] = []
        self._stays: Pieces = []
        trainer.model.train()

    def of(
        self, way: Way, steps: list[np.ndarray]
    ) -> tuple[Callable[[list[np.ndarray]], None], list[np.ndarray]]:
        """Return what runs a way, and the graphs of its steps.

        Args:
            way: what is left out.
            steps: graphs of the steps that a training would take.

        Returns:
            A function that takes steps, and the steps to give it in place of ``steps``.
        """
        if way == "real":
            return self.real, steps
        if way == "cached":
            made = self.trainer.micro.make_batches
            self._kept = self._kept or [(step, made(step)) for step in self.steps[:CACHED]]
            repeated = itertools.islice(itertools.cycle(self._kept), len(steps))
            return self.cached, [step for step, _ in repeated]
        if not self._stays:
            made = self.trainer.micro.make_batches
            self._stays = [piece.to(self.device) for piece in made(self.typical)]
        return self.synthetic, [self.typical] * len(steps)

    def real(self, steps: list[np.ndarray]) -> None:
        """Read and make batches as a training does."""
        trainer = self.trainer
        with Prefetcher(trainer.micro.make_ahead, steps, trainer.prefetch_depth()) as made:
            self._take(zip(steps, made, strict=True))

    def cached(self, steps: list[np.ndarray]) -> None:
        """Feed batches that are in the host's memory."""
        self._take(itertools.islice(itertools.cycle(self._kept), len(steps)))

    def synthetic(self, steps: list[np.ndarray]) -> None:
        """Compute alone."""
        self._take((step, self._stays) for step in steps)

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
