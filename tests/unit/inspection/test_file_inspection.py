"""Every format is looked at; broken, empty, tiny and hostile files end in one sentence."""

import os
import tomllib

import numpy as np
import pytest
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write
from structure_files import FIXTURES, bound_by_springs

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.data.build_plan import make_plan
from hydragnn_hpo.data.columns import Graph
from hydragnn_hpo.data.convert_pieces import read_piece
from hydragnn_hpo.data.splits import assign_splits
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.inspection.file_inspection import detect_files, inspect_files, summarize_geometry
from hydragnn_hpo.pipeline.init_templates import count_structures, path_from, render_card

UNREAD = {"lsms"}
"""Formats that are never guessed."""

BARE = {"trajectory"}
"""Fixtures without a property that the format keeps."""


def card_of(seen, folder):
    return parse_config(tomllib.loads(render_card(seen, folder)), CardConfig, "made")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "hydragnn" else ())
        for name in FIXTURES
        if name not in UNREAD | BARE
    ],
)
def test_every_format_becomes_a_card_that_can_be_built(name, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    source = FIXTURES[name][1](folder)
    seen = inspect_files([source.path])
    assert seen.sample.total == 5
    card = card_of(seen, tmp_path)
    gap = {"folder": "property", "cfg": "property_1"}.get(name, "gap")
    assert gap in {target.key or key for key, target in card.targets.items()}
    path = tmp_path / "made.toml"
    path.write_text(render_card(seen, tmp_path))
    plan = make_plan(path, None, 64)
    results = [graph for piece in plan.pieces for _, graph in read_piece(plan.card, piece)]
    assert len(results) == 5
    assert all(isinstance(graph, Graph) for graph in results)


def frames(count=12, **info):
    made = []
    for number in range(count):
        atoms = molecule("CH3OH")
        atoms.rattle(0.02, seed=number)
        atoms.info.update({"gap": 1.0 + number % 5, **info})
        made.append(atoms)
    return made


def write_database(path, metadata, structures):
    with connect(path) as database:
        for atoms in structures:
            database.write(atoms, data={key: np.array([v]) for key, v in atoms.info.items()})
        database.metadata = metadata
    return path


@pytest.mark.parametrize("name", ["a.db", "a.json"])
def test_units_in_the_metadata_of_a_database_are_said(name, tmp_path):
    units = {"gap": "Ha", "mu": "D", "alpha": "a0 a0 a0", "A": "GHz", "none": "eV"}
    structures = frames(mu=1.5, alpha=2.5, A=3.5)
    for number, atoms in enumerate(structures):
        atoms.info.update(mu=1.0 + 3.7 * number % 5, alpha=2.0 + number % 3, A=3.0 + number % 4)
    path = write_database(tmp_path / name, {"_property_unit_dict": units}, structures)
    seen = inspect_files([path])
    found = {target.key: target.unit for target in seen.proposals.targets}
    assert {key: unit.name for key, unit in found.items()} == {
        "gap": "Hartree", "mu": "debye", "alpha": "bohr^3", "A": "1"
    }  # fmt: skip
    assert {unit.sure for key, unit in found.items() if key != "A"} == {"said"}
    assert "'GHz', which is no unit known here" in found["A"].why
    card = card_of(seen, tmp_path)
    assert not any(target.unit_guessed for target in card.targets.values())


@pytest.mark.parametrize("units", [None, [], {"gap": None}, {"gap": 3}, "eV"])
def test_metadata_in_another_form_say_nothing_wrong(units, tmp_path):
    path = write_database(tmp_path / "a.db", {"_property_unit_dict": units}, frames())
    (gap,) = inspect_files([path]).proposals.targets
    stated = ("1", "unknown") if units == {"gap": 3} else ("eV", "guessed")
    assert (gap.unit.name, gap.unit.sure) == stated


def test_lengths_of_a_database_in_bohr_become_angstrom(tmp_path):
    structures = frames()
    structures[0].set_cell([9.0, 9.0, 9.0])
    path = write_database(tmp_path / "a.db", {"_distance_unit": "Bohr"}, structures)
    read = inspect_files([path]).sample.structures
    assert read[3].positions == pytest.approx(0.529177210903 * structures[3].positions)
    assert read[0].cell.lengths() == pytest.approx([9.0 * 0.529177210903] * 3)
    path = write_database(tmp_path / "b.db", {"_distance_unit": "cubit"}, structures)
    with pytest.raises(DataError, match="state lengths in 'cubit'"):
        inspect_files([path])


def test_a_text_beside_a_property_states_its_unit(tmp_path):
    seen = inspect_structures(tmp_path, frames(gap_unit="Ha"))
    (gap,) = seen.proposals.targets
    assert (gap.unit.name, gap.unit.sure) == ("Hartree", "said")
    structures = frames(gap_unit="Ha")
    structures[1].info["gap_unit"] = "eV"
    (gap,) = inspect_structures(tmp_path, structures).proposals.targets
    assert (gap.unit.name, gap.unit.sure) == ("1", "unknown")
    assert "Ha or eV" in gap.unit.why


def test_a_guess_is_marked_in_the_card_until_it_is_confirmed(tmp_path):
    structures = frames(energy=-5.0)
    for number, atoms in enumerate(structures):
        atoms.info["energy"] = -5.0 - 0.1 * number**2
    card = card_of(inspect_structures(tmp_path, structures), tmp_path)
    assert {name: target.unit_guessed for name, target in card.targets.items()} == {
        "energy": True, "gap": True
    }  # fmt: skip
    seen = inspect_files([tmp_path / "a.extxyz"], {"energy": "eV"})
    card = card_of(seen, tmp_path)
    assert [card.targets[name].unit_guessed for name in ("energy", "gap")] == [False, True]


def inspect_structures(folder, structures):
    write(folder / "a.extxyz", structures)
    return inspect_files([folder / "a.extxyz"])


@pytest.mark.parametrize(
    ("name", "title"),
    [("\u00dcn\u00ef.xyz", "\u00dcn\u00ef.xyz"), ("a\x1b[2J.xyz", r"a\x1b[2J.xyz")],
)
def test_the_title_is_the_name_of_the_file_unless_it_controls_a_terminal(tmp_path, name, title):
    write(tmp_path / name, frames(8), format="extxyz")
    card = card_of(inspect_files([tmp_path / name]), tmp_path)
    assert card.title == f"{title}, as found by init"


def test_files_of_a_folder_that_hold_no_structure_are_left_out(tmp_path):
    write(tmp_path / "a.extxyz", frames(8))
    (tmp_path / "notes.txt").write_text("what we did")
    (tmp_path / "results.csv").write_text("step,value\n1,2\n3,4\n")
    seen = inspect_files([tmp_path])
    assert [one.path.name for one in seen.files] == ["a.extxyz"]
    assert any(
        "2 files are left out" in message and "results.csv" in message for message in seen.warnings
    )
    assert [entry.path for entry in card_of(seen, tmp_path).files] == ["a.extxyz"]
    named = inspect_files([tmp_path / "a.extxyz", tmp_path / "notes.txt"])
    assert [one.path.name for one in named.files] == ["a.extxyz", "notes.txt"]
    assert named.name == tmp_path.name
    (tmp_path / "a.extxyz").unlink()
    (tmp_path / "results.csv").unlink()
    with pytest.raises(DataError, match="notes.txt: structure 0 cannot be read"):
        inspect_files([tmp_path])


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("3.0", "what there is: property is 3 everywhere"),
        ("nan,{n}", "'property_1', a column without a name, holds no number"),
        (",{n}", "'property_1', a column without a name, holds no number"),
    ],
)
def test_a_table_without_names_and_numbers_is_refused(cell, says, tmp_path):
    for number in range(6):
        write(tmp_path / f"P{number}.vasp", bulk("Cu", a=3.6 + 0.01 * number), format="vasp")
    lines = [f"P{n}.vasp,{cell.format(n=n)}\n" for n in range(6)]
    (tmp_path / "id_prop.csv").write_text("".join(lines))
    with pytest.raises(DataError, match=says):
        inspect_files([tmp_path])


