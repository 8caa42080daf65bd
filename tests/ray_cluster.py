"""A real Ray cluster of several hosts on this computer, in a process of its own.

``python ray_cluster.py HOSTS`` says one JSON line with the address of the head and one for each
host; for every line that it reads it adds one host more. It ends with its stdin.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hydragnn_hpo.launching.process_control import RUN, end_orphans
from hydragnn_hpo.launching.transports.ray import ray_environment

STORE = 80_000_000
"""Bytes of a host's object store, about the least that Ray takes."""


def make_token(path: Path) -> Path:
    """Write a new token that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


class RayCluster:
    """The cluster as a test sees it: a head without CPUs and hosts of 2 CPUs each."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.tag = f"ray-cluster-{os.getpid()}"
        token = make_token(folder / "token")
        self.environment = ray_environment(os.environ | {"RAY_AUTH_TOKEN_PATH": str(token)})
        self._log = (folder / "cluster.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self.environment | {RUN: self.tag},
            start_new_session=True,
        )
        self.address = self._read()["address"]
        self.raylets: dict[str, int] = {}
        for _ in range(hosts):
            self._note_host()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, f"the Ray cluster did not start: see {self._log.name}"
        return json.loads(line)

    def _note_host(self) -> str:
        host = self._read()
        self.raylets[host["host"]] = host["raylet"]
        return host["host"]

    def add(self) -> str:
        """Add a host in place of one that was killed; gives its name."""
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._note_host()

    def kill(self, host: str) -> None:
        """Kill the raylet of a host, frozen or not."""
        os.kill(self.raylets.pop(host), signal.SIGKILL)

    def close(self) -> None:
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
        end_orphans(self.tag)
        self._process.wait(120)


def _reap_for_ever(pids: dict[int, bool]) -> None:
    """Collect killed raylets: ``ray.cluster_utils`` never does, and a zombie looks alive."""
    while True:
        for pid in list(pids):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.1)


def main(hosts: int) -> None:
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "object_store_memory": STORE,
        "node_ip_address": "127.0.0.10",
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    say = sys.stdout.buffer
    pids: dict[int, bool] = {}

    def tell(**fields: object) -> None:
        say.write(json.dumps(fields).encode() + b"\n")
        say.flush()

    def add(number: int) -> None:
        name = f"host{number}"
        node = cluster.add_node(
            num_cpus=2,
            object_store_memory=STORE,
            node_name=name,
            node_ip_address=f"127.0.0.{10 + number}",
        )
        raylet = node.all_processes["raylet"][0].process.pid
        pids[raylet] = True
        tell(host=f"{name}-{node.node_id[:8]}", raylet=raylet)

    tell(address=cluster.address)
    threading.Thread(target=_reap_for_ever, args=[pids], daemon=True).start()
    for number in range(1, hosts + 1):
        add(number)
    while sys.stdin.buffer.readline():
        hosts += 1
        add(hosts)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
