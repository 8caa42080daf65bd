"""Energy accounting: charge the joules of hosts and cards to the trials that held their slots.

Each slot gets an equal part of its card's energy, and of its host's energy outside the cards. A
trial is charged for a slot as long as it holds it; parts of free slots count as idle. Charged and
idle energy therefore sum to the counted energy.
"""

import contextlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.energy_counters import CounterSample
from hydragnn_hpo.launching import Event, Slot
from hydragnn_hpo.search import finite_number

EnergyPortion = tuple[float, tuple[str, ...]]
"""Joules, and the slots that share them equally; no slots if no slot uses the device."""


def split_energy(sample: CounterSample, slots: Sequence[Slot]) -> list[EnergyPortion]:
    """Split the energy of a host into portions shared by its slots.

    Args:
        sample: counters of the host.
        slots: all slots of the host. Cards that no slot names are shared by the slots whose device
            has a name unknown to the counters (a slice of a GPU); without such slots by none.
    """
    named = {device for devices, _ in sample.cards for device in devices}
    strange = tuple(slot.name for slot in slots if slot.visible and slot.visible not in named)
    portions: list[EnergyPortion] = []
    for devices, joules in sample.cards:
        ours = tuple(slot.name for slot in slots if slot.visible and slot.visible in devices)
        portions.append((joules, ours or strange))
    if sample.rest is not None:
        portions.append((sample.rest, tuple(slot.name for slot in slots)))
    return portions


@dataclass
class EnergyShares:
    """Joules charged to each trial, and idle joules."""

    trials: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0


def charge_energy(
    parts: Iterable[EnergyPortion], held: Mapping[str, Mapping[str, float]], seconds: float
) -> EnergyShares:
    """Charge joules to trials.

    Args:
        parts: portions of energy and the slots that share them.
        held: by slot, the seconds for which each trial held it; their sum is at most ``seconds``.
        seconds: duration of the sample; the power is taken as constant.
    """
    trials: defaultdict[str, float] = defaultdict(float)
    idle = 0.0
    for joules, slots in parts:
        charged = 0.0
        for slot in slots:
            for trial, its in held.get(slot, {}).items():
                part = joules / len(slots) * its / seconds
                trials[trial] += part
                charged += part
        idle += joules - charged
    return EnergyShares(dict(trials), idle)


