"""Run agents on the hosts of an existing Ray cluster: one actor on each host that is reserved.

The controller never imports Ray, which starts threads, installs signal handlers and lets a process
join only one cluster. The process ``ray_driver.py`` does; this module starts it, controls it by the
messages below, and replaces it if it is lost.

Before that the cluster is examined: ``ray.init`` reports every problem as the same
``ConnectionError`` after 21 s, and also joins a cluster without token authentication.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable
from hydragnn_hpo.launching.host_network import own_address
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.process_control import RUN, end_tagged, run_tag
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews, agent_argv

LOGS = "agents"
"""Folder of a run directory for the output of agents (``HOST.log``) and of Ray."""

_DRIVER_MODULE = "hydragnn_hpo.launching.transports.ray_driver"

# -- messages between the controller and the driver ------------------------------------------


class JoinCluster(msgspec.Struct, frozen=True, tag=True):
    """Controller to driver, the first message: join a cluster and reserve hosts."""

    address: str
    """``host:port`` of the cluster's head."""

    tag: str
    """Tag of the run."""

    hosts: int
    """Number of hosts to reserve; 0: all."""

    excluded: tuple[str, ...]
    """Names of excluded hosts."""

    reserved: tuple[str, ...] = ()
    """Ids of hosts that a lost driver of this controller had reserved."""


class StartAgent(msgspec.Struct, frozen=True, tag=True):
    """Controller to driver: start an agent on a host, replacing any that is there."""

    host: str
    argv: tuple[str, ...]
    """Arguments of the Python interpreter."""

    environment: dict[str, str]
    """Added to that of the host's raylet."""

    log: str
    """The agent's output is appended here."""


class LeaveCluster(msgspec.Struct, frozen=True, tag=True):
    """Controller to driver: end all agents, release all hosts, and exit."""


class JoinFailed(msgspec.Struct, frozen=True, tag=True):
    """Driver to controller, the last message: the cluster cannot be joined."""

    error: str


class ClusterHosts(msgspec.Struct, frozen=True, tag=True):
    """Driver to controller, whenever they change: the hosts of the cluster."""

    reserved: tuple[str, ...]
    """Ids of the hosts that are reserved for this run, sorted by the numbers in their names."""

    usable: int
    """Number of hosts that are alive and not excluded."""


class AgentEnded(msgspec.Struct, frozen=True, tag=True):
    """Driver to controller: an agent and all that it started on its host have ended."""

    host: str
    code: int | None
    """Exit code; None if its actor was lost."""

    output: str
    """Last lines of its output, or Ray's error."""


DriverOrder = JoinCluster | StartAgent | LeaveCluster
DriverNews = JoinFailed | ClusterHosts | AgentEnded


# -- examining a cluster before it is joined -------------------------------------------------

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0


