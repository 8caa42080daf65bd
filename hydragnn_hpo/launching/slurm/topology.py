"""Hosts in an order in which neighbours in the list are neighbours in the network."""

import re
from collections.abc import Sequence

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.slurm.hostlist import expand


def by_number(hosts: Sequence[str]) -> list[str]:
    """Sort hosts as their numbers count: cabinets are numbered along the network."""

    def key(host: str) -> list[tuple[int, str]]:
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"([0-9]+)", host)]

    return sorted(hosts, key=key)


def by_switch(hosts: Sequence[str], topology: str) -> list[str]:
    """Sort hosts switch by switch, then by number.

    Args:
        hosts: of the allocation.
        topology: what ``scontrol show topology`` says; may be empty or an excuse.
    """
    below: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = {}
    for line in topology.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = words.get("SwitchName") or words.get("BlockName")
        try:
            if name and words.get("Switches"):
                below[name] = expand(words["Switches"])
            elif name and words.get("Nodes"):
                leaves[name] = expand(words["Nodes"])
        except ConfigError:  # a word that we do not know: the numbers must do
            continue
    place = {host: index for index, host in enumerate(_walk(below, leaves))}
    return sorted(by_number(hosts), key=lambda host: place.get(host, len(place)))


def _walk(below: dict[str, list[str]], leaves: dict[str, list[str]]) -> list[str]:
    """Give all hosts, those of one switch together, and switches of one switch too."""
    under = {child for children in below.values() for child in children}
    waiting = [name for name in (*below, *leaves) if name not in under]
    waiting.reverse()
    hosts: list[str] = []
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        hosts += by_number(leaves.get(name, ()))
        waiting += reversed(below.get(name, ()))
    return hosts
