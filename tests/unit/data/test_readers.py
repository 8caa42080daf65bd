"""Readers: one suite of equal structures, and what each of them refuses."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.db import connect
from ase.io import write

from hydragnn_hpo.data.readers import READERS, reader_of
from hydragnn_hpo.data.readers import extxyz as extxyz_reader
from hydragnn_hpo.data.readers import smiles as smiles_reader
from hydragnn_hpo.data.readers.source import Reader, Source
from hydragnn_hpo.errors import ConfigError, DataError


def crystals() -> list[Atoms]:
    found = [bulk("Cu", cubic=True), bulk("NaCl", "rocksalt", a=5.6, cubic=True), bulk("Fe")]
    for number, atoms in enumerate(found):
        atoms.info["gap"] = number / 4
    return found


def extxyz(folder: Path) -> Source:
    write(folder / "all.extxyz", crystals(), format="extxyz")
    return Source(folder / "all.extxyz", ("gap",))


def packed(opener: Callable[..., io.TextIOBase], suffix: str) -> Callable[[Path], Source]:
    def make(folder: Path) -> Source:
        source = extxyz(folder)
        path = folder / f"all.extxyz{suffix}"
        with opener(path, "wt") as file:
            file.write(source.path.read_text())
        return Source(path, ("gap",))

    return make


def database(folder: Path) -> Source:
    with connect(folder / "all.db") as rows:
        for atoms in crystals():
            rows.write(atoms, gap=atoms.info["gap"], data={"twice": 2 * atoms.positions})
    return Source(folder / "all.db", ("gap",))


def with_header(folder: Path) -> Source:
    lines = ["file,other,gap"]
    for number, atoms in enumerate(crystals()):
        write(folder / f"c{number}.cif", atoms)
        lines.append(f"c{number},7,{atoms.info['gap']}")
    (folder / "id_prop.csv").write_text("\n".join(lines))
    return Source(folder, ("gap",))


def without_header(folder: Path) -> Source:
    with_header(folder)
    lines = [f"c{n}.cif,{atoms.info['gap']}" for n, atoms in enumerate(crystals())]
    (folder / "id_prop.csv").write_text("\n".join(lines) + "\n")
    return Source(folder, ("gap",))


def table_of_paths(folder: Path) -> Source:
    lines = ["gap,where"]
    for number, atoms in enumerate(crystals()):
        write(folder / f"POSCAR_{number}", atoms, format="vasp")
        lines.append(f"{atoms.info['gap']},POSCAR_{number}")
    (folder / "all.csv").write_text("\n".join(lines))
    return Source(folder / "all.csv", ("gap",), "where")


def table_of_texts(folder: Path) -> Source:
    with (folder / "all.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "cif", "gap"])
        for atoms in crystals():
            text = io.BytesIO()
            write(text, atoms, format="cif")
            rows.writerow(["x", text.getvalue().decode(), atoms.info["gap"]])
    return Source(folder / "all.csv", ("gap",), "cif")


SOURCES: dict[str, Callable[[Path], Source]] = {
    "extxyz": extxyz,
    "gz": packed(gzip.open, ".gz"),
    "bz2": packed(bz2.open, ".bz2"),
    "xz": packed(lzma.open, ".xz"),
    "db": database,
    "folder_with_header": with_header,
    "folder_without_header": without_header,
    "table_of_paths": table_of_paths,
    "table_of_texts": table_of_texts,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_every_reader_gives_the_same_structures(
    make: Callable[[Path], Source], tmp_path: Path
) -> None:
    source = make(tmp_path)
    found = list(reader_of(source, None).read(source, 0, None))
    assert len({name for name, _ in found}) == 3
    for (_, atoms), expected in zip(found, crystals(), strict=True):
        assert sorted(atoms.symbols) == sorted(expected.symbols)
        assert atoms.pbc.all()
        assert atoms.get_volume() == pytest.approx(expected.get_volume(), rel=1e-5)
        assert atoms.info["gap"] == expected.info["gap"]


def test_the_path_chooses_the_reader(tmp_path: Path) -> None:
    names = {
        str(tmp_path): "folder",
        "a.CSV": "table",
        "a.csv.gz": "table",
        "a.cif": "ase_file",
        "a.csv_old.xyz": "extxyz",
        "a.extxyz.xz": "extxyz",
    }
    for path, name in names.items():
        assert reader_of(Source(Path(path)), None) is READERS[name]
    assert reader_of(Source(tmp_path), "table") is READERS["table"]
    with pytest.raises(ConfigError, match="unknown reader 'tabel'. Did you mean 'table'?"):
        reader_of(Source(tmp_path), "tabel")


def test_data_of_a_database_may_be_per_atom(tmp_path: Path) -> None:
    source = database(tmp_path)
    for _, atoms in reader_of(source, None).read(source, 0, None):
        np.testing.assert_allclose(atoms.arrays["twice"], 2 * atoms.positions)


def test_a_folder_without_table_serves_for_predictions(tmp_path: Path) -> None:
    with_header(tmp_path)
    (tmp_path / "id_prop.csv").unlink()
    names = [name for name, _ in READERS["folder"].read(Source(tmp_path), 0, None)]
    assert names == ["c0.cif", "c1.cif", "c2.cif"]


def whole(reader: Reader, source: Source) -> list[Atoms]:
    """Read all structures; a bad one is raised."""
    found = []
    for _, item in reader.read(source, 0, None):
        if isinstance(item, DataError):
            raise item
        found.append(item)
    return found


def refused(source: Source, kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        whole(reader_of(source, None), source)
    assert str(caught.value).startswith(str(source.path))
    return str(caught.value)


FRAME = '2\ngap=1 pbc="F F F"\nCu 0 0 0\nCu 2 0 0\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            FRAME + FRAME.replace("Cu 2", "Qq 2"),
            "structure 2 cannot be read .* element or key 'Qq'",
        ),
        (FRAME + FRAME.replace("2 0 0", "2 x 0"), "structure 2 cannot be read .*'x'"),
        (FRAME + FRAME[:-9], "structure 2 cannot be read"),
        ("hello\n", "structure 1 cannot be read as extxyz"),
        ("", "is empty"),
        ("\n", "is empty, it holds no structure"),
    ],
    ids=["element", "number", "torn", "garbage", "empty", "blank"],
)
def test_unreadable_extxyz(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.extxyz"
    path.write_text(content)
    try:
        items = list(reader_of(Source(path), None).read(Source(path), 0, None))
        error = next(found for _, found in items if isinstance(found, DataError))
    except DataError as raised:
        error = raised
    assert re.search(rf"bad.extxyz: {said}", str(error))


def test_a_bad_frame_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "some.extxyz"
    path.write_text(FRAME + FRAME.replace("Cu 2", "Qq 2") + FRAME.replace("Cu 2", "Fe 2"))
    reader, source = READERS["extxyz"], Source(path)
    assert reader.count(source) == 3
    names, found = zip(*reader.read(source, 0, None), strict=True)
    assert names == ("some.extxyz:1", "some.extxyz:2", "some.extxyz:3")
    assert isinstance(found[1], DataError)
    assert str(found[2].symbols) == "CuFe"
    assert [name for name, _ in reader.read(source, 2, 3)] == ["some.extxyz:3"]


@pytest.mark.parametrize("name", ["bad.cif", "POSCAR", "bad.db", "bad.traj", "bad", "bad.xyz"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe garbage \x80"], ids=["empty", "garbage"])
def test_unreadable_files_of_any_format(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(Source(tmp_path / name))


def test_unreadable_compressed_files(tmp_path: Path) -> None:
    source = packed(gzip.open, ".gz")(tmp_path)
    whole = source.path.read_bytes()
    for content in (b"", b"no gzip at all", whole[: len(whole) // 2]):
        source.path.write_bytes(content)
        refused(source)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in refused(Source(tmp_path / "gone.cif"))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("c0,0.5,1.0\n", "neither names the targets"),
        ("file,gapp\nc0,0.5\n", "neither names the targets"),
        ("c0,0.5\nc1\n", r"structure 2 \(c1\) has 1 columns instead of 2"),
        ("c0,0.5\nc9,0.5\n", r"structure 2 \(c9\) names no file"),
        ("../secret.cif,0.5\n", r"structure 1 \(../secret.cif\) names no file"),
        ("", "is empty"),
    ],
    ids=["columns", "header", "short", "gone", "outside", "empty"],
)
def test_bad_tables_of_folders(tmp_path: Path, table: str, said: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(tmp_path / "secret.cif", bulk("Cu"))
    source = with_header(folder)
    (folder / "id_prop.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        whole(READERS["folder"], source)


def test_bad_tables(tmp_path: Path) -> None:
    source = table_of_paths(tmp_path)
    said = refused(Source(source.path, ("gap",)), ConfigError)
    assert "structure_column" in said
    assert "columns: gap, where" in said
    assert "Did you mean 'where'" in refused(Source(source.path, (), "wher"), ConfigError)
    source.path.write_text("gap,where\n1.0,POSCAR_9\n")
    assert "structure 1 names the file 'POSCAR_9', which is not there" in refused(source)
    source.path.write_text("gap,where\n1.0\n")
    assert "structure 1 has 1 columns instead of 2" in refused(source)
    source.path.write_text("gap,where\n")
    assert "holds no structure" in refused(source)
    source.path.write_text('gap,where\n1.0,"data_x\n_cell_length_a oops\n"\n')
    assert "the CIF text of structure 1" in refused(source)


def test_one_file_of_a_folder_holds_one_structure(tmp_path: Path) -> None:
    write(tmp_path / "two.extxyz", [bulk("Cu"), bulk("Fe")])
    with pytest.raises(DataError, match="two.extxyz: holds several structures"):
        whole(READERS["folder"], Source(tmp_path))


def test_pieces_are_read_in_one_pass_and_two_readers_do_not_meet(
    tmp_path: Path, monkeypatch
) -> None:
    source = extxyz(tmp_path)
    reader = READERS["extxyz"]
    opened = []
    real = extxyz_reader._Scan.__init__
    monkeypatch.setattr(
        extxyz_reader._Scan,
        "__init__",
        lambda self, *what: (opened.append(1), real(self, *what))[1],
    )
    pieces = [name for n in range(3) for name, _ in reader.read(source, n, n + 1)]
    assert pieces == ["all.extxyz:1", "all.extxyz:2", "all.extxyz:3"]
    assert len(opened) == 1
    again = [name for name, _ in reader.read(source, 0, 2)]  # back to the start
    assert again == pieces[:2]
    both = zip(reader.read(source, 0, None), reader.read(source, 0, None), strict=True)
    assert [(a[0], b[0]) for a, b in both] == [(name, name) for name in pieces]


def test_a_card_may_name_the_format(tmp_path: Path) -> None:
    expected = crystals()[0]
    write(tmp_path / "d.dat", expected, format="lammps-data", masses=True)
    source = Source(tmp_path / "d.dat", format="lammps-data")
    ((_, atoms),) = reader_of(source, None).read(source, 0, None)
    assert sorted(atoms.numbers) == sorted(expected.numbers)
    assert atoms.get_volume() == pytest.approx(expected.get_volume(), rel=1e-5)
    wrong = Source(tmp_path / "d.dat", format="lamps-data")
    with pytest.raises(ConfigError, match="unknown format 'lamps-data'. Did you mean 'lammps-dat"):
        list(reader_of(wrong, None).read(wrong, 0, None))


def test_a_bad_row_leaves_the_others_alone(tmp_path: Path) -> None:
    write(tmp_path / "good.cif", crystals()[0])
    site = {"species": [{"element": "Fe"}], "abc": [0, 0, 0]}
    rows = [["good.cif"], None, [{"sites": [site], "lattice": [1, 2]}], ["x" * 5000], ["good.cif"]]
    content = {"columns": ["structure"], "data": rows, "index": list("abcde")}
    (tmp_path / "m.json").write_text(json.dumps(content))
    source = Source(tmp_path / "m.json")
    found = [item for _, item in reader_of(source, None).read(source, 0, None)]
    assert [isinstance(item, DataError) for item in found] == [False, True, True, True, False]
    for number in (2, 3, 4):
        assert f"m.json: structure {number} " in str(found[number - 1])
    (tmp_path / "m.json").write_text(json.dumps(content | {"index": ["a"]}))
    with pytest.raises(DataError, match="m.json: names 1 of 5 rows"):
        reader_of(source, None).count(source)


def test_a_damaged_row_of_a_database_leaves_the_others_alone(tmp_path: Path) -> None:
    source = database(tmp_path)
    with sqlite3.connect(source.path) as connection:
        connection.execute("UPDATE systems SET numbers = x'0102' WHERE id = 2")
    connection.close()
    found = [item for _, item in reader_of(source, None).read(source, 0, None)]
    assert [isinstance(item, DataError) for item in found] == [False, True, False]
    assert f"{source.path}: row 2 cannot be read" in str(found[1])


@pytest.mark.parametrize(
    ("header", "column", "name"),
    [
        ("SMILES,gap", None, "smiles"),
        ("id,canonical_smiles", "canonical_smiles", "smiles"),
        ("id,canonical_smiles", None, "table"),
        ("smiles,file", "file", "table"),
        ("mol,gap", "mol", "table"),
        ("", None, "table"),
    ],
)
def test_a_table_of_smiles_is_known_by_its_column(header, column, name, tmp_path):
    for path, opener in ((tmp_path / "a.csv", open), (tmp_path / "a.csv.gz", gzip.open)):
        with opener(path, "wt") as file:
            file.write(header + "\nCC,1.0\n")
        assert reader_of(Source(path, structure_column=column), None) is READERS[name]


@pytest.mark.parametrize("name", ["table", "smiles"])
def test_two_columns_of_one_name_are_refused(name, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles,gap,,,gap\nCC,1.0,,,2.0\n")
    with pytest.raises(DataError, match="a.csv: two columns are named 'gap'; rename one of them"):
        READERS[name].count(Source(path, structure_column="smiles"))


def test_pieces_of_a_table_of_smiles_parse_it_once(tmp_path, monkeypatch):
    parsed = []
    parse = smiles_reader.read_rows
    monkeypatch.setattr(smiles_reader, "read_rows", lambda path: parsed.append(path) or parse(path))
    path = tmp_path / "a.csv"
    path.write_text("smiles,gap\nC,1.0\nCC,2.0\nCCC,3.0\n")
    names = [name for n in range(3) for name, _ in READERS["smiles"].read(Source(path), n, n + 1)]
    assert names == ["a.csv:1", "a.csv:2", "a.csv:3"]
    assert len(parsed) == 1
    path.write_text("smiles,gap\nC,1.0\nCC,2.0\n")
    assert READERS["smiles"].count(Source(path)) == 2
