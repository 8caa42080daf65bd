"""A Ray cluster of our own, inside an allocation: a head here, and a host on each of its hosts."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.agent.tether import tethered
from hydragnn_hpo.launching.process_control import RUN, end_tagged
from hydragnn_hpo.launching.ray.member import head_argv

CLUSTER = "HYDRAGNN_HPO_RAY_CLUSTER"
"""Names the cluster of a run in the environment of all its processes on this host."""

_HEAD_SECONDS = 60.0
_END_SECONDS = 10.0


class StartedCluster:
    """A head, from its start to its end; hosts join it by ``add``."""

    def __init__(self, own: str, *, tag: str, environment: Mapping[str, str], logs: Path) -> None:
        """Start a head on this host and wait until it listens, some seconds.

        Args:
            own: address of this host that the others reach.
            tag: of the run.
            environment: as ``ray_environment`` gives it.
            logs: folder for what all have to say.

        Raises:
            JobError: it does not start.
        """
        end_tagged(CLUSTER, tag)
        self.address = f"{own}:{_free_port(own)}"
        self._tag = tag
        self._environment = {**environment, CLUSTER: tag}
        self._environment.pop(RUN, None)
        self._logs = logs
        self._folder = Path(f"/tmp/hpo-ray-{tag[:12]}")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start(head_argv(self.address, str(self._folder)), "head")
        self._wait_for_head()

    def _start(self, argv: Sequence[str], name: str) -> None:
        log = self._logs / f"ray-{name}.log"
        with storage(log):
            file: IO[bytes] = log.open("ab")
        with file:
            self._processes.append(
                subprocess.Popen(
                    tethered(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    def _wait_for_head(self) -> None:
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _HEAD_SECONDS
        while time.monotonic() < deadline and self._processes[0].poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), 1.0).close()
                return
            time.sleep(0.1)
        self.close()
        raise JobError(
            f"the head of a Ray cluster did not start: see {self._logs / 'ray-head.log'}."
        )

    def add(self, argv: Sequence[str], name: str) -> None:
        """Start what becomes one host or many, see ``member_argv``; ``name`` is that of its log."""
        self._start(argv, name)

    def close(self) -> None:
        """End the cluster, hosts first."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()
            process.wait()
        end_tagged(CLUSTER, self._tag)
        shutil.rmtree(self._folder, ignore_errors=True)


def missing(expected: Collection[str], hosts: Collection[str]) -> list[str]:
    """Name the hosts that have not joined.

    Args:
        expected: names of hosts.
        hosts: ids of those that are there, see ``driver.host_name``.
    """
    there = {host.rpartition("-")[0] for host in hosts}
    return sorted(set(expected) - there)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])
