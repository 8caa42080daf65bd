"""Graphs read in windows are the same to the last bit as from columns in memory."""

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same_columns
from stores import alter_last_position, read_store, write_store

from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.data import store_parts, window_cache
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.data.window_cache import WindowCache
from hydragnn_hpo.errors import ConfigError, DataError

ROWS = {
    "one": [31],
    "sorted": list(range(3, 40)),
    "all": list(range(60)),
    "backwards": list(range(59, -1, -1)),
    "repeated": [5, 5, 59, 5, 0, 59],
    "empty": [],
    **{f"random {seed}": np.random.default_rng(seed).integers(0, 60, 25) for seed in range(3)},
}
ALL = 1 << 30


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("memory", [0, 4000, ALL], ids=["none kept", "few kept", "all kept"])
def test_windows_and_stage_take_what_columns_take(
    many_windows: Path, tmp_path: Path, rows: list[int], memory: int
) -> None:
    expected = read_store(many_windows).take(np.array(rows, dtype=np.int64))
    graphs = WindowCache(many_windows, memory=memory)
    for _ in range(2):
        assert_same_columns(graphs.take(np.array(rows, dtype=np.int64)), expected)
    mapped = open_store(many_windows, tmp_path / "scratch", access="stage")
    assert_same_columns(mapped.take(np.array(rows, dtype=np.int64)), expected)


def test_what_is_held_whole_is_that_of_the_columns(
    many_windows: Path, random_columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_cache, "RUN_BYTES", 1)
    graphs = WindowCache(many_windows)
    assert graphs.num_graphs == 60
    np.testing.assert_array_equal(graphs.split, random_columns.split)
    np.testing.assert_array_equal(graphs.group, random_columns.group)
    np.testing.assert_array_equal(graphs.num_nodes(), random_columns.num_nodes())
    np.testing.assert_array_equal(graphs.num_edges(), random_columns.num_edges())
    np.testing.assert_array_equal(graphs.windows, [0, 7, 14, 21, 25, 32, 39, 46, 53, 60])
    np.testing.assert_array_equal(
        graphs.indices_of("val"), [r for r in range(60) if random_columns.split[r] == 1]
    )
    for name, mask in random_columns.masks.items():
        of_node = random_columns.levels[name] == "node"
        ends = random_columns.node_offset if of_node else np.arange(61)
        by_hand = [sum(mask[ends[g] : ends[g + 1]].tolist()) for g in range(60)]
        assert graphs.known(name).tolist() == by_hand, name
        assert graphs.known(name).dtype == np.int64
    with pytest.raises(DataError, match="unknown split 'vall'. Did you mean 'val'"):
        graphs.indices_of("vall")