def test_columns_without_a_name_are_numbered(tmp_path):
    for number in range(6):
        write(tmp_path / f"P{number}.vasp", bulk("Cu", a=3.6 + 0.01 * number), format="vasp")
    (tmp_path / "id_prop.csv").write_text("".join(f"P{n}.vasp,{n % 4},3.0\n" for n in range(6)))
    seen = inspect_files([tmp_path])
    assert list(card_of(seen, tmp_path).targets) == ["property_1", "property_2"]
    values = [(s.info["property_1"], s.info["property_2"]) for s in seen.sample.structures]
    assert values == [(n % 4, 3.0) for n in range(6)]


def test_a_huge_molecule_is_counted_and_its_neighbours_are_not(tmp_path, monkeypatch):
    """With millions of edges it would take minutes."""
    monkeypatch.setattr("hydragnn_hpo.inspection.file_inspection.MAX_ATOMS", 40)
    benzene = molecule("C6H6")
    benzene.info["gap"] = 2.0
    seen = inspect_structures(tmp_path, [*frames(6), benzene])
    assert seen.geometry.sizes == (6, 6, 12)
    assert seen.geometry.tried == 6


def test_texts_are_reported_to_be_no_targets(tmp_path):
    structures = frames(8)
    for number, atoms in enumerate(structures):
        atoms.info |= {"solvent": "water" if number % 2 else "octanol", "name": f"m{number}"}
    left = dict(inspect_structures(tmp_path, structures).proposals.left_out)
    why = "is text; 'water' is that of 4 structures only, each class takes 5: "
    assert left["solvent"] == why + "add structures of it, or drop them"
    assert "name" not in left  # it is the id


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (("bulk",) * 12, "is 'bulk' everywhere"),
        (tuple("abcdefghijkl"), "is text with 12 values, and classes are 2 to 10: leave it out"),
        (("bulk",) * 8 + ("film",) * 4, "'film' is that of 4 structures only, each class takes 5"),
        (("bulk", "f\u00efn") * 6, "is text, and names of classes are ASCII: rename its values"),
        (("bulk",) * 7 + ("film",) * 5, None),
    ],
)
def test_a_text_that_is_no_class_is_left_out_with_the_rule_that_it_breaks(tmp_path, texts, says):
    structures = frames(12)
    for atoms, text in zip(structures, texts, strict=True):
        atoms.info["phase"] = text
    proposals = inspect_structures(tmp_path, structures).proposals
    why = dict(proposals.left_out).get("phase")
    assert why is None if says is None else says in why
    assert ("phase" in {target.name for target in proposals.targets}) is (says is None)


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({}, "there are atoms and cells only"),
        ({"charge": 0}, "charge is 0 everywhere"),
        ({"solvent": "water"}, "what there is: .*solvent is 'water' everywhere"),
    ],
)
def test_nothing_to_learn_is_reported_with_what_there_is(info, says, tmp_path):
    bare = [molecule("CH4") for _ in range(6)]
    for atoms in bare:
        atoms.info |= info
    with pytest.raises(DataError, match=says):
        inspect_structures(tmp_path, bare)


