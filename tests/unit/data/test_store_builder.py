"""From a card to a store: in pieces, resumed, with bad structures set aside, or refused whole."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.io import read, write
from comparing import assert_same_store
from stores import read_store
from unit.data.conftest import CARD, TARGETS

from hydragnn_hpo.config.data_config import SPLITS, CardConfig, TargetConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.data import convert_pieces, store_builder
from hydragnn_hpo.data.build_merge import StoreLayout, split_windows
from hydragnn_hpo.data.build_plan import (
    BuildPlan,
    Piece,
    find_file,
    hold_work_folder,
    make_plan,
    write_plan,
)
from hydragnn_hpo.data.columns import Columns, Graph, arrays_of, columns_of
from hydragnn_hpo.data.convert_pieces import Progress, Record
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.label_sharing import mark_unlabelled
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.readers import READERS
from hydragnn_hpo.data.splits import assign_splits
from hydragnn_hpo.data.store_builder import BuildProgress, build_store, job_main
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import ConfigError, DataError, JobError, StorageError

GAP = """[targets.gap]
level = "graph"
unit = "eV"
optional = true"""


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_statistics_describe_the_store(card: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    stats = build_store(card, tmp_path / "out.bp", progress=seen.append)
    assert seen == list(range(1, 19))
    columns = read_store(tmp_path / "out.bp")
    assert stats == columns.stats == json.loads((tmp_path / "out.bp/stats.json").read_text())
    assert stats["name"] == "tiny"
    assert sum(stats["splits"].values()) == stats["num_graphs"] == columns.num_graphs == 18
    for split in SPLITS:
        assert len(columns.indices_of(split)) == stats["splits"][split] >= 1
    assert set(stats["targets"]) == {"energy", "charge"}
    assert stats["targets"]["energy"]["energy"] == "total"
    assert stats["train_nodes"] == columns.num_nodes()[columns.indices_of("train")].sum()
    assert columns.ids[0] == "tiny.extxyz@0"


@pytest.mark.parametrize("count", [4, 6])
def test_a_target_that_few_structures_have_is_shared_out_or_named(
    tmp_path: Path, count: int
) -> None:
    atoms = [Atoms("Cu2", positions=[[0, 0, 0], [0, 0, 2.0 + 0.01 * n]]) for n in range(60)]
    for number, each in enumerate(atoms):
        each.info["energy"] = float(number)
        each.info["gap"] = float(number) if number % 9 == 0 and number < 9 * count else np.nan
    write(tmp_path / "tiny.extxyz", atoms, format="extxyz")
    text = CARD.replace('[targets.charge]\nlevel = "node"\nunit = "e"', GAP)
    (tmp_path / "tiny.toml").write_text(text)
    stats = build_store(tmp_path / "tiny.toml", tmp_path / "out.bp")
    columns = read_store(tmp_path / "out.bp")
    labelled = {SPLITS[split] for split in columns.split[columns.masks["gap"]]}
    assert "unlabelled" not in stats["targets"]["energy"]
    assert stats["targets"]["gap"].get("unlabelled", []) == [s for s in SPLITS if s not in labelled]
    assert (labelled == set(SPLITS)) == (count == 6)


def test_a_label_of_an_element_that_train_does_not_know_does_not_count(columns: Columns) -> None:
    columns.split[:] = np.arange(columns.num_graphs) % 6 // 2  # argon and copper in one split each
    targets = fit_target_stats(columns, TARGETS)
    marked = mark_unlabelled(columns, targets)
    # train: Cu, H2O; val: Ar, NaCl; sel: C6H6 and C2, whose atoms have H in common with water
    assert marked["energy"]["unlabelled"] == ["val", "sel", "cal", "test"]
    assert marked["charge"]["unlabelled"] == ["val", "cal", "test"]
    assert "unlabelled" not in targets["charge"]


def test_classes_are_counted_in_each_split(columns: Columns) -> None:
    target = TargetConfig(level="graph", shape="class", classes=("safe", "toxic"), optional=True)
    toxic = np.arange(18) < 6
    classes = replace(
        columns,
        targets={"tox": np.stack([~toxic, toxic], axis=1).astype(float)},
        masks={"tox": np.arange(18) != 17},
        levels={"tox": "graph"},
        split=np.array([0, 0, 0, 1, 1, 2, *[0, 1, 2, 3, 4] * 2, 0, 4], dtype=np.int8),
    )
    stats = mark_unlabelled(classes, fit_target_stats(classes, {"tox": target}))["tox"]
    assert stats["unseen"] == {"cal": ["toxic"], "test": ["toxic"]}


def test_a_published_file_needs_no_mark_of_its_own(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    write(tmp_path / "more.extxyz", structures[:4], format="extxyz")
    for number, atoms in enumerate(structures):
        atoms.info["fold"] = "test" if number == 7 else "other"
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    more = '[[files]]\npath = "more.extxyz"\npublished = "test"\n[targets.energy]'
    edit(card, "[targets.energy]", more)
    edit(card, 'group = "structure"', 'group = "structure"\npublished = "fold"')
    build_store(card, tmp_path / "out.bp")
    assert read_store(tmp_path / "out.bp").indices_of("test").tolist() == [7, 18, 19, 20, 21]


def test_a_published_test_seen_elsewhere_is_counted(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    for number, atoms in enumerate(structures):
        atoms.info["fold"] = int(number in (0, 6, 11))  # Cu stands thrice, C2 thrice
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    edit(card, 'group = "structure"', 'published = "fold"\npublished_test = "1"')
    stats = build_store(card, tmp_path / "out.bp")
    assert (stats["splits"]["test"], stats["test_seen"]) == (3, 3)


@pytest.mark.parametrize("window", [2, 64])
def test_frames_of_a_trajectory_stay_in_one_split(card: Path, tmp_path: Path, window: int) -> None:
    frames = []
    for run in range(6):
        for step in range(3):
            atoms = bulk("Cu", cubic=True)
            atoms.positions[0, 0] += 0.8 * run + 0.05 * step
            if (run, step) == (2, 1):
                atoms.positions[1] = atoms.positions[0]  # set aside, and its run is still one
            atoms.info["energy"] = float(run)
            atoms.arrays["charge"] = np.zeros(4)
            frames.append(atoms)
    write(tmp_path / "tiny.extxyz", frames, format="extxyz")
    edit(card, 'group = "structure"', 'group = "trajectory"')
    edit(card, 'name = "tiny"', 'name = "tiny"\nmax_bad = 0.1')
    stats = build_store(card, tmp_path / "out.bp", window=window)
    columns = read_store(tmp_path / "out.bp")
    runs = [int(name.rpartition("@")[2]) // 3 for name in columns.ids]
    assert columns.num_graphs == 17
    assert columns.group.tolist() == runs
    assert all(len({columns.split[k] for k in range(17) if runs[k] == r}) == 1 for r in range(6))
    assert stats["groups"] == 6 - len({runs[k] for k in columns.indices_of("test")})


def test_files_are_found_beside_the_card_or_under_the_data_root(card: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "set").mkdir(parents=True)
    (tmp_path / "root" / "set" / "far.cif").touch()
    environ = {"HYDRAGNN_HPO_DATA": str(tmp_path / "root")}
    assert find_file("tiny.extxyz", card, environ) == tmp_path / "tiny.extxyz"
    assert find_file("set/far.cif", card, environ) == tmp_path / "root/set/far.cif"
    assert find_file(str(tmp_path / "tiny.extxyz"), card, {}) == tmp_path / "tiny.extxyz"
    os.mkfifo(tmp_path / "pipe.extxyz")
    for name in ("pipe.extxyz", "/dev/zero"):
        with pytest.raises(DataError, match="is a device or a pipe; give a file or a folder"):
            find_file(name, card, environ)
    with pytest.raises(DataError, match="tiny.toml: .*'set/far.cif'.*; set HYDRAGNN_HPO_DATA"):
        find_file("set/far.cif", card, {})


def test_what_is_no_file_and_a_file_under_two_names_are_refused(card: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xyz")
    with pytest.raises(DataError, match=r"pipe.xyz: is a device or a pipe; give a file"):
        find_file("pipe.xyz", card)
    edit(card, 'path = "tiny.extxyz"', 'path = "tiny.extxyz"\n[[files]]\npath = "./tiny.extxyz"')
    with pytest.raises(ConfigError, match=r"tiny.extxyz: is the same file as .*; give it once"):
        make_plan(card, None, 1024)


def test_a_target_whose_name_torch_keeps_is_refused_before_a_build(card: Path) -> None:
    edit(card, "[targets.energy]", "[targets.forward]")
    with pytest.raises(ConfigError, match=r"toml: head 'forward': torch keeps this name"):
        make_plan(card, None, 1024)


def test_a_doubtful_cif_among_many_is_set_aside(tmp_path: Path) -> None:
    files = [tmp_path / f"c{number}.cif" for number in range(12)]
    for number, file in enumerate(files):
        write(file, bulk("NaCl", "rocksalt", a=5.6 + 0.01 * number))
    edit(files[3], " 1.0000\n", " ?\n")  # the occupancy, the last column
    listing = "".join(f'[[files]]\npath = "{file.name}"\n' for file in files)
    (tmp_path / "card.toml").write_text(
        f'name = "c"\nmax_bad = 0.1\n{listing}[graphs]\ncutoff = 4.0\n'
        '[targets.e]\nlevel = "graph"\nunit = "eV"\noptional = true\n'
    )
    plan = make_plan(tmp_path / "card.toml", None, 1024)
    bad = [
        graph
        for piece in plan.pieces
        for _, graph in convert_pieces.read_piece(plan.card, piece)
        if isinstance(graph, DataError)
    ]
    assert len(bad) == 1
    assert "c3.cif: structure 0 has the occupancy '?' at site" in str(bad[0])


UNREADABLE = {
    "POSCAR": b"salt\n1.0\n4 0 0\n",
    "a.cif": b"data_x\n_cell_length_a 'open\n",
    "a.xyz": b"<html>404</html>\n",
    "cut.xyz": b"5\n\nH 0 0 0\n",
    "empty.cif": b"",
    "POSCAR.gz": b"not compressed",
    "a.res": b"\xff\xfe\x00",
}
SEVERAL = {
    "a.xyz": (b"x\n\nH 0 0 0\n1\n\nH 0 0 0\n1\n\nH 0 0 0\n", "a number of atoms was wanted"),
    "cut.xyz": (b"1\n\nH 0 0 0\n5\n\nH 0 0 0\n", "structure 1 cannot be read"),
    "a.traj": (b"- of UlmASE-Trajectory", "structure 0 cannot be read as traj"),
    "a.cif": (b"data_a\n_cell_length_a 'open\ndata_b\n", "holds no structure"),
    "a.cif.gz": (b"not compressed", "cannot be read"),
}


def card_of_files(folder: Path, *names: str, max_bad: float = 0.1) -> Path:
    """Write a card of some files and twenty good ones of one structure."""
    good = [f"c{number}.extxyz" for number in range(20)]
    for number, name in enumerate(good):
        atoms = bulk("NaCl", "rocksalt", a=5.6 + 0.01 * number)
        atoms.info["e"] = 0.1 * number
        write(folder / name, atoms)
    listing = "".join(f'[[files]]\npath = "{name}"\n' for name in (*names, *good))
    (folder / "card.toml").write_text(
        f'name = "c"\nmax_bad = {max_bad}\n{listing}[graphs]\ncutoff = 4.0\n'
        '[targets.e]\nlevel = "graph"\nunit = "eV"\noptional = true\n'
    )
    return folder / "card.toml"


def read_all(card: Path) -> list[Graph | DataError]:
    """Convert all structures of a card."""
    plan = make_plan(card, None, 1024)
    pairs = (pair for piece in plan.pieces for pair in convert_pieces.read_piece(plan.card, piece))
    return [graph for _, graph in pairs]


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_of_one_structure_is_set_aside(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(UNREADABLE[name])
    first, *others = read_all(card_of_files(tmp_path, name))
    assert isinstance(first, DataError)
    assert str(first).startswith(f"{tmp_path / name}: ")
    assert not any(isinstance(graph, DataError) for graph in others)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_file_of_several_structures_that_cannot_be_read_on_ends_a_build(
    name: str, tmp_path: Path
) -> None:
    content, pattern = SEVERAL[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=pattern):
        read_all(card_of_files(tmp_path, name))


def test_files_that_cannot_be_read_count_against_the_limit(tmp_path: Path) -> None:
    for name, content in UNREADABLE.items():
        (tmp_path / name).write_bytes(content)
    card = card_of_files(tmp_path, *UNREADABLE)
    with pytest.raises(DataError, match=r"\(and 6 more bad ones of 27; the limit max_bad is 0.1"):
        build_store(card, tmp_path / "out.bp", processes=1)
    edit(card, "max_bad = 0.1", "max_bad = 0.4")
    edit(card, "[graphs]", '[split]\ngroup = "structure"\n[graphs]')
    stats = build_store(card, tmp_path / "out.bp", processes=1)
    assert (stats["quarantined"], stats["num_graphs"]) == (7, 20)


def test_checksums_are_compared(card: Path, tmp_path: Path) -> None:
    right = hashlib.sha256((tmp_path / "tiny.extxyz").read_bytes()).hexdigest()
    path = 'path = "tiny.extxyz"'
    edit(card, path, f'{path}\nsha256 = "{right}"')
    build_store(card, tmp_path / "out.bp")
    edit(card, right, "0" * 64)
    with pytest.raises(DataError, match="tiny.extxyz: has SHA-256 .* the card says 000000000000"):
        build_store(card, tmp_path / "other.bp")


def test_a_build_is_a_job_that_answers_in_a_file(card: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    spec = {"card": str(card), "out": str(tmp_path / "out.bp"), "answer": str(answer)}
    assert job_main(spec) == 0
    good = json.loads(answer.read_text())
    assert good == read_index(tmp_path / "out.bp").stats
    edit(tmp_path / "tiny.extxyz", "energy=", "enrgy=")
    assert job_main(spec) == 0
    assert "has no graph property 'energy'" in json.loads(answer.read_text())["error"]
    assert read_index(tmp_path / "out.bp").stats == good, "the old store stays"
    (tmp_path / "out.bp.quarantine.jsonl").unlink()
    assert {path.name for path in tmp_path.iterdir()} == {
        "tiny.toml", "tiny.extxyz", "out.bp", "answer.json",
    }  # fmt: skip


def pieces_converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the number of every piece that is converted in this process."""
    seen: list[int] = []

    def noting(plan: BuildPlan, piece: Piece, work: Path, progress: Progress) -> Record:
        seen.append(piece.number)
        return real(plan, piece, work, progress)

    real = convert_pieces.convert_piece
    monkeypatch.setattr(convert_pieces, "convert_piece", noting)
    return seen


