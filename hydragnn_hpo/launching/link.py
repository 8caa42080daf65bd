"""The order to run ranks of a job, and what they find in their environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.launching.job import Job

JOB = "HYDRAGNN_HPO_JOB"
DEVICE = "HYDRAGNN_HPO_DEVICE"
MEMORY = "HYDRAGNN_HPO_MEMORY_MB"


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a job meet."""

    address: str
    port: int
    interface: str
    """The network interface that gloo uses."""


def rank_environment(
    job: Job, rank: int, *, local_rank: int, local_world: int, meet: Rendezvous, tag: str
) -> dict[str, str]:
    """Give what a rank finds in its environment, beside what it inherits."""
    slot = job.slots[rank]
    share = {MEMORY: str(slot.memory_mb)} if slot.memory_mb else {}
    return share | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world),
        "WORLD_SIZE": str(job.width),
        "MASTER_ADDR": meet.address,
        "MASTER_PORT": str(meet.port),
        "GLOO_SOCKET_IFNAME": meet.interface,
        "OMP_NUM_THREADS": str(max(1, len(slot.cores))),
        "CUDA_VISIBLE_DEVICES": slot.visible,
        "HIP_VISIBLE_DEVICES": slot.visible,
        DEVICE: slot.device,
        JOB: f"{tag}/{job.id}",
    }


def start_order(
    job: Job, target: str, *, ranks: Sequence[int], meet: Rendezvous, tag: str
) -> dict[str, Any]:
    """Give the message that has an agent run some ranks of a job; its lease is added."""
    places = []
    for local_rank, rank in enumerate(ranks):
        environment = rank_environment(
            job, rank, local_rank=local_rank, local_world=len(ranks), meet=meet, tag=tag
        )
        places.append({"rank": rank, "cores": job.slots[rank].cores, "environment": environment})
    first = 0 in ranks  # rank 0 writes what is watched and reads what is asked
    return {
        "op": "start",
        "job": job.id,
        "target": target,
        "spec": job.spec,
        "log": str(job.log.absolute()),
        "watch": str(job.watch.absolute()) if first and job.watch else None,
        "control": str(job.control.absolute()) if first and job.control else None,
        "width": job.width,
        "slots": [slot.name for slot in job.slots],
        "meet": [meet.address, meet.port, meet.interface],
        "ranks": places,
    }
