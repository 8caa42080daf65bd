"""The process that reads the counters of a host, and how its agent uses it.

``python -m hydragnn_hpo.launching.counter_process FD PARENT SECONDS`` is a process of its own:
drivers hang and vendors' libraries crash: neither may take the agent along, whose ranks die with
it. It sends samples over its channel, takes one more at once when it receives anything, and ends
with its agent.
"""

import logging
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.counters import (
    CounterSample,
    CounterSampler,
    HostCounters,
    merge_samples,
)
from hydragnn_hpo.launching.wire.channel import Channel, wait

logger = logging.getLogger(__name__)

_MODULE = "hydragnn_hpo.launching.counter_process"

_PATIENCE = 3
"""Intervals without a sample after which it hangs, in a driver most likely."""

_SLACK_SECONDS = 10.0
"""What it may take besides, to start on a busy host."""

_STARTS = 3
"""Processes that may hang or end until this host goes without."""


class CounterProcess:
    """Samples of this host's counters, for its agent; no method waits for the process."""

    def __init__(self) -> None:
        """Begin without a process."""
        self.channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._pending: CounterSample | None = None
        self._seconds = self._last_received = 0.0
        self._starts = 0

    def begin(self, seconds: float, now: float) -> None:
        """Sample so often from now on; 0: not at all."""
        if seconds == self._seconds:
            return
        self.end()
        self._seconds, self._starts, self._pending = seconds, 0, None
        if seconds > 0.0:
            self._start(now)

    def hurry(self) -> None:
        """Ask for a sample at once: the next seconds belong to another job."""
        if self.channel is not None:
            self.channel.send({})

    def receive(self, now: float) -> None:
        """Receive samples; replace the process when it hangs or has ended."""
        self._killed = [process for process in self._killed if process.poll() is None]
        if self.channel is None:
            return
        for plain in self.channel.receive():
            self._last_received = now
            self._pending = merge_samples(self._pending, CounterSample.of_plain(plain))
        late = now - self._last_received > _PATIENCE * self._seconds + _SLACK_SECONDS
        if late or self.channel.closed:
            self.end()
            if self._starts < _STARTS:
                self._start(now)
            else:
                what = "hung" if late else "ended"
                logger.warning("what reads this host's counters %s; they are not read.", what)

    def take(self) -> dict[str, Any] | None:
        """Return what was not taken yet, as one sample."""
        sample, self._pending = self._pending, None
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
        self._starts, self._last_received = self._starts + 1, now
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


ROOT = "HYDRAGNN_HPO_COUNTERS"
"""Environment: another folder that holds ``sys`` and ``proc``."""

_LEAST_SECONDS = 1.0
"""Counters move ten times a second at best: asked sooner, it waits."""


def main() -> None:
    """Send samples until the agent is gone."""
    descriptor, parent, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    process_control.die_with_parent(parent)
    process_control.name_process("hpo-counters")
    agent = Channel(socket.socket(fileno=descriptor))
    sources = HostCounters(Path(os.environ.get(ROOT, "/")))
    sampler = CounterSampler(sources.read, time.monotonic)
    due = seconds * random.uniform(0.5, 1.0)  # thousands of hosts are not to tell at once
    while not agent.closed:
        wait([agent], max(0.0, due - sampler.age))
        if agent.receive():
            due = min(due, max(_LEAST_SECONDS, sampler.age))
        if sampler.age >= due and not agent.closed:
            agent.send(sampler.sample().to_plain())
            due = seconds


if __name__ == "__main__":
    main()
