"""What is known of a campaign's hosts."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Hosts:
    """Hosts that are there, were lost, or have failed too often."""

    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots of the hosts that are there, by host."""
    lost: dict[str, str] = field(default_factory=dict)
    """Why a host is not there."""
    failures: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What a host has on its account: trials that were lost on it, and its own losses."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Why a host gets no more trials."""
    warned: dict[str, str] = field(default_factory=dict)
    """What is odd about a host, as its counters say."""
