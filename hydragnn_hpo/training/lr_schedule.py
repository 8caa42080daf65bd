"""The course of the learning rate over a training."""

import math
from typing import Any

from hydragnn_hpo.config.training_config import TrainConfig

_START = 25.0
"""``one_cycle`` begins at the peak over this, as torch's ``OneCycleLR`` does."""


class LearningRateSchedule:
    """Gives the step size of every step.

    Only ``plateau`` remembers anything; the others are functions of the step, laid over the full
    budget from the first epoch, so that a trial that is stopped at a rung and goes on later takes
    the same course as one that runs through.
    """

    def __init__(self, config: TrainConfig, total_steps: int, graphs_per_step: float) -> None:
        """Lay the course out.

        Args:
            config: schedule, peak, warm-up.
            total_steps: steps of the full budget.
            graphs_per_step: over all ranks, in the mean; the peak grows with it if asked to.
        """
        self.config, self.total = config, total_steps
        self.peak = config.learning_rate * _batch_scaling(config, graphs_per_step)
        self.rise = max(1, round(config.warmup * total_steps))
        self.factor, self.best, self.waited = 1.0, math.inf, 0

    def rate(self, step: int) -> float:
        """Give the step size of one step, counted from 0.

        A linear rise over the warm-up, then what the schedule says; ``one_cycle`` rises along a
        cosine from a 25th of the peak, which it reaches one step after the warm-up.
        """
        if self.config.schedule == "one_cycle" and step < self.rise:
            return self.peak * _cosine_between(1.0 / _START, 1.0, step / self.rise)
        if step < self.rise:
            return self.peak * (step + 1) / self.rise
        if self.config.schedule == "constant":
            return self.peak
        if self.config.schedule == "plateau":
            return self.peak * self.factor
        progress = min(1.0, (step - self.rise) / max(1, self.total - self.rise))
        return self.peak * _cosine_between(1.0, self.config.final_rate, progress)

    def after_epoch(self, objective: float) -> None:
        """Tell how an epoch's validation went; ``plateau`` may lower the rates that follow."""
        config = self.config
        if config.schedule != "plateau":
            return
        better = objective < self.best
        self.best, self.waited = min(objective, self.best), 0 if better else self.waited + 1
        if self.waited >= config.plateau_epochs:
            self.factor = max(self.factor * config.plateau_factor, config.final_rate)
            self.waited = 0

    def state(self) -> dict[str, Any]:
        """Give what a checkpoint has to hold, as JSON can hold it."""
        return {"factor": self.factor, "best": self.best, "waited": self.waited}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.factor, self.best = float(state["factor"]), float(state["best"])
        self.waited = int(state["waited"])


def _cosine_between(start: float, end: float, progress: float) -> float:
    """Go from one share of the peak to another along half a cosine."""
    return end + (start - end) * (0.5 * (1.0 + math.cos(math.pi * progress)))


def _batch_scaling(config: TrainConfig, graphs_per_step: float) -> float:
    """Give by how much the peak grows with the batch."""
    ratio = graphs_per_step / config.rate_batch
    return {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[config.scale_rate]
