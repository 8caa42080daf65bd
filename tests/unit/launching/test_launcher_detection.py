"""Ranks that others started: who we are by each launcher's own words."""

import os
import subprocess
import sys

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.rank_environment import (
    OF_A_RANK,
    LauncherInfo,
    bind_threads,
    detect_launcher,
    own_cores,
    torchrun_environment,
)

SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_PROCID": "5", "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "frontier[00012-00013]",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-h-9@1",
}  # fmt: skip
PALS = {
    "PALS_RANKID": "13", "PMI_SIZE": "24", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "12",
    "PMI_RANK": "13", "PALS_APID": "abc", "MASTER_ADDR": "x1", "MASTER_PORT": "23456",
}  # fmt: skip
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "h", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "rank", "world", "local", "local_world"),
    [
        (SRUN, 5, 7, 1, 3),
        ({k: v for k, v in SRUN.items() if k != "SLURM_STEP_NUM_TASKS"}, 5, 7, 1, 3),
        (HYDRA, 1, 2, 1, 2),
        (OPEN_MPI, 2, 4, 2, 4),
        (PALS, 13, 24, 1, 12),
        (HYDRA | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 1, 2, 1, 2),
        (HYDRA | SRUN | {"SLURM_PROCID": "0"}, 1, 2, 1, 2),
    ],
    ids=[
        "srun",
        "srun-of-old",
        "hydra",
        "openmpi",
        "pals",
        "hydra-in-a-batch-script",
        "hydra-in-a-step",
    ],
)
def test_each_launcher_is_understood(environment, rank, world, local, local_world):
    result = torchrun_environment(environment, parent=9)

    assert result["RANK"] == str(rank)
    assert result["WORLD_SIZE"] == str(world)
    assert result["LOCAL_RANK"] == str(local)
    assert result["LOCAL_WORLD_SIZE"] == str(local_world)
    known = detect_launcher(environment)
    assert known is not None
    assert (known.rank, known.world) == (rank, world)


def test_ranks_of_a_step_meet_on_its_first_host():
    result = torchrun_environment(SRUN, parent=9)
    other = torchrun_environment(SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}, parent=10)
    later = torchrun_environment(SRUN | {"SLURM_STEP_ID": "4"}, parent=9)

    assert result["MASTER_ADDR"] == "frontier00012"
    assert 20000 <= int(result["MASTER_PORT"]) < 30000
    assert other["MASTER_PORT"] == result["MASTER_PORT"], "whoever started it on its host"
    assert later["MASTER_PORT"] != result["MASTER_PORT"], "two steps of one job"


@pytest.mark.parametrize("environment", [HYDRA, OPEN_MPI])
def test_ranks_of_one_host_meet_there(environment):
    result, other = (torchrun_environment(environment, parent=parent) for parent in (9, 10))

    assert result["MASTER_ADDR"] == "127.0.0.1"
    assert (result["MASTER_PORT"] == other["MASTER_PORT"]) == ("PMIX_NAMESPACE" in environment)


def test_hosts_without_a_name_are_requested():
    results = torchrun_environment(PALS, parent=9)
    assert not {"MASTER_ADDR", "MASTER_PORT"} & set(results), "they are said already"

    environment = {name: value for name, value in PALS.items() if "MASTER" not in name}
    with pytest.raises(ConfigError, match="PALS started 24 ranks on several hosts.*MASTER_ADDR"):
        torchrun_environment(environment, parent=9)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"PMIX_RANK": "0"},
    ],
    ids=["nobody", "batch-script", "a-step-of-one", "an-mpiexec-of-one", "no-size"],
)
def test_who_is_alone_stays_so(environment):
    assert detect_launcher(environment) is None
    assert torchrun_environment(environment, parent=9) == {}


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN,
        TORCHRUN | SRUN,
        {"RANK": "1", "WORLD_SIZE": "2", "HYDRAGNN_HPO_JOB": "tag/j"} | SRUN,
        {"RANK": "5", "WORLD_SIZE": "7"} | SRUN,
    ],
    ids=["torchrun", "torchrun-in-a-step", "agent-in-a-step", "the-same-twice"],
)
def test_what_is_set_already_counts(environment):
    result = detect_launcher(environment)
    assert result is not None
    expected = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    assert (result.rank, result.world) == expected
    assert torchrun_environment(environment, parent=9) == {}


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "7"} | SRUN,
            "RANK and WORLD_SIZE say 0 of 7, srun says 5 of 7: unset what is not meant",
        ),
        ({"RANK": "1", "WORLD_SIZE": "4"} | HYDRA, "say 1 of 4, mpiexec says 1 of 2"),
        ({"RANK": "0"}, "RANK is 0, but WORLD_SIZE is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "a rank must be below"),
        (HYDRA | {"PMI_RANK": "2"}, "PMI_RANK is 2, PMI_SIZE 2"),
        ({"RANK": "0; rm -rf /", "WORLD_SIZE": "2"}, "which is no number"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "$(x)"}, "which is no number"),
    ],
)
def test_contradictions_are_refused(environment, sentence):
    with pytest.raises(ConfigError) as refused:
        torchrun_environment(environment, parent=9)
    assert sentence in str(refused.value)


def test_what_agents_do_not_hand_on_makes_no_ranks():
    kept = {name: value for name, value in SRUN.items() if name not in OF_A_RANK}

    assert torchrun_environment(kept, parent=9) == {}


@pytest.mark.parametrize(
    ("mask", "on_host", "local", "world", "threads", "cores"),
    [
        (range(8), 8, 0, 4, 2, (0, 1)),  # nobody has bound them: two each, side by side
        (range(8), 8, 3, 4, 2, (6, 7)),
        ((6, 7), 8, 3, 4, 2, ()),  # the launcher has
        ((1, 3, 5, 7), 8, 1, 4, 2, ()),  # by sockets, two ranks on each: threads only
        (range(2), 2, 2, 3, 1, (0,)),  # more ranks than cores
        (range(7), 7, 1, 2, 3, (3, 4, 5)),
        (range(4), 4, 0, 1, 4, ()),
    ],
)
def test_a_share_of_the_cores(mask, on_host, local, world, threads, cores):
    assert own_cores(mask, on_host, local=local, local_world=world) == (threads, cores)


def test_what_is_set_of_threads_counts(monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("it was bound"))
    environment = {"OMP_NUM_THREADS": "3"}
    bind_threads(environment, LauncherInfo("mpiexec", 1, 2, 1, 2))
    assert environment == {"OMP_NUM_THREADS": "3"}


def test_two_ranks_divide_this_host():
    """As mpiexec starts them: children that inherit our cores."""
    mask = sorted(os.sched_getaffinity(0))
    if len(mask) < 2:
        pytest.skip("there is one core.")
    code = "import os, sys; from hydragnn_hpo.cli.predict_command import find_own_rank\n"
    code += "find_own_rank()\n"
    code += "print(os.environ['OMP_NUM_THREADS'], *sorted(os.sched_getaffinity(0)))\n"
    code += "print(*sys.modules, sep='\\n', file=sys.stderr)"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "SLURM_"))}
    actual = []
    for rank in range(2):
        names = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=kept | {name: str(value) for name, value in names.items()},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        actual.append([int(word) for word in done.stdout.split()])
        assert "torch" not in done.stderr.split(), "it has counted all cores already"
    half = len(mask) // 2
    assert actual == [[half, *mask[:half]], [half, *mask[half : 2 * half]]]