def test_attributes_of_alike_names_stay_apart(tmp_path):
    structures = frames(12)
    for number, atoms in enumerate(structures):
        atoms.info |= {"total charge": number % 3, "total_charge": number % 2}
    card = card_of(inspect_structures(tmp_path, structures), tmp_path)
    keys = {name: attribute.key for name, attribute in card.attributes.items()}
    assert keys == {"total_charge": "total charge", "total_charge_2": "total_charge"}


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("torn.xyz", b"3\n\nH 0 0 0\n", "the file ends within its 3 atoms"),
        ("noise.xyz", bytes(range(256)) * 9, "is not a text file"),
        ("noise.cif", bytes(range(256)) * 9, "cannot be read"),
        ("words.csv", b"a,b\n1,2\n3,4\n", "no column holds structures"),
        ("pipes.csv", b"smiles|gap\nCC|1\n", "separate them by commas, not by '|'"),
        ("words.unknown", b"hello world", "cannot be read"),
        ("list.json", b"[1, 2]", "is neither a list of records"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name, content, pattern, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=pattern) as caught:
        inspect_files([path])
    assert "\n" not in str(caught.value)


def test_too_few_structures_are_refused_and_few_are_warned_of(tmp_path):
    for count in (1, 3, 4):
        with pytest.raises(DataError, match=f"holds {count} usable structures; five splits"):
            inspect_structures(tmp_path, frames(count))
    warnings = inspect_structures(tmp_path, frames(7)).warnings
    assert any("7 structures are few" in message for message in warnings)


