"""Staging: once per host, whole or not at all, in the first place that has room."""

import errno
import fcntl
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same_columns
from stores import alter_last_position, read_store
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.data import store_access
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store, remove_stages
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.data.window_cache import WindowCache
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import read_json, write_json

RESERVE = os.posix_fallocate


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test hold its own stages."""
    monkeypatch.setattr(store_access, "_used", {})


def staged(scratch: Path) -> Path:
    (folder,) = stages(scratch)
    return folder


def stages(scratch: Path) -> list[Path]:
    paths = scratch.glob("hydragnn-hpo-*/stage/*")
    return [entry for entry in paths if entry.is_dir() and entry.name[0] != "."]


def let_go() -> None:
    """Do what the end of this process would do."""
    for descriptor in store_access._used.values():
        os.close(descriptor)
    store_access._used.clear()


def full(bytes_left: int) -> Callable[[int, int, int], None]:
    """Reserve room on a disk that has so much left for one file."""

    def reserve(descriptor: int, offset: int, size: int) -> None:
        if size > bytes_left:
            raise OSError(errno.ENOSPC, "No space left on device")
        RESERVE(descriptor, offset, size)

    return reserve


def test_staged_columns_are_the_store_and_mapped(many_windows: Path, scratch: Path) -> None:
    open_store(many_windows, scratch, access="windows")
    assert list(scratch.iterdir()) == []
    columns = open_store(many_windows, scratch)
    expected = read_store(many_windows)
    assert isinstance(columns, Columns)
    assert_same_columns(columns, expected)
    assert isinstance(columns.positions.base, np.memmap)
    assert isinstance(columns.node_offset.base, np.memmap)
    assert not columns.positions.flags.writeable


@pytest.mark.parametrize("name", ["host0001", "host0002", "host0003"])
def test_hosts_read_in_different_orders_and_stage_the_same(
    many_windows: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read = []

    class Watched(store_access.WindowReader):
        def read(self, first, last):
            read.append(first)
            return super().read(first, last)

    monkeypatch.setattr(store_access, "WindowReader", Watched)
    monkeypatch.setattr(store_access, "RUN_BYTES", 1)
    system = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(system)([system[0], name, *system[2:]]))

    assert_same_columns(open_store(many_windows, scratch), read_store(many_windows))

    assert read[0] == zlib.crc32(name.encode()) % 9
    assert read == [(read[0] + n) % 9 for n in range(9)]


def test_the_folder_is_private_and_a_link_of_a_stranger_is_not_followed(
    many_windows: Path, scratch: Path, tmp_path: Path
) -> None:
    open_store(many_windows, scratch)
    (folder,) = scratch.iterdir()
    assert folder.name == f"hydragnn-hpo-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="is not a folder that only you can enter"):
        open_store(many_windows, scratch)
    folder.chmod(0o700)
    folder.rename(tmp_path / "trap")
    folder.symlink_to(tmp_path / "trap")
    with pytest.raises(StorageError, match="is not a folder that only you can enter"):
        open_store(many_windows, scratch)


def test_a_staged_store_is_reused_and_windows_are_not_read(
    many_windows: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(many_windows, scratch)
    let_go()
    before = staged(scratch).stat().st_ino
    monkeypatch.delattr(store_access, "WindowReader")
    assert open_store(many_windows, scratch).num_graphs == 60
    assert staged(scratch).stat().st_ino == before


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def shortened(folder: Path) -> None:
    file = folder / "positions.npy"
    os.truncate(file, file.stat().st_size - 8)


def retyped(folder: Path) -> None:
    """Put an array of another type there, with as many bytes."""
    array = np.load(folder / "positions.npy")
    np.save(folder / "positions.npy", array.view(np.int64))


def older(folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", {**manifest, "layout": 1})


@pytest.mark.parametrize(
    "damage",
    [
        without("positions.npy"),
        without("manifest.json"),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        shortened,
        retyped,
        older,
    ],
    ids=["no file", "no manifest", "torn manifest", "strange manifest", "cut", "type", "older"],
)
def test_a_damaged_stage_is_made_anew(
    many_windows: Path, scratch: Path, damage: Callable[[Path], None]
) -> None:
    expected = read_store(many_windows).positions
    open_store(many_windows, scratch)
    let_go()
    (staged(scratch) / "old").touch()
    damage(staged(scratch))
    actual = open_store(many_windows, scratch).take(np.arange(60)).positions
    np.testing.assert_array_equal(actual, expected)
    assert isinstance(open_store(many_windows, scratch), Columns)
    assert not (staged(scratch) / "old").exists()


def test_a_damaged_stage_that_cannot_be_made_anew_is_let_go(
    many_windows: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(many_windows, scratch)
    let_go()
    shortened(staged(scratch))
    monkeypatch.setattr(os, "posix_fallocate", full(0))
    with monkeypatch.context() as patch:
        patch.setattr(store_access, "evict_stage", lambda target: False)
        assert isinstance(open_store(many_windows, scratch), WindowCache)
    assert store_access.evict_stage(staged(scratch).parent / "another")


def test_a_damaged_stage_in_use_holds_nobody_up(many_windows: Path, scratch: Path) -> None:
    first = open_store(many_windows, scratch)
    without("numbers.npy")(staged(scratch))
    store_access._used.clear()  # As another process would: it does not hold what this one holds.
    assert open_store(many_windows, scratch).num_graphs == first.num_graphs == 60


def test_a_damaged_store_is_an_error_and_leaves_no_stage(
    many_windows: Path, random_columns: Columns, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage is met in the middle of the copy, and is no reason to read in windows."""
    monkeypatch.setattr("hydragnn_hpo.data.store_index._SMALL", 0)
    alter_last_position(many_windows, random_columns)
    with pytest.raises(DataError, match="column 'positions' was altered"):
        open_store(many_windows, scratch)
    assert list(scratch.glob("*/stage/.*")) == stages(scratch) == []


