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
    looks at; the second is from a person who will not wait, and interrupts at once.
    """

    wanted = False
    draining = False
    """Whether a scheduler said that the allocation ends soon."""

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
        if number == signal.SIGUSR1:
            self.draining = True
            return
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


NEVER = ShutdownRequest()
"""A stop request that never fires; installs no signal handlers."""
