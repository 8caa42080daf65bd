"""The controller's side of the driver: a process that is a member of a Ray cluster for us."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.process_control import RUN
from hydragnn_hpo.launching.wire.channel import Channel, wait

DRIVER = "HYDRAGNN_HPO_RAY_DRIVER"
"""Names the drivers of a run in their environment, and nothing they start."""

_JOIN_SECONDS = 60.0
_END_SECONDS = 10.0
_MODULE = "hydragnn_hpo.launching.ray.driver"


class Membership:
    """A driver that has joined a cluster; ``hosts`` is what it last told."""

    def __init__(
        self, address: str, *, tag: str, environment: Mapping[str, str], log: Path
    ) -> None:
        """Start to join a cluster; returns at once, see ``wait``.

        Args:
            address: ``host:port`` of its head.
            tag: of the run.
            environment: as ``ray_environment`` gives it.
            log: what Ray has to say is appended here.
        """
        self.address = address
        self.tag = tag
        self.hosts: dict[str, dict[str, float]] = {}
        """Host -> its ``CPU`` and ``GPU``."""
        self.failure: str | None = None
        """A sentence once it is clear that we cannot join."""
        self._log = log
        ours, theirs = socket.socketpair()
        with storage(log):
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**environment, RUN: tag, DRIVER: tag},
                cwd="/",  # Ray tells workers to import from where its driver was started
                start_new_session=True,
            )
        finally:
            os.close(file)
            theirs.close()
        self.channel = Channel(ours)
        self.say("join", address=address, tag=tag)

    def wait(self, hosts: int = 1) -> None:
        """Wait until the cluster has so many hosts, some seconds after it was joined.

        Raises:
            ConfigError: it cannot be joined, or has fewer.
        """
        deadline = time.monotonic() + _JOIN_SECONDS
        while len(self.hosts) < hosts and not self.gone and time.monotonic() < deadline:
            wait([self.channel], 0.2)
            self.read()
        if len(self.hosts) < hosts:
            self.close()
            raise ConfigError(
                self.failure
                or f"the Ray cluster at {self.address} has {len(self.hosts)} hosts with CPUs "
                f"after {_JOIN_SECONDS:.0f} s, wanted are {hosts}: add hosts, or see {self._log}."
            )

    @property
    def gone(self) -> bool:
        """Say whether the driver has ended, and with it whatever it had started."""
        return self.channel.closed or self._process.poll() is not None

    def say(self, op: str, **order: Any) -> None:
        """Give the driver an order."""
        self.channel.send({"op": op, **order})

    def read(self) -> list[dict[str, Any]]:
        """Give what the driver told, but for its hosts and failure, which are noted."""
        told = []
        for message in self.channel.receive():
            match message["event"]:
                case "hosts":
                    self.hosts = message["hosts"]
                case "failed":
                    self.failure = (
                        f"the Ray cluster at {self.address} cannot be joined from this host "
                        f"({message['error']}): the controller must run on one of its hosts."
                    )
                case _:
                    told.append(message)
        return told

    def close(self) -> None:
        """Leave the cluster: all that was started there ends, nothing stays occupied."""
        self.say("end")
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()
