"""The store on disk: bit-equal, whole, and never opened when damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import assert_same_arrays
from stores import read_store, write_store

from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.data.store_index import compute_store_checksum, find_runs, read_index
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import read_json, write_json


@pytest.fixture
def store(card: Path, tmp_path: Path) -> Path:
    build_store(card, tmp_path / "tiny.bp")
    return tmp_path / "tiny.bp"


def stats_of(columns: Columns) -> dict[str, object]:
    return {"targets": {name: {"level": level} for name, level in columns.levels.items()}}


def test_a_round_trip_is_bit_equal(columns: Columns, card: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "a.bp", [columns], stats_of(columns), load_config(card, CardConfig))
    assert_same_arrays(read_store(tmp_path / "a.bp"), columns)


def test_parts_and_windows_are_one(many_windows: Path, random_columns: Columns) -> None:
    assert_same_arrays(read_store(many_windows), random_columns)


def test_graphs_without_edges_or_targets_are_stored(tmp_path: Path, card: Path, graph) -> None:
    from ase import Atoms

    columns = columns_of([graph(Atoms("Ar")), graph(Atoms("He"))], {})
    write_store(tmp_path / "bare.bp", [columns], {"targets": {}}, load_config(card, CardConfig))
    assert_same_arrays(read_store(tmp_path / "bare.bp"), columns)


def test_the_checksum_is_of_the_content(card: Path, store: Path, tmp_path: Path) -> None:
    again = build_store(card, tmp_path / "again.bp")
    assert again["checksum"] == read_index(store).checksum == read_index(store).stats["checksum"]
    assert load_config(store / "card.toml", CardConfig) == load_config(card, CardConfig)
    card.write_text(card.read_text().replace("cutoff = 4.0", "cutoff = 3.5"))
    assert build_store(card, tmp_path / "again.bp")["checksum"] != again["checksum"]
    assert read_index(tmp_path / "again.bp").stats["cutoff"] == 3.5, "the older one is replaced"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["data.0", "md.0", "md.idx"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "bytes instead of"), (flip, "was altered"), (Path.unlink, "is missing")],
    ids=["cut", "flip", "gone"],
)
def test_a_damaged_part_is_refused_at_once(
    store: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(store / "part-00000.bp" / name)
    with pytest.raises(DataError, match=f"{name}: .*{message}.*build the store"):
        read_store(store)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("name", ["windows.npy", "index.json", "stats.json"])
def test_a_damaged_index_is_refused(store: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(store / name)
    with pytest.raises(DataError, match=r"tiny\.bp.*(again|first)\."):
        read_store(store)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "furlong"}, "'unit': unknown unit 'furlong'"),
        ({"unit": "eV/atom"}, 'energy = "total" has unit eV/atom: write an energy'),
        ({"unit": "eV", "energy": None, "shape": "vector"}, "a vector has no energy as its unit"),
        ({"unit": 7}, "'unit' is 7: write a text in quotes"),
    ],
)
def test_a_unit_that_is_refused_now_is_named_with_its_target(
    store: Path, change: dict[str, Any], message: str
) -> None:
    """A store of an earlier version, whose checksums are right."""
    stats = read_json(store / "stats.json")
    content = read_json(store / "index.json")
    stats.pop("checksum")
    stats["targets"]["energy"] |= change
    checksum = compute_store_checksum(read_index(store).windows, stats)
    write_json(store / "stats.json", stats | {"checksum": checksum})
    write_json(store / "index.json", content | {"checksum": checksum})
    with pytest.raises(DataError) as caught:
        read_store(store)
    assert str(caught.value).startswith(f"{store}/stats.json: target 'energy': {message}")
    assert str(caught.value).endswith("; correct the card, then build the store again.")


def test_runs_hold_every_window_once(many_windows: Path) -> None:
    index = read_index(many_windows)
    assert find_runs(index, 1) == [(n, n + 1) for n in range(9)]
    assert find_runs(index, 1 << 40) == [(0, 9)]
    assert find_runs(index, 1 << 40, 3, 5) == [(3, 5)]
    assert find_runs(index, 1 << 40, 4, 4) == []
    for size in (500, 2000, 5000):
        runs = find_runs(index, size, 2, 9)
        assert [w for first, last in runs for w in range(first, last)] == list(range(2, 9))


def test_what_is_no_store_is_refused(tmp_path: Path, store: Path) -> None:
    with pytest.raises(DataError, match="is not a graph store"):
        read_index(tmp_path)
    index = json.loads((store / "index.json").read_text())
    (store / "index.json").write_text(json.dumps({**index, "version": 99}))
    with pytest.raises(DataError, match="has version 99, this program reads 3"):
        read_index(store)


def test_a_store_cannot_name_files_elsewhere(store: Path) -> None:
    index = json.loads((store / "index.json").read_text())
    index["columns"][8]["name"] = "../../evil"
    (store / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"is damaged \(name '../../evil'\)"):
        read_store(store)


def test_what_is_no_store_is_not_replaced(card: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.tex").write_text("dear")
    with pytest.raises(StorageError, match="exists and is not a graph store"):
        build_store(card, precious)
    assert (precious / "chapter1.tex").read_text() == "dear"
