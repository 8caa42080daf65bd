"""The order to run ranks of a job, and what they find in their environment."""

from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.link import Rendezvous, rank_environment, start_order

MEET = Rendezvous("10.0.0.1", 20007, "hsn0")


@pytest.fixture
def job():
    slots = (Slot("a", 0, (1, 2), "cuda:0", "3", memory_mb=900), Slot("b", 4, (), "cpu"))
    files = {"log": Path("/log"), "lease": Path("/lease"), "watch": Path("/watch")}
    return Job("j", "train", 2, {"x": 1}, slots=slots, control=Path("/control"), **files)


def test_a_rank_finds_its_place_and_its_share_of_memory(job):
    found = rank_environment(job, 0, local_rank=0, local_world=1, meet=MEET, tag="tag")

    assert found == {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20007", "GLOO_SOCKET_IFNAME": "hsn0",
        "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3",
        "HYDRAGNN_HPO_DEVICE": "cuda:0", "HYDRAGNN_HPO_JOB": "tag/j",
        "HYDRAGNN_HPO_MEMORY_MB": "900",
    }  # fmt: skip


def test_without_a_share_there_is_no_limit(job):
    found = rank_environment(job, 1, local_rank=0, local_world=1, meet=MEET, tag="tag")

    assert "HYDRAGNN_HPO_MEMORY_MB" not in found
    assert found["OMP_NUM_THREADS"] == "1"


def test_only_the_host_of_rank_0_watches_and_is_asked(job):
    first, second = (start_order(job, "m:f", ranks=[r], meet=MEET, tag="t") for r in (0, 1))

    assert (first["watch"], first["control"]) == ("/watch", "/control")
    assert (second["watch"], second["control"]) == (None, None)
    assert second["slots"] == ["a:0", "b:4"]
    assert second["meet"] == ["10.0.0.1", 20007, "hsn0"]
    nothing = start_order(replace(job, watch=None), "m:f", ranks=[0], meet=MEET, tag="t")
    assert nothing["watch"] is None
