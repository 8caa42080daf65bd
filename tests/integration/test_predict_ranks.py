"""Ranks share a prediction: whoever starts them, whoever is killed, the output is the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ase import Atoms
from ase.io import write
from processes import creep
from virtual_slurm import missing

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "hydragnn_hpo"]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
NO_MPI = pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: extra [mpi].")
NO_SLURM = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SECONDS = 500.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def screened(finished: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Structures, and what one process says of them.

    A piece is as large as its lot's first structure lets expect: a chain of 1,250 atoms makes it 16
    structures. The chain itself is too long to be predicted, which is a row like any other.
    """
    folder = tmp_path_factory.mktemp("screened")
    chain = Atoms("H1250", positions=[(1.1 * n, 0.0, 0.0) for n in range(1250)])
    write(folder / "many.extxyz", [chain, *finished.hpo.molecules(300)], format="extxyz")
    ensemble = finished.run / "ensemble.zip"
    arguments = ["predict", str(folder / "many.extxyz"), "--ensemble", str(ensemble)]
    one = folder / "one.jsonl"
    done = run([*COMMAND, *arguments, "--out", str(one)], folder)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, arguments=arguments, wanted=one.read_bytes())


def run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder, env=os.environ | ONE_THREAD | (environment or {}),
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def judge(screened: Any, folder: Path, done: "subprocess.CompletedProcess[str]") -> None:
    """All is there, equal to the bit, told once, and nothing is left."""
    assert done.returncode == 0, done.stderr
    assert (folder / "many.jsonl").read_bytes() == screened.wanted
    assert done.stdout.count("wrote") == 1, "one rank speaks"
    assert [path.name for path in folder.iterdir()] == ["many.jsonl"]


@pytest.mark.stress
@NO_MPI
def test_ranks_of_mpiexec(screened, tmp_path):
    arguments = ["--out", "many.jsonl"]
    command = [str(MPIEXEC), "-n", "2", *COMMAND, *screened.arguments, *arguments]
    judge(screened, tmp_path, run(command, tmp_path))


@pytest.mark.stress
@NO_SLURM
def test_ranks_of_a_step_of_slurm(screened, tmp_path, slurm):
    allocation = slurm.allocate(2)
    step = ["srun", "--nodes=2", "--ntasks=2", *COMMAND, *screened.arguments, "--out", "many.jsonl"]
    judge(screened, tmp_path, run(step, tmp_path, allocation))


def test_what_a_killed_rank_leaves_another_does(screened, hpo):
    """The first rank is frozen in its work, so that it cannot be done before the second comes."""
    parts = hpo.folder / "many.jsonl.parts"
    claims = parts / "claims"

    def rank(number: int) -> Any:
        where = {"RANK": str(number), "WORLD_SIZE": "2", **ONE_THREAD}
        return hpo.start(*screened.arguments, "--out", "many.jsonl", **where)

    first = rank(0)
    hpo.wait_for(parts.exists, "the folder of pieces", SECONDS)
    creep(lambda: [first.pid], lambda: list(parts.glob("[0-9]*.part")), "a piece")
    assert not (hpo.folder / "many.jsonl").exists(), "it came too late"
    second = rank(1)
    hpo.wait_for(lambda: len(list(claims.glob("[0-9]*"))) == 2, "a second rank", SECONDS)
    first.kill()
    out, err = second.communicate(timeout=SECONDS)
    assert (second.returncode, first.wait()) == (0, -signal.SIGKILL), err
    assert out.strip() == "wrote many.jsonl"
    assert (hpo.folder / "many.jsonl").read_bytes() == screened.wanted
    assert [path.name for path in hpo.folder.iterdir()] == ["many.jsonl"]
