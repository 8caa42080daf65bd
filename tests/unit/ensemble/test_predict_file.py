"""From files to predictions: whatever the source, in bounded memory, and again after a kill."""

import csv
import io
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.db import connect
from ase.io import write
from ase.io.formats import string2index

from hydragnn_hpo.data.columns import Graph
from hydragnn_hpo.ensemble import structure_batches as reading_module
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.predict_file import (
    PredictPipeline,
    make_writer,
    predict_chunks,
    select_columns,
)
from hydragnn_hpo.ensemble.predict_output import PartFolder, PartHeader
from hydragnn_hpo.ensemble.structure_batches import (
    STDIN,
    ChunkId,
    ChunkReader,
    StructureFiles,
    list_input_sources,
    read_structures,
)
from hydragnn_hpo.errors import ConfigError, DataError

Tell = Callable[[PartHeader, bool], None]


@pytest.fixture(scope="module")
def model(built_zip):
    return Ensemble.load(built_zip, precision="fp64")


@pytest.fixture
def small_pieces(monkeypatch):
    """Make a piece 4 structures, a batch two or three, and no file small."""
    monkeypatch.setattr(reading_module, "MIN_STRUCTURES", 4)
    monkeypatch.setattr(reading_module, "MAX_STRUCTURES", 4)
    monkeypatch.setattr(reading_module, "BATCH_SIZE", 100)
    monkeypatch.setattr("hydragnn_hpo.ensemble.structure_batches._SMALL_BYTES", 0)


def frames(count: int) -> list[Atoms]:
    rng = np.random.default_rng(5)
    results = [molecule(("H2O", "CH4", "NH3", "CH3OH")[n % 4]) for n in range(count)]
    for atoms in results:
        atoms.rattle(0.05, rng=rng)
    return results


def reading_of(*paths: Path, model: Ensemble, keep: tuple[str, ...] = ()) -> ChunkReader:
    return ChunkReader(list_input_sources(paths), model.rules, StructureFiles(), keep)


def ids_and_errors(reading: ChunkReader) -> tuple[list[str], dict[str, str]]:
    ids = list[str]()
    errors = dict[str, str]()
    for some in read_structures(reading):
        errors |= {some.ids[place]: why for place, why in some.errors.items()}
        ids += some.ids
    return ids, errors


def table_of(
    model: Ensemble, archive: Path, out: Path, *paths: Path, tell: Tell = lambda *_: None
) -> list[dict[str, str]]:
    """Predict into a CSV file and give its rows."""
    layout = select_columns(model, archive)
    with reading_of(*paths, model=model) as reading:
        parts = PartFolder(out)
        parts.begin({})
        work = PredictPipeline(model, reading, make_writer(out, layout), parts)
        predict_chunks(work, report=tell)
        assert work.join() is not None
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_any_source_give_what_the_structures_give(tmp_path, model, built_zip):
    atoms = frames(9)
    expected = model.predict(atoms).heads["energy"].mean[:, 0]
    write(tmp_path / "a.extxyz", atoms)
    write(tmp_path / "a.extxyz.gz", atoms)
    write(tmp_path / "a.traj", atoms)
    with connect(tmp_path / "a.db") as database:
        for one in atoms:
            database.write(one)
    (tmp_path / "many").mkdir()
    for number, one in enumerate(atoms):
        write(tmp_path / f"many/{number}.xyz", one)
    for source in ("a.extxyz", "a.extxyz.gz", "a.traj", "a.db", "many"):
        rows = table_of(model, built_zip, tmp_path / "out.csv", tmp_path / source)
        names = [f"{n}.xyz@0" if source == "many" else f"{source}@{n}" for n in range(9)]
        assert [row["id"] for row in rows] == names
        actual = [float(row["energy"]) for row in rows]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
        assert not (tmp_path / "out.csv.parts").exists()


@pytest.mark.usefixtures("small_pieces")
def test_ranks_read_what_one_process_reads(tmp_path, model):
    write(tmp_path / "a.extxyz", frames(10))
    write(tmp_path / "a.traj", frames(6))
    lots = [tmp_path / "a.extxyz", tmp_path / "a.traj"]
    ids, _ = ids_and_errors(reading_of(*lots, model=model))
    assert ids == [f"a.extxyz@{n}" for n in range(10)] + [f"a.traj@{n}" for n in range(6)]
    for rank in range(2):
        mine = reading_of(*lots, model=model)
        for lot, count in ((0, 10), (1, 6)):
            for number in range(rank, 4, 2):
                batches = list(mine.batches(ChunkId(lot, number)))
                actual = [name for some, _ in batches for name in some.ids]
                first = 10 * lot + 4 * number
                assert actual == ids[first : min(first + 4, 10 * lot + count)]
                assert batches[-1][1] == (4 * number + 4 > count)