def test_a_store_in_pieces_is_that_of_all_graphs_at_once(card: Path, tmp_path: Path) -> None:
    # The obvious way: all structures in memory, one pass.
    config = load_config(card, CardConfig)
    frames = read(tmp_path / "tiny.extxyz", ":")
    file = tmp_path / "tiny.extxyz"
    rules = Rules(4.0, 0.1, config.targets)
    places = [Place(file, n, f"tiny.extxyz@{n}") for n in range(18)]
    graphs = [graph_of(atoms, place, rules) for atoms, place in zip(frames, places, strict=True)]
    columns = columns_of(graphs, config.targets)
    split = assign_splits([graph.group for graph in graphs], [None] * 18, config.split, "tiny")
    columns = replace(columns, split=split)

    stats = build_store(card, tmp_path / "out.bp", window=5, processes=1)
    expected = arrays_of(columns)
    for name, array in arrays_of(read_store(tmp_path / "out.bp")).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert stats["targets"] == fit_target_stats(columns, config.targets)
    assert stats | size_stats(columns, 4.0) == stats
    windows = read_index(tmp_path / "out.bp").windows
    assert windows[:, 0].tolist() == [5, 5, 5, 3]
    assert windows[:, 1].tolist() == [
        sum(len(atoms) for atoms in frames[first : first + 5]) for first in (0, 5, 10, 15)
    ]


