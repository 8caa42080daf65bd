"""What each rank finds, and whose word counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.rank_environment import Rendezvous, make_rank_starts, overruled

MEET = Rendezvous("10.0.0.1", 20007, "hsn0")
PROFILE = SiteConfig.model_validate(
    {
        "interfaces": ["hsn0", "hsn1"],
        "rank": {
            "environment": {"HSA_X": "1", "RANK": "7", "OMP_NUM_THREADS": "64"},
            "one_host": {"NCCL_NET": "Socket"},
            "many_hosts": {"NCCL_NET": "OFI", "FI_Y": "2"},
            "folders": {"CACHE": "{scratch}/{trial}"},
        },
    }
)


def job_on(*slots):
    files = {"log": Path("/log"), "watch": None}
    return Job("j", "train", len(slots), {}, slots=slots, **files)


def placed(job, ranks, site=PROFILE, meet=MEET):
    return make_rank_starts(job, ranks, site=site, meet=meet, tag="tag")


@pytest.fixture
def job():
    first = Slot("a", 5, (1, 2), "cuda:0", "3", 900, "ROCR_VISIBLE_DEVICES")
    return job_on(first, Slot("b", 4, (9,), "cpu"))


def test_a_rank_finds_its_share_of_memory_if_there_is_one(job):
    limits = [rank.environment.get("HYDRAGNN_HPO_MEMORY_MB") for rank in placed(job, [0, 1])]

    assert limits == ["900", None]


def test_the_profile_speaks_of_one_host_or_of_many(job):
    (many,) = placed(job, [0])
    alone = replace(job, slots=job.slots[:1], width=1)
    (one,) = placed(alone, [0], meet=Rendezvous("127.0.0.1", 20007, "lo"))

    assert (many.environment["NCCL_NET"], many.environment["FI_Y"]) == ("OFI", "2")
    assert one.environment["NCCL_NET"] == "Socket"
    assert "FI_Y" not in one.environment
    assert {many.environment["HSA_X"], one.environment["HSA_X"]} == {"1"}
    assert many.folders == {"CACHE": "{scratch}/{trial}"}
    assert (many.environment["RANK"], many.environment["OMP_NUM_THREADS"]) == ("0", "2")
    assert many.environment["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"
    assert many.environment["GLOO_SOCKET_IFNAME"] == "hsn0"
    assert "NCCL_SOCKET_IFNAME" not in one.environment


def test_what_an_environment_sets_otherwise_than_the_profile_is_reported():
    environment = {"HSA_X": "1", "FI_Y": "9", "NCCL_NET": "OFI", "NCCL_DEBUG": "INFO"}

    assert overruled(PROFILE, environment) == {"FI_Y": "9"}
    assert overruled(SiteConfig(), environment) == {}