def ray_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that connects to a Ray cluster by token only.

    The token is searched as Ray does: in the variable, in the named file, in ``~/.ray/auth_token``.

    Returns:
        Values by the names of variables.

    Raises:
        ConfigError: there is no token, or others can read it.
    """
    own = {**environment, MODE: "token", "RAY_USAGE_STATS_ENABLED": "0"}
    own.pop("ROCR_VISIBLE_DEVICES", None)  # Slurm sets it, and Ray refuses to start with it
    if not environment.get(TOKEN):
        path = Path(environment.get(TOKEN_PATH) or Path.home() / ".ray" / "auth_token")
        _check_token(path)
        own[TOKEN_PATH] = str(path.absolute())
    return own


def _check_token(path: Path) -> None:
    """Check that a token file is usable: Ray aborts without a message if it is not."""
    try:
        content = path.read_text().strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError):
        content, mode = "", 0
    if not content:
        raise ConfigError(
            f"{path}: there is no token of a Ray cluster, and without one anybody could use what "
            f"we start: set {TOKEN_PATH} to the file of your cluster's token."
        )
    if mode & 0o077:
        raise ConfigError(f"{path}: others can read this token: run 'chmod 600 {path}'.")


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` (or ``[host]:port``).

    Returns:
        Host without brackets, and port.

    Raises:
        ConfigError: it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"machine.address is '{address}': set it to host:port of the head of a Ray cluster."
        )
    return host.strip("[]"), int(port)


def examine_cluster(address: str, environment: Mapping[str, str]) -> None:
    """Check that a cluster can and may be joined; takes two or three seconds.

    Args:
        address: ``host:port`` of its head.
        environment: as ``ray_environment`` returns it.

    Raises:
        ConfigError: nothing answers there, no token is demanded, ours is not the cluster's, or
            it runs another Ray or Python.
    """
    ours = {"ray": _ray_version(), "python": platform.python_version()}
    _check_listener(address)
    no_token = {name: value for name, value in environment.items() if "RAY_AUTH" not in name}
    with_token = _ask_versions(address, environment)
    without = _ask_versions(address, no_token | {MODE: "disabled"})
    if "refused" in with_token:
        raise ConfigError(
            f"the Ray cluster at {address} refuses our token: set {TOKEN_PATH} to the file of its "
            "token."
        )
    if "error" in with_token:
        raise ConfigError(
            f"{address} does not answer as a Ray cluster does ({with_token['error']}): "
            "correct machine.address."
        )
    if "refused" not in without:
        raise ConfigError(
            f"the Ray cluster at {address} demands no token, so anybody could use what we start: "
            f"start it with {MODE}=token and {TOKEN_PATH}."
        )
    if with_token != ours:
        raise ConfigError(
            f"the Ray cluster at {address} runs Ray {with_token['ray']} under Python "
            f"{with_token['python']}, here are Ray {ours['ray']} and Python {ours['python']}: "
            "install the same versions here."
        )


def _ray_version() -> str:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "machine.backend is 'ray', but Ray is not installed: "
            "run 'pip install \"hydragnn-hpo[ray]\"'."
        ) from None


def _check_listener(address: str) -> None:
    """Check that something listens at an address; Ray itself would try for 40 s."""
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"nothing answers at {address} ({error.strerror or error}): start the Ray cluster, "
            "or correct machine.address."
        ) from error


def _ask_versions(address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``ray`` and ``python`` of a cluster, or ``refused`` or ``error`` with the reason.

    A separate process asks: Ray reads its settings once per process, and aborts on bad ones.
    """
    argv = [sys.executable, "-P", "-m", _DRIVER_MODULE, "versions", address]
    try:
        done = subprocess.run(
            argv, capture_output=True, env=environment, timeout=_ANSWER_SECONDS, check=False
        )
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {_ANSWER_SECONDS:.0f} s"}
    except ValueError:
        return {"error": f"the question ended with code {done.returncode}"}


# -- the controller's side of the driver -----------------------------------------------------

DRIVER = "HYDRAGNN_HPO_RAY_DRIVER"
"""Environment variable that marks the drivers of a run, but no process that they start."""

_LEAVE_SECONDS = 10.0


class DriverProcess:
    """A driver that joins or has joined a cluster; its channel closes when it is lost."""

    def __init__(self, join: JoinCluster, *, environment: Mapping[str, str], log: Path) -> None:
        """Start to join a cluster; returns at once.

        Args:
            join: the cluster, and the number of its hosts to reserve.
            environment: as ``ray_environment`` returns it.
            log: Ray's output is appended here.
        """
        ours, theirs = socket.socketpair()
        with theirs, storage(log), log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _DRIVER_MODULE, "serve", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, RUN: join.tag, DRIVER: join.tag},
                cwd="/",  # Ray tells workers to import from where its driver was started
                start_new_session=True,
            )
        self.channel: FramedSocket[DriverNews] = FramedSocket(ours, DriverNews)
        self.channel.send(join)

    def close(self) -> None:
        """Leave the cluster: all agents end, and their hosts are released."""
        self.channel.send(LeaveCluster())
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()


# -- the transport ---------------------------------------------------------------------------

_REJOINS = 3
"""Drivers in a row that may be lost within a minute before the cluster is given up."""

_CALM_SECONDS = 60.0
_RESERVE_SECONDS = 60.0


