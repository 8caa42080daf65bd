"""From two readings to the energy between them: every joule once, and none that is not sure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hydragnn_hpo.launching.host.counters.reading import Count, Reading

MOST_WATTS = 1000.0
"""More than one counter that wraps ever sees: a longer pause than it needs to come round at this
power may have had more than one round."""


@dataclass(frozen=True)
class Sample:
    """What happened on a host in some seconds; plain data, as it goes over the line."""

    seconds: float

    parts: tuple[str, ...] = ()
    """What was counted: ``host`` (everything), or some of ``cpu``, ``memory``, ``card``."""

    rest: float | None = None
    """Joules of the host beside those of its cards."""

    cards: tuple[tuple[tuple[str, ...], float], ...] = ()
    """Devices of each card, and its joules."""

    gauges: dict[str, float] = field(default_factory=dict)
    """Of the host, see ``Reading``."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def joules(self) -> float | None:
        """All that was counted; None if nothing was."""
        found = [joules for _, joules in self.cards]
        found += [] if self.rest is None else [self.rest]
        return sum(found) if found else None

    def to_plain(self) -> dict[str, Any]:
        """Give plain data, with the digits that mean something."""
        plain = asdict(self)
        plain["seconds"] = round(self.seconds, 3)
        plain["rest"] = None if self.rest is None else round(self.rest, 3)
        plain["cards"] = [[devices, round(joules, 3)] for devices, joules in self.cards]
        plain["gauges"] = _rounded(self.gauges)
        plain["devices"] = {name: _rounded(gauges) for name, gauges in self.devices.items()}
        return plain

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "Sample":
        """Take plain data back."""
        cards = tuple((tuple(devices), float(joules)) for devices, joules in plain["cards"])
        return cls(
            seconds=float(plain["seconds"]),
            parts=tuple(plain["parts"]),
            rest=None if plain["rest"] is None else float(plain["rest"]),
            cards=cards,
            gauges=dict(plain["gauges"]),
            devices=dict(plain["devices"]),
            notes=tuple(plain["notes"]),
        )


def _rounded(gauges: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in gauges.items()}


def passed(before: Count | None, now: Count | None, seconds: float) -> float | None:
    """Give the joules between two looks at a counter; None where they are not sure."""
    if before is None or now is None or before.life != now.life:
        return None
    if now.wraps and seconds * MOST_WATTS > now.wraps:
        return None
    risen = now.joules - before.joules
    if risen >= 0.0:
        return risen
    return risen + now.wraps if now.wraps else None


def between(before: Reading, now: Reading, seconds: float, *, known: Mapping[str, Count]) -> Sample:
    """Give what happened between two readings.

    Args:
        before: the first.
        now: the second.
        seconds: between them.
        known: all counters that were ever seen: a part of which one is missing has no number.
    """
    shown: dict[str, Any] = {"gauges": now.host, "devices": now.devices, "notes": tuple(now.notes)}
    spent = {name: passed(before.counts.get(name), now.counts.get(name), seconds) for name in known}
    cards = _cards(known, spent)
    wholes = [spent[name] for name in known if known[name].part == "host"]
    if wholes and wholes[0] is None:  # parts of it, once, would look as if it had taken less
        return Sample(seconds, **shown)
    if wholes and (whole := wholes[0]) is not None:
        if any(joules is None for _, joules in cards):  # then nobody can tell them apart
            cards = []
        sure = tuple((devices, joules or 0.0) for devices, joules in cards)
        # Both are counters of their own: an idle host may seem to take less than its cards.
        beside = max(0.0, whole - sum(joules for _, joules in sure))
        return Sample(seconds, ("host",), beside, sure, **shown)
    parts, rest = _rest(known, spent)
    told = tuple((devices, joules) for devices, joules in cards if joules is not None)
    parts += ("card",) if told else ()
    return Sample(seconds, parts, rest, told, **shown)


def _sum(found: Sequence[float | None]) -> float | None:
    """Add up; None where one is missing, or there is none."""
    sure = [each for each in found if each is not None]
    return sum(sure) if sure and len(sure) == len(found) else None


def _first(known: Mapping[str, Count], *parts: str) -> str | None:
    """Give the source that is first to count any of some parts."""
    return next((name.partition("/")[0] for name in known if known[name].part in parts), None)


def _cards(
    known: Mapping[str, Count], spent: Mapping[str, float | None]
) -> list[tuple[tuple[str, ...], float | None]]:
    """Give the cards of the first source that counts any."""
    source = _first(known, "card")
    names = [name for name in known if known[name].part == "card"]
    return [(known[n].devices, spent[n]) for n in names if n.partition("/")[0] == source]


def _rest(
    known: Mapping[str, Count], spent: Mapping[str, float | None]
) -> tuple[tuple[str, ...], float | None]:
    """Add up what the first source that counts processors counts of them and of memory."""
    source = _first(known, "cpu", "memory")
    sums = {}
    for part in ("cpu", "memory"):
        of = [n for n in known if known[n].part == part and n.partition("/")[0] == source]
        if (joules := _sum([spent[name] for name in of])) is not None:
            sums[part] = joules
    return tuple(sums), sum(sums.values()) if sums else None


def joined(first: Sample | None, second: Sample) -> Sample:
    """Make one of two samples in a row; the first is dropped if they do not count the same."""
    if first is None:
        return second
    same = first.parts == second.parts and (first.rest is None) == (second.rest is None)
    if not same or [d for d, _ in first.cards] != [d for d, _ in second.cards]:
        return second
    return Sample(
        seconds=first.seconds + second.seconds,
        parts=second.parts,
        rest=None if first.rest is None or second.rest is None else first.rest + second.rest,
        cards=tuple(
            (devices, joules + later)
            for (devices, joules), (_, later) in zip(first.cards, second.cards, strict=True)
        ),
        gauges=second.gauges,
        devices=second.devices,
        notes=(*first.notes, *second.notes),
    )


class Sampler:
    """Looks at the counters of a host again and again."""

    def __init__(self, read: Callable[[], Reading], clock: Callable[[], float]) -> None:
        """Look for the first time.

        Args:
            read: gives a ``Reading``.
            clock: gives seconds.
        """
        self._read, self._clock = read, clock
        self._at, self._last = clock(), read()
        self._known = dict(self._last.counts)
        self._owed = self._last.notes

    @property
    def age(self) -> float:
        """Seconds since the last look."""
        return self._clock() - self._at

    def look(self) -> Sample:
        """Give what happened since the last look."""
        now, found = self._clock(), self._read()
        self._known |= found.counts
        found.notes, self._owed = self._owed + found.notes, []
        sample = between(self._last, found, now - self._at, known=self._known)
        self._at, self._last = now, found
        return sample
