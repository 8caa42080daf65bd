"""Profile some epochs of some ranks with torch's profiler: ``trial --profile``."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import FOLDER_MODE, write_bytes
from hydragnn_hpo.training.ddp import Ranks

logger = logging.getLogger(__name__)

STEPS = 100
"""Maximum number of recorded steps per epoch: the trace of one step is some megabytes."""

COSTLIEST = 10
"""Number of operations in the table."""


@dataclass(frozen=True)
class ProfilePlan:
    """Ranks and epochs to profile."""

    ranks: tuple[int, ...] = (0,)
    """From 0."""
    epochs: tuple[int, ...] = ()
    """From 1. If empty, the second epoch of an attempt (the first warms up), or its only one."""

    @classmethod
    def of(cls, ranks: str | None, epochs: str | None, *, world: int, last: int) -> "ProfilePlan":
        """Parse the command's options, numbers between commas.

        Args:
            ranks: from 0; None for rank 0.
            epochs: from 1; None for the default of ``epochs``.
            world: number of ranks of the trial.
            last: last epoch of the trial.

        Raises:
            ConfigError: a word is not a number, or the trial has no such rank or epoch.
        """
        plan = cls(_numbers("ranks", ranks or "0"), _numbers("epochs", epochs or ""))
        bounds = (("ranks", plan.ranks, 0, world - 1), ("epochs", plan.epochs, 1, last))
        for option, values, first, end in bounds:
            for value in values:
                if not first <= value <= end:
                    raise ConfigError(
                        f"--profile-{option}: {value} is not among the {option} {first} to {end} "
                        "of this trial: choose from these."
                    )
        return plan

    def epochs_to_profile(self, reached: int, last: int) -> tuple[int, ...]:
        """Return the epochs to profile, from 1.

        Args:
            reached: epochs trained by earlier attempts.
            last: last epoch of this attempt.

        Returns:
            ``epochs``, or the default.
        """
        return self.epochs or (min(reached + 2, last),)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError as error:
        raise ConfigError(
            f"--profile-{option}: '{text}' is no list of numbers: write it as 0,3."
        ) from error


class EpochProfiler:
    """Profiles some epochs of this rank, and writes one Chrome trace for each."""

    def __init__(
        self,
        epochs: Sequence[int],
        ranks: Ranks,
        folder: Path,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Store the settings; profiling starts in ``epoch``.

        Args:
            epochs: epochs to profile, from 1.
            ranks: this rank among the others.
            folder: folder of the traces; created with the first trace.
            optimizer: optimizer whose ``step`` marks the end of a training step.
        """
        self.epochs, self.ranks, self.folder, self.optimizer = epochs, ranks, folder, optimizer

    @contextlib.contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Profile the steps in this context if epoch ``number`` is among ``epochs``."""
        if number not in self.epochs:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if self.ranks.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        taken = 0
        profiler = profile(activities=activities)

        def after_step(*_: Any) -> None:
            nonlocal taken
            taken += 1
            if taken == STEPS:
                profiler.stop()

        hook = self.optimizer.register_step_post_hook(after_step)
        profiler.start()
        try:
            yield
        finally:
            hook.remove()
            if taken < STEPS:
                profiler.stop()
        self._write(profiler, number, min(taken, STEPS))

    def _write(self, profiler: profile, epoch: int, steps: int) -> None:
        rank = self.ranks.rank
        self.folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        path = self.folder / f"rank-{rank}-epoch-{epoch}.json"
        with tempfile.TemporaryDirectory(prefix=".trace-", dir=self.folder) as made:
            raw = Path(made) / path.name
            profiler.export_chrome_trace(str(raw))
            write_bytes(path, raw.read_bytes())
        table = costliest_operations(
            profiler.key_averages(), steps, on_gpu=self.ranks.device.type == "cuda"
        )
        logger.log(
            logging.WARNING if rank else logging.INFO,
            "profile of rank %d, epoch %d (%d steps): %s\n%s",
            rank,
            epoch,
            steps,
            path,
            table,
        )


def costliest_operations(averages: Sequence[Any], steps: int, *, on_gpu: bool) -> str:
    """Return a table of the operations that took longest by themselves, without their callees.

    Args:
        averages: torch's sums by operation, with times in microseconds.
        steps: number of steps that they cover.
        on_gpu: whether to count the time of the GPU, else that of the CPU.

    Returns:
        Text of several lines, times in milliseconds.
    """
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    total = sum(getattr(row, own) for row in averages) or 1.0
    rows = sorted(averages, key=lambda row: -getattr(row, own))[:COSTLIEST]
    lines = [f"{'operation':<48} {'ms/step':>9} {'share':>7} {'calls/step':>11}"]
    for row in rows:
        time = getattr(row, own)
        lines.append(
            f"{row.key[:48]:<48} {time / 1e3 / max(steps, 1):>9.3f} {time / total:>7.1%} "
            f"{row.count / max(steps, 1):>11.1f}"
        )
    return "\n".join(lines)
