"""The only process of a run that uses Ray: ``python -m ... ray_driver serve FD``.

It reserves hosts by placement groups and runs an actor on each, which runs an agent as its child.
``ray.py`` starts it and defines the messages over its channel. When its controller is gone, it
stays until all agents are: they wait for another controller, which has its own driver.

``... ray_driver versions ADDRESS`` writes the versions of a cluster as a line of JSON, without
joining it.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable
from hydragnn_hpo.launching.slurm_allocation import find_excluded, sort_by_number
from hydragnn_hpo.launching.transports.ray import (
    AgentEnded,
    ClusterHosts,
    DriverOrder,
    JoinCluster,
    JoinFailed,
    LeaveCluster,
    StartAgent,
)

# -- the actor on each host ------------------------------------------------------------------

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OUTPUT_BYTES = 2000


class AgentActor:
    """Runs one agent as the child of its main thread: when that ends, the kernel ends the agent.

    Ray sends it by value, like everything in the main module of a driver, so it starts on every
    host of the cluster; if this package is missing there, the output says so.
    """

    def run(
        self, argv: Sequence[str], *, environment: Mapping[str, str], log: str
    ) -> tuple[int, str]:
        """Run an agent until it ends and nothing that it started is left.

        Args:
            argv: arguments of the Python interpreter.
            environment: added to that of the host's raylet; names the agent's life.
            log: the agent's output is appended here.

        Returns:
            Its exit code, and the end of its output.
        """
        try:
            output = open(log, "ab+")  # noqa: SIM115
        except OSError as error:
            return 1, f"{log}: {error.strerror}: all hosts must see the run directory."
        with output:
            start = output.seek(0, os.SEEK_END)
            code = subprocess.call(
                [sys.executable, *argv, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_raylet_environment() | dict(environment),
                start_new_session=True,
            )
            output.seek(max(start, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            last_lines = output.read().decode(errors="replace").strip()
        self.sweep(environment)
        return code, last_lines

    def sweep(self, environment: Mapping[str, str]) -> None:
        """Kill the processes that an agent with this environment left here, and wait for them."""
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path.extend(path for path in paths if path and path not in sys.path)
        from hydragnn_hpo.launching.process_control import AGENT, end_tagged

        end_tagged(AGENT, environment[AGENT])


def _raylet_environment() -> dict[str, str]:
    """Return this worker's environment with the devices of the host's raylet.

    Ray may hide all devices from a worker that asks for none.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _DEVICES}
    content = Path(f"/proc/{os.environ['RAY_RAYLET_PID']}/environ").read_bytes()
    for entry in content.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode() in _DEVICES:
            kept[name.decode()] = os.fsdecode(value)
    return kept


# -- reserving hosts -------------------------------------------------------------------------

_NODE_LABEL = "ray.io/node-id"

_NAMES = ("NodeName", "NodeManagerHostname", "NodeManagerAddress")
"""Keys of a host's names, besides the one in its id."""
"""Ray's own label on each of its hosts, 2.49 and later; several hosts may share an address."""

_GROUP_SECONDS = 10.0
"""Seconds for a placement group on free hosts; later, another user has taken one of them."""


_HOLDING = ("CREATED", "RESCHEDULING")
"""States of a group that holds hosts; in the second it has lost one."""


