"""Look at a Ray cluster before joining it: is it there, does it guard itself, is it like us?

``ray.init`` tells all of this apart by nothing but a ``ConnectionError`` after 21 s.
"""

import importlib.metadata
import json
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.ray.credentials import MODE, PATH

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_PROBE = "hydragnn_hpo.launching.ray.probe"


def admit(address: str, environment: Mapping[str, str]) -> None:
    """Make sure that a cluster can be joined; takes about a second.

    Args:
        address: ``host:port`` of its head.
        environment: as ``ray_environment`` gives it.

    Raises:
        ConfigError: nobody answers there, anybody may use it, our token is not its own, or it
            runs another Ray or Python.
    """
    ours = {"ray": ray_version(), "python": platform.python_version()}
    _connect(address)
    stranger = {name: value for name, value in environment.items() if "RAY_AUTH" not in name}
    probes = [_probe(address, environment), _probe(address, stranger | {MODE: "disabled"})]
    with_token, without = [_answer(probe) for probe in probes]
    if "refused" in with_token:
        raise ConfigError(
            f"the Ray cluster at {address} refuses our token: set {PATH} to the file of its token."
        )
    if "error" in with_token:
        raise ConfigError(
            f"{address} does not answer as a Ray cluster does ({with_token['error']}): "
            "correct machine.address."
        )
    if "refused" not in without:
        raise ConfigError(
            f"the Ray cluster at {address} demands no token, so anybody could use what we start: "
            f"start it with {MODE}=token and {PATH}."
        )
    if with_token != ours:
        raise ConfigError(
            f"the Ray cluster at {address} runs Ray {with_token['ray']} under Python "
            f"{with_token['python']}, here are Ray {ours['ray']} and Python {ours['python']}: "
            "they must be equal."
        )


def ray_version() -> str:
    """Give the version of the Ray that is installed here.

    Raises:
        ConfigError: there is none.
    """
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "machine.backend is 'ray', but Ray is not installed: "
            "run 'pip install \"hydragnn-hpo[ray]\"'."
        ) from None


def split_address(address: str) -> tuple[str, int]:
    """Take ``host:port`` (or ``[host]:port``) apart.

    Raises:
        ConfigError: it is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"machine.address is '{address}': give host:port of the head of a Ray cluster."
        )
    return host.strip("[]"), int(port)


def _connect(address: str) -> None:
    """See that somebody listens; Ray itself would try for 40 s."""
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"nobody answers at {address} ({error.strerror or error}): start the Ray cluster, "
            "or correct machine.address."
        ) from error


def _probe(address: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _PROBE, address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        text=True,
    )


def _answer(probe: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for what a probe found; whoever does not answer is ended."""
    with probe:
        try:
            said, _ = probe.communicate(timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            probe.kill()
            return {"error": f"no answer in {_ANSWER_SECONDS:.0f} s"}
    try:
        return dict(json.loads(said))
    except ValueError:
        return {"error": f"the question ended with code {probe.returncode}"}
