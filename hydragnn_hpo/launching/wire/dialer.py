"""The agent's way to its controller, whoever that is now."""

import json
import random
from pathlib import Path

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.door import DoorPlate, dial

_PATIENCE_SECONDS = 60.0
_PATIENCE_LEASES = 12.0
"""An agent that found no controller for so long (whatever is longer) gives up."""


class Dialer:
    """Finds the controller's door and dials, again and again but never in haste."""

    def __init__(self, source: str, now: float) -> None:
        """Look for a controller.

        Args:
            source: path of the door file, or its content.
            now: monotonic time.
        """
        self._source = source
        self._next = now
        self._since = now
        self.plate: DoorPlate | None = None

    @property
    def inline(self) -> bool:
        """Say whether we were told the door's content, as where files are not shared."""
        return self._source.startswith("{")

    def _read(self) -> DoorPlate | None:
        """Give the door as it is now; None where it cannot be read."""
        try:
            found = json.loads(self._source) if self.inline else read_json(Path(self._source))
            return DoorPlate.of(found)
        except (StorageError, ValueError):
            return None

    def newer(self) -> bool:
        """Say whether another controller has opened since we dialled."""
        found = self._read()
        return bool(found and self.plate and found.epoch > self.plate.epoch)

    def dial(self, now: float) -> Channel | None:
        """Try once to reach the controller, if it is time for another try."""
        if now < self._next:
            return None
        found = self._read()
        lease = found.lease_seconds if found else 10.0
        self._next = now + min(1.0, lease / 10) * random.uniform(0.5, 1.5)
        if found is None or (self.plate and found.epoch < self.plate.epoch):
            return None
        channel = dial(found, min(2.0, lease / 5))
        if channel is not None:
            self.plate = found
            self._since = now
        return channel

    def connected(self, now: float) -> None:
        """Note that the controller is there."""
        self._since = now

    def hopeless(self, now: float) -> bool:
        """Say whether it is time to give up."""
        lease = self.plate.lease_seconds if self.plate else 0.0
        return now - self._since > max(_PATIENCE_SECONDS, _PATIENCE_LEASES * lease)