def test_attributes_encodings_and_readers_of_the_card_are_applied(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    for number, atoms in enumerate(structures):
        atoms.info["total_charge"] = number - 3
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    edit(card, "[graphs]", '[attributes.charge]\nkey = "total_charge"\n[graphs]\nlaplacian = 2')
    build_store(card, tmp_path / "out.bp")
    columns = read_store(tmp_path / "out.bp")
    assert columns.attributes["charge"].tolist() == list(range(-3, 15))
    assert columns.laplacian is not None
    assert columns.laplacian.shape == (len(columns.numbers), 2)
    edit(card, 'path = "tiny.extxyz"', 'path = "tiny.extxyz"\nreader = "extxzy"')
    with pytest.raises(ConfigError, match="unknown reader 'extxzy'. Did you mean 'extxyz'"):
        build_store(card, tmp_path / "out.bp")


def spoil(path: Path, *numbers: int) -> None:
    """Take the energy from some structures, counted from 0."""
    frames = read(path, ":")
    for number in numbers:
        frames[number].calc = None
    write(path, frames, format="extxyz")


def test_bad_structures_are_set_aside(card: Path, tmp_path: Path) -> None:
    edit(card, 'name = "tiny"', 'name = "tiny"\nmax_bad = 0.1112')  # 2 of 18 are 0.1111
    spoil(tmp_path / "tiny.extxyz", 2, 11)
    (tmp_path / "out.bp.quarantine.jsonl").write_text("of an earlier try")
    stats = build_store(card, tmp_path / "out.bp", window=5, processes=1)
    assert (stats["quarantined"], stats["num_graphs"]) == (2, 16)
    lines = (tmp_path / "out.bp/quarantine.jsonl").read_text().splitlines()
    file = str(tmp_path / "tiny.extxyz")
    for number, line in zip((2, 11), lines, strict=True):
        actual = json.loads(line)
        assert actual.pop("reason").startswith(f"{file}: structure {number} (tiny.extxyz@{number})")
        assert actual == {"file": file, "number": number, "id": f"tiny.extxyz@{number}"}
    kept = [f"tiny.extxyz@{n}" for n in range(18) if n not in (2, 11)]
    assert list(read_store(tmp_path / "out.bp").ids) == kept
    assert not (tmp_path / "out.bp.quarantine.jsonl").exists()


def test_more_bad_structures_than_the_limit_stop_a_build(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pieces_converted(monkeypatch)
    edit(card, 'name = "tiny"', 'name = "tiny"\nmax_bad = 0.1112')
    spoil(tmp_path / "tiny.extxyz", 2, 7, 11)
    listing = tmp_path / "out.bp.quarantine.jsonl"
    with pytest.raises(DataError) as caught:
        build_store(card, tmp_path / "out.bp", window=2, processes=1)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert str(caught.value).startswith(f"{tmp_path}/tiny.extxyz: structure 2 (tiny.extxyz@2) has")
    assert str(caught.value).endswith(
        f"(and 2 more bad ones of 18; the limit max_bad is 0.1112: see {listing})."
    )
    assert [json.loads(line)["number"] for line in listing.read_text().splitlines()] == [2, 7, 11]
    assert not (tmp_path / "out.bp").exists()


def test_the_second_of_two_equal_ids_is_bad(
    card: Path, tmp_path: Path, structures: list[Atoms]
) -> None:
    for number, atoms in enumerate(structures):
        atoms.info["label"] = f"mp-{number % 17}"  # the last has the first one's
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    edit(card, 'name = "tiny"', 'name = "tiny"\nid_key = "label"')
    file = tmp_path / "tiny.extxyz"
    pattern = rf"^{file}: structure 17 \(mp-0\) has the id of structure 0 of {file}; give"
    with pytest.raises(DataError, match=pattern):
        build_store(card, tmp_path / "out.bp")
    edit(card, 'name = "tiny"', 'name = "tiny"\nmax_bad = 0.2')
    stats = build_store(card, tmp_path / "out.bp", window=5, processes=1)
    assert (stats["quarantined"], stats["num_graphs"]) == (1, 17)
    columns = read_store(tmp_path / "out.bp")
    assert list(columns.ids) == [f"mp-{n}" for n in range(17)]
    assert columns.node_offset[-1] == sum(len(atoms) for atoms in structures[:17])
    assert stats | size_stats(columns, 4.0) == stats


def test_files_of_one_name_do_not_share_ids(card: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tiny.extxyz").write_text((tmp_path / "tiny.extxyz").read_text())
    edit(card, "[targets.energy]", '[[files]]\npath = "b/tiny.extxyz"\n[targets.energy]')
    assert build_store(card, tmp_path / "out.bp")["num_graphs"] == 36
    ids = read_store(tmp_path / "out.bp").ids
    assert (ids[0], ids[35]) == ("tiny.extxyz:tiny.extxyz@0", "b/tiny.extxyz:tiny.extxyz@17")


class Breaking(BuildProgress):
    """Breaks a build off after some structures, as Ctrl-C does."""

    def __init__(self, after: int = 10**9) -> None:
        self.after = after
        self.begun: list[tuple[int | None, int]] = []

    def begin(self, total: int | None, reused: int) -> None:
        self.begun.append((total, reused))

    def __call__(self, done: int) -> None:
        if done >= self.after:
            raise KeyboardInterrupt


@pytest.fixture
def broken(card: Path, tmp_path: Path) -> Path:
    """A build of pieces of 5, 5, 5 and 3 structures, broken off in the third one."""
    with pytest.raises(KeyboardInterrupt):
        build_store(card, tmp_path / "out.bp", window=5, processes=1, progress=Breaking(12))
    work = tmp_path / ".out.bp.work"
    assert {path.name for path in work.glob("piece-*.json")} == {
        "piece-000000.json",
        "piece-000001.json",
    }
    return work


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


CHANGES: dict[str, tuple[Callable[[Path], None], list[int]]] = {
    "nothing": (lambda work: None, [2, 3]),
    "chunk": (lambda work: flip(work / "piece-000001-000000.npz"), [1, 2, 3]),
    "no_chunk": (lambda work: (work / "piece-000000-000000.npz").unlink(), [0, 2, 3]),
    "record": (lambda work: flip(work / "piece-000000.json"), [0, 2, 3]),
    "record_of_less": (
        lambda work: edit(work / "piece-000000.json", '"read": 5', '"read": 4'),
        [0, 2, 3],
    ),
    "torn_record": (lambda work: (work / "piece-000000.json").write_text("{"), [0, 2, 3]),
    "file": (lambda work: os.utime(work.parent / "tiny.extxyz", (1, 1)), [0, 1, 2, 3]),
    "cutoff": (
        lambda work: edit(work.parent / "tiny.toml", "cutoff = 4.0", "cutoff = 3.5"),
        [0, 1, 2, 3],
    ),
    "title": (
        lambda work: edit(work.parent / "tiny.toml", '"tiny"\n', '"tiny"\ntitle = "Tiny"\n'),
        [2, 3],
    ),
}


@pytest.mark.parametrize(("change", "converted"), CHANGES.values(), ids=CHANGES)
def test_a_broken_build_goes_on_with_what_is_still_true(
    card: Path,
    tmp_path: Path,
    broken: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    converted: list[int],
) -> None:
    change(broken)
    (tmp_path / ".out.bp.abcdefgh.part").mkdir()  # a store that was killed half-written
    seen = pieces_converted(monkeypatch)
    watch = Breaking()
    build_store(card, tmp_path / "out.bp", window=5, processes=1, progress=watch)
    assert seen == converted
    assert watch.begun[0][0] == 18
    if converted == [2, 3]:
        assert watch.begun == [(18, 10)], "two pieces of five are used again"
    assert not list(tmp_path.glob(".*"))
    build_store(card, tmp_path / "fresh.bp", window=5, processes=1)
    assert_same_store(tmp_path / "out.bp", tmp_path / "fresh.bp")


def test_a_small_build_that_fails_leaves_no_work(card: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_store(card, tmp_path / "out.bp", window=10, processes=1, progress=Breaking(12))
    assert not (tmp_path / ".out.bp.work").exists()


def test_a_store_is_built_by_one_at_a_time(card: Path, tmp_path: Path) -> None:
    with hold_work_folder(tmp_path / "out.bp"):
        pattern = rf"out.bp: is being built by process {os.getpid()} on .*; wait for it"
        with pytest.raises(StorageError, match=pattern):
            build_store(card, tmp_path / "out.bp")
        build_store(card, tmp_path / "other.bp")
    build_store(card, tmp_path / "out.bp")


def test_a_chunk_that_is_altered_while_building_is_found(card: Path, broken: Path) -> None:
    flip(broken / "piece-000000-000000.npz")
    with pytest.raises(StorageError, match=r"piece-000000-000000.npz: cannot be read .*again"):
        convert_pieces.read_chunk(broken / "piece-000000-000000.npz")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = replace(READERS["extxyz"], count=lambda source: 20)
    monkeypatch.setitem(READERS, "extxyz", reader)
    with pytest.raises(DataError, match="ends after 18 structures, 20 were counted before"):
        build_store(card, tmp_path / "out.bp", window=5, processes=1)


def test_parts_take_runs_of_windows_of_about_equal_size() -> None:
    sizes = np.array([[1, n, 0, 1] for n in (10, 10, 20, 40)])
    nothing = np.zeros(0, dtype=np.int64)
    layout = StoreLayout((), sizes, nothing.astype(np.int8), nothing.astype(np.int32), (), 4, {})
    assert split_windows(layout, 1) == [range(0, 4)]
    assert split_windows(layout, 2) == [range(0, 3), range(3, 4)]
    assert split_windows(layout, 9) == [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]


def test_workers_build_the_same_store(card: Path, tmp_path: Path) -> None:
    spoil(tmp_path / "tiny.extxyz", 7)
    edit(card, 'name = "tiny"', 'name = "tiny"\nmax_bad = 0.1')
    seen: list[int] = []
    build_store(card, tmp_path / "two.bp", window=5, processes=2, progress=seen.append)
    build_store(card, tmp_path / "one.bp", window=5, processes=1)
    assert_same_store(tmp_path / "two.bp", tmp_path / "one.bp")
    assert seen[-1] == 18


def test_errors_in_workers_are_the_same_sentences(card: Path, tmp_path: Path) -> None:
    whole = (tmp_path / "tiny.extxyz").read_text()
    (tmp_path / "tiny.extxyz").write_text(whole + "what?\n")
    pattern = rf"^{tmp_path}/tiny.extxyz: structure 18 cannot be read as extxyz"
    for processes in (1, 2):
        with pytest.raises(DataError, match=pattern):
            build_store(card, tmp_path / "out.bp", window=5, processes=processes)
        (tmp_path / "more.extxyz").write_text(whole)
        edit(card, "[targets.energy]", '[[files]]\npath = "more.extxyz"\n[targets.energy]')


BUG = json.dumps({"type": "bug", "traceback": "Traceback: boom"})
WORKERS = {
    "killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        JobError,
        "tiny.extxyz: the process .* killed by signal 9; .* start again",
    ),
    "gone": ("import sys; sys.exit(3)", JobError, "the process .* ended with code 3"),
    "bug": (f"import sys; sys.stdin.readline(); print({BUG!r})", RuntimeError, "boom"),
}


@pytest.mark.parametrize(("code", "kind", "pattern"), WORKERS.values(), ids=WORKERS)
def test_a_worker_that_dies_is_named(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: type, pattern: str
) -> None:
    monkeypatch.setattr(store_builder, "_COMMAND", [sys.executable, "-c", code])
    with pytest.raises(kind, match=pattern):
        build_store(card, tmp_path / "out.bp", window=5, processes=2)


@pytest.mark.slow
def test_a_worker_that_nobody_listens_to_ends_without_a_word(card: Path, tmp_path: Path) -> None:
    """Its parent died, and the end of stdin has not come through yet."""
    plan = make_plan(card, None, 5)
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "plan.json"
    write_plan(file, plan)
    ears, mouth = os.pipe()
    os.close(ears)
    worker = subprocess.Popen(
        [*store_builder._COMMAND, str(file)],
        stdin=subprocess.PIPE, stdout=mouth, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(mouth)
    assert worker.stdin is not None
    assert worker.stderr is not None
    worker.stdin.write("0\n")
    worker.stdin.flush()
    assert worker.wait(timeout=120) == 0
    assert worker.stderr.read() == ""
    worker.stdin.close()
    worker.stderr.close()


def test_the_card_gives_a_lattice_to_structures_without_one(card: Path, tmp_path: Path) -> None:
    wire = Atoms("H", positions=[[0, 0, 0]], info={"energy": -1.0})
    wire.arrays["charge"] = np.zeros(1)
    write(tmp_path / "tiny.extxyz", [wire] * 12, format="extxyz")
    box = "[[2.5, 0, 0], [0, 30, 0], [0, 0, 30]]"
    edit(
        card,
        'path = "tiny.extxyz"',
        f'path = "tiny.extxyz"\ncell = {box}\npbc = [true, false, false]',
    )
    build_store(card, tmp_path / "out.bp")
    columns = read_store(tmp_path / "out.bp")
    # Within 4 angstrom on a wire of period 2.5: one neighbour to either side.
    assert columns.num_edges().tolist() == [2] * 12
    wire.cell = [9.0, 9.0, 9.0]
    wire.pbc = True
    write(tmp_path / "tiny.extxyz", [wire] * 12, format="extxyz")
    with pytest.raises(DataError, match="has a lattice of its own"):
        build_store(card, tmp_path / "other.bp")


@pytest.mark.parametrize("pattern", ["columns = {energy = 2}", 'format = "vasp-out"'])
def test_what_a_reader_does_not_heed_is_refused(card: Path, tmp_path: Path, pattern: str) -> None:
    edit(card, 'path = "tiny.extxyz"', f'path = "tiny.extxyz"\nreader = "extxyz"\n{pattern}')
    name = pattern.split(" ")[0]
    with pytest.raises(ConfigError, match=f"tiny.extxyz: the reader .* does not heed '{name}'"):
        build_store(card, tmp_path / "out.bp")


def test_given_files_are_read_as_the_card_says(card: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(2 * (tmp_path / "tiny.extxyz").read_text())
    edit(card, 'path = "tiny.extxyz"', 'path = "tiny.extxyz"\nreader = "extxyz"')
    stats = build_store(card, tmp_path / "out.bp", files=[tmp_path / "mine.txt"])
    assert stats["num_graphs"] == 36


def test_a_mended_file_that_a_table_names_is_read_again(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.cif", bulk("Cu"))
    (tmp_path / "t.csv").write_text("file,gap\na.cif,1.0\nb.cif,2.0\n")
    card = tmp_path / "t.toml"
    card.write_text(
        'name = "t"\nstructure_column = "file"\n[[files]]\npath = "t.csv"\n'
        '[targets.gap]\nlevel = "graph"\nunit = "eV"\n'
    )
    before = make_plan(card, None, 5).pieces[0].stamp
    assert make_plan(card, None, 5).pieces[0].stamp == before
    os.utime(tmp_path / "b.cif", (1, 1))
    assert make_plan(card, None, 5).pieces[0].stamp != before
