"""Energy of hosts, charged to trials as samples come, and written to the journal in sums.

A sample of each of 8,192 hosts every half minute would be gigabytes of journal a day, and nobody
acts on one. So what the journal gets is one line each half minute: joules by trial, idle joules,
and the power of all hosts. What was not written down when a controller dies is not known.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.loop.hints import Hints
from hydragnn_hpo.campaign.records.energy import divide, portions
from hydragnn_hpo.launching.counters import CounterSample
from hydragnn_hpo.launching.job import Event, Slot

GROUP_SECONDS = 30.0
"""Between two lines in the journal."""

FRESH_SECONDS = 120.0
"""What a host said last is taken for its power so long."""

Held = Mapping[str, Mapping[str, float]]
"""By slot, seconds by trial."""


class EnergyAccounting:
    """Charges the energy of all hosts to trials."""

    def __init__(self, book: Book, slots: Callable[[], Sequence[Slot]]) -> None:
        """Begin; ``slots`` gives all that are there."""
        self._book, self._slots = book, slots
        self._seen: Sequence[Slot] = ()
        self._of_host: dict[str, list[Slot]] = {}
        self._hints = Hints(book.state.hosts.warned)
        self._watts: dict[str, tuple[float, float, bool]] = {}
        """Power of a host, when it said so, and whether all its slots were held."""
        self._written = book.clock()
        self._clear()

    def _clear(self) -> None:
        self._trials: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Joules, and the slot-seconds in which they were counted."""
        self._idle, self._parts = 0.0, set[str]()
        self._spent = False

    def add_sample(self, event: Event) -> None:
        """Add the counters of a host; a malformed message is ignored."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            sample = CounterSample.of_plain(event.data)
            if sample.seconds > 0.0:
                self._take(event.data["host"], sample, min(event.time, self._book.clock()))

    def _take(self, host: str, sample: CounterSample, end: float) -> None:
        slots, begin = self._slots_of(host), end - sample.seconds
        held = {s.name: self._book.holders.of(s.name, begin, end) for s in slots}
        busy = all(sum(by.values()) > 0.99 * sample.seconds for by in held.values())
        if (joules := sample.joules) is not None:
            self._charge(sample, slots, held)
            self._watts[host] = joules / sample.seconds, end, busy and bool(slots)
        elif sample.notes and self._book.state.energy.unread is None:
            self._book.note("unread", durable=False, host=host, reason=sample.notes[0])
        if said := self._hints.look(host, sample, self._training(slots, held, sample.seconds)):
            self._book.note("host_warned", durable=False, host=host, reason=said)

    def _slots_of(self, host: str) -> list[Slot]:
        if (now := self._slots()) is not self._seen:
            self._seen, self._of_host = now, {}
            for slot in now:
                self._of_host.setdefault(slot.host, []).append(slot)
        return self._of_host.get(host, [])

    def _charge(self, sample: CounterSample, slots: Sequence[Slot], held: Held) -> None:
        shares = divide(portions(sample, slots), held, sample.seconds)
        for trial, joules in shares.trials.items():
            self._trials[trial][0] += joules
        for by in held.values():
            for trial, seconds in by.items():
                self._trials[trial][1] += seconds
        self._idle += shares.idle
        self._parts.update(sample.parts)
        self._spent = True

    def _training(self, slots: Sequence[Slot], held: Held, seconds: float) -> dict[str, str]:
        """Return, by device, a trial that trained there all the time."""
        found = {}
        for slot in slots:
            for name, its in held[slot.name].items():
                trial = self._book.state.trials.get(name)
                steps = trial is not None and trial.first_step is not None
                if slot.visible and steps and its > 0.99 * seconds:
                    found[slot.visible] = name
        return found

    def write_if_due(self) -> None:
        """Write what was charged, every ``GROUP_SECONDS``."""
        if self._book.clock() - self._written >= GROUP_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was charged since the last time, and warnings about hosts."""
        now = self._written = self._book.clock()
        self._watts = {h: told for h, told in self._watts.items() if now - told[1] < FRESH_SECONDS}
        if not self._spent:
            return
        trials = {t: [round(j, 2), round(s, 2)] for t, (j, s) in self._trials.items()}
        self._book.note(
            "energy",
            durable=False,
            trials=trials,
            idle=round(self._idle, 2),
            watts=round(sum(watts for watts, _, _ in self._watts.values()), 1),
            hosts=len(self._watts),
            parts=sorted(self._parts),
        )
        self._clear()
        busy = {host: watts for host, (watts, _, held) in self._watts.items() if held}
        for host, said in self._hints.compare(busy).items():
            self._book.note("host_warned", durable=False, host=host, reason=said)