@pytest.mark.usefixtures("small_pieces")
def test_a_store_is_read_with_its_edges_or_with_longer_ones(model, built_zip, tmp_path):
    store = built_zip.parent / "data/toy.bp"
    rows = table_of(model, built_zip, tmp_path / "out.csv", store)
    assert [row["id"] for row in rows] == [f"m{n}" for n in range(60)]
    longer = replace(model.rules, cutoff=5.0)
    counts = []
    for rules in (model.rules, longer):
        reading = ChunkReader(
            list_input_sources([store]), rules, StructureFiles(), ("energy", "none")
        )
        some = list(read_structures(reading))
        assert all(one.columns.stats["cutoff"] >= rules.cutoff for one in some)
        assert all(set(kept) == {"energy"} for one in some for kept in one.kept)
        counts.append(sum(int(one.columns.num_edges().sum()) for one in some))
        assert sum(one.columns.num_graphs for one in some) == 60
    assert counts[1] > counts[0]


@pytest.mark.usefixtures("small_pieces")
def test_an_error_names_a_structure_of_a_store_by_its_number_from_0(model, built_zip):
    store = built_zip.parent / "data/toy.bp"
    rules = replace(model.rules, cutoff=5.0, min_distance=4.0)  # larger than any bond
    reading = ChunkReader(list_input_sources([store]), rules, StructureFiles(), ())
    _, errors = ids_and_errors(reading)
    assert len(errors) == 60
    for number in range(60):
        assert f"{store}: structure {number} (m{number}) has " in errors[f"m{number}"]


def test_a_bad_structure_keeps_its_place_and_stops_nothing(tmp_path, model):
    write(tmp_path / "a.extxyz", [molecule("H2O"), Atoms("CC", np.zeros((2, 3))), bulk("C")])
    (tmp_path / "b.cif").write_text("data_broken\n")
    write(tmp_path / "c.vasp", bulk("C", "diamond", a=3.6))
    (tmp_path / "d.xyz").write_text("1\n\nH 0 0 0\n3\n\nH 0 0 0\n")
    ids, errors = ids_and_errors(reading_of(tmp_path, model=model))
    assert ids == [
        *("a.extxyz@0", "a.extxyz@1", "a.extxyz@2", "b.cif@0", "c.vasp@0"),
        *("d.xyz@0", "d.xyz@1"),
    ]
    assert list(errors) == ["a.extxyz@1", "b.cif@0", "d.xyz@1"]
    assert "at one place" in errors["a.extxyz@1"]
    assert "the file ends within its 3 atoms" in errors["d.xyz@1"]


def test_structures_bring_their_names_and_what_is_kept(tmp_path, model):
    named = [molecule("H2O") for _ in range(4)]
    named[0].info |= {"name": "water", "gap": 1.5, "energy": -3.0}
    named[1].info |= {"id": 17, "label": "x"}
    named[2].info |= {"name": "red \x1b[31m" + "y" * 400}
    write(tmp_path / "a.xyz", named, format="extxyz")
    (some,) = read_structures(
        reading_of(tmp_path / "a.xyz", model=model, keep=("gap", "label", "energy"))
    )
    assert some.ids[:2] == ("water", "17")
    assert some.ids[2].startswith(r"red \x1b[31my")
    assert len(some.ids[2]) == 300
    assert some.ids[3] == "a.xyz@3"
    assert some.kept[:2] == ({"gap": 1.5, "energy": -3.0}, {"label": "x"})


def test_every_molecule_of_an_sdf_is_predicted_and_a_bad_one_is_named(tmp_path, model, built_zip):
    path = tmp_path / "a.sdf"
    atoms = frames(4)
    with path.open("w") as file:
        for number, one in enumerate(atoms):
            write(file, one, format="sdf", title=f"m{number}")
    path.write_text(path.read_text().replace("m2", "m2\nbroken"))
    rows = table_of(model, built_zip, tmp_path / "o.csv", path)
    assert [row["id"] for row in rows] == ["m0", "m1", "a.sdf@2", "m3"]
    with reading_of(path, model=model) as reading:
        _, errors = ids_and_errors(reading)
    assert list(errors) == ["a.sdf@2"]
    assert errors["a.sdf@2"].startswith(f"{path}: structure 2 cannot be read as sdf")
    with reading_of(tmp_path / "a.sdf@-1", model=model) as reading:
        assert ids_and_errors(reading) == (["m3"], {})


