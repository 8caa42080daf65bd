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

MPIEXEC = Path(sys.executable).parent / "mpiexec"


@pytest.mark.slow
@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
@pytest.mark.parametrize("access", ["stage", "distributed"])
def test_ranks_of_mpi_train_what_one_process_trains(hpo, access, monkeypatch):
    hpo.store()
    training = {"training": {"precision": "fp64"}}
    alone = hpo.trial("alone", **training)
    together = hpo.trial("together", data={"access": access}, **training)
    done = hpo("trial", alone)
    assert done.code == 0, done.err
    monkeypatch.setenv("HYDRAGNN_HPO_RANKS_PER_HOST", "1")  # every rank holds a part of the store
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", "-m", "hydragnn_hpo", "trial"]
    run = subprocess.run(
        [*map(str, command), str(together)],
        capture_output=True, text=True, timeout=400, check=False, cwd=hpo.folder,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("completed after epoch 4") == 1, "rank 0 alone speaks"
    assert [path.name for path in (together / "attempts").iterdir()] == ["001"]
    one, two = (
        load_file(trial / "checkpoints" / "best.safetensors") for trial in (alone, together)
    )
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_ranks_of_mpiexec_find_each_other_without_mpi(hpo):
    hpo.store()
    trial = hpo.trial("plain")
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "hydragnn_hpo", "trial", trial]
    run = subprocess.run(
        list(map(str, command)),
        capture_output=True, text=True, timeout=400, check=False, cwd=hpo.folder,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
    assert (result["status"], result["width"]) == ("completed", 2)
    assert [path.name for path in (trial / "attempts").iterdir()] == ["001"]


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_ranks_of_a_step_of_slurm_find_each_other(hpo, slurm):
    hpo.store()
    trial = hpo.trial("step")
    command = ["srun", "--nodes=1", "--ntasks=2", sys.executable, "-m", "hydragnn_hpo", "trial"]
    run = subprocess.run(
        [*command, str(trial)],
        capture_output=True, text=True, timeout=400, check=False, cwd=hpo.folder,
        env=os.environ | slurm.allocate(1),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
    assert (result["status"], result["width"]) == ("completed", 2)


ONE_FAILS = """
import sys
import time
from pathlib import Path
from hydragnn_hpo.cli.trial_command import trial
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.training.trainer import Trainer
step = Trainer._step
def failing(self, *given):
    if self.ranks.rank == 1:
        raise DataError("a window was altered")
    return step(self, *given)
Trainer._step = failing
trial(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_a_rank_that_fails_ends_the_others_at_once(hpo):
    """MPI's farewell is collective: a failed rank that waited there would keep all for minutes."""
    hpo.store()
    trial = hpo.trial("fails", data={"access": "distributed"})
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", "-c", ONE_FAILS, trial]
    run = subprocess.run(
        list(map(str, command)),
        capture_output=True, text=True, timeout=400, check=False, cwd=hpo.folder,
    )  # fmt: skip
    assert run.returncode != 0
    result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
    assert (result["reason"], result["message"]) == ("bad_config", "a window was altered")


@pytest.mark.slow
def test_a_store_is_not_spread_over_ranks_that_mpi_does_not_know(hpo):
    hpo.store()
    trial = hpo.trial("alone", data={"access": "distributed"})
    code = "import sys, pathlib; from hydragnn_hpo.training.ddp import check_mpi_ranks; "
    code += "check_mpi_ranks(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(trial / "trial.toml")],
        capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "WORLD_SIZE": "2"},
    )  # fmt: skip
    said = "trial.toml: data.access is 'distributed', but MPI knows 1 of 2 ranks: start them with"
    assert said in done.stderr
