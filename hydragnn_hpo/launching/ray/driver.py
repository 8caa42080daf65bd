"""The one process of a campaign that speaks with Ray: ``python -m ... driver FD``.

A process can join one cluster in its life, and Ray brings threads, signal handlers and warnings:
none of that belongs into a controller. Over its channel come and go

in: ``join`` (address, tag) first; ``keep`` (host, life, argv, environment, log, before),
``drop`` (host), ``reserve`` (job, slots, patience), ``release`` (job) and ``end``;
out: ``joined`` or ``failed`` (error); ``hosts`` whenever they change; ``gone`` (host, life, code,
said): an agent ended, code None if its actor did; ``reserved`` (job, devices) or ``refused``
(job, reason).

When the controller is gone it stays until the agents are: they wait for another controller.
"""

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import ray
import ray.cloudpickle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hydragnn_hpo.launching import linux
from hydragnn_hpo.launching.channel import Channel, wait
from hydragnn_hpo.launching.ray import groups, keeper

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
        self._tag = tag
        self._nodes: dict[str, str] = {}
        self._hosts: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._groups: dict[str, PlacementGroup] = {}
        self._released: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        ray.cloudpickle.register_pickle_by_value(keeper)
        self._actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(keeper.Keeper)

    async def serve(self) -> None:
        """Work until the controller says ``end``, or is gone and so are all agents."""
        groups.release_leaked(self._tag)
        self._tell("joined")
        loop = asyncio.get_running_loop()
        loop.add_reader(self._controller.fileno(), self._hear)
        while not self._ended.is_set() and not (self._controller.closed and not self._actors):
            self._look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_SECONDS)

    def _tell(self, event: str, **data: Any) -> None:
        self._controller.send({"event": event, **data})

    def _hear(self) -> None:
        for order in self._controller.receive():
            self._obey(order)
        if self._controller.closed:
            asyncio.get_running_loop().remove_reader(self._controller.fileno())

    def _obey(self, order: dict[str, Any]) -> None:
        match order.pop("op"):
            case "keep":
                self._run(self._keep(**order))
            case "drop":
                if actor := self._actors.get(order["host"]):
                    ray.kill(actor)
            case "reserve":
                self._run(self._reserve(**order))
            case "release":
                self._release(order["job"])
            case "end":
                self._ended.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Forget a piece of work; one that failed is a bug and ends us."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            self._ended.set()
            task.result()

    def _look(self) -> None:
        """Tell who belongs to the cluster when that has changed."""
        self._controller.flush()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        hosts = {
            host_name(node): {
                "address": node["NodeManagerAddress"],
                "resources": {key: node["Resources"].get(key, 0.0) for key in ("CPU", "GPU")},
            }
            for node in nodes
        }
        self._nodes = {host_name(node): node["NodeID"] for node in nodes}
        if hosts != self._hosts:
            self._hosts = hosts
            self._tell("hosts", hosts=hosts)

    async def _keep(self, host: str, life: int, **agent: Any) -> None:
        """Run an agent on a host until it ends."""
        node = self._nodes.get(host)
        if node is None:
            self._tell("gone", host=host, life=life, code=None, said="the host has left")
            return
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._actor.options(scheduling_strategy=where).remote()
        self._actors[host] = actor
        try:
            ended = await actor.keep.remote(**agent)
        except ray.exceptions.RayError as error:
            ended = {"code": None, "said": str(error).strip()}
        finally:
            del self._actors[host]
        self._tell("gone", host=host, life=life, **ended)

    async def _reserve(
        self, job: str, slots: list[tuple[str, dict[str, float]]], patience: float
    ) -> None:
        """Occupy what a job will occupy."""
        self._released.discard(job)
        try:
            for host in {host for host, _ in slots} - self._nodes.keys():
                raise groups.Refused(f"{host} has left the Ray cluster.")
            bundles = [groups.Bundle(self._nodes[host], wanted) for host, wanted in slots]
            group = await groups.reserve(groups.name_of(self._tag, job), bundles, patience=patience)
            self._groups[job] = group
            devices = await groups.devices_of(group, bundles)
        except (groups.Refused, ray.exceptions.RayError) as error:
            self._release(job)
            self._tell("refused", job=job, reason=str(error))
            return
        if job in self._released:
            self._release(job)
        else:
            self._tell("reserved", job=job, devices=devices)

    def _release(self, job: str) -> None:
        self._released.add(job)
        if group := self._groups.pop(job, None):
            groups.release(group)


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
    linux.name_process("hpo-ray-driver")
    controller = Channel(socket.socket(fileno=descriptor))
    order = first_order(controller)
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


def first_order(controller: Channel) -> dict[str, Any]:
    """Wait for what the controller wants first; without a controller there is nothing to do."""
    while not controller.closed:
        wait([controller], 60.0)
        for order in controller.receive():
            return order
    sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
