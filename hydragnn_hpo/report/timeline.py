"""Timeline of a campaign: what its slots did, and why they were idle.

Shapes: B bins of time, E events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.placement import Bar
from hydragnn_hpo.report.facts import Facts

Floats = NDArray[np.float64]

IDLE = ("held", "brain", "tail", "away")
"""Causes of idle slots; keys of ``accounting.CAUSES``."""

DOING = ("training", "start-up", "lost")
"""What a slot does that is not idle; names of ``Bar.what``."""


@dataclass(frozen=True)
class Idle:
    """Idle slots after each event."""

    times: Floats
    """Seconds since the first placement, rising, [E]."""
    why: NDArray[np.str_]
    """``held``, ``brain`` or ``tail``, for slots of hosts that are here, [E]."""
    here: Floats
    """Idle slots of hosts that are here, [E]."""
    away: Floats
    """Idle slots of hosts that were lost or are in quarantine, [E]."""

    def at(self, time: float) -> str:
        """Return why a slot of a present host would be idle at some time."""
        place = int(np.searchsorted(self.times, time, side="right")) - 1
        return str(self.why[max(place, 0)]) if len(self.why) else "tail"


class Timeline:
    """Slots, bars and idle time of a campaign."""

    def __init__(self, facts: Facts) -> None:
        """Read slots and bars from the facts of a run."""
        self._facts, history = facts, facts.history.slots
        self.begin = history.begin or 0.0
        self.bars: list[Bar] = history.bars
        self.seconds = max((bar.end for bar in self.bars), default=0.0)
        """From the first placement to the last end."""
        self.slots = history.all_slots
        """All slots that ever existed, neighbours side by side."""

    @cached_property
    def idle(self) -> Idle:
        """Idle slots after each event."""
        steps = self._facts.history.slots.idle_steps
        times, why, here, away = zip(*steps, strict=True) if steps else ((), (), (), ())
        return Idle(
            np.maximum.accumulate(np.asarray(times, dtype=float) - self.begin),
            self._resolve_open(why),
            np.asarray(here, dtype=float),
            np.asarray(away, dtype=float),
        )

    def _resolve_open(self, why: tuple[str, ...]) -> NDArray[np.str_]:
        """Replace ``open``: by ``brain`` if the search proposed a trial later, else by ``tail``."""
        facts, causes = self._facts, list(why)
        then = "brain" if facts.state.is_searching(facts.config.search.trials) else "tail"
        for place in range(len(causes) - 1, -1, -1):
            causes[place] = then if causes[place] == "open" else causes[place]
            if (kind := facts.events[place]["event"]) in ("proposed", "added"):
                then = "brain" if kind == "proposed" else "tail"
        return np.asarray(causes, dtype=np.str_)

    @cached_property
    def absences(self) -> dict[str, list[tuple[float, float]]]:
        """By host, from when to when it was lost or in quarantine; seconds from the start."""
        found: dict[str, list[tuple[float, float]]] = {}
        open_since: dict[str, float] = {}
        for event in self._facts.events:
            host, time = event.get("host"), event["time"] - self.begin
            if event["event"] in ("host_lost", "quarantined") and host is not None:
                open_since.setdefault(host, time)
            elif event["event"] == "host_joined" and host in open_since:
                found.setdefault(host, []).append((open_since.pop(host), time))
        for host, since in open_since.items():
            found.setdefault(host, []).append((since, self.seconds))
        return found

    def shares(self, bins: int) -> tuple[Floats, Mapping[str, Floats]]:
        """Average over bins of time what slots did.

        Returns:
            Middles of the bins in seconds, [B]; by what they did or why they were idle, the
            slots that did it on average, [B].
        """
        edges = np.linspace(0.0, self.seconds, bins + 1)
        found = {what: self._doing(what, edges) for what in DOING}
        idle = self.idle
        for cause in ("held", "brain", "tail"):
            found[cause] = mean_of_steps(idle.times, idle.here * (idle.why == cause), edges)
        found["away"] = mean_of_steps(idle.times, idle.away, edges)
        return (edges[1:] + edges[:-1]) / 2.0, found

    def _doing(self, what: str, edges: Floats) -> Floats:
        bars = [bar for bar in self.bars if bar.what == what]
        starts = np.array([bar.start for bar in bars])
        ends = np.array([bar.end for bar in bars])
        slots = np.array([float(len(bar.slots)) for bar in bars])
        times = np.concatenate([starts, ends])
        order = np.argsort(times, kind="stable")
        levels = np.cumsum(np.concatenate([slots, -slots])[order])
        return mean_of_steps(times[order], levels, edges)


def mean_of_steps(times: Floats, levels: Floats, edges: Floats) -> Floats:
    """Return the mean of a step function in each bin.

    Args:
        times: where it steps, rising; it is 0 before the first.
        levels: what it is from each time to the next, and after the last.
        edges: of the bins, rising.
    """
    if not len(times):
        return np.zeros(len(edges) - 1)
    area = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times))])
    after = area[-1] + levels[-1] * np.maximum(edges - times[-1], 0.0)
    whole = np.where(edges > times[-1], after, np.interp(edges, times, area, left=0.0))
    widths = np.maximum(np.diff(edges), 1e-12)
    return np.asarray(np.diff(whole) / widths)