def test_a_torn_file_is_looked_at_and_reported_to_be_torn(tmp_path):
    write(tmp_path / "torn.extxyz", frames(10))
    text = (tmp_path / "torn.extxyz").read_text()
    (tmp_path / "torn.extxyz").write_text(text[:-60])
    seen = inspect_files([tmp_path / "torn.extxyz"])
    assert any("cannot be read to its end" in message for message in seen.warnings)


def test_a_missing_path_and_a_store_of_ours(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        inspect_files([tmp_path / "gone"])
    os.mkfifo(tmp_path / "pipe.xyz")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        inspect_files([tmp_path / "pipe.xyz"])
    (tmp_path / "x.bp").mkdir()
    (tmp_path / "x.bp" / "index.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a store of ours already"):
        inspect_files([tmp_path / "x.bp"])


HOSTILE = 'x"\n[files]\nname = "y" #'


def test_what_stands_in_a_file_stays_a_comment_or_a_value(tmp_path):
    folder = tmp_path / 'odd " \n \x1b[31m name'
    folder.mkdir()
    header = ["smiles", HOSTILE, "[red]gap[/red]", "\x1b[2Jsame"]
    import csv

    with (folder / "mols [x].csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(header)
        for number, smiles in enumerate(("O", "CO", "N", "C", "CC", "CCO")):
            rows.writerow([smiles, number * number % 7, number % 4, 1.5])
    seen = inspect_files([folder / "mols [x].csv"])
    text = render_card(seen, folder)
    card = parse_config(tomllib.loads(text), CardConfig, "made")
    assert [entry.path for entry in card.files] == ["mols [x].csv"]
    assert {target.key for target in card.targets.values()} == set(header[1:3])
    assert "\x1b" not in text


def test_a_bad_structure_is_counted_with_its_reason(tmp_path):
    write(tmp_path / "a.extxyz", frames(20))
    text = (tmp_path / "a.extxyz").read_text().replace("\nC ", "\nXx ", 1)
    (tmp_path / "a.extxyz").write_text(text)
    seen = inspect_files([tmp_path / "a.extxyz"])
    assert seen.sample.bad == 1
    assert any("1 of 20 structures are set aside: 1 cannot be read" in w for w in seen.warnings)


def test_what_the_store_will_hold_is_counted_with_reasons(tmp_path):
    structures = frames(400)
    structures[7].positions[1] = structures[7].positions[0]
    structures[390].positions[3] = structures[390].positions[2]
    structures[8].info["gap"] = float("inf")
    structures[150].info["gap"] = "failed"
    write(tmp_path / "a.extxyz", structures)
    seen = inspect_files([tmp_path / "a.extxyz"])
    assert count_structures(seen) == "400 structures (all read, 396 usable, 4 set aside)"
    (message,) = (w for w in seen.warnings if "4 of 400 structures are set aside" in w)
    assert "2 as:" in message
    assert "1 as:" in message
    assert "at one place" in message
    assert "'gap' = inf" in message
    assert "The store leaves them out" in message
    path = tmp_path / "made.toml"
    path.write_text(render_card(seen, tmp_path))
    plan = make_plan(path, None, 500)
    built = [graph for piece in plan.pieces for _, graph in read_piece(plan.card, piece)]
    assert sum(isinstance(graph, Graph) for graph in built) == 396
    assert count_structures(inspect_structures(tmp_path, frames(8))) == (
        "8 structures (all read, all usable)"
    )


def test_too_many_bad_structures_are_reported_to_end_the_build(tmp_path):
    structures = frames(20)
    for atoms in structures[:2]:
        atoms.positions[1] = atoms.positions[0]
    warnings = inspect_structures(tmp_path, structures).warnings
    assert any("A build refuses more than 1 %" in message for message in warnings), warnings
    for atoms in structures[:16]:
        atoms.positions[1] = atoms.positions[0]
    with pytest.raises(DataError, match="holds 4 usable .* at one place"):
        inspect_structures(tmp_path, structures)


def test_a_large_file_is_read_at_its_beginning_and_in_runs(tmp_path):
    text = "".join(f"1\ngap={n % 7}.5\nH 0 0 {n % 5}.5\n" for n in range(2500))
    (tmp_path / "many.extxyz").write_text(text)
    seen = inspect_files([tmp_path / "many.extxyz"])
    assert (seen.sample.total, seen.sample.exact) == (2500, True)
    names = [int(name.rpartition("@")[2]) for name in seen.sample.names]
    assert len(names) == 2000
    assert names == sorted(set(names))
    assert names[:1000] == list(range(1000))
    assert names[-1] == 2499


def test_smiles_of_several_parts_are_counted(tmp_path):
    rows = [f"{'C' * n}O,{n}.5" for n in range(1, 8)] + [f"{'C' * n}N.Cl,{n}.7" for n in (2, 3)]
    (tmp_path / "a.csv").write_text("\n".join(["smiles,logs", *rows]))
    seen = inspect_files([tmp_path / "a.csv"])
    assert any("2 of 9 SMILES have several parts, as CCN.Cl:" in text for text in seen.warnings)
    assert [target.key for target in seen.proposals.targets] == ["logs"]
    plain = "\n".join(["smiles,logs", *rows[:7]])
    (tmp_path / "a.csv").write_text(plain)
    assert not any("parts" in text for text in inspect_files([tmp_path / "a.csv"]).warnings)


def test_neighbours_decide_on_the_cutoff():
    copper = summarize_geometry([bulk("Cu", cubic=True)] * 2, ["a@0", "a@1"])
    # fcc, a = 3.61: shells of 12, 6, 24 at 2.55, 3.61, 4.42 angstrom; the next lies at 5.10
    assert (copper.cutoff, copper.degree) == (5.0, 42.0)
    assert copper.periodic == "periodic in 3 directions"
    assert copper.twins == 1
    dense = summarize_geometry([bulk("C", "diamond", a=3.57)], ["a@0"])
    assert dense.cutoff < 5.0
    water = summarize_geometry([molecule("H2O")], ["a@0"])
    assert (water.cutoff, water.degree, water.periodic) == (6.0, 2.0, "not periodic")


@pytest.mark.parametrize("names", [("CH4", "H2O", "C2H6"), ("CO2", "SO2", "C2Cl4")])
def test_lengths_in_bohr_are_noticed(names):
    angstrom = [molecule(name) for name in names]
    places = ["a@0", "a@1", "a:3"]
    assert not summarize_geometry(angstrom, places).warnings
    for atoms in angstrom:
        atoms.positions /= 0.529177
    (message,) = summarize_geometry(angstrom, places).warnings
    assert "are positions in bohr?" in message


def test_hydrogen_on_a_metal_and_noble_gases_are_in_angstrom():
    slabs = [fcc111("Pt", (2, 2, 2), vacuum=6.0) for _ in range(6)]
    for number, slab in enumerate(slabs):
        add_adsorbate(slab, "H", 1.0 + number / 50, "fcc")  # 1.9 angstrom from three atoms
    argon = bulk("Ar", cubic=True)  # 3.7 angstrom apart, 1.75 times the sum of the radii
    assert not summarize_geometry([*slabs, argon], list("abcdefg")).warnings


def test_atoms_that_are_much_too_near_are_noticed():
    structures = [bulk("Cu"), bulk("Si"), bulk("Si")]
    structures[1].set_cell(structures[1].cell * 0.4, scale_atoms=True)
    (message,) = summarize_geometry(structures, ["a@0", "a@1", "a@2"]).warnings
    # of the silicon's bonds of 5.43 * 3 ** 0.5 / 4 = 2.351 angstrom 0.4 are left
    assert message.startswith(
        "in 1 of 3 structures atoms are nearer than half of what their covalent radii add up to, "
        "as Si and Si of a@1 0.94 angstrom:"
    )


def n2p2(folder, unit, structures):
    """Write structures as n2p2 reads them, with lengths in a unit."""
    factor = {"bohr": 1 / 0.52917721, "angstrom": 1.0}[unit]
    lines = []
    for number, atoms in enumerate(structures):
        rows = zip(atoms.symbols, factor * atoms.positions, strict=True)
        vectors = "\n".join(
            "lattice {:.9f} {:.9f} {:.9f}".format(*row) for row in factor * atoms.cell.array
        )
        listing = "\n".join(
            f"atom {x:.9f} {y:.9f} {z:.9f} {symbol} 0 0 0.01 0.02 0.03"
            for symbol, (x, y, z) in rows
        )
        cell = f"{vectors}\n" if atoms.pbc.all() else ""
        lines.append(f"begin\n{cell}{listing}\nenergy {-1.5 * len(atoms) - number % 3}\nend\n")
    path = folder / "input.data"
    path.write_text("".join(lines))
    return path


def sulfides():
    made = [bulk("CuS", "zincblende", a=5.3 + n / 50) for n in range(6)]
    return [*made, *(molecule(name) for name in ("H2O", "CH3OH"))]


@pytest.mark.parametrize(("unit", "energy"), [("bohr", 27.211386), ("angstrom", 1.0)])
def test_the_unit_of_a_file_of_n2p2_is_decided_by_its_distances(unit, energy, tmp_path):
    path = n2p2(tmp_path, unit, sulfides())
    seen = inspect_files([path])
    assert len(seen.sample.structures) == 8
    for atoms, truth in zip(seen.sample.structures, sulfides(), strict=True):
        np.testing.assert_allclose(atoms.positions, truth.positions, atol=1e-5)
        np.testing.assert_allclose(atoms.cell.array, truth.cell.array, atol=1e-5)
    first = seen.sample.structures[0].calc.results
    assert first["energy"] == pytest.approx(-3.0 * energy, rel=1e-6)
    length = {"bohr": 0.529177, "angstrom": 1.0}[unit]
    assert first["forces"][1] == pytest.approx(np.array([1, 2, 3]) * 0.01 * energy / length)
    card = card_of(seen, tmp_path)
    assert card.files[0].length == unit
    assert any("input.data does not say its units" in text for text in seen.warnings)
    (tmp_path / "made.toml").write_text(render_card(seen, tmp_path))
    plan = make_plan(tmp_path / "made.toml", None, 64)
    graphs = [graph for piece in plan.pieces for _, graph in read_piece(plan.card, piece)]
    np.testing.assert_allclose(graphs[0].positions, sulfides()[0].positions, atol=1e-5)


def test_the_unit_of_lengths_is_asked_where_distances_do_not_tell_it(tmp_path):
    far = [molecule("H2O") for _ in range(6)]
    for atoms in far:
        atoms.positions *= 1.35  # as bohr 1.35, as angstrom 2.6 times the sum of the radii
    squeezed = [molecule("H2O") for _ in range(6)]
    for atoms in squeezed:
        atoms.positions *= 0.7  # as bohr; as angstrom 1.3
    argon = [bulk("Ar", cubic=True) for _ in range(6)]
    for structures in (squeezed, argon):
        path = n2p2(tmp_path, "bohr", structures)
        with pytest.raises(ConfigError, match=r"input.data: does not say whether it is in bohr"):
            inspect_files([path])
        seen = inspect_files([path], {"positions": "bohr"})
        np.testing.assert_allclose(
            seen.sample.structures[0].positions, structures[0].positions, atol=1e-5
        )
        assert card_of(seen, tmp_path).files[0].length == "bohr"
    assert card_of(inspect_files([n2p2(tmp_path, "bohr", far)]), tmp_path).files[0].length == "bohr"


def test_the_user_may_say_the_unit_of_lengths(tmp_path):
    structures = frames(8)
    for atoms in structures:
        atoms.positions /= 0.52917721
    write(tmp_path / "a.extxyz", structures)
    seen = inspect_files([tmp_path / "a.extxyz"], {"positions": "bohr"})
    np.testing.assert_allclose(
        seen.sample.structures[0].positions, frames(1)[0].positions, atol=1e-6
    )
    assert not any("bohr" in text for text in seen.warnings)
    assert card_of(seen, tmp_path).files[0].length == "bohr"
    with pytest.raises(ConfigError, match="unknown unit 'bhor'. Did you mean 'bohr'?"):
        inspect_files([tmp_path / "a.extxyz"], {"positions": "bhor"})
    (tmp_path / "a.csv").write_text("smiles,gap\nCC,1\nCCC,2\n")
    with pytest.raises(ConfigError, match="drop --unit positions"):
        inspect_files([tmp_path / "a.csv"], {"positions": "bohr"})


@pytest.mark.parametrize(
    ("factor", "warns"),
    [(-1.0, None), (1.0, "the sign of one is wrong"), (-1.0 / 51.42207, "Hartree/bohr")],
)
def test_forces_are_compared_with_the_energies(factor, warns, tmp_path):
    structures = []
    for atoms, energy, gradient in bound_by_springs():
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=factor * gradient)
        structures.append(atoms)
    seen = inspect_structures(tmp_path, structures)
    found = [text for text in seen.warnings if "forces contradict the energies" in text]
    assert [warns in text for text in found] == ([True] if warns else [])
    assert len(seen.findings) == (0 if warns else 1)


@pytest.mark.parametrize(("runs", "group"), [(7, "jid"), (3, "structure")])
def test_frames_of_runs_are_a_group_and_their_key_is_no_target(runs, group, tmp_path):
    structures = []
    for run in range(runs):
        for step in range(5):
            atoms = molecule("CH3OH")
            atoms.positions[0, 0] += 0.3 * run + 0.001 * step
            atoms.info |= {"jid": f"run-{run}", "formation": float(run * 2 % 5)}
            structures.append(atoms)
    seen = inspect_structures(tmp_path, structures)
    assert seen.split.group == group
    said = f"{seen.split.why} {seen.split.warning}"
    assert f"{5 * runs} structures are the frames of {runs} runs, by jid" in said
    assert [target.key for target in seen.proposals.targets] == ["formation"]
    assert "names the run" in dict(seen.proposals.left_out)["jid"]


@pytest.mark.parametrize("name", ["split", "part"])
def test_a_published_split_is_kept(name, tmp_path):
    structures = frames(40)
    for number, atoms in enumerate(structures):
        atoms.info[name] = "test" if number % 5 == 0 else "train"
        atoms.info["material_id"] = f"m-{number}"
    seen = inspect_structures(tmp_path, structures)
    card = card_of(seen, tmp_path)
    assert (card.split.published, card.id_key) == (name, "material_id")
    for number, atoms in enumerate(structures):
        atoms.info[name] = ("Test", "train", "train", "val")[number % 4]
        atoms.info["split_2"] = ("test", "train")[number % 2] if name == "split" else "none"
    seen = inspect_structures(tmp_path, structures)
    assert [target.key for target in seen.proposals.targets] == ["gap"]
    split = card_of(seen, tmp_path).split
    assert (split.published, split.published_test) == (name, "Test")
    assert seen.split.published_why == (
        f"from {name}: Test (10 of 40 that were read) stays test; train (20), val (10) are joined "
        "and dealt out to train, val, sel and cal"
    )


def test_a_published_split_with_gaps_is_kept_and_no_target(tmp_path):
    rows = [f"{'C' * (1 + n // 4)}{'OSFN'[n % 4]},{n % 7}.5" for n in range(24)]
    parts = ["train", "test", "", "val"] * 6
    table = [f"{row},{part}" for row, part in zip(rows, parts, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["smiles,gap,split", *table]))
    seen = inspect_files([tmp_path / "a.csv"])
    assert not seen.set_aside
    card = card_of(seen, tmp_path)
    assert (card.split.published, list(card.targets)) == ("split", ["gap"])
    assert seen.split.published_why == (
        "from split: test (6 of 24 that were read) stays test; train (6), val (6), those without "
        "a value (6) are joined and dealt out to train, val, sel and cal"
    )
    path = tmp_path / "made.toml"
    path.write_text(render_card(seen, tmp_path))
    plan = make_plan(path, None, 64)
    graphs = [graph for piece in plan.pieces for _, graph in read_piece(plan.card, piece)]
    published = [graph.published for graph in graphs]
    assert published == [part or None for part in parts]
    split = assign_splits(range(24), published, card.split, "made")
    assert np.flatnonzero(split == SPLITS.index("test")).tolist() == list(range(1, 24, 4))


@pytest.mark.parametrize("parts", [("train", "val"), ("train", "train", ""), ("a", "b", "c")])
def test_a_split_without_a_test_part_is_no_target(parts, tmp_path):
    structures = frames(42)
    for number, atoms in enumerate(structures):
        atoms.info["subset"] = parts[number % len(parts)]
    seen = inspect_structures(tmp_path, structures)
    assert seen.split.published is None
    assert [target.key for target in seen.proposals.targets] == ["gap"]
    assert ("subset", "holds a split, but is not the one that is used") in seen.proposals.left_out


def test_files_are_named_from_where_the_card_lies(tmp_path):
    assert path_from(tmp_path / "a" / "b.xyz", tmp_path) == "a/b.xyz"
    assert path_from(tmp_path / "b.xyz", tmp_path / "a") == str(tmp_path / "b.xyz")


def test_a_name_that_a_card_cannot_say_is_a_sentence(tmp_path):
    path = tmp_path / os.fsdecode(b"b\xffd.extxyz")
    write(path, frames(6), format="extxyz")
    with pytest.raises(ConfigError, match="its name is no UTF-8, a card cannot say it"):
        render_card(inspect_files([path]), tmp_path)


def test_a_file_under_two_names_is_refused(tmp_path):
    file = tmp_path / "a.xyz"
    file.write_text("1\nenergy=1.0\nH 0 0 0\n")
    (tmp_path / "b.xyz").symlink_to(file)
    with pytest.raises(ConfigError, match=r"b.xyz: is the same file as .*a.xyz; give it once"):
        detect_files([file, tmp_path / "b.xyz"])