def test_the_environment_names_places_and_the_first_with_room_wins(
    many_windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    names = ":".join(str(tmp_path / name) for name in ("file", "a", "", "b"))
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", names)
    assert isinstance(open_store(many_windows), Columns)
    assert (len(stages(tmp_path / "a")), len(stages(tmp_path / "b"))) == (1, 0)


def test_a_stage_in_a_later_place_is_reused(
    many_windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    open_store(many_windows, tmp_path / "b")
    assert isinstance(open_store(many_windows), Columns)
    assert (len(stages(tmp_path / "a")), len(stages(tmp_path / "b"))) == (0, 1)


def test_without_any_room_windows_are_read_with_one_warning(
    many_windows: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full(1000))
    with caplog.at_level(logging.WARNING):
        graphs = open_store(many_windows, scratch)
    assert isinstance(graphs, WindowCache)
    (record,) = caplog.records
    assert "is read in windows" in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert stages(scratch) == list(scratch.glob("*/stage/.*")) == []
    with pytest.raises(StorageError, match="cannot be staged: .*No space left"):
        open_store(many_windows, scratch, access="stage")


@pytest.fixture
def others(many_windows: Path, scratch: Path) -> list[Path]:
    """Three stages that other stores left, the first one opened last."""
    open_store(many_windows, scratch)
    original = staged(scratch)
    let_go()
    results = []
    for age, name in enumerate("abc"):
        results.append(original.parent / (name * 64))
        shutil.copytree(original, results[-1])
        used = results[-1].parent / f"{results[-1].name}.used"
        used.touch()
        opened = time.time() - age - 1.0
        os.utime(used, (opened, opened))
    shutil.rmtree(original)
    return results


def test_unused_stages_make_room_the_oldest_first(
    many_windows: Path, scratch: Path, others: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(descriptor: int, offset: int, size: int) -> None:
        full(1 << 40 if len(stages(scratch)) <= 2 else 0)(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    assert isinstance(open_store(many_windows, scratch), Columns)
    assert [other.exists() for other in others] == [True, True, False]
    assert list(scratch.glob("*/stage/.*")) == []


def test_stages_of_old_and_of_removed_stores_go_when_another_is_made(
    many_windows: Path, scratch: Path, others: list[Path]
) -> None:
    """The first was opened eight days ago, the second has no store any more, the third has."""
    week = time.time() - 8 * 86_400.0
    os.utime(others[0].parent / f"{others[0].name}.used", (week, week))
    manifest = others[1] / "manifest.json"
    gone = json.loads(manifest.read_text()) | {"store": str(many_windows / "gone")}
    manifest.write_text(json.dumps(gone))
    open_store(many_windows, scratch)
    assert [other.exists() for other in others] == [False, False, True]


def test_all_stages_that_nobody_reads_are_removed_at_once(
    many_windows: Path, scratch: Path, others: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", str(scratch))
    used = os.open(others[2].parent / f"{others[2].name}.used", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_SH)
    open_store(many_windows)
    own = others[0].parent / read_index(many_windows).checksum
    assert remove_stages(many_windows) == [own]  # this process alone has read it
    done = CliRunner().invoke(app, ["dataset", "unstage"])
    assert done.output.splitlines() == [f"removed {other}" for other in others[:2]]
    assert stages(scratch) == [others[2]]
    done = CliRunner().invoke(app, ["dataset", "unstage"])
    assert done.output == "no stage was unused.\n"
    os.close(used)


def test_a_stage_that_is_read_stays(
    many_windows: Path, scratch: Path, others: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = os.open(others[2].parent / f"{others[2].name}.used", os.O_RDWR)
    made = os.open(others[1].parent / f"{others[1].name}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(used, fcntl.LOCK_SH)
    fcntl.flock(made, fcntl.LOCK_EX)
    monkeypatch.setattr(os, "posix_fallocate", full(0))
    assert isinstance(open_store(many_windows, scratch), WindowCache)
    assert [other.exists() for other in others] == [False, True, True]
    os.close(used)
    os.close(made)


def test_a_child_holds_what_its_parent_held(many_windows: Path, scratch: Path) -> None:
    open_store(many_windows, scratch)
    target = staged(scratch)
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends[1])
        os.read(ends[0], 1)
        os._exit(0)
    os.close(ends[0])
    let_go()
    assert not store_access.evict_stage(target.parent / "another")
    os.close(ends[1])
    os.waitpid(child, 0)
    assert store_access.evict_stage(target.parent / "another")
    assert stages(scratch) == []


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(
    many_windows: Path, scratch: Path
) -> None:
    index = read_index(many_windows)
    folder = store_access.open_stage_folder(scratch)
    for name in (index.checksum, "d" * 64, "e" * 64):
        (folder / f".{name}.x1.part").mkdir()
    living = os.open(folder / f"{'e' * 64}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(living, fcntl.LOCK_EX)
    open_store(many_windows, scratch)
    assert [left.name for left in folder.glob(".*")] == [f".{'e' * 64}.x1.part"]
    os.close(living)


def test_stages_make_room_where_no_folder_can_be_made(
    others: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert store_access.evict_stage(others[0].parent / "another")
    assert [other.exists() for other in others] == [True, True, False]


def test_a_stage_that_cannot_be_removed_is_reported_and_windows_are_read(
    many_windows: Path, scratch: Path, others: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "posix_fallocate", full(0))
    monkeypatch.setattr(os, "rename", rename)
    assert isinstance(open_store(many_windows, scratch), WindowCache)
    assert all(other.exists() for other in others)
