"""What is asked of a rank: to go on, to stop, to leave a checkpoint and end."""

import logging
import os
import signal
from collections.abc import Callable, Mapping

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training.sync_points import Signal
from hydragnn_hpo.walltime import WallTime

logger = logging.getLogger(__name__)


class StopSignals:
    """Listens to signals; on rank 0 also to the clock and to the file ``control``."""

    def __init__(self, trial: TrialDir, environment: Mapping[str, str] = os.environ) -> None:
        """Listen from now on.

        Raises:
            ConfigError: the environment names no sensible end of the allocation.
        """
        self.control, self.interrupted = trial.control, False
        self.reason: str | None = None
        self.first = environment.get("RANK", "0") == "0"
        self.walltime = WallTime.of(environment)
        self.needs: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        """Gives the seconds of the last checkpoint, and those between two looks."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        self.interrupted = True
        self.reason = "walltime"

    def signal(self) -> Signal:
        """Give what is asked now; ``reason`` says why."""
        if self.interrupted:
            return "interrupt"
        if self.first and self.walltime.near(*self.needs()):
            self.reason = "walltime"
            return "interrupt"
        if self.first and self.control.exists():
            return self._wish()
        return "go"

    def _wish(self) -> Signal:
        """Read ``control``; a file that a person is just writing must not end the trial."""
        try:
            content = read_json(self.control)
        except StorageError as error:
            logger.warning("%s", error)
            return "go"
        wish = content.get("wish") if isinstance(content, dict) else None
        self.reason = "paused" if wish == "yield" else self.reason
        return "stop" if wish == "stop" else "interrupt" if wish == "yield" else "go"