class Reservations:
    """Whole hosts that are held for a run by placement groups, a bundle for each host.

    One group holds all hosts that are free when the driver joins; those that join or become free
    later are held by further groups, as a group cannot grow. A bundle whose host dies stays lost:
    a host that comes back is another one to Ray.

    Ray removes a group when the driver that made it ends or crashes, so hosts never stay blocked
    for other users. While an earlier driver of the run lives on with its agents, its groups count.
    Hosts whose group has ended with that driver are reserved again once they are free.
    """

    def __init__(self, join: JoinCluster) -> None:
        """Hold nothing but what earlier drivers of the run may hold already."""
        self._join = join
        self._prefix = f"hydragnn-hpo/{join.tag}/"
        self._reserved = set(join.reserved)
        self._pending: PlacementGroup | None = None
        self._give_up_at = 0.0

    @property
    def pending(self) -> bool:
        """Whether a group has been requested and is not known to be there."""
        return self._pending is not None

    def update(self, nodes: Mapping[str, Mapping[str, Any]], *, extend: bool) -> ClusterHosts:
        """Find the hosts that are reserved, and reserve more if fewer than wanted are.

        Args:
            nodes: hosts of the cluster that are alive, by their ids.
            extend: whether more may be reserved.
        """
        names = {
            host: [host.rpartition("-")[0], *(str(node[key]) for key in _NAMES if key in node)]
            for host, node in nodes.items()
        }
        excluded, _ = find_excluded(list(nodes), self._join.excluded, names)
        usable = {host: node for host, node in nodes.items() if host not in excluded}
        self._settle_pending()  # first, so that its hosts are found below
        held = self._find_held()
        unheld = [host for host in usable if usable[host]["NodeID"] not in held]
        self._reserved = (usable.keys() - unheld) | (usable.keys() & self._reserved)
        if extend and unheld and self._pending is None:
            self._request([usable[host] for host in self._choose(sort_by_number(unheld), usable)])
        return ClusterHosts(tuple(sort_by_number([*self._reserved])), len(usable))

    def _settle_pending(self) -> None:
        """Note whether the last requested group has been created; remove it if it is overdue."""
        if self._pending is not None:
            created = placement_group_table(self._pending)["state"] in _HOLDING
            overdue = time.monotonic() > self._give_up_at
            if overdue and not created:
                remove_placement_group(self._pending)
            if overdue or created:
                self._pending = None

    def _find_held(self) -> set[str]:
        """Return the nodes that groups of this run hold."""
        return {
            node
            for group in placement_group_table().values()
            if group["name"].startswith(self._prefix) and group["state"] in _HOLDING
            for node in group["bundles_to_node_id"].values()
        }

    def _choose(self, unheld: Sequence[str], nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Choose hosts to reserve that are in no other use; no more than are wanted."""
        wanted = self._join.hosts or len(nodes)
        again = [host for host in unheld if host in self._reserved]
        more = [host for host in unheld if host not in self._reserved]
        if not again and wanted <= len(self._reserved):
            return []
        available = available_resources_per_node()

        def is_free(host: str) -> bool:
            left = available.get(nodes[host]["NodeID"], {})
            return _countable(left) == _countable(nodes[host]["Resources"])

        free = [*filter(is_free, more)]
        return [*filter(is_free, again), *free[: max(0, wanted - len(self._reserved))]]

    def _request(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Request a group that holds the whole of some nodes."""
        if nodes:
            self._give_up_at = time.monotonic() + _GROUP_SECONDS
            self._pending = placement_group(
                [_countable(node["Resources"]) for node in nodes],
                strategy="PACK",
                name=self._prefix + secrets.token_hex(8),
                bundle_label_selector=[{_NODE_LABEL: node["NodeID"]} for node in nodes],
            )


def _countable(resources: Mapping[str, float]) -> dict[str, float]:
    """Return the CPUs and GPUs among resources."""
    return {name: resources[name] for name in ("CPU", "GPU") if resources.get(name)}


def host_id(node: Mapping[str, Any]) -> str:
    """Return a unique id of a host that contains its name."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "-", node["NodeName"])
    return f"{plain}-{node['NodeID'][:8]}"


# -- the driver ------------------------------------------------------------------------------

_LOOK_SECONDS = 1.0
_PENDING_LOOK_SECONDS = 0.1


class Driver:
    """Reserves hosts and runs agents, all at once, in one thread."""

    def __init__(self, controller: FramedSocket[DriverOrder], join: JoinCluster) -> None:
        """Serve a controller; the cluster has been joined."""
        self._controller = controller
        self._reservations = Reservations(join)
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._hosts: ClusterHosts | None = None
        self._agents: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(AgentActor)

    async def serve(self, orders: Sequence[DriverOrder]) -> None:
        """Work until the controller orders to leave, or is gone and all agents are."""
        asyncio.get_running_loop().add_reader(self._controller.fileno(), self._receive)
        self._look()
        for order in orders:
            self._obey(order)
        while not self._ended.is_set() and not (self._controller.closed and not self._agents):
            pause = _PENDING_LOOK_SECONDS if self._reservations.pending else _LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause)
            self._look()

    def _receive(self) -> None:
        for order in self._controller.receive():
            self._obey(order)
        if self._controller.closed:
            asyncio.get_running_loop().remove_reader(self._controller.fileno())

    def _obey(self, order: DriverOrder) -> None:
        match order:
            case StartAgent():
                task = asyncio.create_task(self._run_agent(order))
                self._tasks.add(task)  # the loop itself holds no more than a weak reference
                task.add_done_callback(self._tasks.discard)
            case LeaveCluster():
                self._ended.set()

    def _look(self) -> None:
        """Find the hosts of the cluster, and report those that are reserved if they have changed.

        Hosts without CPUs are left out, such as a head that only manages the cluster.
        """
        self._controller.flush()
        alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self._nodes = {host_id(node): node for node in alive}
        hosts = self._reservations.update(self._nodes, extend=not self._controller.closed)
        if hosts != self._hosts:
            self._hosts = hosts
            self._controller.send(hosts)

    async def _run_agent(self, order: StartAgent) -> None:
        """Run an agent until it ends; report it once all that it started has ended."""
        host = order.host
        tag = process_control.host_tag(order.environment[process_control.RUN], host)
        life = {process_control.HOST: tag, process_control.AGENT: secrets.token_hex(8)}
        environment = order.environment | life
        if before := self._agents.get(host):
            ray.kill(before)
        actor = self._create_actor(host)
        if actor is None:
            return
        self._agents[host] = actor
        code: int | None
        try:
            code, output = await actor.run.remote(
                order.argv, environment=environment, log=order.log
            )
        except ray.exceptions.RayError as error:
            code = None
            output = str(error).strip()
        ray.kill(actor)
        if self._agents.get(host) is not actor:
            return  # another agent is there already, which has swept
        del self._agents[host]
        if code is not None or await self._sweep(host, environment):
            self._controller.send(AgentEnded(host, code, output))

    def _create_actor(self, host: str) -> Any:
        """Create an actor on a host; None if the host has left the cluster.

        It is pinned to the host, not to a bundle: a bundle may be that of an earlier driver, and
        ends with it.
        """
        node = self._nodes.get(host)
        if node is None:
            return None
        affinity = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return self._actor.options(scheduling_strategy=affinity).remote()

    async def _sweep(self, host: str, environment: dict[str, str]) -> bool:
        """End what a lost agent left on its host; returns whether that is certain."""
        self._look()
        sweeper = self._create_actor(host)
        if sweeper is None:
            return False
        try:
            await sweeper.sweep.remote(environment)
        except ray.exceptions.RayError:
            return False
        finally:
            ray.kill(sweeper)
        return True


def serve(descriptor: int) -> NoReturn:
    """Join a cluster and serve the controller at the other end of a socket."""
    process_control.name_process("hpo-ray-driver")
    controller: FramedSocket[DriverOrder] = FramedSocket.of_descriptor(descriptor, DriverOrder)
    orders: list[DriverOrder] = []
    while not orders and not controller.closed:
        wait_readable([controller], 60.0)
        orders = controller.receive()
    if not orders or not isinstance(join := orders.pop(0), JoinCluster):
        sys.exit(0)
    try:
        ray.init(
            address=join.address,
            namespace="hydragnn-hpo",
            log_to_driver=False,
            configure_logging=False,
            job_config=ray.job_config.JobConfig(metadata={"hydragnn-hpo": join.tag}),
        )
    except Exception as error:
        controller.send(JoinFailed(f"{type(error).__name__}: {error}"))
        os._exit(1)
    asyncio.run(Driver(controller, join).serve(orders))
    ray.shutdown()
    os._exit(0)


def ask_versions(address: str) -> dict[str, Any]:
    """Ask a cluster what it runs.

    Returns:
        Its versions as ``ray`` and ``python``, or ``refused`` or ``error`` with the reason.
    """
    try:
        client = ray._raylet.GcsClient(address=address)
        metadata = client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=3)
    except ray.exceptions.AuthenticationError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    versions = json.loads(metadata or b"{}")
    return {"ray": versions.get("ray_version"), "python": versions.get("python_version")}


if __name__ == "__main__":
    if sys.argv[1] == "versions":
        sys.stdout.write(json.dumps(ask_versions(sys.argv[2])) + "\n")
    else:
        serve(int(sys.argv[2]))