def charge_epoch(by_region: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the joules that the ranks of a trial read in an epoch; 0 if they read none.

    Args:
        by_region: by region of the epoch, joules by part; ``host`` includes all other parts.
    """
    regions = [dict(parts) for parts in dict(by_region).values()]
    return sum_finite(parts.get("host", sum_finite(parts.values())) for parts in regions)


def sum_finite(values: Iterable[Any]) -> float:
    """Return the sum of the finite values; 0, which the cost model ignores, if there are none."""
    return finite_number(sum(finite_number(value) or 0.0 for value in values)) or 0.0


IN_A_ROW = 10
"""Consecutive samples that must agree before a warning: five minutes at one per half minute."""

IDLE_SHARE = 0.05
"""A device that is busy for less than this share of the time counts as idle."""

WEAK_SHARE = 0.5
"""A busy host that takes less than this share of the median power of its peers is suspect."""

PEERS = 8
"""Least number of busy hosts for which a median power is computed."""


class HostWarnings:
    """Finds hosts with unusual counters in ``IN_A_ROW`` consecutive samples."""

    def __init__(self, warned: Collection[str]) -> None:
        """Start without samples; hosts in ``warned`` get no second warning."""
        self._warned = warned
        self._odd: Counter[tuple[str, str]] = Counter()

    def check_sample(
        self, host: str, sample: CounterSample, trains: Mapping[str, str]
    ) -> str | None:
        """Return a warning about one host; None if there is none.

        Args:
            host: its id.
            sample: its counters.
            trains: by device, a trial that trained there during the whole sample.
        """
        if host in self._warned:
            return None
        for device, gauges in sample.devices.items():
            busy = gauges.get("busy")
            trial = trains.get(device)
            idles = trial is not None and busy is not None and busy < IDLE_SHARE
            if self._again(host, f"idle {device}", odd=idles):
                return f"device {device} is {100 * (busy or 0.0):.0f} % busy while {trial} trains"
            if self._again(host, f"slow {device}", odd=gauges.get("throttled", 0.0) > 0.0):
                heat = f" at {gauges['celsius']:.0f} C" if "celsius" in gauges else ""
                return f"device {device} lowers its clocks{heat}: heat, or its power supply"
        return None

    def compare_power(self, watts: Mapping[str, float]) -> dict[str, str]:
        """Return warnings about hosts that take much less power than their peers.

        Args:
            watts: power by host, of the hosts whose slots are all held.

        Returns:
            A warning by host; empty if there are too few hosts to compare.
        """
        if len(watts) < PEERS:
            return {}
        usual = statistics.median(watts.values())
        sentences = {}
        for host, power in watts.items():
            weak = self._again(host, "weak", odd=power < WEAK_SHARE * usual)
            if weak and host not in self._warned:
                sentences[host] = f"takes {power:.0f} W, busy hosts like it {usual:.0f} W"
        return sentences

    def _again(self, host: str, what: str, *, odd: bool) -> bool:
        """Count consecutive odd samples; return True when ``IN_A_ROW`` is reached."""
        if not odd:
            self._odd.pop((host, what), None)
            return False
        self._odd[host, what] += 1
        return self._odd[host, what] == IN_A_ROW


GROUP_SECONDS = 30.0
"""Shortest time between two ``energy`` events in the journal."""

FRESH_SECONDS = 120.0
"""How long the last sample of a host counts as its present power."""

_SHORTEST_SECONDS = 1e-3
"""Duration given to a sample that lies entirely within the time of the one before it."""

Held = Mapping[str, Mapping[str, float]]
"""By slot, seconds by trial."""


class EnergyMeter:
    """Charges the samples of hosts to trials, and writes the sums to the journal.

    It writes one event each half minute: an event per sample of 8,192 hosts would add gigabytes to
    the journal each day. Energy not yet written when a controller dies is lost to the accounts.
    """

    def __init__(self, event_store: EventStore, slots: Callable[[], Sequence[Slot]]) -> None:
        """Start without samples; ``slots`` returns all slots that are there."""
        self._event_store, self._slots = event_store, slots
        self._seen: Sequence[Slot] = ()
        self._of_host: dict[str, list[Slot]] = {}
        self._warnings = HostWarnings(event_store.state.hosts.warned)
        self._watts: dict[str, tuple[float, float, bool]] = {}
        """By host: power in watts, time of the sample, and whether all its slots were held."""
        self._ends: dict[str, float] = {}
        """When the last sample of each host ended, in seconds since the Unix epoch."""
        self._written = event_store.clock()
        self._clear()

    def _clear(self) -> None:
        self._trials: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """By trial: joules, and the slot-seconds in which they were counted."""
        self._idle = 0.0
        self._parts = set[str]()
        self._spent = False

    def on_event(self, event: Event) -> None:
        """Charge the counters of a host; a malformed sample is ignored."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            sample = msgspec.convert(event.data, CounterSample)
            if sample.seconds > 0.0:
                self._take(event.data["host"], sample, min(event.time, self._event_store.clock()))

    def _take(self, host: str, sample: CounterSample, end: float) -> None:
        # A sample is dated by its arrival, so a late one overlaps the next. No second of a host may
        # be charged twice.
        begin = max(end - sample.seconds, self._ends.get(host, 0.0))
        begin = min(begin, end - _SHORTEST_SECONDS)
        self._ends[host] = max(end, self._ends.get(host, 0.0))  # wall clocks may step back
        seconds = end - begin
        slots = self._slots_of(host)
        held = {s.name: self._event_store.holders.find_holders(s.name, begin, end) for s in slots}
        busy = all(sum(by.values()) > 0.99 * seconds for by in held.values())
        if (joules := sample.joules) is not None:
            self._charge(sample, slots, held, seconds)
            self._watts[host] = joules / sample.seconds, end, busy and bool(slots)
        elif sample.notes and self._event_store.state.energy.unread is None:
            self._event_store.append("unread", durable=False, host=host, reason=sample.notes[0])
        if warning := self._warnings.check_sample(
            host, sample, self._training(slots, held, seconds)
        ):
            self._event_store.append("host_warned", durable=False, host=host, reason=warning)

    def _slots_of(self, host: str) -> list[Slot]:
        if (now := self._slots()) is not self._seen:
            self._seen = now
            self._of_host = {}
            for slot in now:
                self._of_host.setdefault(slot.host, []).append(slot)
        return self._of_host.get(host, [])

    def _charge(
        self, sample: CounterSample, slots: Sequence[Slot], held: Held, seconds: float
    ) -> None:
        shares = charge_energy(split_energy(sample, slots), held, seconds)
        for trial, joules in shares.trials.items():
            self._trials[trial][0] += joules
        for by in held.values():
            for trial, seconds in by.items():
                self._trials[trial][1] += seconds
        self._idle += shares.idle
        self._parts.update(sample.parts)
        self._spent = True

    def _training(self, slots: Sequence[Slot], held: Held, seconds: float) -> dict[str, str]:
        """Return, by device, a trial that trained there during the whole sample."""
        trials = {}
        for slot in slots:
            for name, its in held[slot.name].items():
                trial = self._event_store.state.trials.get(name)
                steps = trial is not None and trial.first_step is not None
                if slot.visible and steps and its > 0.99 * seconds:
                    trials[slot.visible] = name
        return trials

    def flush_if_due(self) -> None:
        """Call ``flush`` if the last one is at least ``GROUP_SECONDS`` ago."""
        if self._event_store.clock() - self._written >= GROUP_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the energy charged since the last call and power warnings to the journal."""
        now = self._written = self._event_store.clock()
        self._watts = {h: row for h, row in self._watts.items() if now - row[1] < FRESH_SECONDS}
        if not self._spent:
            return
        trials = {t: [round(j, 2), round(s, 2)] for t, (j, s) in self._trials.items()}
        self._event_store.append(
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
        for host, warning in self._warnings.compare_power(busy).items():
            self._event_store.append("host_warned", durable=False, host=host, reason=warning)