@pytest.mark.parametrize("row", [-1, 60])
def test_a_row_that_is_not_there_is_no_batch(many_windows: Path, row: int) -> None:
    with pytest.raises(IndexError):
        WindowCache(many_windows).take(np.array([3, row]))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is read of whole windows."""
    done: list[tuple[int, int]] = []
    read = WindowReader.read

    def counted(self: WindowReader, first: int, last: int, names: object = None) -> object:
        if names is None:
            done.append((first, last))
        return read(self, first, last, names)  # type: ignore[arg-type]

    monkeypatch.setattr(WindowReader, "read", counted)
    return done


def test_neighbours_are_read_in_one_go_and_kept(
    many_windows: Path, reads: list[tuple[int, int]]
) -> None:
    graphs = WindowCache(many_windows, memory=ALL)
    graphs.take(np.array([30, 59]))
    graphs.take(np.arange(60))
    assert reads == [(4, 5), (8, 9), (0, 4), (5, 8)]
    graphs.take(np.arange(60))
    assert len(reads) == 4
    assert all(array.base is None for kept in graphs._kept.values() for array in kept.values())


def test_memory_is_bounded_and_the_latest_stay(
    many_windows: Path, reads: list[tuple[int, int]]
) -> None:
    sizes = []
    for window in range(9):
        graphs = WindowCache(many_windows, memory=ALL)
        graphs.take(graphs.windows[[window]])
        sizes.append(graphs._held)
    assert min(sizes) > 0
    graphs = WindowCache(many_windows, memory=sizes[0] + sizes[1] + sizes[2])
    reads.clear()
    for row in (0, 7, 14, 0, 53):
        graphs.take(np.array([row]))
        assert graphs._held <= graphs.memory
        held = sum(array.nbytes for kept in graphs._kept.values() for array in kept.values())
        assert graphs._held == held
    assert reads == [(0, 1), (1, 2), (2, 3), (8, 9)]
    assert 0 in graphs._kept
    assert 1 not in graphs._kept
    small = int(np.argmin(sizes))
    large = int(np.argmax(sizes))
    graphs = WindowCache(many_windows, memory=sizes[small])
    for window in (small, large):
        graphs.take(graphs.windows[[window]])
    assert list(graphs._kept) == [small]


def test_the_environment_bounds_the_memory(
    many_windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAGNN_HPO_WINDOW_MEMORY", "12345")
    assert WindowCache(many_windows).memory == 12345
    monkeypatch.setenv("HYDRAGNN_HPO_WINDOW_MEMORY", "1 GB")
    with pytest.raises(ConfigError, match="WINDOW_MEMORY is '1 GB'; set it to a number of bytes"):
        WindowCache(many_windows)
    monkeypatch.delenv("HYDRAGNN_HPO_WINDOW_MEMORY")
    assert 0 < WindowCache(many_windows).memory <= 1 << 30
    monkeypatch.setattr(window_cache, "free_bytes", lambda: 8000)
    assert WindowCache(many_windows).memory == 2000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert WindowCache(many_windows).memory == 500, "processes of a host share it"


def test_threads_share_a_store(many_windows: Path) -> None:
    graphs = WindowCache(many_windows, memory=4000)
    expected = read_store(many_windows)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(30):
                rows = random.integers(0, 60, 9)
                assert_same_columns(graphs.take(rows), expected.take(rows))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_child_reads_for_itself(many_windows: Path) -> None:
    graphs = WindowCache(many_windows, memory=0)
    expected = read_store(many_windows)
    rows = np.arange(0, 60, 5)
    graphs.take(rows)
    before = graphs._reader._reader
    child = os.fork()
    if child == 0:
        same = graphs.take(rows).positions.tobytes() == expected.take(rows).positions.tobytes()
        os._exit(0 if same and graphs._reader._reader is not before else 1)
    assert_same_columns(graphs.take(rows), expected.take(rows))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_store_opens_again_and_litters_nowhere(many_windows: Path) -> None:
    def littered() -> set[Path]:
        return set(Path("/tmp").glob(f"*_{os.getpid():x}_profiling.json"))

    before = littered()
    graphs = WindowCache(read_index(many_windows))
    graphs.take(np.arange(60))
    graphs.close()
    assert littered() == before
    assert graphs.take(np.arange(60)).num_graphs == 60
    graphs.close()


def test_a_damaged_window_is_no_batch_and_the_others_are(
    many_windows: Path, random_columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn_hpo.data.store_index._SMALL", 0)
    alter_last_position(many_windows, random_columns)
    graphs = WindowCache(many_windows, memory=ALL)
    rows = np.arange(50)
    np.testing.assert_array_equal(graphs.take(rows).cell, random_columns.cell[:50])
    for _ in range(2):
        with pytest.raises(DataError, match="part-00001.bp: column 'positions' was altered"):
            graphs.take(np.array([57]))


def opened(top: Path) -> int:
    """Count this process's descriptors of files below a folder."""
    results = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of the listing itself
            results.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(target.startswith(f"{top}/") for target in results)


def test_many_parts_take_few_descriptors(
    many_windows: Path, random_columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = load_config(many_windows / "card.toml", CardConfig)
    stats = read_index(many_windows).stats
    parts = [random_columns.take(np.array([row])) for row in range(60)]
    write_store(tmp_path / "parts.bp", parts, stats, card)
    monkeypatch.setattr(store_parts, "_MOST_OPEN", 8)
    with WindowReader(read_index(tmp_path / "parts.bp")) as reader:
        arrays = reader.read(0, 60)
        during = opened(tmp_path / "parts.bp")
        again = reader.read(17, 29)
        assert reader.read(29, 29)["numbers"].shape == (0,)
    assert 0 < during <= 16, "a file or two for each of eight parts"
    assert arrays["numbers"].tobytes() == random_columns.numbers.tobytes()
    nodes = random_columns.node_offset
    assert again["numbers"].tobytes() == random_columns.numbers[nodes[17] : nodes[29]].tobytes()
    assert opened(tmp_path / "parts.bp") == 0


def test_windows_fewer_than_are_shuffled_are_warned_of(
    many_windows: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = WindowCache(many_windows)
    train = len(graphs.indices_of("train"))
    whole = graphs.memory_for(train)
    assert graphs.memory_for(10 * train) == whole
    assert graphs.memory_for(train // 2) == pytest.approx(whole * (train // 2) / train, abs=1)
    monkeypatch.setenv("HYDRAGNN_HPO_WINDOW_MEMORY", str(whole))
    open_store(many_windows, access="windows", shuffled=train)
    assert caplog.records == []
    monkeypatch.setenv("HYDRAGNN_HPO_WINDOW_MEMORY", str(whole - 1))
    open_store(many_windows, access="windows", shuffled=train)
    (record,) = caplog.records
    assert f"{whole - 1} bytes of windows are kept, shuffling takes {whole}" in record.getMessage()
