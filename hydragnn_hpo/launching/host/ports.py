"""Ports where the ranks of a job meet, one per job."""

import errno
import socket
import time
from collections.abc import Callable

from hydragnn_hpo.errors import JobError

FIRST = 20000
COUNT = 10000
REST_SECONDS = 60.0
"""How long a port is left alone after its job ended: late peers must find nobody there."""


def is_free(port: int) -> bool:
    """Say whether nothing on this host listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


class PortPool:
    """Hands out the ports of one address, below the range from which the kernel takes its own.

    Whether somebody else listens there is seen by the agent that lives there, see ``is_free``.
    """

    def __init__(self, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at a place that depends on ``seed`` (a pid), so that controllers spread out."""
        self._next = seed * 7919 % COUNT
        self._clock = clock
        self._taken: set[int] = set()
        self._resting: dict[int, float] = {}

    def take(self) -> int:
        """Give a port that no job has and none had for a while.

        Raises:
            JobError: all of them are in use.
        """
        now = self._clock()
        for _ in range(COUNT):
            port = FIRST + self._next
            self._next = (self._next + 1) % COUNT
            if port not in self._taken and self._resting.get(port, now) <= now:
                self.reserve(port)
                return port
        raise JobError(
            f"no free port in {FIRST}-{FIRST + COUNT - 1} on this host: end what listens there."
        )

    def reserve(self, port: int) -> None:
        """Take a port that a job has already."""
        self._resting.pop(port, None)
        self._taken.add(port)

    def give_back(self, port: int) -> None:
        """Let a port rest, then use it again."""
        self._taken.discard(port)
        self._resting[port] = self._clock() + REST_SECONDS