@pytest.mark.parametrize("form", ["extxyz", "cif"])
def test_standard_input_is_read_like_a_file(form, model, monkeypatch):
    text = io.BytesIO() if form == "cif" else io.StringIO()
    write(text, [bulk("C", "diamond", a=3.6), bulk("C", "diamond", a=3.7)], format=form)
    content = text.getvalue()
    piped = io.BytesIO(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
    with ChunkReader(
        list_input_sources([STDIN]), model.rules, StructureFiles(None, form)
    ) as reading:
        (some,) = read_structures(reading)
    label = "stdin" if form == "extxyz" else "stdin.cif"
    assert some.ids == (f"{label}@0", f"{label}@1")
    assert some.columns.num_graphs == 2


@pytest.mark.usefixtures("small_pieces")
def test_no_more_graphs_are_held_than_a_few_batches_have(tmp_path, model, built_zip, monkeypatch):
    monkeypatch.setattr(
        reading_module, "MIN_STRUCTURES", 60
    )  # one piece: batches are what bounds it
    monkeypatch.setattr(reading_module, "MAX_STRUCTURES", 60)
    write(tmp_path / "a.extxyz", frames(60))
    most = 0
    alive = weakref.WeakSet[Graph]()

    class Counting(Graph):
        def __init__(self, **columns: Any) -> None:
            nonlocal most
            super().__init__(**columns)
            alive.add(self)
            most = max(most, len(alive))

    monkeypatch.setattr("hydragnn_hpo.data.structure.Graph", Counting)
    rows = table_of(model, built_zip, tmp_path / "out.csv", tmp_path / "a.extxyz")
    assert len(rows) == 60
    assert 2 <= most <= 12


def test_what_is_requested_is_looked_at_first(model, built_zip):
    layout = select_columns(model, built_zip, levels=("95", "50"), keep=("gap", "gap"))
    assert (layout.levels, layout.keep) == ((50, 95), ("gap",))
    with pytest.raises(
        ConfigError, match="--levels 100: the ensemble has intervals of .*50.* percent"
    ):
        select_columns(model, built_zip, levels=("100",))
    with pytest.raises(ConfigError, match="has a column of this name"):
        select_columns(model, built_zip, keep=("energy_std",))


@pytest.mark.usefixtures("small_pieces")
def test_a_broken_run_goes_on_where_it_was(tmp_path, model, built_zip):
    write(tmp_path / "a.extxyz", frames(18))
    table_of(model, built_zip, tmp_path / "whole.csv", tmp_path / "a.extxyz")
    reports: list[bool] = []

    def breaks(header: PartHeader, before: bool) -> None:
        reports.append(before)
        if len(reports) == 3:
            raise KeyboardInterrupt

    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        table_of(model, built_zip, out, tmp_path / "a.extxyz", tell=breaks)
    assert not out.exists()
    table_of(model, built_zip, out, tmp_path / "a.extxyz", tell=breaks)
    assert reports == [False] * 3 + [True] * 3 + [False] * 2
    for name in ("out.csv", "out.nodes.csv"):
        other = tmp_path / name.replace("out", "whole")
        assert (tmp_path / name).read_bytes() == other.read_bytes()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("suffix", ["extxyz", "extxyz.gz", "traj", "db"])
def test_an_index_selects_what_ase_selects(tmp_path, model, suffix):
    atoms = frames(10)
    for number, one in enumerate(atoms):
        one.info["charge_label"] = number
    file = tmp_path / f"a.{suffix}"
    if suffix == "db":
        with connect(file) as database:
            for one in atoms:
                database.write(one)
    else:
        write(file, atoms)
    indices = "0 9 -1 -10 : 2:10 2:100 -3: :4 ::3 1::4 ::-1 8:2:-2"
    for index in indices.split():
        chosen = string2index(index)
        numbers = list(range(10))[chosen] if isinstance(chosen, slice) else [range(10)[chosen]]
        reading = reading_of(Path(f"{file}@{index}"), model=model)
        assert reading.count() in (None, len(numbers))
        ids, errors = ids_and_errors(reading)
        assert ids == [f"a.{suffix}@{number}" for number in numbers], index
        assert not errors


def test_an_index_beyond_the_end_is_a_sentence(tmp_path, model):
    write(tmp_path / "a.xyz", frames(3), format="extxyz")
    for index in ("3", "-4", "5:9", "2:1"):
        path = f"{tmp_path}/a.xyz@{index}"
        reading = reading_of(Path(path), model=model)
        assert not reading.count()
        ids, errors = ids_and_errors(reading)
        assert ids == [f"a.xyz@{index}"]
        assert errors[ids[0]] == (
            f"{path}: selects none of the 3 structures, which are numbered from 0 to 2; correct "
            "the index."
        )
    for wrong in ("a.xyz@x", "a.xyz@", "a.xyz@1.5", "a.xyz@::0", "b.xyz@0", "@0"):
        with pytest.raises(DataError, match="no such file"):
            reading_of(tmp_path / wrong, model=model)


def test_an_error_names_the_number_in_the_file(tmp_path, model):
    write(tmp_path / "a.extxyz", [*frames(3), Atoms("CC", np.zeros((2, 3)))])
    _, errors = ids_and_errors(reading_of(tmp_path / "a.extxyz@2:", model=model))
    assert errors["a.extxyz@3"].startswith(f"{tmp_path}/a.extxyz: structure 3 (a.extxyz@3) has")


def test_a_file_with_an_at_sign_in_its_name_is_read_whole(tmp_path, model):
    for name, crystal in (("POSCAR", "C"), ("other", "Si")):
        write(tmp_path / name, bulk(crystal, "diamond", a=3.6), format="vasp")
    (tmp_path / "other").rename(tmp_path / "POSCAR@0")
    (one,) = read_structures(reading_of(tmp_path / "POSCAR@0", model=model))
    assert one.ids == ("POSCAR@0@0",)
    assert set(one.columns.numbers) == {14}
