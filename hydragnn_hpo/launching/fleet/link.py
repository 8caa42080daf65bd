"""The order to run ranks of a job."""

from collections.abc import Sequence
from typing import Any

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.rank_environment import Rendezvous, make_rank_environments


def start_order(
    job: Job, target: str, *, ranks: Sequence[int], meet: Rendezvous, tag: str, site: SiteConfig
) -> dict[str, Any]:
    """Give the message that has an agent run some ranks of a job; its lease is added."""
    places = make_rank_environments(job, ranks, site=site, meet=meet, tag=tag)
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
        "ranks": [place.as_json() for place in places],
    }
