"""What counters say about hosts that a person should look at: one sentence for each, once.

Pure: it is shown samples, and gives sentences.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Mapping

from hydragnn_hpo.launching.counters import CounterSample

IN_A_ROW = 10
"""Samples that must say the same: five minutes, at one each half minute."""

IDLE_SHARE = 0.05
"""A device that is less busy than this does nothing, to speak of."""

WEAK_SHARE = 0.5
"""A busy host with less power than this part of what its peers take is slow or half dead."""

PEERS = 8
"""Busy hosts without which nobody knows what is usual."""


class Hints:
    """Counts in how many samples in a row something is odd."""

    def __init__(self, warned: Collection[str]) -> None:
        """Begin; ``warned`` holds the hosts of which enough was said."""
        self._warned = warned
        self._odd: Counter[tuple[str, str]] = Counter()

    def look(self, host: str, sample: CounterSample, trains: Mapping[str, str]) -> str | None:
        """Give a sentence on one host, if there is one to say.

        Args:
            host: its id.
            sample: of it.
            trains: by device, a trial that trained there all the time.
        """
        if host in self._warned:
            return None
        for device, gauges in sample.devices.items():
            busy, trial = gauges.get("busy"), trains.get(device)
            idles = trial is not None and busy is not None and busy < IDLE_SHARE
            if self._again(host, f"idle {device}", odd=idles):
                return f"device {device} is {100 * (busy or 0.0):.0f} % busy while {trial} trains"
            if self._again(host, f"slow {device}", odd=gauges.get("throttled", 0.0) > 0.0):
                heat = f" at {gauges['celsius']:.0f} C" if "celsius" in gauges else ""
                return f"device {device} lowers its clocks{heat}: heat, or its power supply"
        return None

    def compare(self, watts: Mapping[str, float]) -> dict[str, str]:
        """Give sentences on hosts that take far less than their peers.

        Args:
            watts: of the hosts of which every slot is held.
        """
        if len(watts) < PEERS:
            return {}
        usual = statistics.median(watts.values())
        found = {}
        for host, power in watts.items():
            weak = self._again(host, "weak", odd=power < WEAK_SHARE * usual)
            if weak and host not in self._warned:
                found[host] = f"takes {power:.0f} W, busy hosts like it {usual:.0f} W"
        return found

    def _again(self, host: str, what: str, *, odd: bool) -> bool:
        """Say whether something is odd for the time that makes it worth a word."""
        if not odd:
            self._odd.pop((host, what), None)
            return False
        self._odd[host, what] += 1
        return self._odd[host, what] == IN_A_ROW
