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
from hydragnn_hpo.launching.channel import Channel, wait
from hydragnn_hpo.launching.ray.admission import admit
from hydragnn_hpo.launching.strays import RUN

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
        """Join a cluster; takes about two seconds.

        Args:
            address: ``host:port`` of its head.
            tag: of the run.
            environment: as ``ray_environment`` gives it.
            log: what Ray has to say is appended here.

        Raises:
            ConfigError: the cluster cannot be joined, see ``admit``.
        """
        admit(address, environment)
        self.address = address
        self.tag = tag
        self.hosts: dict[str, dict[str, float]] = {}
        """Host -> its ``CPU`` and ``GPU``."""
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
        self._wait_for_hosts(log)

    def _wait_for_hosts(self, log: Path) -> None:
        deadline = time.monotonic() + _JOIN_SECONDS
        while time.monotonic() < deadline and not self.channel.closed:
            wait([self.channel], 1.0)
            for message in self.read():
                if message["event"] == "failed":
                    self.close()
                    raise ConfigError(
                        f"the Ray cluster at {self.address} cannot be joined from this host "
                        f"({message['error']}): the controller must run on one of its hosts."
                    )
            if self.hosts:
                return
        self.close()
        raise ConfigError(
            f"the Ray cluster at {self.address} has no host with CPUs after "
            f"{_JOIN_SECONDS:.0f} s: see {log}."
        )

    @property
    def gone(self) -> bool:
        """Say whether the driver has ended, and with it whatever it had started."""
        return self.channel.closed or self._process.poll() is not None

    def say(self, op: str, **order: Any) -> None:
        """Give the driver an order."""
        self.channel.send({"op": op, **order})

    def read(self) -> list[dict[str, Any]]:
        """Give what the driver told, but for its hosts, which are noted."""
        told = []
        for message in self.channel.receive():
            if message["event"] == "hosts":
                self.hosts = message["hosts"]
            else:
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
