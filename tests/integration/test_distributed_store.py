"""A store in the memory of several hosts: the same batches, one sentence for all, never a hang."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import write_store

from hydragnn_hpo.config.data_config import CardConfig, FileConfig, TargetConfig
from hydragnn_hpo.data.columns import Columns

PROGRAM = Path(__file__).parent / "distributed_ranks.py"
MPIEXEC = Path(sys.executable).parent / "mpiexec"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(),
        reason="needs mpi4py and mpiexec: pip install 'hydragnn-hpo[mpi]'.",
    ),
]
Ranks = Callable[..., list[str]]


@pytest.fixture
def ranks(many_windows: Path, tmp_path: Path) -> Ranks:
    """Run ranks; give what each said, in order, without its number."""

    def run(what: str, number: int, per_host: int | str, store: Path = many_windows) -> list[str]:
        env = {
            **os.environ,
            "HYDRAGNN_HPO_RANKS_PER_HOST": str(per_host),
            "PYTHONPATH": str(PROGRAM.parents[1]),
        }
        command = [MPIEXEC, "-n", str(number), sys.executable, "-m", "mpi4py", PROGRAM]
        done = subprocess.run(
            [*map(str, command), str(store), str(tmp_path), what],
            capture_output=True,
            text=True,
            timeout=800,
            env=env,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # Ranks may write into each other's lines, but never within one write of theirs.
        said = dict(
            piece.split(": ", maxsplit=1)
            for piece in done.stdout.replace("RANK ", "\nRANK ").splitlines()
            if piece
        )
        return [said[f"RANK {rank}"] for rank in range(number)]

    return run


@pytest.mark.parametrize(
    ("number", "per_host", "shares"),
    [(2, "", [9, 9]), (3, 2, [5, 5, 4])],
)
def test_every_rank_takes_what_columns_take(
    ranks: Ranks, number: int, per_host: int, shares: list[int]
) -> None:
    hosts = -(-number // int(per_host or number))
    said = [line.split(", ") for line in ranks("equal", number, per_host)]
    assert {line[0] for line in said} == {f"{hosts} hosts"}
    assert [int(line[1].split()[0]) for line in said] == shares


def test_of_more_hosts_than_windows_some_hold_nothing(
    ranks: Ranks, random_columns: Columns, tmp_path: Path
) -> None:
    levels = random_columns.levels
    targets = {name: TargetConfig(level=levels[name], unit="eV") for name in levels}
    card = CardConfig(name="random", files=(FileConfig(path="none"),), targets=targets)
    stats = {"cutoff": 4.0, "targets": {name: {"level": level} for name, level in levels.items()}}
    write_store(tmp_path / "few.bp", [random_columns], stats, card, window=30)
    said = [line.split(", ") for line in ranks("equal", 3, 1, tmp_path / "few.bp")]
    assert sorted(line[1] for line in said) == ["0 windows", "1 windows", "1 windows"]


def test_a_busy_owner_holds_nobody_up(ranks: Ranks) -> None:
    assert ranks("busy", 2, 1) == ["fine"] * 2


def test_a_damaged_store_is_one_sentence_on_every_rank(ranks: Ranks, many_windows: Path) -> None:
    file = many_windows / "part-00001.bp" / "data.0"
    os.truncate(file, 100)
    (said,) = set(ranks("damaged", 2, 1))
    assert said.startswith(f"DataError: {file}: has 100 bytes instead of")
    (many_windows / "index.json").unlink()
    (said,) = set(ranks("damaged", 2, 1))
    assert said.startswith("DataError")
    assert "is not a graph store" in said


def test_a_failure_on_one_rank_is_one_on_all_and_the_next_try_may_do(ranks: Ranks) -> None:
    bad = "DataError: part 7 is bad."
    bug = "JobError: rank 2: ZeroDivisionError('oh')"
    assert ranks("one_fails", 3, 1) == [f"{bad} | {bug}"] * 3


def test_a_senseless_number_of_ranks_is_refused_by_all(ranks: Ranks) -> None:
    (said,) = set(ranks("damaged", 2, "two"))
    expected = "HYDRAGNN_HPO_RANKS_PER_HOST is 'two'; set it to a positive number of ranks."
    assert said == f"ConfigError: {expected}"
