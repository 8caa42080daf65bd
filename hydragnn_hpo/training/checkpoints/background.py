"""One job at a time beside the main thread."""

import threading
from collections.abc import Callable


class Background:
    """Runs a job in a thread; what the job raised, the next one to come meets."""

    def __init__(self) -> None:
        """Start without a job."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether the job still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job after the one before; raises what that raised."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(job,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the job, or some seconds; raises what it raised."""
        if self._thread is not None:
            self._thread.join(seconds)
        error, self._error = self._error, None
        if error is not None:
            raise error
