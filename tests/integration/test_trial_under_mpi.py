"""A trial by hand under mpiexec: its ranks find each other, and may share a store's memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from virtual_slurm import missing

from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training import run_by_hand

MPIEXEC = Path(sys.executable).parent / "mpiexec"
by_mpiexec = pytest.mark.skipif(
    not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi]."
)
pytestmark = pytest.mark.slow


def ranks(hpo, *command, launcher=(MPIEXEC, "-n", "2"), **environment):
    """Run a command of Python on two ranks, to its end."""
    return subprocess.run(
        [*map(str, (*launcher, sys.executable, *command))],
        capture_output=True, text=True, timeout=400, check=False, cwd=hpo.folder,
        env=os.environ | environment,
    )  # fmt: skip


def result_of(trial):
    return json.loads((trial / "attempts" / "001" / "result.json").read_text())


@by_mpiexec
@pytest.mark.parametrize("access", [pytest.param("stage", marks=pytest.mark.stress), "distributed"])
def test_ranks_of_mpi_train_what_one_process_trains(hpo, access):
    hpo.store()
    training = {"training": {"precision": "fp64", "epochs": 2}}
    alone = hpo.trial("alone", **training)
    assert run_by_hand(TrialDir(alone))[0] == 0
    one = load_file(alone / "checkpoints" / "best.safetensors")
    trial = hpo.trial(access, data={"access": access}, **training)
    command = ("-m", "mpi4py", "-m", "hydragnn_hpo", "trial", trial)
    done = ranks(hpo, *command, HYDRAGNN_HPO_RANKS_PER_HOST="1")  # each holds a part
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed after epoch 2") == 1, "rank 0 alone speaks"
    assert [path.name for path in (trial / "attempts").iterdir()] == ["001"]
    two = load_file(trial / "checkpoints" / "best.safetensors")
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0, atol=1e-12)


@pytest.mark.stress
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_ranks_of_a_step_of_slurm_find_each_other(hpo, slurm):
    hpo.store()
    trial = hpo.trial("step", training={"epochs": 1})
    step = ("srun", "--nodes=1", "--ntasks=2")
    done = ranks(hpo, "-m", "hydragnn_hpo", "trial", trial, launcher=step, **slurm.allocate(1))
    assert done.returncode == 0, done.stderr
    result = result_of(trial)
    assert (result["status"], result["width"]) == ("completed", 2)


ONE_FAILS = """
import sys
import time
from pathlib import Path
from hydragnn_hpo.cli.trial_command import trial
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.training import epoch
step = epoch.take_step
def failing(parts, *given):
    if parts.ranks.rank == 1:
        raise DataError("a window was altered")
    return step(parts, *given)
epoch.take_step = failing
trial(Path(sys.argv[1]))
"""


@pytest.mark.stress
@by_mpiexec
def test_a_rank_that_fails_ends_the_others_at_once(hpo):
    """MPI's farewell is collective: a failed rank that waited there would keep all for minutes."""
    hpo.store()
    trial = hpo.trial("fails", data={"access": "distributed"})
    done = ranks(hpo, "-m", "mpi4py", "-c", ONE_FAILS, trial)
    assert done.returncode != 0
    result = result_of(trial)
    assert (result["reason"], result["message"]) == ("bad_config", "a window was altered")


def test_a_store_is_not_spread_over_ranks_that_mpi_does_not_know(hpo):
    trial = hpo.trial("alone", data={"access": "distributed"})
    code = "import sys, pathlib; from hydragnn_hpo.training.ddp import check_mpi_ranks; "
    code += "check_mpi_ranks(pathlib.Path(sys.argv[1]))"
    done = ranks(hpo, "-c", code, trial / "trial.toml", launcher=(), WORLD_SIZE="2")
    message = (
        "trial.toml: data.access is 'distributed', but MPI spans 1 of 2 ranks: start them with"
    )
    assert message in done.stderr
