"""Placement groups: what a job occupies is nobody else's while it runs. Used by the driver."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.placement_group import placement_group_table as table_of
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODE_LABEL = "ray.io/node-id"
"""Ray labels each of its hosts so (2.49 and later); an address may be that of several."""

_LOOK_SECONDS = 0.05

_REST_SECONDS = 0.2
"""After a release the news of what is free spreads in tenths of a second.

A group that asks for the same slots sooner is put off, and tried again after a second (measured).
"""


@dataclass(frozen=True)
class Bundle:
    """What one rank occupies."""

    node: str
    """Ray's id of the host."""

    resources: Mapping[str, float]
    """``CPU`` and, where it has one, ``GPU``."""


class PlacementRefused(Exception):
    """A job does not get what it should occupy; the message says why."""


class Groups:
    """The placement groups of one run, by job.

    Ray gives a group back when the driver that made it ends, however it ends. The name tells the
    driver of the next controller which job it belongs to.
    """

    def __init__(self, tag: str) -> None:
        """Name groups so that those of the run with this tag are found again."""
        self._prefix = f"hydragnn-hpo/{tag}/"
        self._held: dict[str, tuple[PlacementGroup, set[str]]] = {}
        self._wanted: set[str] = set()
        self._free_from: dict[str, float] = {}

    async def reserve(self, job: str, bundles: Sequence[Bundle], *, patience: float) -> list[str]:
        """Occupy bundles on the hosts they name.

        Returns:
            The GPU that Ray has set aside for each bundle, "" for those without.

        Raises:
            Refused: a host is gone or too small, others held it for ``patience`` seconds, or
                it was released meanwhile.
        """
        _see_feasible(bundles)
        nodes = {bundle.node for bundle in bundles}
        self._wanted.add(job)
        await self._rest(nodes)
        if job not in self._wanted:
            raise PlacementRefused("it was given up.")
        group = placement_group(
            [dict(bundle.resources) for bundle in bundles],
            strategy="PACK",
            name=self._prefix + job,
            bundle_label_selector=[{NODE_LABEL: bundle.node} for bundle in bundles],
        )
        self._held[job] = (group, nodes)
        deadline = time.monotonic() + patience
        while (state := table_of(group)["state"]) != "CREATED":
            if state == "REMOVED":
                raise PlacementRefused("it was given up.")
            if time.monotonic() > deadline:
                raise PlacementRefused(
                    f"its slots were not free on the Ray cluster for {patience:g} s: "
                    "others use them."
                )
            await asyncio.sleep(_LOOK_SECONDS)
        return await _devices_of(group, bundles)

    async def _rest(self, nodes: Collection[str]) -> None:
        free_from = max(self._free_from.get(node, 0.0) for node in nodes)
        await asyncio.sleep(max(0.0, free_from - time.monotonic()))

    def release(self, job: str) -> None:
        """Give back what a job occupied, also one of an earlier driver."""
        if job in self._wanted:
            self._wanted.remove(job)
            if job not in self._held:
                return  # ``reserve`` will see that it has no use any more
            group, nodes = self._held.pop(job)
            remove_placement_group(group)
            self._free_from |= dict.fromkeys(nodes, time.monotonic() + _REST_SECONDS)
        else:
            self._remove(lambda name: name == job)

    def release_others(self, jobs: Collection[str]) -> None:
        """Give back what earlier drivers of this run still occupy, but for some jobs."""
        self._remove(lambda name: name not in jobs and name not in self._held)

    def _remove(self, unwanted: Callable[[str], bool]) -> None:
        for key, row in table_of().items():
            name = row["name"].removeprefix(self._prefix)
            if name != row["name"] and row["state"] != "REMOVED" and unwanted(name):
                remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(key)))


def _see_feasible(bundles: Sequence[Bundle]) -> None:
    """See that the hosts are there and large enough: Ray would wait for ever."""
    there = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    wanted: dict[tuple[str, str], float] = {}
    for bundle in bundles:
        if bundle.node not in there:
            raise PlacementRefused(f"the Ray cluster has no host {bundle.node} any more.")
        for resource, amount in bundle.resources.items():
            key = (bundle.node, resource)
            wanted[key] = wanted.get(key, 0.0) + amount
    for (node, resource), amount in wanted.items():
        total = there[node].get(resource, 0.0)
        if amount > total + 1e-6:
            raise PlacementRefused(
                f"it wants {amount:g} {resource} of Ray host {node}, which has {total:g}."
            )


async def _devices_of(group: PlacementGroup, bundles: Sequence[Bundle]) -> list[str]:
    question = ray.remote(num_cpus=0, max_retries=0)(_own_device)
    asked = {
        index: question.options(
            num_gpus=bundle.resources["GPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        ).remote()
        for index, bundle in enumerate(bundles)
        if bundle.resources.get("GPU")
    }
    return [await asked[index] if index in asked else "" for index in range(len(bundles))]


def _own_device() -> str:
    return ",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])
