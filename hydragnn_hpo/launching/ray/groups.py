"""Placement groups: what a job occupies is nobody else's while it runs. Used by the driver."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.placement_group import placement_group_table as table_of
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODE_LABEL = "ray.io/node-id"
"""Ray labels each of its hosts so (2.49 and later); an address may be that of several."""

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Bundle:
    """What one rank occupies."""

    node: str
    """Ray's id of the host."""

    resources: Mapping[str, float]
    """``CPU`` and ``GPU``."""


class Refused(Exception):
    """A job does not get what it should occupy; the message says why."""


def name_of(tag: str, job: str) -> str:
    """Give the name of a job's group."""
    return f"hydragnn-hpo/{tag}/{job}"


async def reserve(name: str, bundles: Sequence[Bundle], *, patience: float) -> PlacementGroup:
    """Occupy bundles on the hosts they name.

    Raises:
        Refused: a host is gone or too small, or others held it for ``patience`` seconds.
    """
    _see_feasible(bundles)
    group = placement_group(
        [dict(bundle.resources) for bundle in bundles],
        strategy="PACK",
        name=name,
        bundle_label_selector=[{NODE_LABEL: bundle.node} for bundle in bundles],
    )
    deadline = time.monotonic() + patience
    while (state := table_of(group)["state"]) != "CREATED":
        if time.monotonic() > deadline or state == "REMOVED":
            remove_placement_group(group)
            raise Refused(
                f"its slots were not free on the Ray cluster for {patience:g} s: others use them."
            )
        await asyncio.sleep(_LOOK_SECONDS)
    return group


def _see_feasible(bundles: Sequence[Bundle]) -> None:
    """See that the hosts are there and large enough: Ray would wait for ever."""
    there = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    wanted: dict[tuple[str, str], float] = {}
    for bundle in bundles:
        if bundle.node not in there:
            raise Refused(f"the Ray cluster has no host {bundle.node} any more.")
        for resource, amount in bundle.resources.items():
            key = (bundle.node, resource)
            wanted[key] = wanted.get(key, 0.0) + amount
    for (node, resource), amount in wanted.items():
        total = there[node].get(resource, 0.0)
        if amount > total + 1e-6:
            raise Refused(
                f"it wants {amount:g} {resource} of Ray host {node}, which has {total:g}."
            )


async def devices_of(group: PlacementGroup, bundles: Sequence[Bundle]) -> list[str]:
    """Give the GPU that Ray has set aside for each bundle, or "" where it has none."""
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


def release(group: PlacementGroup) -> None:
    """Give back what a job occupied."""
    remove_placement_group(group)


def release_leaked(tag: str) -> list[str]:
    """Give back what earlier controllers of this run still occupy; gives the groups' names."""
    start = name_of(tag, "")
    leaked = []
    for key, row in table_of().items():
        if row["name"].startswith(start) and row["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(key)))
            leaked.append(row["name"])
    return leaked
