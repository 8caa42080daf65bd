"""Each rank of a host gets its share of the cores, and no two the same one."""

import os
import subprocess
import sys

import pytest

from hydragnn_hpo.launching.ranks.cores import own_cores, settle_threads
from hydragnn_hpo.launching.ranks.started import Standing, standing_of


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


def test_what_is_said_of_threads_counts(monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("it was bound"))
    environment = {"OMP_NUM_THREADS": "3"}
    settle_threads(environment, Standing("mpiexec", 1, 2, 1, 2))
    assert environment == {"OMP_NUM_THREADS": "3"}


def test_two_ranks_divide_this_host():
    """As mpiexec starts them: children that inherit our cores."""
    mask = sorted(os.sched_getaffinity(0))
    if len(mask) < 2:
        pytest.skip("there is one core.")
    code = "import os, sys; from hydragnn_hpo.cli.predict import find_own_rank\n"
    code += "find_own_rank()\n"
    code += "print(os.environ['OMP_NUM_THREADS'], *sorted(os.sched_getaffinity(0)))\n"
    code += "print(*sys.modules, sep='\\n', file=sys.stderr)"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "SLURM_"))}
    found = []
    for rank in range(2):
        names = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=kept | {name: str(value) for name, value in names.items()},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append([int(word) for word in done.stdout.split()])
        assert "torch" not in done.stderr.split(), "it has counted all cores already"
    half = len(mask) // 2
    assert found == [[half, *mask[:half]], [half, *mask[half : 2 * half]]]


SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_ID": "3"}


def test_slurm_tells_how_many_share_a_host():
    names = {"SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,3"}
    found = standing_of(SRUN | names)
    assert found is not None
    assert (found.local, found.local_world) == (0, 3)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, None),  # a batch script is no step
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (2, 4)),
        (SRUN, (2, 5)),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "9"}, (1, 2)),
    ],
)
def test_who_we_are_needs_no_place_to_meet(environment, wanted):
    found = standing_of(environment)
    assert (None if found is None else (found.rank, found.world)) == wanted
