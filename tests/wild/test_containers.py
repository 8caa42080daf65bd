"""Files of strangers, in small: which format they are, and what their cells and arrays hold.

Each input is made here in the shape of a real file; what is expected was worked out by hand.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.db import connect
from ase.io import write

from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.ensemble.structure_batches import (
    ChunkReader,
    StructureFiles,
    list_input_sources,
    read_structures,
    rules_for,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.inspection import inspect_files

KINDS = ("NaCl", "MgO", "LiF", "KBr", "CaO", "NaF", "KCl", "LiCl")


def crystals() -> list[Atoms]:
    """Eight crystals of two atoms, with a gap of 0.5, 1.5 ... eV."""
    made = [bulk(kind, "rocksalt", a=5.0) for kind in KINDS]
    for number, atoms in enumerate(made):
        atoms.positions[1, 0] += 0.01 * number
        atoms.info["gap"] = number + 0.5
    return made


def jarvis(atoms: Atoms) -> dict:
    return {
        "lattice_mat": atoms.cell.array.tolist(),
        "coords": atoms.get_scaled_positions().tolist(),
        "elements": list(atoms.symbols),
    }


def records(**columns) -> list[dict]:
    """Rows of a JSON table: structure, gap, and further columns by their rows."""
    made = [{"atoms": jarvis(atoms), "gap": atoms.info["gap"]} for atoms in crystals()]
    for name, rows in columns.items():
        for record, row in zip(made, rows, strict=True):
            record[name] = row
    return made


def inspect_json(path: Path, content) -> dict:
    """Inspect a JSON table; return level and shape of each target."""
    path.write_text(json.dumps(content))
    targets = inspect_files([path]).proposals.targets
    return {target.key: (target.config.level, target.config.shape) for target in targets}


def read(path: Path) -> list[Atoms | DataError]:
    source = Source(path)
    return [item for _, item in reader_of(source, None).read(source, 0, None)]


def test_a_lattice_with_a_vector_of_zeros_is_set_aside_with_its_numbers(tmp_path):
    rows = records()
    rows[3]["atoms"]["lattice_mat"] = [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0] * 3]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    *_, bad = read(tmp_path / "rows.json")[:4]
    assert str(bad) == (
        f"{tmp_path}/rows.json: structure 3: lattice_mat: '[[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], "
        "[0.0, 0.0, 0.0]]' spans no volume; mend or remove it."
    )


def ids_of(path: Path) -> list[str]:
    """Return the names that ``predict`` gives the structures of a path."""
    with ChunkReader(list_input_sources([path]), rules_for(4.0), StructureFiles()) as reader:
        return [name for batch in read_structures(reader) for name in batch.ids]


def predicted(path: Path) -> tuple[int, int]:
    """Return how many structures ``predict`` reads of a path, and how many of them are bad."""
    with ChunkReader(list_input_sources([path]), rules_for(4.0), StructureFiles()) as reader:
        batches = list(read_structures(reader))
    return sum(len(batch.ids) for batch in batches), sum(len(batch.errors) for batch in batches)


FORMS = {
    "relaxed-OUTCAR-3.cif": "cif",
    "crystal.txt": "cif",
    "POSCAR.cif.bak": "cif",
    "final.dat": "vasp",
    "relaxed.vasp.1": "vasp",
    "geometry.xyz": "aims",
    "frames.out": "extxyz",
    "POSCAR_of_md": "extxyz",
    "no_suffix": "xsf",
}


@pytest.mark.filterwarnings("ignore:FHI-aims IO is moving:FutureWarning")
@pytest.mark.parametrize(("name", "form"), FORMS.items())
def test_the_content_decides_on_the_format_before_the_name(name, form, tmp_path):
    """W26, W31, W34."""
    crystal = crystals()[1]
    write(tmp_path / name, crystal, format=form)
    (atoms,) = read(tmp_path / name)
    assert isinstance(atoms, Atoms), atoms
    assert sorted(atoms.symbols) == ["Mg", "O"]
    np.testing.assert_allclose(atoms.get_volume(), 5.0**3 / 4, rtol=1e-5)
    assert predicted(tmp_path / name) == (1, 0)


@pytest.mark.parametrize("name", ["input.data.train", "water.txt"])
def test_a_file_of_n2p2_is_known_whatever_its_suffix(name, tmp_path):
    """W34: two atoms at 0.74 angstrom, which are 1.398 bohr."""
    lines = "atom 0 0 {z} H 0 0 0 0 0"
    frame = ["begin", "comment x", lines.format(z=0), lines.format(z=1.398), "energy -1", "end"]
    (tmp_path / name).write_text("\n".join([*frame, ""]))
    (atoms,) = read(tmp_path / name)
    assert atoms.get_distance(0, 1) == pytest.approx(0.74, abs=1e-3)


def test_a_database_is_known_whatever_its_suffix(tmp_path):
    with connect(tmp_path / "a.db") as database:
        for atoms in crystals():
            database.write(atoms, gap=atoms.info["gap"])
    shutil.move(tmp_path / "a.db", tmp_path / "structures.dat")
    assert [atoms.info["gap"] for atoms in read(tmp_path / "structures.dat")] == [
        n + 0.5 for n in range(8)
    ]


def test_a_matrix_in_json_is_left_out_with_its_reason(tmp_path):
    """W22: the modulus beside an elastic tensor, its rank-4 form and a dictionary is a target."""
    elastic = np.eye(6)[None] * np.arange(1.0, 9.0)[:, None, None]
    path = tmp_path / "elastic.json"
    content = records(
        elastic_tensor=elastic.tolist(),
        rank_4=np.ones((8, 3, 3, 3, 3)).tolist(),
        dielectric=(np.eye(3)[None] * np.arange(8.0)[:, None, None]).tolist(),
        options=[{"functional": "PBE"}] * 8,
    )
    found = inspect_json(path, content)
    assert found == {"gap": ("graph", "scalar"), "dielectric": ("graph", "tensor")}
    reasons = dict(inspect_files([path]).proposals.left_out)
    assert reasons["elastic_tensor"].startswith("is 6 x 6 numbers")
    assert reasons["rank_4"].startswith("is 3 x 3 x 3 x 3 numbers")
    assert reasons["options"].startswith("is nested")


@pytest.mark.parametrize("rows", [1, 2])
def test_forces_of_alignn_belong_to_atoms_and_derive_from_the_energy(rows, tmp_path):
    """W23: forces as [N][3]; ``rows`` cells of two atoms."""
    draws = np.random.default_rng(0)
    made = [bulk("Cu", "hcp", a=2.6, c=4.2).repeat((1, 1, rows)) for _ in range(8)]
    content = []
    for number, atoms in enumerate(made):
        atoms.positions += draws.normal(0.0, 0.05, atoms.positions.shape)
        forces = draws.normal(0.0, 0.3, atoms.positions.shape).tolist()
        energies = {"total_energy": -3.5 * len(atoms) + 0.01 * number, "forces": forces}
        content.append({"jid": f"J{number}", "atoms": jarvis(atoms), **energies})
    path = tmp_path / "id_prop.json"
    path.write_text(json.dumps(content))
    targets = {target.key: target for target in inspect_files([path]).proposals.targets}
    assert (targets["forces"].config.level, targets["forces"].config.shape) == ("node", "vector")
    assert targets["forces"].config.derived_from == "total_energy"
    assert "eV/angstrom" in targets["forces"].unit.choices


def test_lists_in_cells_are_values_of_atoms_or_a_spectrum(tmp_path):
    """W25: charges of the atoms that a SMILES writes, of all atoms, and a density of states."""
    written = {"CO": 2, "CCO": 3, "CN": 2, "CCC": 3, "C=O": 2, "CCN": 3}
    hydrogens = {"CO": 4, "CCO": 6, "CN": 5, "CCC": 8, "C=O": 2, "CCN": 7}
    lines = ["smiles,heavy,every,dos"]
    for number, (smiles, count) in enumerate(written.items()):
        heavy = [0.1 * number + atom for atom in range(count)]
        every = np.linspace(-number, 1.0, count + hydrogens[smiles])
        lines.append(f'{smiles},"{heavy}","{every}","{[number, 1, 2, 3, 4.5]}"')
    path = tmp_path / "lists.csv"
    path.write_text("\n".join(lines))
    found = {
        t.key: (t.config.level, t.config.shape, t.config.optional)
        for t in inspect_files([path]).proposals.targets
    }
    assert found["heavy"] == ("node", "scalar", True)
    assert found["every"] == ("node", "scalar", False)
    assert found["dos"] == ("graph", "spectrum", False)
    charges = read(path)[1].arrays["heavy"]  # C, C, O, then hydrogens
    np.testing.assert_allclose(charges[:3], [0.1, 1.1, 2.1])
    assert np.isnan(charges[3:]).all()
    assert len(charges) == 9


def test_a_spectrum_as_long_as_one_molecule_stays_a_spectrum(tmp_path):
    """W25: of ten numbers, beside decane, of which a SMILES writes ten atoms."""
    rows = ["CO", "CCO", "CN", "C" * 10, "CCN", "CCC", "C=O", "CCCO"]
    lines = [f'{smiles},"{[n / 9, *range(9)]}"' for n, smiles in enumerate(rows)]
    path = tmp_path / "spectra.csv"
    path.write_text("\n".join(["smiles,dos", *lines]))
    [target] = inspect_files([path]).proposals.targets
    assert (target.config.level, target.config.shape, target.config.size) == (
        "graph",
        "spectrum",
        10,
    )
    assert read(path)[3].info["dos"].tolist() == [3 / 9, *range(9)]


def test_values_of_atoms_follow_the_order_of_the_smiles(tmp_path):
    """W25: RDKit would move written hydrogens to the end; a map of another order is ambiguous."""
    path = tmp_path / "mapped.csv"
    path.write_text('smiles,q\n[H:1][O:2][H:3],"[1, 2, 3]"\n[O:2]([H:1])[H:3],"[1, 2, 3]"\n')
    first, second = read(path)
    assert list(first.symbols) == ["H", "O", "H"]
    assert first.arrays["q"].tolist() == [1.0, 2.0, 3.0]
    assert "another order than its atoms" in str(second)


@pytest.mark.parametrize("column", ["smiles", "repeat_unit"])
@pytest.mark.parametrize("end", ["[*]", "*"])
def test_polymers_are_refused_as_a_whole_with_the_cure(column, end, tmp_path):
    """W29: two of ten rows are repeat units; each of them is bad for ``predict`` as well."""
    molecules = ["CCCC", "CCOC", "CCO", "CCN", "CC(C)C", "CCS", "CCF", "CO"]
    units = [f"{end}CC{end}", f"{end}CCO{end}"]
    lines = [f"{smiles},{n / 7:.3f}" for n, smiles in enumerate([*molecules, *units])]
    path = tmp_path / "gaps.csv"
    path.write_text("\n".join([f"{column},gap", *lines]))
    with pytest.raises(DataError) as caught:
        inspect_files([path])
    assert "2 of 10 structures cannot be represented" in str(caught.value)
    assert "put [H] in place of each [*]" in str(caught.value)
    (tmp_path / "one.smi").write_text(f"{units[0]}\nCC\n")
    assert predicted(tmp_path / "one.smi") == (2, 1)


def test_a_table_of_which_most_rows_are_unusable_becomes_no_campaign(tmp_path):
    """W29: 6 of 14 are enough for five splits, and no data set."""
    made = [molecule("CH4") for _ in range(14)]
    for number, atoms in enumerate(made):
        atoms.info["gap"] = number / 3
        if number % 7 < 4:
            atoms.numbers[0] = 0
    write(tmp_path / "a.extxyz", made)
    with pytest.raises(DataError, match="8 of 14 structures are unusable, as: .*use elements 1"):
        inspect_files([tmp_path / "a.extxyz"])


def write_deepmd(folder: Path, symbols: list[str], numbers: list[int], *, box: bool) -> None:
    """Write a system of two sets with three structures each."""
    for number in range(2):
        part = folder / f"set.00{number}"
        part.mkdir(parents=True)
        positions = np.arange(3 * 3 * len(numbers)).reshape(3, -1) + 100.0 * number
        np.save(part / "coord.npy", positions)
        np.save(part / "energy.npy", np.array([-1.0, -2.0, -4.0]) - number)
        np.save(part / "force.npy", -positions / 10)
        np.save(part / "box.npy", np.tile(np.eye(3).ravel() * 9.0, (3, 1)))
    (folder / "type.raw").write_text("\n".join(map(str, numbers)))
    (folder / "type_map.raw").write_text("\n".join(symbols))
    if not box:
        (folder / "nopbc").touch()


def test_systems_of_deepmd_are_read_from_the_folder_above(tmp_path):
    """W30: units are eV and eV/angstrom by the documentation of DeePMD-kit."""
    write_deepmd(tmp_path / "all" / "water", ["O", "H"], [0, 1, 1], box=True)
    write_deepmd(tmp_path / "all" / "more" / "methanol", ["C", "O", "H"], [0, 1, 2, 2], box=False)
    seen = inspect_files([tmp_path / "all"])
    assert seen.sample.total == 12
    targets = {target.key: target for target in seen.proposals.targets}
    assert {key: target.unit.name for key, target in targets.items()} == {
        "energy": "eV",
        "forces": "eV/angstrom",
    }
    assert {target.unit.sure for target in targets.values()} == {"said"}
    water = read(tmp_path / "all" / "water")
    methanol = read(tmp_path / "all" / "more" / "methanol")
    assert [str(one[0].symbols) for one in (water, methanol)] == ["OH2", "COH2"]
    assert water[4].positions[1].tolist() == [112.0, 113.0, 114.0]
    assert water[4].arrays["forces"][1].tolist() == [-11.2, -11.3, -11.4]
    assert [atoms.info["energy"] for atoms in water] == [-1, -2, -4, -2, -3, -5]
    assert water[0].pbc.all()
    assert not methanol[0].pbc.any()
    assert predicted(tmp_path / "all")[0] == predicted(tmp_path / "all" / "more")[0] + 6 == 12
    (tmp_path / "all" / "water" / "type_map.raw").unlink()
    with pytest.raises(DataError, match="write the chemical symbol of each type into type_map.raw"):
        read(tmp_path / "all" / "water")


def test_arrays_of_sgdml_and_md17_are_read(tmp_path):
    """W30: 12 of water; sGDML's vectors of the cell are columns, and its units are in the file."""
    positions = molecule("H2O").positions + np.zeros((12, 1, 1)) + np.arange(12)[:, None, None] / 99
    energies = -47900.0 - np.arange(12.0)
    forces = positions * 2.0
    lattice = np.array([[9.0, 1.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
    known = {"R": positions, "z": np.array([8, 1, 1]), "E": energies[:, None], "F": forces}
    units = {"e_unit": "kcal/mol", "r_unit": "Ang", "type": "d", "lattice": lattice}
    np.savez(tmp_path / "sgdml.npz", **known, **units)
    seen = inspect_files([tmp_path / "sgdml.npz"])
    targets = {
        target.key: (target.unit.name, target.unit.sure) for target in seen.proposals.targets
    }
    assert targets["energy"] == ("kcal/mol", "said")
    assert targets["forces"] == ("kcal/mol/angstrom", "said")
    first = read(tmp_path / "sgdml.npz")[0]
    assert first.cell.array[1].tolist() == [1.0, 9.0, 0.0]
    assert first.arrays["forces"][0].tolist() == forces[0, 0].tolist()
    names = ("coords", "nuclear_charges", "energies", "forces")
    md17 = dict(zip(names, known.values(), strict=True))
    np.savez(tmp_path / "rmd17_water.npz", old_indices=np.arange(12), **md17)
    assert str(read(tmp_path / "rmd17_water.npz")[3].symbols) == "OH2"
    assert predicted(tmp_path / "rmd17_water.npz") == (12, 0)


CONTAINERS = {
    "a.npy": (b"\x93NUMPY\x01\x00v", "write each structure by ASE"),
    "a.h5": (b"\x89HDF\r\n\x1a\n", "h5py.File"),
    "qm7.mat": (b"MATLAB 5.0 MAT-file, Platform: posix", "scipy.io.loadmat"),
    "a.pkl": (b"\x80\x04\x95", "load it if you trust it"),
    "a.parquet": (b"PAR1\x15", "pandas.read_parquet"),
    "a.xlsx": (b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml", "save its sheet as CSV"),
    "a.ods": (
        b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis",
        "save its sheet as CSV",
    ),
    "a.xls": (b"\xd0\xcf\x11\xe0\xa1", "save its sheet as CSV"),
    "a.zip": (b"PK\x03\x04" + bytes(22) + b"\x05\x00\x00\x00a.cif", "unpack it"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_not_read_says_how_to_convert_it(name, tmp_path):
    """W30."""
    content, cure = CONTAINERS[name]
    (tmp_path / name).write_bytes(content + b"0" * 400)
    with pytest.raises(DataError) as caught:
        inspect_files([tmp_path / name])
    assert cure in str(caught.value)
    assert predicted(tmp_path / name) == (1, 1)


def write_qm9(path: Path, names: list[str]) -> None:
    """Write molecules as QM9 does, with an exponent in Fortran of Mathematica."""
    text = ""
    for number, name in enumerate(names, start=1):
        atoms = molecule(name)
        values = [157.7 - number, 9.1, 8.2, 0.1 * number, 13.2 + number, -0.38 + 0.01 * number]
        values += [0.11 - 0.02 * number, 0.49 - 0.03 * number, 35.3 + number**2, 0.04 * number]
        values += [-40.4 - number, -40.3 - number, -40.2 - number, -40.5 - number, 6.4 + number]
        text += f"{len(atoms)}\ngdb {number}\t" + "\t".join(f"{v:.4f}" for v in values) + "\t\n"
        for symbol, place in zip(atoms.symbols, atoms.positions, strict=True):
            text += symbol + "".join(f"\t {x:.6f}" for x in place) + f"\t-{number}.5*^-6\n"
        text += "1341.3\t1562.7\nC\tC\t\nInChI=1S/CH4\tInChI=1S/CH4\n"
    path.write_text(text)


@pytest.mark.parametrize("joined", [True, False])
def test_molecules_of_qm9_are_read_as_published(joined, tmp_path):
    """W32: columns and units by table 2 of Ramakrishnan et al. (2014)."""
    names = ["CH4", "NH3", "H2O", "C2H2", "HCN", "H2CO", "C2H6", "CH3OH"]
    for number, name in enumerate(names):
        write_qm9(tmp_path / f"dsgdb9nsd_{number:06}.xyz", [name])
    path = tmp_path
    if joined:
        path = tmp_path / "qm9.txt"
        write_qm9(path, names)
        units = {target.key: target.unit.name for target in inspect_files([path]).proposals.targets}
        assert units["homo"] == units["gap"] == "Hartree"
        assert (units["mu"], units["alpha"]) == ("debye", "bohr^3")
    first = read(path if joined else tmp_path / "dsgdb9nsd_000000.xyz")[0]
    assert str(first.symbols) == "CH4"
    assert (first.info["mu"], first.info["homo"], first.info["Cv"]) == (0.1, -0.37, 7.4)
    assert first.arrays["mulliken_charge"].tolist() == [-1.5e-6] * 5
    assert predicted(path) == (8, 0)


@pytest.mark.parametrize(
    ("table", "form"),
    [
        ("targets.csv", "{n},{gap}"),
        ("results.csv", "label,MOF,gap\n{label},{n},{gap}"),
        ("train.csv", "id,gap\n{n},{gap}"),
    ],
)
@pytest.mark.parametrize("where", ["s{n}.cif", "cifs/s{n}.cif", "train/s{n}/geometry.cif"])
def test_a_table_of_any_name_that_names_files_is_read(table, form, where, tmp_path):
    """W33: with and without a header, the column of names anywhere, files beside it or below."""
    head, _, line = form.rpartition("\n")
    lines = [head] if head else []
    for number, atoms in enumerate(crystals()):
        file = tmp_path / where.format(n=number)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, atoms)
        lines.append(line.format(n=f"s{number}", gap=atoms.info["gap"], label=number % 2))
    (tmp_path / table).write_text("\n".join(lines))
    seen = inspect_files([tmp_path])
    assert [file.path for file in seen.files] == [tmp_path]
    gaps = next(t for t in seen.proposals.targets if t.key in ("gap", "property"))
    assert gaps.spread == "0.5 to 7.5, mean 4"
    assert predicted(tmp_path) == (8, 0)
    assert len(set(ids_of(tmp_path))) == 8
    if head:
        alone = inspect_files([tmp_path / table])
        assert alone.sample.total == 8


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.json"])
def test_records_may_stand_one_in_a_line(name, tmp_path):
    (tmp_path / name).write_text("\n".join(map(json.dumps, records())) + "\n")
    (target,) = inspect_files([tmp_path / name]).proposals.targets
    assert target.key == "gap"
    assert [atoms.info["gap"] for atoms in read(tmp_path / name)] == [n + 0.5 for n in range(8)]
    (tmp_path / name).write_text(json.dumps(records()[0]) + "\n{\n")
    with pytest.raises(DataError, match="is not valid JSON"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "between", "point"),
    [("a.csv", ";", ","), ("a.csv", ";", "."), ("a.tsv", "\t", "."), ("a.tab", "\t", ",")],
)
def test_columns_may_end_with_semicolons_or_tabs_and_numbers_have_commas(
    name, between, point, tmp_path
):
    rows = [["smiles", "gap (eV)"], *([f"{'C' * n}O", f"{n / 4}"] for n in range(1, 9))]
    lines = (between.join((smiles, gap.replace(".", point))) for smiles, gap in rows)
    (tmp_path / name).write_text("\n".join(lines))
    assert [atoms.info["gap (eV)"] for atoms in read(tmp_path / name)] == [
        n / 4 for n in range(1, 9)
    ]


@pytest.mark.parametrize("rows", ["CO;1,5;1.234\nCCO;2,5;46", "CO;1,234;3\nCCO;950;4"])
def test_commas_and_points_that_may_part_thousands_are_refused(rows, tmp_path):
    for name, between in (("a.csv", ";"), ("a.tsv", "\t")):
        (tmp_path / name).write_text(f"smiles;gap;mass\n{rows}\n".replace(";", between))
        with pytest.raises(DataError, match=r"1.234 may be a thousand or have decimals, as there"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("rows", "cure"),
    [
        (["{file}.xyz,0.5", "{file}.xyz,1.5"], "above it, or give the folder of the table."),
        (["0.5,{file}", "1.5,{file}"], "above it, or give the folder of the table."),
        (["CCO{file},0.5", "CN{file},1.5"], "above it."),
        (["c1ccccc1{file},benzene", "c1ccncc1{file},pyridine"], "above it."),
    ],
)
def test_a_first_line_with_a_structure_is_no_header(rows, cure, tmp_path):
    lines = []
    for number, row in enumerate(rows * 3):
        name = "C" * (number + 1)
        molecule("CH4").write(tmp_path / f"{name}.xyz")
        lines.append(row.format(file=name))
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="first line, .* holds a structure, not the") as refused:
        inspect_files([tmp_path / "rows.csv"])
    assert str(refused.value).endswith(cure)


@pytest.mark.parametrize("column", ["smiles", "rxn"])
def test_reactions_are_refused_by_their_name(column, tmp_path):
    """W39."""
    path = tmp_path / "reactions.csv"
    path.write_text(f"{column},barrier\n" + "\n".join(f"CC>>CC{'C' * n},{n}" for n in range(6)))
    with pytest.raises(DataError, match=r"6 of 6 .* is a reaction .*give the reactant"):
        inspect_files([path])


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        (["O", "CCO", "O", "CO", "O", "N"], True),  # solvents
        (["O"] * 6, False),  # one solvent decides nothing
        (["OC", "OCC", "NC", "CCC", "O=C", "NCC"], False),  # the same molecules again
    ],
)
def test_a_second_molecule_in_a_row_is_refused(second, refused, tmp_path):
    """W39."""
    first = ["CO", "CCO", "CN", "CCC", "C=O", "CCN"]
    pairs = enumerate(zip(first, second, strict=True))
    path = tmp_path / "peaks.csv"
    path.write_text("mol,other,peak\n" + "\n".join(f"{a},{b},{n}.5" for n, (a, b) in pairs))
    if refused:
        with pytest.raises(DataError, match="'other' holds a second molecule beside 'mol'.*'A.B'"):
            inspect_files([path])
    else:
        assert [target.key for target in inspect_files([path]).proposals.targets] == ["peak"]


@pytest.mark.parametrize(
    "content",
    [
        {"Ag": {"bulk": {"energy": 1.0}, "slab": {"energy": 2.0}}},
        {"energies": {"Ag": {"fcc": 1.0}}, "units": {"a": 1, "b": 2}},
    ],
)
def test_nested_dictionaries_are_refused_with_the_layout_that_is_read(content, tmp_path):
    """W39."""
    (tmp_path / "nested.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"write a list with a record for each structure, \[\{"):
        inspect_files([tmp_path / "nested.json"])
