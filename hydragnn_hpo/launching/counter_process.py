"""The process that samples the energy counters of its host for an agent.

``python -m hydragnn_hpo.launching.counter_process FD PARENT SECONDS`` runs in a process of its own:
drivers hang and vendors' libraries crash, and neither may end the agent, whose ranks die with it.
The process sends a sample over socket FD every SECONDS, and an early one when it receives a
message. It ends with its agent (pid PARENT), which controls it through ``CounterProcess``.
"""

import logging
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

from hydragnn_hpo.energy_counters import (
    CounterSample,
    CounterSampler,
    all_sources,
    merge_samples,
)
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable

logger = logging.getLogger(__name__)


_MODULE = "hydragnn_hpo.launching.counter_process"

_PATIENCE = 3
"""Intervals without a sample after which the process counts as hung, most likely in a driver."""

_SLACK_SECONDS = 10.0
"""Further time that the process may need, to start on a busy host."""

_STARTS = 3
"""Processes that hang or end until the agent stops reading counters."""


class CounterProcess:
    """The agent's handle to the process that samples counters; no method waits for it."""

    def __init__(self) -> None:
        """Begin without a process."""
        self.socket: FramedSocket[CounterSample] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._pending: CounterSample | None = None
        self._seconds = self._last_received = 0.0
        self._starts = 0

    def begin(self, seconds: float, now: float) -> None:
        """Sample every ``seconds`` from monotonic time ``now`` on; 0 stops sampling."""
        if seconds == self._seconds:
            return
        self.end()
        self._seconds = seconds
        self._starts = 0
        self._pending = None
        if seconds > 0.0:
            self._start(now)

    def hurry(self) -> None:
        """Request a sample at once, so that the next one covers only later jobs."""
        if self.socket is not None:
            self.socket.send(None)

    def receive(self, now: float) -> None:
        """Receive samples; replace the process if it hangs or has ended."""
        self._killed = [process for process in self._killed if process.poll() is None]
        if self.socket is None:
            return
        for sample in self.socket.receive():
            self._last_received = now
            self._pending = merge_samples(self._pending, sample)
        late = now - self._last_received > _PATIENCE * self._seconds + _SLACK_SECONDS
        if late or self.socket.closed:
            self.end()
            if self._starts < _STARTS:
                self._start(now)
            else:
                what = "hung" if late else "ended"
                logger.warning("what reads this host's counters %s; they are not read.", what)

    def take(self) -> CounterSample | None:
        """Return all samples since the last call merged into one; None if there are none."""
        sample, self._pending = self._pending, None
        return sample

    def end(self) -> None:
        """Kill the process without waiting for its end: a driver may hold it."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), f"{self._seconds:g}"]
        self._starts, self._last_received = self._starts + 1, now
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, *words],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            self.socket = FramedSocket(ours, CounterSample)
        except OSError as error:  # the agent and its ranks go on without counters
            logger.warning("nothing can read this host's counters (%s).", error.strerror)
            ours.close()


ROOT = "HYDRAGNN_HPO_COUNTERS"
"""Environment variable: folder that holds ``sys`` and ``proc``; ``/`` by default."""

_LEAST_SECONDS = 1.0
"""Least time between two readings: counters are updated ten times a second at best."""


def main() -> None:
    """Send samples until the agent is gone."""
    descriptor = int(sys.argv[1])
    parent = int(sys.argv[2])
    seconds = float(sys.argv[3])
    process_control.die_with_parent(parent)
    process_control.name_process("hpo-counters")
    agent = FramedSocket[None].of_descriptor(descriptor, None)
    read = all_sources(Path(os.environ.get(ROOT, "/")))
    sampler = CounterSampler(read, time.monotonic)
    due = seconds * random.uniform(0.5, 1.0)  # thousands of hosts must not send at once
    while not agent.closed:
        wait_readable([agent], max(0.0, due - sampler.age))
        if agent.receive():
            due = min(due, max(_LEAST_SECONDS, sampler.age))
        if sampler.age >= due and not agent.closed:
            agent.send(sampler.sample())
            due = seconds


if __name__ == "__main__":
    main()
