"""Sample the counters of this host: ``python -m ...counters FD PARENT SECONDS``.

A process of its own, because drivers hang and vendors' libraries crash: neither may take the
agent along, whose ranks die with it. It tells samples over its channel and takes one more at
once when it hears anything; it ends with its agent.
"""

import os
import random
import socket
import sys
import time
from pathlib import Path

from hydragnn_hpo.launching.host import linux
from hydragnn_hpo.launching.host.counters.sample import Sampler
from hydragnn_hpo.launching.host.counters.sources import Sources
from hydragnn_hpo.launching.wire.channel import Channel, wait

ROOT = "HYDRAGNN_HPO_COUNTERS"
"""Environment: another folder that holds ``sys`` and ``proc``."""

_LEAST_SECONDS = 1.0
"""Counters move ten times a second at best: asked sooner, it waits."""


def main() -> None:
    """Tell samples until nobody is there to hear them."""
    descriptor, parent, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    linux.die_with_parent(parent)
    linux.name_process("hpo-counters")
    agent = Channel(socket.socket(fileno=descriptor))
    sources = Sources(Path(os.environ.get(ROOT, "/")))
    sampler = Sampler(sources.read, time.monotonic)
    due = seconds * random.uniform(0.5, 1.0)  # thousands of hosts are not to tell at once
    while not agent.closed:
        wait([agent], max(0.0, due - sampler.age))
        if agent.receive():
            due = min(due, max(_LEAST_SECONDS, sampler.age))
        if sampler.age >= due and not agent.closed:
            agent.send(sampler.look().to_plain())
            due = seconds


if __name__ == "__main__":
    main()
