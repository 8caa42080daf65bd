"""A store in the memory of several hosts: the same batches, one sentence for all, never a hang."""

import importlib.util
import os
import shutil
import subprocess
import sys
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


def run(folder: Path, number: int, per_host: int | str, *requests: str) -> list[list[str]]:
    """Run ranks; return what each printed, without its number, for each request."""
    env = {
        **os.environ,
        "HYDRAGNN_HPO_RANKS_PER_HOST": str(per_host),
        "PYTHONPATH": str(PROGRAM.parents[1]),
    }
    command = [MPIEXEC, "-n", str(number), sys.executable, "-m", "mpi4py", PROGRAM, folder]
    done = subprocess.run(
        [*map(str, command), *requests],
        capture_output=True,
        text=True,
        timeout=800,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Ranks may write into each other's lines, but never within one write of theirs.
    lines: dict[str, list[str]] = {f"RANK {rank}": [] for rank in range(number)}
    for piece in done.stdout.replace("RANK ", "\nRANK ").splitlines():
        if piece:
            rank, message = piece.split(": ", maxsplit=1)
            lines[rank].append(message)
    return [list(each) for each in zip(*lines.values(), strict=True)]


def assert_shares(printed: list[str], shares: list[int], *, hosts: int) -> None:
    lines = [line.split(", ") for line in printed]
    assert {line[0] for line in lines} == {f"{hosts} hosts"}
    assert [int(line[1].split()[0]) for line in lines] == shares


def test_ranks_of_two_hosts_take_what_columns_take_and_fail_as_one(
    many_windows: Path, tmp_path: Path
) -> None:
    """Also where an owner is busy, where a store is damaged, and where the next try may do."""
    cut, no_store = tmp_path / "cut.bp", tmp_path / "no_store.bp"
    shutil.copytree(many_windows, cut)
    os.truncate(cut / "part-00001.bp" / "data.0", 100)
    shutil.copytree(many_windows, no_store)
    (no_store / "index.json").unlink()

    equal, busy, damaged, missing, failed = run(
        tmp_path,
        3,
        2,
        f"equal={many_windows}",
        f"busy={many_windows}",
        f"refuse={cut}",
        f"refuse={no_store}",
        f"fail_on_one={many_windows}",
    )

    assert_shares(equal, [5, 5, 4], hosts=2)
    assert busy == ["fine"] * 3
    (message,) = set(damaged)
    file = cut / "part-00001.bp" / "data.0"
    assert message.startswith(f"DataError: {file}: has 100 bytes instead of")
    (message,) = set(missing)
    assert message.startswith("DataError")
    assert "is not a graph store" in message
    bug = "JobError: MPI rank 2 failed (oh); see its output."
    assert failed == [f"DataError: part 7 is bad. | {bug}"] * 3


@pytest.mark.stress
def test_ranks_of_one_host_take_what_columns_take(many_windows: Path, tmp_path: Path) -> None:
    (printed,) = run(tmp_path, 2, "", f"equal={many_windows}")
    assert_shares(printed, [9, 9], hosts=1)


@pytest.mark.stress
def test_of_more_hosts_than_windows_some_hold_nothing(
    random_columns: Columns, tmp_path: Path
) -> None:
    levels = random_columns.levels
    targets = {name: TargetConfig(level=levels[name], unit="eV") for name in levels}
    card = CardConfig(name="random", files=(FileConfig(path="none"),), targets=targets)
    stats = {"cutoff": 4.0, "targets": {name: {"level": level} for name, level in levels.items()}}
    write_store(tmp_path / "few.bp", [random_columns], stats, card, window=30)
    (printed,) = run(tmp_path, 3, 1, f"equal={tmp_path / 'few.bp'}")
    lines = [line.split(", ") for line in printed]
    assert sorted(line[1] for line in lines) == ["0 windows", "1 windows", "1 windows"]


def test_a_senseless_number_of_ranks_is_refused_by_all(many_windows: Path, tmp_path: Path) -> None:
    (printed,) = run(tmp_path, 2, "two", f"refuse={many_windows}")
    (message,) = set(printed)
    expected = "HYDRAGNN_HPO_RANKS_PER_HOST is 'two'; set it to a positive number of ranks."
    assert message == f"ConfigError: {expected}"
