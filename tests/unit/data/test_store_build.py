"""From a card to a store: files found, checked, and refused whole."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.io import read, write

from hydragnn_hpo.config.data import SPLITS
from hydragnn_hpo.data.build import build_store, find_file, graphs_from_file, job_main
from hydragnn_hpo.data.store.index import read_stats
from hydragnn_hpo.data.store.parts import read_store
from hydragnn_hpo.errors import ConfigError, DataError


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_statistics_describe_the_store(card: Path, tmp_path: Path) -> None:
    stats = build_store(card, tmp_path / "out.bp")
    columns = read_store(tmp_path / "out.bp")
    assert stats == columns.stats == json.loads((tmp_path / "out.bp/stats.json").read_text())
    assert stats["name"] == "tiny"
    assert sum(stats["splits"].values()) == stats["num_graphs"] == columns.num_graphs == 18
    for split in SPLITS:
        assert len(columns.indices_of(split)) == stats["splits"][split] >= 1
    assert set(stats["targets"]) == {"energy", "charge"}
    assert stats["targets"]["energy"]["energy"] == "total"
    assert stats["train_nodes"] == columns.num_nodes()[columns.indices_of("train")].sum()
    assert columns.ids[0] == "tiny.extxyz:1"


def test_progress_is_told(card: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    build_store(card, tmp_path / "out.bp", progress=seen.append)
    assert seen == list(range(1, 19))


def test_a_structure_keeps_what_its_file_says(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    edit(card, 'name = "tiny"', 'name = "tiny"\nid_key = "label"')
    for number, atoms in enumerate(structures):
        atoms.info["label"] = f"mp-{number}"
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    build_store(card, tmp_path / "out.bp")
    columns = read_store(tmp_path / "out.bp")
    assert columns.ids[4] == "mp-4"
    nodes = slice(columns.node_offset[4], columns.node_offset[5])
    np.testing.assert_allclose(columns.positions[nodes], structures[4].positions, atol=1e-7)
    assert columns.targets["energy"][4, 0] == pytest.approx(structures[4].info["energy"])
    expected = structures[4].arrays["charge"]
    np.testing.assert_allclose(columns.targets["charge"][nodes, 0], expected, atol=1e-7)


def test_given_files_replace_those_of_the_card(card: Path, tmp_path: Path) -> None:
    text = (tmp_path / "tiny.extxyz").read_text()
    (tmp_path / "mine.extxyz.gz").write_bytes(gzip.compress((text + text).encode()))
    stats = build_store(card, tmp_path / "out.bp", files=[tmp_path / "mine.extxyz.gz"])
    assert stats["num_graphs"] == 36


def test_files_may_be_a_published_test(card: Path, tmp_path: Path) -> None:
    (tmp_path / "more.extxyz").write_text((tmp_path / "tiny.extxyz").read_text())
    edit(
        card,
        "[targets.energy]",
        '[[files]]\npath = "more.extxyz"\npublished = "test"\n[targets.energy]',
    )
    build_store(card, tmp_path / "out.bp")
    assert read_store(tmp_path / "out.bp").indices_of("test").tolist() == list(range(18, 36))


def test_a_published_test_seen_elsewhere_is_counted(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    for number, atoms in enumerate(structures):
        atoms.info["fold"] = int(number in (0, 6, 11))  # Cu stands thrice, C2 thrice
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    edit(card, 'group = "structure"', 'published = "fold"\npublished_test = "1"')
    stats = build_store(card, tmp_path / "out.bp")
    assert (stats["splits"]["test"], stats["test_seen"]) == (3, 3)


def test_files_are_found_beside_the_card_or_under_the_data_root(card: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "set").mkdir(parents=True)
    (tmp_path / "root" / "set" / "far.cif").touch()
    environ = {"HYDRAGNN_HPO_DATA": str(tmp_path / "root")}
    assert find_file("tiny.extxyz", card, environ) == tmp_path / "tiny.extxyz"
    assert find_file("set/far.cif", card, environ) == tmp_path / "root/set/far.cif"
    assert find_file(str(tmp_path / "tiny.extxyz"), card, {}) == tmp_path / "tiny.extxyz"
    with pytest.raises(DataError, match="tiny.toml: .*'set/far.cif'.*; set HYDRAGNN_HPO_DATA"):
        find_file("set/far.cif", card, {})


def test_checksums_are_compared(card: Path, tmp_path: Path) -> None:
    right = hashlib.sha256((tmp_path / "tiny.extxyz").read_bytes()).hexdigest()
    path = 'path = "tiny.extxyz"'
    edit(card, path, f'{path}\nsha256 = "{right}"')
    build_store(card, tmp_path / "out.bp")
    edit(card, right, "0" * 64)
    with pytest.raises(DataError, match="tiny.extxyz: has SHA-256 .* the card says 000000000000"):
        build_store(card, tmp_path / "other.bp")


BAD: dict[str, tuple[str, str, str]] = {
    "no_target": ("energy=", "enrgy=", r"structure 1 \(tiny.extxyz:1\) has no graph property"),
    "element": ("Ar ", "Qq ", "structure 3 cannot be read as extxyz"),
    "dummy": ("Ar ", "X ", r"structure 3 \(tiny.extxyz:3\) has an unknown element"),
}


@pytest.mark.parametrize(("old", "new", "said"), BAD.values(), ids=BAD)
def test_bad_input_leaves_only_a_list(
    card: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    edit(tmp_path / "tiny.extxyz", old, new)
    before = set(tmp_path.iterdir())
    with pytest.raises(DataError, match=rf"^{tmp_path}/tiny.extxyz: {said}.* more bad ones of 18"):
        build_store(card, tmp_path / "out.bp")
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out.bp.quarantine.jsonl"}


def test_a_bad_build_leaves_the_old_store(card: Path, tmp_path: Path) -> None:
    good = build_store(card, tmp_path / "out.bp")
    edit(tmp_path / "tiny.extxyz", "energy=", "enrgy=")
    with pytest.raises(DataError):
        build_store(card, tmp_path / "out.bp")
    assert read_stats(tmp_path / "out.bp") == good


def test_a_wrong_card_is_a_config_error(card: Path, tmp_path: Path) -> None:
    edit(card, 'unit = "eV"', 'unit = "ev"')
    with pytest.raises(ConfigError, match=r"tiny.toml: .*unknown unit 'ev'.*Known: "):
        build_store(card, tmp_path / "out.bp")


def test_a_build_is_a_job_that_answers_in_a_file(card: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    spec = {"card": str(card), "out": str(tmp_path / "out.bp"), "answer": str(answer)}
    assert job_main(spec) == 0
    assert json.loads(answer.read_text()) == read_stats(tmp_path / "out.bp")
    edit(tmp_path / "tiny.extxyz", "energy=", "enrgy=")
    assert job_main(spec) == 0
    assert "has no graph property 'energy'" in json.loads(answer.read_text())["error"]


def test_unlabelled_files_give_graphs_for_predictions(tmp_path: Path) -> None:
    write(tmp_path / "new.cif", bulk("Cu", a=3.6))
    (made,) = graphs_from_file(tmp_path / "new.cif", 3.0)
    assert (made.id, made.targets, len(made.edges)) == ("new.cif:1", {}, 12)
    with pytest.raises(DataError, match=r"gone.cif: no such file"):
        next(graphs_from_file(tmp_path / "gone.cif", 3.0))


def test_a_bad_structure_for_predictions_is_named(tmp_path: Path) -> None:
    pair = [bulk("Cu"), Atoms("H2")]
    write(tmp_path / "new.extxyz", pair)
    assert len(read(tmp_path / "new.extxyz", ":")) == 2
    graphs = graphs_from_file(tmp_path / "new.extxyz", 3.0)
    next(graphs)
    with pytest.raises(
        DataError, match=r"new.extxyz: structure 2 .*atom 1 and atom 2 at one place"
    ):
        next(graphs)
