"""How agents get onto the hosts of a Ray cluster: as children of actors, one on each."""

import logging
import re
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded, without_excluded
from hydragnn_hpo.launching.fleet.transport import Call, News, agent_argv
from hydragnn_hpo.launching.host_network import own_address
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.process_control import end_tagged, run_tag
from hydragnn_hpo.launching.ray.admission import admit, split_address
from hydragnn_hpo.launching.ray.cluster import missing
from hydragnn_hpo.launching.ray.inside import LOGS, Ground
from hydragnn_hpo.launching.ray.membership import DRIVER, Membership
from hydragnn_hpo.launching.wire.channel import wait

logger = logging.getLogger(__name__)

_REJOINS = 3
"""Drivers in a row that may be lost within a minute, until we give up."""

_CALM_SECONDS = 60.0

_ARRIVAL_SECONDS = 180.0
"""Time for the hosts of a cluster of our own, which load Ray over one file system."""


class RayTransport:
    """Starts agents through actors, see ``Transport``."""

    outlives = True
    allocation = ""
    slots: tuple[Slot, ...] = ()

    def __init__(self, machine: MachineConfig, ground: Ground, *, run_dir: Path) -> None:
        """Join a cluster, and wait for the hosts that are on their way to it.

        Args:
            machine: how much of the cluster to use, and how.
            ground: the cluster.
            run_dir: of the run.

        Raises:
            ConfigError: the cluster cannot be joined, or has too few hosts.
        """
        self.ends_at = ground.ends_at
        self._wanted, self._shared_files = machine.hosts, machine.shared_files
        self._excluded = frozenset(read_run_excluded(run_dir))
        self._logs = run_dir / LOGS
        self._losses: list[float] = []
        self._news: list[News] = []
        self._answers: list[dict[str, Any]] = []
        self._orders: dict[str, dict[str, Any]] = {}
        self._join = partial(
            Membership,
            ground.address,
            tag=run_tag(run_dir),
            environment=ground.environment,
            log=self._logs / "ray-driver.log",
        )
        self.address = own_address(machine.interface, split_address(ground.address)[0])
        admit(ground.address, ground.environment)
        self.membership = self._join()
        if ground.expected:
            self._wait_for(ground.expected)
        else:
            self.membership.wait(max(1, machine.hosts))
        without_excluded([h.rpartition("-")[0] for h in self.membership.hosts], self._excluded)

    def _wait_for(self, expected: Collection[str]) -> None:
        """Wait until these hosts have joined; go on with those that have after some minutes."""
        self.membership.wait()
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while (late := missing(expected, self.membership.hosts)) and time.monotonic() < deadline:
            wait([self.membership.channel], 0.2)
            self._read()
        if late:
            logger.warning(
                "%d of %d hosts did not join our Ray cluster (%s): see %s. Going on without them.",
                len(late),
                len(expected),
                ", ".join(late[:8]),
                self._logs / "ray-hosts.log",
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Ids of the hosts to use, neighbours by number side by side."""
        hosts = [h for h in self.membership.hosts if h.rpartition("-")[0] not in self._excluded]
        return tuple(sorted(hosts, key=_numbered)[: self._wanted or None])

    def start(self, hosts: Sequence[str], call: Call) -> None:
        """Have an agent started on each of these hosts, in place of any that was there."""
        environment = call.environment(shared_files=self._shared_files)
        for host in hosts:
            log = str((self._logs / f"{host}.log").absolute()) if self._shared_files else None
            order = {"argv": agent_argv(host)[1:], "environment": environment, "log": log}
            self._orders[host] = order
            self.membership.say("run", host=host, **order)

    def poll(self) -> list[News]:
        """Give the hosts on which nothing of ours is left; join again if our driver was lost.

        Raises:
            JobError: the cluster is gone.
        """
        self._read()
        if self.membership.gone:
            self._rejoin()
        news, self._news = self._news, []
        return news

    def answers(self) -> list[dict[str, Any]]:
        """Give what the driver said of slots to be reserved."""
        self._read()
        answers, self._answers = self._answers, []
        return answers

    def _read(self) -> None:
        for message in self.membership.read():
            if message["event"] == "gone":
                self._orders.pop(message["host"], None)
                self._news.append(_news_of(message))
            elif message["event"] in ("reserved", "refused"):
                self._answers.append(message)

    def _rejoin(self) -> None:
        """Replace a driver that was lost: Ray ends what it had started, agents sweep the rest."""
        now = time.monotonic()
        self._losses = [when for when in self._losses if now - when < _CALM_SECONDS] + [now]
        lost = self.membership
        lost.close()
        if lost.failure is not None:
            raise JobError(f"the Ray cluster was lost: {lost.failure}")
        if len(self._losses) > _REJOINS:
            raise JobError(
                f"the Ray cluster at {lost.address} was lost {len(self._losses)} times in a "
                f"minute: see {self._logs / 'ray-driver.log'}."
            )
        self.membership = self._join()
        self.membership.hosts = lost.hosts
        for host, order in self._orders.items():
            self.membership.say("run", host=host, **order)

    def end(self, host: str) -> bool:
        """Leave an agent that is not heard alone: the next one there ends it, and is news."""
        return False

    def close(self) -> None:
        """End all agents (they were told to go) and wait until they are gone."""
        self.membership.close()
        end_tagged(DRIVER, self.membership.tag)  # one that outlived an earlier controller


def _news_of(message: dict[str, Any]) -> News:
    """Say how an agent ended; one that was not killed and did not end well cannot be started."""
    code, said = message["code"], message["said"].splitlines()
    last = said[-1] if said else "it said nothing"
    failed = code is not None and code > 0
    reason = (
        f"its agent ended with code {code}: {last}" if failed else f"its agent was lost: {last}"
    )
    return News(message["host"], "failed" if failed else "gone", reason)


def _numbered(host: str) -> list[tuple[int, str]]:
    """Order names by the numbers in them: host2 before host10."""
    parts = re.split(r"(\d+)", host.rpartition("-")[0])
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]
