"""The controller's end of the channel to one agent: orders out, events in."""

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.launching.channel import Channel
from hydragnn_hpo.launching.job import Event, EventKind, Job, Slot
from hydragnn_hpo.launching.tail import Tail, end_of

JOB = "HYDRAGNN_HPO_JOB"
DEVICE = "HYDRAGNN_HPO_DEVICE"


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
    return {
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
    """Give the message that has an agent run some ranks of a job."""
    places = []
    for local_rank, rank in enumerate(ranks):
        slot: Slot = job.slots[rank]
        environment = rank_environment(
            job, rank, local_rank=local_rank, local_world=len(ranks), meet=meet, tag=tag
        )
        places.append({"rank": rank, "cores": slot.cores, "environment": environment})
    return {
        "op": "start",
        "job": job.id,
        "target": target,
        "spec": job.spec,
        "log": str(job.log.absolute()),
        "lease": str(job.lease.absolute()),
        "watch": None if job.watch is None else str(job.watch.absolute()),
        "ranks": places,
    }


class AgentLink:
    """Follows the jobs of one agent whose ranks all live there."""

    def __init__(
        self, channel: Channel, *, token: str, preload: Sequence[str], lease_seconds: float
    ) -> None:
        """Tell the agent how to work; ``token`` marks what it will start."""
        self.channel = channel
        self.greeted = False
        self.heard = time.monotonic()
        self._jobs: dict[str, Job] = {}
        self._offsets: dict[str, int] = {}
        channel.send(
            {
                "op": "init",
                "token": token,
                "preload": list(preload),
                "lease_seconds": lease_seconds,
            }
        )

    def start(self, job: Job, order: dict[str, Any]) -> None:
        """Send the order to start a job."""
        assert job.id not in self._jobs, f"job {job.id} is running"
        self._jobs[job.id] = job
        self._offsets[job.id] = 0 if job.watch is None else end_of(job.watch)
        self.channel.send(order)

    def stop(self, job_id: str, grace: float) -> None:
        """Send the order to stop a job, if it still runs."""
        if job_id in self._jobs:
            self.channel.send({"op": "stop", "job": job_id, "grace": grace})

    def read(self) -> list[Event]:
        """Give what the agent told since the last call."""
        messages = self.channel.receive()
        if messages:
            self.heard = time.monotonic()
        return [event for message in messages for event in self._translate(message)]

    def _translate(self, message: dict[str, Any]) -> list[Event]:
        name, job_id, when = message.pop("event"), message.pop("job"), message.pop("time")
        kind: EventKind
        match name:
            case "hello" | "beat":
                self.greeted = True
                return []
            case "records":
                self._offsets[job_id] = message["offset"]
                return [Event("record", job_id, when, record) for record in message["records"]]
            case "ended":
                job = self._jobs.pop(job_id)
                del self._offsets[job_id]
                message["codes"] = [message["codes"][str(rank)] for rank in range(job.width)]
                kind = "ended"
            case "ready" | "started" | "zygote_lost":
                kind = name
            case _:
                raise AssertionError(f"an agent told {name!r}")
        return [Event(kind, job_id, when, message)]

    def abandon(self, reason: str) -> list[Event]:
        """Tell how all ends once the agent and its ranks are gone: no record is lost."""
        now = time.time()
        events = [Event("agent_lost", None, now, {"error": None, "reason": reason})]
        for job in self._jobs.values():
            events += self._last_records(job, now)
            with contextlib.suppress(OSError):
                job.lease.unlink()
            codes = [-int(signal.SIGKILL)] * job.width
            ended = {"codes": codes, "signal_sent": False, "first": None, "error": None}
            events.append(Event("ended", job.id, now, ended))
        self._jobs.clear()
        self._offsets.clear()
        return events

    def _last_records(self, job: Job, now: float) -> list[Event]:
        """Read what a job wrote and its agent had no time to tell."""
        if job.watch is None:
            return []
        tail = Tail(job.watch, self._offsets[job.id])
        events = []
        before = -1
        while tail.offset != before:
            before = tail.offset
            events += [Event("record", job.id, now, record) for record in tail.read()]
        return events
