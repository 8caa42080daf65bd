"""An agent that has shaken hands, and then sends a controller whatever bytes a case holds."""

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import hydragnn_hpo

SECONDS = 0.5
"""How long the controller may take to choke on it."""


class NoTransport:
    """Starts no agents: the hosts are said to be there."""

    slots = ()
    outlives = True
    allocation = "home"
    address = "127.0.0.1"
    ends_at = math.inf
    hosts = ("a", "b")

    def start(self, hosts: Any, call: Any) -> None:
        """Start nothing."""

    def poll(self) -> list[Any]:
        """Return no news."""
        return []

    def end(self, host: str) -> bool:
        """End nothing."""
        return False

    def close(self) -> None:
        """Close nothing."""


def send_to_controller() -> None:
    """Join as host a, run a job, send the lines of ``messages`` in hexadecimal; then join as b."""
    from hydragnn_hpo.launching.fleet import Fleet
    from hydragnn_hpo.launching.job import Job, Slot
    from hydragnn_hpo.launching.link import AgentLink, read_address, read_keys
    from hydragnn_hpo.launching.protocol import VERSION, Hello, HostSlots

    run = Path("run")
    run.mkdir()
    transport: Any = NoTransport()
    fleet = Fleet(transport, run_dir=run, jobs={"work": "x:y"}, preload=())
    address = read_address(run)
    assert address

    def join(host: str) -> AgentLink:
        link = AgentLink(address, read_keys(run))
        link.send(Hello(VERSION, hydragnn_hpo.__version__, address.run, host, "1"))
        link.send(HostSlots((Slot(host, 0, (), "cpu"),), "127.0.0.1", "lo"))
        deadline = time.monotonic() + 20.0
        while host not in {slot.host for slot in fleet.slots}:
            assert time.monotonic() < deadline, f"host {host} could not join"
            fleet.poll(0.02)
        return link

    link = join("a")
    fleet.start(Job("j", "work", 1, {}, run / "log", None, fleet.slots[:1]))
    for line in Path("messages").read_text().split():
        link._sent += 1
        link._socket.send_multipart([link._sent.to_bytes(8, "big"), bytes.fromhex(line)])
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for event in fleet.poll(0.05):
            msgspec.json.encode(event)
    links = link, join("b")
    sys.stdout.flush()
    os._exit(0 if all(links) else 1)  # closing them would wait for what was never sent


if __name__ == "__main__":
    send_to_controller()
