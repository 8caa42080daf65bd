"""A request to stop, from a person or a scheduler, that takes effect at safe places only."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Drained(Exception):
    """The allocation ends before the campaign does: a further ``run`` goes on."""


class ShutdownRequest:
    """Whether a person or a scheduler asked to stop.

    An exception out of a signal handler can strike between any two lines, also while a
    lease is half taken. So the first signal only sets a flag that the controller's loop
    looks at; a second one means that a person will not wait, and interrupts at once.
    """

    wanted = False
    draining = False
    """Whether a scheduler said that the allocation ends soon."""

    def __init__(self, *, sigterm_drains: bool = False) -> None:
        """Start without a request.

        Args:
            sigterm_drains: whether SIGTERM comes from a scheduler, as in a batch job of a chain:
                it ends the allocation, the next job goes on. Elsewhere it is a person's.
        """
        self._drains = {signal.SIGUSR1, signal.SIGTERM} if sigterm_drains else {signal.SIGUSR1}

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle Ctrl-C and SIGTERM as a request to stop, SIGUSR1 as the end of the allocation."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in self._drains:
            self.draining = True
            return
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


NEVER = ShutdownRequest()
"""A stop request that never fires; installs no signal handlers."""
