"""The end of the allocation, and when trials must save a checkpoint and exit before it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError

END, MARGIN = "HYDRAGNN_HPO_END", "HYDRAGNN_HPO_END_MARGIN"
"""Environment variables: end in seconds since the epoch, and margin before it in seconds."""

REQUESTED_END = "HYDRAGNN_HPO_REQUESTED_END"
"""Environment variable of batch scripts: the end by the wall-time that was requested, in seconds
since the epoch; for schedulers that do not tell the end of a job."""

_SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm, also in seconds since the epoch. Source: slurm.schedmd.com/sbatch.html."""

_LEAST_MARGIN = 30.0
_CHECKPOINTS = 3.0
"""Factor on the last checkpoint's duration in the margin: file systems are busy at the end."""


@dataclass(frozen=True)
class WallTime:
    """The end of an allocation."""

    end: float
    """Seconds since the epoch; infinity if unknown."""
    margin: float | None = None
    """Seconds before the end at which trials must exit; if None, derived from checkpoint times."""
    clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "WallTime":
        """Read ``HYDRAGNN_HPO_END`` (or Slurm's variable) and ``HYDRAGNN_HPO_END_MARGIN``.

        Raises:
            ConfigError: a value is not a number of seconds.
        """
        name = END if END in environment else _SLURM_END
        end = _seconds(name, environment[name]) if name in environment else math.inf
        margin = _seconds(MARGIN, environment[MARGIN]) if MARGIN in environment else None
        return cls(end, margin)

    @property
    def known(self) -> float | None:
        """The end in seconds since the epoch, or None if unknown, as JSON cannot hold infinity."""
        return self.end if math.isfinite(self.end) else None

    @property
    def least_margin(self) -> float:
        """Least margin before the end, in seconds."""
        return _LEAST_MARGIN if self.margin is None else self.margin

    def near(self, checkpoint_seconds: float, look_seconds: float) -> bool:
        """Check whether the end is so near that trials must save a checkpoint and exit.

        Args:
            checkpoint_seconds: duration of the last checkpoint.
            look_seconds: longest time so far between two calls of this check.
        """
        margin = self.margin
        if margin is None:
            margin = max(_LEAST_MARGIN, _CHECKPOINTS * checkpoint_seconds + look_seconds)
        return self.end - self.clock() < margin


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text) if text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise ConfigError(f"{name} is '{text}': give a number of seconds, or unset it.")
    return seconds
