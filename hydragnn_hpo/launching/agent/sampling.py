"""The process that reads a host's counters, as its agent sees it."""

import logging
import os
import socket
import subprocess
import sys
from typing import Any

from hydragnn_hpo.launching.host.counters.sample import Sample, joined
from hydragnn_hpo.launching.wire.channel import Channel

logger = logging.getLogger(__name__)

_MODULE = "hydragnn_hpo.launching.host.counters"

_PATIENCE = 3
"""Intervals without a sample after which it hangs, in a driver most likely."""

_SLACK_SECONDS = 10.0
"""What it may take besides, to start on a busy host."""

_STARTS = 3
"""Processes that may hang or end until this host goes without."""


class Sampling:
    """Samples of this host's counters; nothing here ever waits for them."""

    def __init__(self) -> None:
        """Begin without a process."""
        self.channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._untold: Sample | None = None
        self._seconds = self._heard = 0.0
        self._starts = 0

    def begin(self, seconds: float, now: float) -> None:
        """Sample so often from now on; 0: not at all."""
        if seconds == self._seconds:
            return
        self.end()
        self._seconds, self._starts, self._untold = seconds, 0, None
        if seconds > 0.0:
            self._start(now)

    def hurry(self) -> None:
        """Have a sample taken at once: what is told of the next seconds is another job's."""
        if self.channel is not None:
            self.channel.send({})

    def look(self, now: float) -> None:
        """Hear what it says; replace it when it hangs or has ended."""
        self._killed = [process for process in self._killed if process.poll() is None]
        if self.channel is None:
            return
        for plain in self.channel.receive():
            self._heard = now
            self._untold = joined(self._untold, Sample.of_plain(plain))
        late = now - self._heard > _PATIENCE * self._seconds + _SLACK_SECONDS
        if late or self.channel.closed:
            self.end()
            if self._starts < _STARTS:
                self._start(now)
            else:
                what = "hung" if late else "ended"
                logger.warning("what reads this host's counters %s; they are not read.", what)

    def take(self) -> dict[str, Any] | None:
        """Give what was not told yet, as one sample."""
        sample, self._untold = self._untold, None
        return None if sample is None else sample.to_plain()

    def end(self) -> None:
        """Kill the process, and wait for nothing: a driver may hold it."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), f"{self._seconds:g}"]
        self._starts, self._heard = self._starts + 1, now
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            self.channel = Channel(ours)
        except OSError as error:  # no reason to end the agent, and its ranks with it
            logger.warning("nothing can read this host's counters (%s).", error.strerror)
            ours.close()
        finally:
            theirs.close()
