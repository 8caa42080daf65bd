"""Readers of structures: what each of them alone does, takes and refuses."""

import gzip
import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write
from rdkit.Chem import GetPeriodicTable
from scipy.sparse.csgraph import connected_components
from structure_files import csv_of_paths, extxyz, folder_of_files, truths

from hydragnn_hpo.data.readers import READERS, is_single_structure, reader_of
from hydragnn_hpo.data.readers import extxyz as extxyz_reader
from hydragnn_hpo.data.readers import smiles as smiles_reader
from hydragnn_hpo.data.readers.ase_file import format_of, single_structure
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import ConfigError, DataError


def test_the_path_chooses_the_reader(tmp_path: Path) -> None:
    names = {
        str(tmp_path): "folder",
        "a.CSV": "table",
        "a.csv.gz": "table",
        "a.cif": "ase_file",
        "a.csv_old.xyz": "extxyz",
        "a.sdf.gz": "sdf",
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
    return next(str(result) for _, result in items if isinstance(result, DataError))


FRAME = '2\ngap=1 pbc="F F F"\nCu 0 0 0\nCu 2 0 0\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            FRAME + FRAME.replace("Cu 2", "Qq 2"),
            "structure 1 cannot be read .* element or key 'Qq'",
        ),
        (FRAME + FRAME.replace("2 0 0", "2 x 0"), "structure 1 cannot be read .*'x'"),
        ("\n", "is empty, it holds no structure"),
    ],
    ids=["element", "number", "blank"],
)
def test_unreadable_extxyz(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.extxyz"
    path.write_text(content)
    assert re.search(rf"bad.extxyz: {message}", refused(Source(path)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("c0,0.5,1.0\n", "neither names the targets"),
        ("file,gapp\nc0,0.5\n", "neither names the targets"),
        ("c0,0.5\nc1\n", r"structure 1 \(c1\) has 1 columns instead of 2"),
        ("c0,0.5\nc9,0.5\n", r"structure 1 \(c9\) names no file"),
        ("../secret.cif,0.5\n", r"structure 0 \(../secret.cif\) names no file"),
        ("", "is empty"),
    ],
    ids=["columns", "header", "short", "gone", "outside", "empty"],
)
def test_bad_tables_of_folders(tmp_path: Path, table: str, message: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(tmp_path / "secret.cif", bulk("Cu"))
    source = folder_of_files(folder)
    (folder / "id_prop.csv").write_text(table)
    assert re.search(message, refused(source, "folder"))


def test_bad_tables(tmp_path: Path) -> None:
    source = csv_of_paths(tmp_path)
    message = refused(Source(source.path, ("gap",)))
    assert "structure_column" in message
    assert "columns: gap, where" in message
    assert "Did you mean 'where'" in refused(Source(source.path, (), "wher"))
    source.path.write_text("gap,where\n1.0,POSCAR_9\n")
    assert "structure 0 names the file 'POSCAR_9', which is not there" in refused(source)
    source.path.write_text("gap,where\n1.0\n")
    assert "structure 0 has 1 columns instead of 2" in refused(source)
    source.path.write_text("gap,where\n")
    assert "holds no structure" in refused(source)
    source.path.write_text('gap,where\n1.0,"data_x\n_cell_length_a oops\n"\n')
    assert "the CIF text of structure 0" in refused(source)


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
    assert pieces == [f"all.extxyz@{number}" for number in range(5)]
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
    results = [item for _, item in reader_of(source, None).read(source, 0, None)]
    assert [isinstance(item, DataError) for item in results] == [False, True, True, True, False]
    for number in (1, 2, 3):
        assert f"m.json: structure {number} " in str(results[number])
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
    assert names == ["a.csv@0", "a.csv@1", "a.csv@2"]
    assert len(parsed) == 1
    path.write_text("smiles,gap\nC,1.0\nCC,2.0\n")
    assert READERS["smiles"].count(Source(path)) == 2


SALTS = ("[Na+].[Cl-]", "CCN.Cl", "O.CC(=O)[O-].[NH4+]", "c1ccccc1C(=O)O.NCCO", "O.O.O.O.O.O")
"""SMILES of several parts."""


@pytest.mark.parametrize("smiles", SALTS)
def test_parts_of_a_smiles_stand_side_by_side(smiles: str, tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text(f"{smiles}\n{smiles}\n")
    (_, atoms), (_, again) = READERS["smiles"].read(Source(tmp_path / "a.smi"), 0, None)
    assert atoms == again
    assert atoms.info["smiles_parts"] == smiles.count(".") + 1
    table = GetPeriodicTable()
    radii = np.array([table.GetRvdw(int(number)) for number in atoms.numbers])
    count, part = connected_components(atoms.get_all_distances() < 1.8)
    assert count == smiles.count(".") + 1
    others = part[:, None] != part
    assert (atoms.get_all_distances() > radii[:, None] + radii)[others].all()
    ends = [
        (
            (atoms.positions[:, 0] - radii)[part == n].min(),
            (atoms.positions[:, 0] + radii)[part == n].max(),
        )
        for n in range(count)
    ]
    ends.sort()
    assert [right[0] - left[1] for left, right in pairwise(ends)] == pytest.approx(
        [1.0] * (count - 1)
    )


def test_smiles_of_several_parts_are_set_aside_on_demand(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,gap\nCC,1.0\nCCN.Cl,2.0\nC1.C1,1.0\n")
    source = Source(tmp_path / "a.csv", one_part=True)
    (_, one), (_, salt), (_, ethane) = READERS["smiles"].read(source, 0, None)
    assert str(one.symbols) == str(ethane.symbols) == "C2H6"
    assert str(salt).endswith(
        "a.csv: structure 1 (CCN.Cl) has 2 parts; give one of them, or drop one_part from the card."
    )


CIF = """data_x
_cell_length_a 5.6
_cell_length_b 5.6
_cell_length_c 5.6
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'F m -3 m'
loop_
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_occupancy
Na 0 0 0 1
Cl .5 .5 .5 1
"""
"""Rock salt: 4 Na and 4 Cl in the cubic cell."""

FULL = CIF.replace("_atom_site_occupancy\n", "").replace(" 1\n", "\n")
"""The same without occupancies."""

NO_CELL = re.sub("_cell_.*\n", "", CIF)

DOUBTFUL = {
    "no cell": (NO_CELL, "has no number for _cell_length_a, .*; give the cell"),
    "unknown length": (CIF.replace("a 5.6", "a ?"), "has no number for _cell_length_a; give"),
    "unknown occupancy": (CIF.replace("0 0 1", "0 0 ?"), r"has the occupancy '\?' at site 1"),
    "no occupancy": (CIF.replace("0 0 1", "0 0 ."), r"has the occupancy '\.' at site 1"),
    "one site": (FULL + "K 0 0 0\n", r"has Na and K on one site \(site 3\)"),
    "equivalent site": (FULL + "K 1 .5 .5\n", r"has Na and K on one site \(site 3\)"),
    "full twice": (CIF + "K 0 0 0 1\n", r"has Na and K on one site \(site 3\)"),
}


@pytest.mark.parametrize(("content", "message"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_cif_that_would_be_read_as_another_structure_is_set_aside(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "a.cif"
    path.write_text(content + CIF)
    (_, first), (_, second) = READERS["ase_file"].read(Source(path), 0, None)
    assert re.search(f"a.cif: structure 0 {message}", str(first))
    assert str(second.symbols) == "Na4Cl4"


@pytest.mark.parametrize("content", [CIF, FULL, FULL + "Na 1 .5 .5\n"])
def test_what_a_cif_says_twice_is_read_once(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.cif").write_text(content, encoding="utf-8-sig")
    ((_, atoms),) = READERS["ase_file"].read(Source(tmp_path / "a.cif"), 0, None)
    assert str(atoms.symbols) == "Na4Cl4"
    assert ("occupancy" in atoms.info) == (content == CIF)


POSCAR = "x\n1\n4 0 0\n0 4 0\n0 0 4\nNa Cl\n1 1000000000\nDirect\n0 0 0\n.5 .5 .5\n"

ENDLESS = {
    "POSCAR": (POSCAR, "it needs more memory than a file of its size can hold"),
    "POSCAR.gz": (POSCAR, "it needs more memory than a file of its size can hold"),
    "comment.xyz": ("1\n" + 1_000_001 * "a" + "\nH 0 0 0\n", "more than 1,000,000 characters"),
    "atom.xyz": ("1\n\nH 0 0 " + 1_000_001 * "0" + "\n", "more than 1,000,000 characters"),
    "atoms.xyz": ("1" + 30 * "0" + "\n\nH 0 0 0\n", "the file ends within its 10+ atoms"),
    "columns.xyz": (
        "1\nProperties=species:S:1:pos:R:3:f:R:1000000000\nH 0 0 0 0\n",
        "announces 1000000004 columns",
    ),
    "deep.json": (100_000 * "[", "nests JSON too deeply"),
    "long.smi": (20_000 * "C", "has 20,000 characters, at most 10,000 are read"),
    "large.smi": (200 * "C", "has 602 atoms, RDKit would need minutes for more than 500"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_take_all_time_or_memory_is_refused(tmp_path: Path, name: str) -> None:
    content, message = ENDLESS[name]
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wt") as file:
        file.write(content)
    began = time.process_time()
    assert re.search(message, refused(Source(tmp_path / name)))
    assert time.process_time() - began < 5.0


def test_a_frame_after_a_comment_that_is_too_long_is_read(tmp_path: Path) -> None:
    long = "1\n" + 2_500_000 * "a" + "\nH 0 0 0\n"
    (tmp_path / "a.xyz").write_text("1\nx=1\nHe 0 0 0\n" + long + "1\nx=2\nLi 0 0 0\n")
    read = [atoms for _, atoms in READERS["extxyz"].read(Source(tmp_path / "a.xyz"), 0, None)]
    assert [str(read[0].symbols), str(read[2].symbols)] == ["He", "Li"]
    assert isinstance(read[1], DataError)


def test_a_byte_order_mark_is_no_letter(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1\nx=1\nHe 0 0 0\n", encoding="utf-8-sig")
    (tmp_path / "a.csv").write_text("smiles,gap\r\nC,1.5\r\n", encoding="utf-8-sig")
    for name in ("a.xyz", "a.csv"):
        source = Source(tmp_path / name)
        ((_, atoms),) = reader_of(source, None).read(source, 0, None)
        assert atoms.info.get("gap", 1.5) == 1.5
        assert str(atoms.symbols) in ("He", "CH4")


@pytest.mark.parametrize("name", ["a.xyz", "a.csv", "a.smi"])
def test_text_that_is_not_utf8_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1\nd=\xe9\nHe 0 0 0\n")
    message = refused(Source(tmp_path / name, structure_column="d"))
    assert "is not a text file in UTF-8" in message
    assert message.endswith("save it as UTF-8.")


def test_a_damaged_lmdb_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.lmdb").write_bytes(bytes(range(256)) * 40)
    assert "a.lmdb: cannot be read as a database" in refused(Source(tmp_path / "a.lmdb"))


READ = """
import sys
from pathlib import Path
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import ConfigError
for name in sys.argv[1:]:
    try:
        source = Source(Path(name))
        print(*(atoms.symbols for _, atoms in reader_of(source, None).read(source, 0, None)))
    except ConfigError as error:
        print(error)
"""


@pytest.mark.slow
def test_no_warning_and_no_assertion_of_ase_is_relied_on(tmp_path: Path) -> None:
    (tmp_path / "a.cif").write_text(CIF + "_symmetry_cell_setting cubic\n")  # ASE warns of it
    (tmp_path / "a.xyz").write_text("1\nx=1\nHe 0 0 0\n")
    ran = subprocess.run(
        [sys.executable, "-O", "-c", READ, "a.cif", "a.xyz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    refusal = "a.xyz: ASE cannot read extxyz under 'python -O' or PYTHONOPTIMIZE; run without."
    assert (ran.stdout.splitlines(), ran.stderr) == (["Na4Cl4", refusal], "")


def test_an_at_sign_belongs_to_the_name_of_a_file(tmp_path: Path) -> None:
    """ASE reads structure 0 of ``POSCAR`` for ``POSCAR@0``."""
    for name, symbol in (("POSCAR", "Na"), ("POSCAR@0", "Li")):
        text = POSCAR.replace("Na Cl\n1 1000000000", f"{symbol} Cl\n1 1")
        (tmp_path / name).write_text(text)
    assert str(single_structure(tmp_path / "POSCAR@0").symbols) == "LiCl"


AMMONIUM = """ammonium
  made              3D

  5  4  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 N   0  0
    0.5950    0.5950    0.5950 H   0  0
   -0.5950   -0.5950    0.5950 H   0  0
   -0.5950    0.5950   -0.5950 D   0  0
-1000.5950-1000.5950-1000.5950 H   0  0
  1  2  1  0
  1  3  1  0
  1  4  1  0
  1  5  1  0
M  CHG  1   1   1
M  END
>  <logp>  (1)
-1.5

> <notes>
first line
second line

$$$$
"""
"""An ion, one of its atoms so far away that its numbers leave no blanks between them."""

METHYL_V3000 = """
  made              3D

  0  0  0     0  0            999 V3000
M  V30 BEGIN CTAB
M  V30 COUNTS 2 1 0 0 0
M  V30 BEGIN ATOM
M  V30 1 C 0.0 0.0 -
M  V30 0.0 0 RAD=2
M  V30 2 H 0.0 0.0 1.1 0
M  V30 END ATOM
M  V30 BEGIN BOND
M  V30 1 1 1 2
M  V30 END BOND
M  V30 END CTAB
M  END
"""

FLAT = AMMONIUM.replace("3D", "2D").replace("-1000", "   -0").replace("0.5950", "0.0000")
WITHOUT_AN_ATOM = AMMONIUM.replace("    0.5950    0.5950    0.5950 H   0  0\n", "")
"""A record whose counts do not fit."""


def test_an_sdf_is_read_as_all_its_molecules_with_tags(tmp_path: Path) -> None:
    (tmp_path / "a.sdf").write_text(AMMONIUM * 2 + METHYL_V3000)
    source = Source(tmp_path / "a.sdf")
    reader = reader_of(source, None)
    (name, first), (_, second), (last, third) = reader.read(source, 0, None)
    assert (name, last, reader.count(source)) == ("a.sdf@0", "a.sdf@2", 3)
    assert first == second
    assert (str(first.symbols), first.positions[4, 1]) == ("NH4", -1000.595)
    notes = "first line\nsecond line"
    expected = {"name": "ammonium", "charge": 1, "spin": 0, "logp": -1.5, "notes": notes}
    assert first.info == expected | {"smiles": "[2H][NH3+]"}
    assert (str(third.symbols), third.positions[1, 2]) == ("CH", 1.1)
    assert third.info.items() >= {"charge": 0, "spin": 1}.items()


def test_charges_may_stand_in_the_lines_of_atoms(tmp_path: Path) -> None:
    lines = AMMONIUM.replace("M  CHG  1   1   1\n", "").replace(" N   0  0", " N   0  3")
    (tmp_path / "a.sdf").write_text(lines)
    (_, atoms), *_ = READERS["sdf"].read(Source(tmp_path / "a.sdf"), 0, None)
    assert atoms.info["charge"] == 1


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (FLAT, r"is a drawing \(2D\), which has no distances"),
        (AMMONIUM.replace(" N ", " Q "), "has the unknown element 'Q'"),
        (AMMONIUM.replace("0.5950 H", "0.59x0 H", 1), "cannot be read as sdf"),
        (AMMONIUM.replace("  5  4  0", "  4  4  0"), "cannot be read as sdf"),
        (AMMONIUM.replace("  5  4  0", " 50  4  0"), "cannot be read as sdf"),
        (WITHOUT_AN_ATOM, "cannot be read as sdf"),
        (METHYL_V3000.replace("COUNTS 2", "COUNTS 3") + "$$$$\n", "cannot be read as sdf"),
        (re.sub("M  V30.*\n", "", METHYL_V3000) + "$$$$\n", "cannot be read as sdf"),
        (re.sub("M  V30 COUNTS.*\n", "", METHYL_V3000) + "$$$$\n", "cannot be read as sdf"),
        ("$$$$\n", "cannot be read as sdf"),
    ],
)
def test_a_bad_record_leaves_the_other_molecules_alone(record, problem, tmp_path):
    (tmp_path / "a.sdf").write_text(AMMONIUM + record + AMMONIUM)
    source = Source(tmp_path / "a.sdf", format="sdf")
    (_, first), (_, bad), (_, last) = reader_of(source, None).read(source, 0, None)
    assert first == last
    assert re.search(f"a.sdf: structure 1 {problem}.*; mend or remove it.$", str(bad))


def test_one_molecule_is_wanted_where_one_belongs(tmp_path: Path) -> None:
    for name, content in (("a.mol", AMMONIUM.partition(">")[0]), ("a.sdf", AMMONIUM)):
        (tmp_path / name).write_text(content)
        assert len(single_structure(tmp_path / name)) == 5
        assert is_single_structure(Source(tmp_path / name), None)
    (tmp_path / "a.sdf").write_text(AMMONIUM * 2)
    assert not is_single_structure(Source(tmp_path / "a.sdf"), None)
    with pytest.raises(DataError, match="holds several structures where one belongs"):
        single_structure(tmp_path / "a.sdf")


def test_the_suffix_of_a_cif_and_an_inner_suffix_decide(tmp_path: Path) -> None:
    crystal = bulk("NaCl", "rocksalt", a=5.6)
    write(tmp_path / "NaCl-POSCAR0.cif", crystal, format="cif")
    assert len(single_structure(tmp_path / "NaCl-POSCAR0.cif")) == 2
    write(tmp_path / "a.xsf.run-7", crystal, format="xsf")
    assert len(single_structure(tmp_path / "a.xsf.run-7")) == 2
    write(tmp_path / "POSCAR.2", crystal, format="vasp")
    assert len(single_structure(tmp_path / "POSCAR.2")) == 2
    for name, form in {
        "vasprun.xml.run-7": "vasp-xml",
        "OUTCAR.run-7": "vasp-out",
        "a-POSCAR.cif.gz": "cif",
        "CONTCAR.cif": "cif",
        "XDATCAR_2": "vasp-xdatcar",
    }.items():
        (tmp_path / name).write_text("shows nothing")
        assert format_of(tmp_path / name) == form
