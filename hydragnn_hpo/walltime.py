"""When the allocation ends, and when it is time to leave a checkpoint and go."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError

END, MARGIN = "HYDRAGNN_HPO_END", "HYDRAGNN_HPO_END_MARGIN"
"""Environment: the end in seconds since the epoch, and the seconds before it at which we go."""

_SLURM_END = "SLURM_JOB_END_TIME"
"""Slurm's own, also seconds since the epoch. Source: slurm.schedmd.com/sbatch.html."""

_LEAST_MARGIN = 30.0
_CHECKPOINTS = 3.0
"""The margin holds this many times the last checkpoint: file systems are busy at the end."""


@dataclass(frozen=True)
class WallTime:
    """The end of an allocation."""

    end: float
    """Seconds since the epoch; infinite where nobody says."""
    margin: float | None = None
    """Seconds before the end; found from the checkpoints if left out."""
    clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "WallTime":
        """Read ``HYDRAGNN_HPO_END`` (or Slurm's) and ``HYDRAGNN_HPO_END_MARGIN``.

        Raises:
            ConfigError: one of them is no number of seconds.
        """
        name = END if END in environment else _SLURM_END
        end = _seconds(name, environment[name]) if name in environment else math.inf
        margin = _seconds(MARGIN, environment[MARGIN]) if MARGIN in environment else None
        return cls(end, margin)

    @property
    def known(self) -> float | None:
        """The end where somebody says one, for JSON."""
        return self.end if math.isfinite(self.end) else None

    @property
    def least_margin(self) -> float:
        """Seconds before the end that are kept free in any case."""
        return _LEAST_MARGIN if self.margin is None else self.margin

    def near(self, checkpoint_seconds: float, look_seconds: float) -> bool:
        """Check whether the end is so near that trials must leave.

        Args:
            checkpoint_seconds: how long the last checkpoint took.
            look_seconds: the longest time between two looks so far.
        """
        margin = self.margin
        if margin is None:
            margin = max(_LEAST_MARGIN, _CHECKPOINTS * checkpoint_seconds + look_seconds)
        return self.end - self.clock() < margin


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise ConfigError(f"{name} is '{text}': give a number of seconds, or unset it.")
    return seconds