class RayTransport:
    """Starts agents through actors, see ``Transport``."""

    outlives = True
    allocation = ""
    ends_at = math.inf
    slots: tuple[Slot, ...] = ()

    def __init__(
        self, machine: MachineConfig, *, run_dir: Path, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Join a cluster and wait until hosts are reserved; takes some seconds.

        Args:
            machine: config of the machine: cluster, number of hosts, interface.
            run_dir: folder of the run.
            environment: names the file of the token.

        Raises:
            ConfigError: there is no address or token, the cluster cannot be joined, or too few
                of its hosts are free.
        """
        if machine.address is None:
            raise ConfigError(
                "machine.backend is 'ray', but machine.address names no cluster: set it to "
                "host:port of the cluster's head. A cluster inside a Slurm allocation is not "
                "started any more: set machine.backend to 'slurm' there."
            )
        self._logs = run_dir / LOGS
        with storage(self._logs):
            self._logs.mkdir(mode=0o700, exist_ok=True)
        environment = ray_environment(environment)
        self.address = own_address(machine.interface, split_address(machine.address)[0])
        examine_cluster(machine.address, environment)
        excluded = tuple(read_run_excluded(run_dir))
        self._join = JoinCluster(machine.address, run_tag(run_dir), machine.hosts, excluded)
        self._log = self._logs / "ray-driver.log"
        self._start_driver = partial(DriverProcess, environment=environment, log=self._log)
        self._driver = self._start_driver(self._join)
        self._hosts = ClusterHosts((), 0)
        self._join_error = ""
        self._losses: list[float] = []
        self._news: list[HostNews] = []
        self._orders: dict[str, StartAgent] = {}  # of agents that are not known to have ended
        with contextlib.ExitStack() as failed:
            failed.callback(self._driver.close)
            self._await_hosts(max(1, machine.hosts))
            failed.pop_all()

    def _await_hosts(self, wanted: int) -> None:
        """Wait until ``wanted`` hosts are reserved."""
        deadline = time.monotonic() + _RESERVE_SECONDS
        while len(self._hosts.reserved) < wanted:
            wait_readable([self._driver.channel], 0.2)
            self._receive()
            if self._driver.channel.closed or time.monotonic() > deadline:
                raise ConfigError(
                    self._join_error
                    or f"{len(self._hosts.reserved)} of {self._hosts.usable} hosts of the Ray "
                    f"cluster at {self._join.address} that are not excluded were free within "
                    f"{_RESERVE_SECONDS:.0f} s, wanted are {wanted}: wait until others leave, add "
                    f"hosts, or lower machine.hosts (Ray's output: {self._log})."
                )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Ids of the hosts that are reserved.

        Returns:
            Neighbours by number side by side.
        """
        return self._hosts.reserved

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an agent on each of these hosts, replacing any that is there."""
        environment = call.environment()
        for host in hosts:
            log = str((self._logs / f"{host}.log").absolute())
            order = StartAgent(host, tuple(agent_argv(host)[1:]), environment, log)
            self._orders[host] = order
            self._driver.channel.send(order)

    def poll(self) -> list[HostNews]:
        """Return reports about hosts whose agent has ended; join again if the driver was lost.

        Raises:
            JobError: the cluster is gone.
        """
        self._receive()
        if self._driver.channel.closed:
            self._rejoin()
        news, self._news = self._news, []
        return news

    def _receive(self) -> None:
        for news in self._driver.channel.receive():
            match news:
                case ClusterHosts():
                    self._hosts = news
                case AgentEnded():
                    self._orders.pop(news.host, None)
                    self._news.append(_host_news(news))
                case JoinFailed():
                    self._join_error = (
                        f"the Ray cluster at {self._join.address} cannot be joined from this host "
                        f"({news.error}): run the controller on one of its hosts."
                    )

    def _rejoin(self) -> None:
        """Replace a lost driver: Ray ends its actors, and new agents end what is left."""
        self._driver.close()
        if self._join_error:
            raise JobError(f"the Ray cluster was lost: {self._join_error}")
        now = time.monotonic()
        self._losses = [when for when in self._losses if now - when < _CALM_SECONDS] + [now]
        if len(self._losses) > _REJOINS:
            raise JobError(
                f"the Ray cluster at {self._join.address} was lost {len(self._losses)} times in a "
                f"minute: see {self._log}."
            )
        join = msgspec.structs.replace(self._join, reserved=self._hosts.reserved)
        self._driver = self._start_driver(join)
        for order in self._orders.values():
            self._driver.channel.send(order)

    def find_last_words(self, host: str) -> str:
        """Return where the output of an agent is, on its host."""
        return f"see {self._logs / host}.log"

    def end(self, host: str) -> bool:
        """Return False: the next agent on the host ends a silent one, and ``poll`` reports that."""
        return False

    def close(self) -> None:
        """End all agents, which were dismissed before, and wait until they are gone."""
        self._driver.close()
        end_tagged(DRIVER, self._join.tag)  # a driver that outlived an earlier controller


def _host_news(ended: AgentEnded) -> HostNews:
    """Return the report of an agent's end; one that exits with an error counts as not started."""
    last = ended.output.splitlines()[-1] if ended.output else "it wrote nothing"
    if ended.code is not None and ended.code > 0:
        return HostNews(ended.host, "failed", f"its agent ended with code {ended.code}: {last}")
    return HostNews(ended.host, "gone", f"its agent was lost: {last}")
