"""Energy of this host: joules between two readings of its counters, each counted once.

``python -m hydragnn_hpo.launching.counters FD PARENT SECONDS`` runs in a process of its own:
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydragnn_hpo.energy_counters import Count, Part, Reading, all_sources, joules_between
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CounterSample:
    """Energy and gauges of a host over some seconds; plain data, sent between processes."""

    seconds: float

    parts: tuple[str, ...] = ()
    """Measured parts: ``host`` (everything), or some of ``cpu``, ``memory``, ``card``."""

    rest: float | None = None
    """Joules of the host without those in ``cards``; None if unknown."""

    cards: tuple[tuple[tuple[str, ...], float], ...] = ()
    """Devices and joules of each card."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    """Gauges by device, see ``Reading``."""

    notes: tuple[str, ...] = ()

    @property
    def joules(self) -> float | None:
        """Sum of all measured joules; None if nothing was measured."""
        counted = [joules for _, joules in self.cards]
        counted += [] if self.rest is None else [self.rest]
        return sum(counted) if counted else None

    def rounded(self) -> "CounterSample":
        """Return the sample rounded to milliseconds and millijoules."""
        rest = None if self.rest is None else round(self.rest, 3)
        cards = tuple((devices, round(joules, 3)) for devices, joules in self.cards)
        return replace(self, seconds=round(self.seconds, 3), rest=rest, cards=cards)


def sample_between(
    before: Reading, now: Reading, seconds: float, *, known: Mapping[str, Count]
) -> CounterSample:
    """Return the sample between two readings.

    Args:
        before: first reading.
        now: second reading.
        seconds: time between the readings.
        known: all counters ever seen, by name: a part with a missing counter has no value.
    """
    empty = CounterSample(seconds, devices=now.devices)
    spent = {
        name: joules_between(before.counts.get(name), now.counts.get(name), seconds)
        for name in known
    }
    cards = [(known[name].devices, spent[name]) for name in _counters_of(known, "card")]
    sure = tuple((devices, joules) for devices, joules in cards if joules is not None)
    for name in _counters_of(known, "host")[:1]:
        whole = spent[name]
        if whole is None:  # its parts alone would look like a drop in energy
            return empty
        if len(sure) < len(cards):  # the rest then includes all cards
            sure = ()
        # The counters are independent: an idle host may show less than its cards.
        rest = max(0.0, whole - sum(joules for _, joules in sure))
        return replace(empty, parts=("host",), rest=rest, cards=sure)
    sums = {}
    counters = _counters_of(known, "cpu", "memory")
    for part in ("cpu", "memory"):
        joules = [spent[name] for name in counters if known[name].part == part]
        complete = [each for each in joules if each is not None]
        if complete and len(complete) == len(joules):
            sums[part] = sum(complete)
    parts = (*sums, "card") if sure else tuple(sums)
    return replace(empty, parts=parts, rest=sum(sums.values()) if sums else None, cards=sure)


def _counters_of(known: Mapping[str, Count], *parts: Part) -> list[str]:
    """Return the counters of some parts, from the first source that measures any of them."""
    names = [name for name in known if known[name].part in parts]
    return [name for name in names if name.partition("/")[0] == names[0].partition("/")[0]]


def merge_samples(first: CounterSample | None, second: CounterSample) -> CounterSample:
    """Merge two consecutive samples; drop the first if they do not measure the same parts."""
    if first is None:
        return second
    same = first.parts == second.parts and (first.rest is None) == (second.rest is None)
    if not same or [d for d, _ in first.cards] != [d for d, _ in second.cards]:
        return second
    return replace(
        second,
        seconds=first.seconds + second.seconds,
        rest=None if first.rest is None or second.rest is None else first.rest + second.rest,
        cards=tuple(
            (devices, joules + later)
            for (devices, joules), (_, later) in zip(first.cards, second.cards, strict=True)
        ),
        notes=(*first.notes, *second.notes),
    )


class CounterSampler:
    """Reads the counters of a host repeatedly."""

    def __init__(self, read: Callable[[], Reading], clock: Callable[[], float]) -> None:
        """Take the first reading; ``clock`` returns seconds."""
        self._read, self._clock = read, clock
        self._at = clock()
        self._last = read()
        self._known = dict(self._last.counts)
        self._noted: set[str] = set()

    @property
    def age(self) -> float:
        """Seconds since the last reading."""
        return self._clock() - self._at

    def sample(self) -> CounterSample:
        """Return the sample since the last reading, with notes that are new."""
        now = self._clock()
        reading = self._read()
        self._known |= reading.counts
        sample = sample_between(self._last, reading, now - self._at, known=self._known)
        notes = tuple(note for note in reading.notes if note not in self._noted)
        self._noted.update(notes)
        self._at, self._last = now, reading
        return replace(sample, notes=notes)


_MODULE = "hydragnn_hpo.launching.counters"

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
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            self.socket = FramedSocket(ours, CounterSample)
        except OSError as error:  # the agent and its ranks go on without counters
            logger.warning("nothing can read this host's counters (%s).", error.strerror)
            ours.close()
        finally:
            theirs.close()


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
