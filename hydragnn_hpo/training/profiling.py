"""Look into chosen epochs of chosen ranks with torch's profiler: ``trial --profile``."""

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
from hydragnn_hpo.files import write_bytes
from hydragnn_hpo.training.ddp import Ranks

logger = logging.getLogger(__name__)

STEPS = 100
"""Steps of an epoch that are recorded at most: a step is some megabytes of trace."""

COSTLIEST = 10
"""Operations in the table."""


@dataclass(frozen=True)
class ProfilePlan:
    """What is to be profiled."""

    ranks: tuple[int, ...] = (0,)
    epochs: tuple[int, ...] = ()
    """From 1; the second, where the first has warmed up, or the only one if left out."""

    def checked(self, world: int, epochs: int) -> "ProfilePlan":
        """Fill in and check against a trial.

        Args:
            world: ranks of the trial.
            epochs: its epochs.

        Raises:
            ConfigError: it has no such rank or epoch.
        """
        chosen = self.epochs or (min(2, epochs),)
        for option, values, first, last in (
            ("ranks", self.ranks, 0, world - 1),
            ("epochs", chosen, 1, epochs),
        ):
            for value in values:
                if not first <= value <= last:
                    raise ConfigError(
                        f"--profile-{option}: {value} is not among the {option} {first} to {last} "
                        "of this trial: choose from these."
                    )
        return ProfilePlan(self.ranks, chosen)


class Profile:
    """Writes one Chrome trace per profiled epoch of this rank."""

    def __init__(
        self, plan: ProfilePlan, ranks: Ranks, folder: Path, optimizer: torch.optim.Optimizer
    ) -> None:
        """Prepare it.

        Args:
            plan: checked.
            ranks: this rank among the others.
            folder: made when something is written into it.
            optimizer: each call of its ``step`` is the end of a step.
        """
        self.plan, self.ranks, self.folder, self.optimizer = plan, ranks, folder, optimizer

    @contextlib.contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Profile the steps inside if it is this rank's turn in this epoch."""
        if self.ranks.rank not in self.plan.ranks or number not in self.plan.epochs:
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
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"rank-{rank}-epoch-{epoch}.json"
        with tempfile.TemporaryDirectory(prefix=".trace-", dir=self.folder) as made:
            raw = Path(made) / path.name
            profiler.export_chrome_trace(str(raw))
            write_bytes(path, raw.read_bytes())
        table = costliest(profiler.key_averages(), steps, on_gpu=self.ranks.device.type == "cuda")
        logger.log(
            logging.WARNING if rank else logging.INFO,
            "profile of rank %d, epoch %d (%d steps): %s\n%s",
            rank,
            epoch,
            steps,
            path,
            table,
        )


def costliest(averages: Sequence[Any], steps: int, *, on_gpu: bool) -> str:
    """Lay out the operations that took longest by themselves, without what they call.

    Args:
        averages: torch's sums by operation, times in microseconds.
        steps: number of steps that they cover.
        on_gpu: sort by the GPU's time.
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
