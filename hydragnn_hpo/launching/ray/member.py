"""Be a host of a Ray cluster of our own: ``python -m ... member --head ADDRESS``.

Runs on the host in question. ``ray start`` ends all it started when it ends, and it ends when its
raylet does, or when that did not come up in time: then it is tried again.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hydragnn_hpo.launching.agent.tether import tethered
from hydragnn_hpo.launching.host_network import own_address
from hydragnn_hpo.launching.ray.admission import split_address
from hydragnn_hpo.launching.ray.credentials import ray_environment

_STORE = 100_000_000
"""Bytes of a host's object store: we keep nothing in it, and Ray would take 30 % of the memory."""

_TRIES = 3
"""Times that a host is started before it is given up."""

_MODULE = "hydragnn_hpo.launching.ray.member"
_RAY = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block")


def head_argv(address: str, folder: str) -> list[str]:
    """Give the command that is a head: it keeps the books and runs no ranks.

    Args:
        address: ``host:port`` where it is to be reached.
        folder: for its sockets and logs, at most 40 characters (Unix sockets have short names).
    """
    host, port = split_address(address)
    where = [f"--port={port}", f"--node-ip-address={host}", f"--temp-dir={folder}"]
    less = ["--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
    return [*_RAY, "--head", *where, *less, f"--object-store-memory={_STORE}"]


def host_argv(head: str, *, own: str, name: str) -> list[str]:
    """Give the command that is a host of the cluster at ``head``, reached at address ``own``."""
    where = [f"--address={head}", f"--node-ip-address={own}", f"--node-name={name}"]
    return [*_RAY, *where, f"--object-store-memory={_STORE}"]


def member_argv(
    head: str, *, interface: str | None = None, name: str = "", name_of: str = ""
) -> list[str]:
    """Give the command that makes whatever host executes it a host of the cluster.

    Args:
        head: address of the head.
        interface: network interface to use; the one that leads to the head if None.
        name: how the host is called.
        name_of: environment variable on the host that holds its name, in place of ``name``.
    """
    argv = [sys.executable, "-P", "-m", _MODULE, "--head", head]
    argv += ["--name-of", name_of] if name_of else ["--name", name]
    return argv + (["--interface", interface] if interface else [])


def persist(argv: Sequence[str], environment: Mapping[str, str], tries: int = _TRIES) -> int:
    """Run a command until it ends well, or has failed so many times; gives its last code."""
    code = 0
    for _ in range(tries):
        code = subprocess.call(tethered(argv), stdin=subprocess.DEVNULL, env=environment)
        if code == 0:
            break
    return code


def main() -> int:
    """Be a host of the cluster until it ends."""
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.ray.member")
    parser.add_argument("--head", required=True, help="address of the head")
    parser.add_argument("--interface", help="network interface to use")
    parser.add_argument("--name", help="name of this host")
    parser.add_argument("--name-of", help="environment variable that holds it")
    given = parser.parse_args()
    own = own_address(given.interface, split_address(given.head)[0])
    name = given.name or os.environ[given.name_of]
    return persist(host_argv(given.head, own=own, name=name), ray_environment(os.environ))


if __name__ == "__main__":
    sys.exit(main())
