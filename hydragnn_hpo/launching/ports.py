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
    """Hands out ports below the range from which the kernel hands out its own."""

    def __init__(self, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at a place that depends on ``seed`` (a pid), so that controllers spread out."""
        self._next = seed * 7919 % COUNT
        self._clock = clock
        self._taken: set[int] = set()
        self._resting: dict[int, float] = {}

    def take(self) -> int:
        """Give a port that is in use by nobody and was not for a while.

        Raises:
            JobError: all of them are in use.
        """
        now = self._clock()
        for _ in range(COUNT):
            port = FIRST + self._next
            self._next = (self._next + 1) % COUNT
            if port in self._taken or self._resting.get(port, now) > now:
                continue
            if is_free(port):
                self._resting.pop(port, None)
                self._taken.add(port)
                return port
        raise JobError(
            f"no free port in {FIRST}-{FIRST + COUNT - 1} on this host: end what listens there."
        )

    def give_back(self, port: int) -> None:
        """Let a port rest, then use it again."""
        self._taken.discard(port)
        self._resting[port] = self._clock() + REST_SECONDS
