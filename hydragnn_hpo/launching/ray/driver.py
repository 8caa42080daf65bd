"""The one process of a campaign that speaks with Ray: ``python -m ... driver FD``.

A process can join one cluster in its life, and Ray brings threads, signal handlers and warnings:
none of that belongs into a controller. Over its channel come and go

in: ``join`` (address, tag) first; ``run`` (host, argv, environment, log): an agent, in place of
the one that is there; ``reserve`` (job, slots [[host, resources]], patience), ``release`` (job),
``tidy`` (jobs): release all but these; ``end``;
out: ``joined`` or ``failed`` (error); ``hosts`` whenever they change; ``gone`` (host, code,
said): nothing of an agent is left on its host; ``reserved`` (job, devices) or ``refused``
(job, reason).

When the controller is gone it stays until the agents are: they wait for another controller.
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import ray
import ray.cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, host_tag
from hydragnn_hpo.launching.ray import actor, groups
from hydragnn_hpo.launching.wire.channel import Channel, wait

_LOOK_SECONDS = 1.0
"""Seconds between two looks at who belongs to the cluster."""

_NAMESPACE = "hydragnn-hpo"


def host_name(node: dict[str, Any]) -> str:
    """Name a host of the cluster so that a person knows it and it is nobody else's name."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "-", node["NodeName"])
    return f"{plain}-{node['NodeID'][:8]}"


class Driver:
    """Does what the controller asks of the cluster, all at once, in one thread."""

    def __init__(self, controller: Channel, tag: str) -> None:
        """Serve ``controller``; ``tag`` names its run."""
        self._controller = controller
        self._nodes: dict[str, str] = {}
        self._hosts: dict[str, Any] = {}
        self._agents: dict[str, Any] = {}
        self._groups = groups.Groups(tag)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._bug: BaseException | None = None
        for module in (actor, groups):
            ray.cloudpickle.register_pickle_by_value(module)
        self._actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(actor.AgentActor)

    async def serve(self) -> None:
        """Work until the controller says ``end``, or is gone and so are all agents."""
        self._tell("joined")
        asyncio.get_running_loop().add_reader(self._controller.fileno(), self._hear)
        while not self._ended.is_set() and not (self._controller.closed and not self._agents):
            self._look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._bug:
            raise self._bug

    def _tell(self, event: str, **data: Any) -> None:
        self._controller.send({"event": event, **data})

    def _hear(self) -> None:
        for order in self._controller.receive():
            self._obey(order)
        if self._controller.closed:
            asyncio.get_running_loop().remove_reader(self._controller.fileno())

    def _obey(self, order: dict[str, Any]) -> None:
        match order.pop("op"):
            case "run":
                self._do(self._run(**order))
            case "reserve":
                self._do(self._reserve(**order))
            case "release":
                self._groups.release(order["job"])
            case "tidy":
                self._groups.release_others(order["jobs"])
            case "end":
                self._ended.set()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._bug = error
            self._ended.set()

    def _look(self) -> None:
        """Tell who belongs to the cluster when that has changed."""
        self._controller.flush()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self._nodes = {host_name(node): node["NodeID"] for node in nodes}
        hosts = {
            host_name(node): {key: node["Resources"].get(key, 0.0) for key in ("CPU", "GPU")}
            for node in nodes
        }
        if hosts != self._hosts:
            self._hosts = hosts
            self._tell("hosts", hosts=hosts)

    async def _run(
        self, host: str, argv: list[str], environment: dict[str, str], log: str | None
    ) -> None:
        """Run an agent until it ends; tell so once it is sure that nothing is left of it."""
        life = {HOST: host_tag(environment[RUN], host), AGENT: secrets.token_hex(8)}
        environment = environment | life
        if before := self._agents.get(host):
            ray.kill(before)
        agent = self._start(host)
        if agent is None:
            return
        self._agents[host] = agent
        try:
            ended = await agent.run.remote(argv, environment=environment, log=log)
        except ray.exceptions.RayError as error:
            ended = {"code": None, "said": str(error).strip()}
            ray.kill(agent)
        if self._agents.get(host) is not agent:
            return  # there is another agent already, which has swept
        del self._agents[host]
        if ended["code"] is not None or await self._sweep(host, environment):
            self._tell("gone", host=host, **ended)

    def _start(self, host: str) -> Any:
        """Create an actor on a host; None where the host has left."""
        node = self._nodes.get(host)
        if node is None:
            return None
        affinity = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._actor.options(scheduling_strategy=affinity).remote()

    async def _sweep(self, host: str, environment: dict[str, str]) -> bool:
        """Have what a lost agent left on its host ended; False where nobody can tell."""
        self._look()
        sweeper = self._start(host)
        if sweeper is None:
            return False
        try:
            await sweeper.sweep.remote(environment)
        except ray.exceptions.RayError:
            return False
        finally:
            ray.kill(sweeper)
        return True

    async def _reserve(
        self, job: str, slots: list[tuple[str, dict[str, float]]], patience: float
    ) -> None:
        """Occupy what a job is going to occupy."""
        try:
            if left := {host for host, _ in slots} - self._nodes.keys():
                raise groups.PlacementRefused(f"{min(left)} has left the Ray cluster.")
            bundles = [groups.Bundle(self._nodes[host], wanted) for host, wanted in slots]
            devices = await self._groups.reserve(job, bundles, patience=patience)
        except (groups.PlacementRefused, ray.exceptions.RayError) as error:
            self._groups.release(job)
            self._tell("refused", job=job, reason=str(error).strip())
        else:
            self._tell("reserved", job=job, devices=devices)


def join(address: str, tag: str) -> None:
    """Become a part of the cluster."""
    ray.init(
        address=address,
        namespace=_NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        job_config=ray.job_config.JobConfig(metadata={"hydragnn-hpo": tag}),
    )


def main(descriptor: int) -> NoReturn:
    """Join and serve whoever holds the other end."""
    process_control.name_process("hpo-ray-driver")
    controller = Channel(socket.socket(fileno=descriptor))
    order = _first_order(controller)
    try:
        join(order["address"], order["tag"])
    except Exception as error:
        controller.send({"event": "failed", "error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    asyncio.run(_serve(controller, order["tag"]))
    ray.shutdown()
    os._exit(0)


async def _serve(controller: Channel, tag: str) -> None:
    await Driver(controller, tag).serve()


def _first_order(controller: Channel) -> dict[str, Any]:
    """Wait for what the controller wants first; without a controller there is nothing to do."""
    while not controller.closed:
        wait([controller], 60.0)
        for order in controller.receive():
            return order
    sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
