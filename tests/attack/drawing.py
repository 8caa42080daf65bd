"""Draws cases of all kinds, with a seed."""

import dataclasses
import random
from collections.abc import Callable, Iterator

from allocations import allocations
from generators import (
    agents,
    alike_structures,
    broken_structures,
    campaigns,
    cards,
    command_campaigns,
    command_lines,
    command_results,
    ensembles,
    journals,
    machines,
    resumptions,
    schedulers,
    structures,
    surroundings,
)
from sandbox import Case
from scarcity import disks, kills, memory, optimized

Random = random.Random

GENERATORS: dict[Callable[[Random], Case], float] = {
    structures: 24,
    broken_structures: 4,
    alike_structures: 5,
    cards: 12,
    campaigns: 16,
    command_campaigns: 4,
    command_results: 1,
    machines: 6,
    schedulers: 2,
    ensembles: 14,
    journals: 10,
    resumptions: 0.4,
    agents: 2,
    command_lines: 8,
    surroundings: 5,
    allocations: 3,
    memory: 1.2,
    disks: 1.5,
    optimized: 0.5,
    kills: 0.1,
}
"""How often each is drawn."""


def generate(seed: int, count: int) -> Iterator[Case]:
    """Yield cases; number and seed make a case, however many there are."""
    kinds = list(GENERATORS)
    weights = list(GENERATORS.values())
    for number in range(count):
        draw = Random(f"{seed}-{number}")
        case = draw.choices(kinds, weights)[0](draw)
        yield dataclasses.replace(case, name=f"{number}-{case.name}")
