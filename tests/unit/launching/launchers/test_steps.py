"""Steps of Slurm: the allocation as Slurm describes it, and the exact commands."""

from pathlib import Path

import pytest

from hydragnn_hpo.config.machine import RankConfig, SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.launchers.launcher import host_by_host, places, wrapped
from hydragnn_hpo.launching.launchers.steps import HostSize, Steps

HOSTS, FRONTIER = ("n03", "n04"), HostSize(cpus=56, gpus=8)


def job_on(slots):
    folder = Path("/run/t0001")
    return Job("t0001.2", "command", len(slots), {}, folder / "log", folder / "lease", None, slots)


def test_a_step_asks_for_exactly_its_slots():
    launcher = Steps(HOSTS, FRONTIER)
    slots = launcher.slots[6:9]
    assert [slot.name for slot in slots] == ["n03:6", "n03:7", "n04:0"]

    launch = launcher.render(job_on(slots), ("python", "x y"), Path("/run/hosts"))

    assert launch.argv == (
        "srun",
        "--nodes=2",
        "--ntasks=3",
        "--distribution=arbitrary",
        "--exact",
        "--cpus-per-task=7",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--job-name=t0001.2",
        "--gpus-per-task=1",
        "--gpu-bind=single:1",
        "python",
        "x y",
    )
    assert launch.environment == {"SLURM_HOSTFILE": "/run/hosts", "OMP_NUM_THREADS": "7"}
    assert {"SLURM_GPUS_PER_NODE", "SLURM_OVERLAP", "SLURM_NTASKS"} <= set(launch.without)


def test_a_step_without_gpus_asks_for_none():
    launcher = Steps(("n1",), HostSize(cpus=8, gpus=0), slots=4)
    argv = launcher.render(job_on(launcher.slots[:1]), ("true",), Path("/h")).argv
    assert not [word for word in argv if "gpu" in word]
    assert "--cpus-per-task=2" in argv
    assert [slot.device for slot in launcher.slots] == ["cpu"] * 4


@pytest.mark.parametrize(("slots", "each"), [(0, 8), (4, 4), (1, 1), (8, 8)])
def test_slots_are_those_of_the_hosts_in_their_order(slots, each):
    found = Steps(HOSTS, FRONTIER, slots=slots).slots
    assert [slot.name for slot in found] == [f"{h}:{n}" for h in HOSTS for n in range(each)]


def test_more_slots_than_devices_are_refused():
    with pytest.raises(ConfigError, match="machine.slots is 9, but hosts have 8 GPUs"):
        Steps(HOSTS, FRONTIER, slots=9)


def test_ranks_see_the_device_that_slurm_gives_them():
    launcher = Steps(HOSTS, FRONTIER)
    for place in places(
        job_on(launcher.slots[7:9]), "tag", site=SiteConfig(interfaces=("hsn0", "hsn1"))
    ):
        environment = place["environment"]
        assert "CUDA_VISIBLE_DEVICES" not in environment
        assert "HIP_VISIBLE_DEVICES" not in environment
        assert "OMP_NUM_THREADS" not in environment
        assert environment["GLOO_SOCKET_IFNAME"] == "hsn0"
        assert environment["HYDRAGNN_HPO_DEVICE"] == "cuda:0"


def test_ranks_are_numbered_host_by_host():
    slots = Steps(("a", "b"), HostSize(cpus=2, gpus=0)).slots
    mixed = (slots[0], slots[2], slots[1], slots[3])
    job = host_by_host(job_on(mixed))
    assert [slot.name for slot in job.slots] == ["a:0", "a:1", "b:0", "b:1"]
    local = [place["environment"]["LOCAL_RANK"] for place in places(job, "tag", site=SiteConfig())]
    assert local == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("found", "cpus", "gpus"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "64(x3)"}, 64, 0),
        ({"SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}, 32, 0),
        ({"SLURM_JOB_CPUS_PER_NODE": "56", "SLURM_GPUS_PER_NODE": "8"}, 56, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "56", "SLURM_GPUS_PER_NODE": "mi250x:4"}, 56, 4),
        ({"SLURM_JOB_CPUS_PER_NODE": "56", "SLURM_GPUS_ON_NODE": "2"}, 56, 2),
    ],
)
def test_hosts_are_as_large_as_slurm_says(found, cpus, gpus):
    assert HostSize.of(found) == HostSize(cpus, gpus)


def test_outside_of_slurm_is_said():
    with pytest.raises(ConfigError, match="SLURM_JOB_ID is unset"):
        Steps.find({})


@pytest.mark.parametrize("wrapper", [None, ""])
def test_a_machine_may_have_no_wrapper(wrapper):
    assert wrapped(("a", "b"), SiteConfig(rank=RankConfig(wrapper=wrapper))) == ("a", "b")
