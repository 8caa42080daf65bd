"""Staging: once per host, whole or not at all, safe with many processes and sudden deaths."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hydragnn_hpo.data.build import build_store
from hydragnn_hpo.data.store.arrays import arrays_of
from hydragnn_hpo.data.store.parts import read_store
from hydragnn_hpo.data.store.staging import open_store
from hydragnn_hpo.errors import DataError, StorageError


@pytest.fixture
def store(card: Path, tmp_path: Path) -> Path:
    build_store(card, tmp_path / "tiny.bp")
    return tmp_path / "tiny.bp"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def staged(scratch: Path) -> Path:
    (folder,) = (entry for entry in scratch.glob("hydragnn-hpo-*/stage/*") if entry.is_dir())
    return folder


def test_staged_columns_are_the_store_and_mapped(store: Path, scratch: Path) -> None:
    columns, expected = open_store(store, scratch), read_store(store)
    for name, array in arrays_of(columns).items():
        assert array.tobytes() == arrays_of(expected)[name].tobytes(), name
    assert columns.ids == expected.ids
    assert columns.stats == expected.stats
    assert isinstance(columns.positions, np.memmap)
    assert not columns.positions.flags.writeable


def test_the_folder_is_private(store: Path, scratch: Path) -> None:
    open_store(store, scratch)
    (folder,) = scratch.iterdir()
    assert folder.name == f"hydragnn-hpo-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="is not a folder that only you can enter"):
        open_store(store, scratch)


def test_the_environment_names_the_scratch(
    store: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", str(scratch))
    open_store(store)
    assert staged(scratch).is_dir()


def test_a_staged_store_is_reused_without_adios(store: Path, scratch: Path) -> None:
    open_store(store, scratch)
    before = staged(scratch).stat().st_ino
    code = (
        "import sys; from pathlib import Path\n"
        "from hydragnn_hpo.data.store.staging import open_store\n"
        "assert open_store(Path(sys.argv[1]), Path(sys.argv[2])).num_graphs == 18\n"
        "assert 'adios2' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(store), str(scratch)], check=True)
    assert staged(scratch).stat().st_ino == before


def test_a_rebuilt_store_is_staged_anew(store: Path, scratch: Path, card: Path) -> None:
    open_store(store, scratch)
    card.write_text(card.read_text().replace("cutoff = 4.0", "cutoff = 3.0"))
    build_store(card, store)
    assert open_store(store, scratch).stats["cutoff"] == 3.0


def test_a_damaged_stage_is_made_anew(store: Path, scratch: Path) -> None:
    expected = read_store(store).positions
    open_store(store, scratch)
    file = staged(scratch) / "positions.npy"
    os.truncate(file, file.stat().st_size - 8)
    np.testing.assert_array_equal(open_store(store, scratch).positions, expected)


def test_a_damaged_store_leaves_no_stage(store: Path, scratch: Path) -> None:
    os.truncate(store / "part-00000.bp" / "data.0", 10)
    with pytest.raises(DataError, match="has 10 bytes instead of"):
        open_store(store, scratch)
    assert [entry for entry in scratch.glob("*/stage/*") if entry.is_dir()] == []


SLOW = """
import sys, time
from pathlib import Path
import hydragnn_hpo.data.store.staging as staging
read = staging.read_store
def slow(path):
    Path(sys.argv[3]).touch()
    with open(sys.argv[3], "a") as file:
        file.write("read\\n")
    time.sleep(float(sys.argv[4]))
    return read(path)
staging.read_store = slow
save = staging.np.save
def slow_save(*args, **kwargs):
    save(*args, **kwargs)
    time.sleep(float(sys.argv[4]) / 20)
staging.np.save = slow_save
print(staging.open_store(Path(sys.argv[1]), Path(sys.argv[2])).positions.sum())
"""


def start(store: Path, scratch: Path, log: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SLOW, str(store), str(scratch), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_stage_once(store: Path, scratch: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [start(store, scratch, log, 0.5) for _ in range(2)]
    sums = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sums[0] == sums[1]
    assert log.read_text() == "read\n"


def test_a_killed_stager_holds_nobody_up(store: Path, scratch: Path, tmp_path: Path) -> None:
    victim = start(store, scratch, tmp_path / "log", 4.0)
    deadline = time.monotonic() + 60
    while not list(scratch.glob("*/stage/.*/numbers.npy")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert list(scratch.glob("*/stage/.*/"))  # torn, and not under its final name

    assert open_store(store, scratch).num_graphs == 18
    assert [entry.name for entry in scratch.glob("*/stage/.*")] == []
