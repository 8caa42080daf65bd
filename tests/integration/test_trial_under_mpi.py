"""A trial by hand under mpiexec: its ranks find each other, and may share a store's memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

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
        capture_output=True, text=True, timeout=120, check=False, cwd=hpo.folder,
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
