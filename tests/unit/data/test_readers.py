"""Readers of structures: what each of them alone does, takes and refuses."""

import gzip
import json
import re
from pathlib import Path

import pytest
from ase.build import bulk
from ase.io import write
from structure_files import csv_of_paths, extxyz, folder_of_files, truths

from hydragnn_hpo.data.readers import READERS, reader_of
from hydragnn_hpo.data.readers import extxyz as extxyz_reader
from hydragnn_hpo.data.readers import smiles as smiles_reader
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import ConfigError, DataError


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


def test_a_folder_without_table_serves_for_predictions(tmp_path: Path) -> None:
    folder_of_files(tmp_path)
    (tmp_path / "id_prop.csv").unlink()
    names = [name for name, _ in READERS["folder"].read(Source(tmp_path), 0, None)]
    assert names == [f"c{number}.cif" for number in range(5)]


def refused(source: Source, reader: str | None = None) -> str:
    """Read all structures; return the first sentence about one or about the whole."""
    try:
        items = list(reader_of(source, reader).read(source, 0, None))
    except (ConfigError, DataError) as error:
        return str(error)
    return next(str(found) for _, found in items if isinstance(found, DataError))


FRAME = '2\ngap=1 pbc="F F F"\nCu 0 0 0\nCu 2 0 0\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            FRAME + FRAME.replace("Cu 2", "Qq 2"),
            "structure 2 cannot be read .* element or key 'Qq'",
        ),
        (FRAME + FRAME.replace("2 0 0", "2 x 0"), "structure 2 cannot be read .*'x'"),
        ("\n", "is empty, it holds no structure"),
    ],
    ids=["element", "number", "blank"],
)
def test_unreadable_extxyz(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.extxyz"
    path.write_text(content)
    assert re.search(rf"bad.extxyz: {said}", refused(Source(path)))


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
    source = folder_of_files(folder)
    (folder / "id_prop.csv").write_text(table)
    assert re.search(said, refused(source, "folder"))


def test_bad_tables(tmp_path: Path) -> None:
    source = csv_of_paths(tmp_path)
    said = refused(Source(source.path, ("gap",)))
    assert "structure_column" in said
    assert "columns: gap, where" in said
    assert "Did you mean 'where'" in refused(Source(source.path, (), "wher"))
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
    assert "two.extxyz: holds several structures" in refused(Source(tmp_path), "folder")


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
    pieces = [name for n in range(5) for name, _ in reader.read(source, n, n + 1)]
    assert pieces == [f"all.extxyz:{number}" for number in range(1, 6)]
    assert len(opened) == 1
    again = [name for name, _ in reader.read(source, 0, 2)]  # back to the start
    assert again == pieces[:2]
    both = zip(reader.read(source, 0, None), reader.read(source, 0, None), strict=True)
    assert [(a[0], b[0]) for a, b in both] == [(name, name) for name in pieces]


def test_a_card_may_name_the_format(tmp_path: Path) -> None:
    expected = truths()[0]
    write(tmp_path / "d.dat", expected, format="lammps-data", masses=True)
    source = Source(tmp_path / "d.dat", format="lammps-data")
    ((_, atoms),) = reader_of(source, None).read(source, 0, None)
    assert sorted(atoms.numbers) == sorted(expected.numbers)
    assert atoms.get_volume() == pytest.approx(expected.get_volume(), rel=1e-5)
    wrong = Source(tmp_path / "d.dat", format="lamps-data")
    with pytest.raises(ConfigError, match="unknown format 'lamps-data'. Did you mean 'lammps-dat"):
        list(reader_of(wrong, None).read(wrong, 0, None))


def test_a_bad_row_leaves_the_others_alone(tmp_path: Path) -> None:
    write(tmp_path / "good.cif", truths()[0])
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
