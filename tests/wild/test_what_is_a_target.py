"""Files of strangers, in small: which of their columns are targets, and why the others are not.

Each input is made here in the shape of a real file; what is expected was worked out by hand.
"""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn_hpo.config import CardConfig, TargetConfig, load_config
from hydragnn_hpo.data.structure import Place, target_of
from hydragnn_hpo.inspection.file_inspection import Inspection, inspect_files
from hydragnn_hpo.pipeline.init_templates import render_card

ALKANES = [f"{'C' * n}{end}" for n in range(1, 5) for end in ("O", "N", "F", "Cl")]
"""Sixteen molecules: methanol, methylamine ... butyl chloride."""

Heads = dict[str, bool]
"""Whether each target has a head, by name in the file."""


def frames(count: int = 12, **columns) -> list[Atoms]:
    """Crystals of four atoms, with energy and forces, and columns by their values."""
    made = [
        bulk("NaCl", "rocksalt", a=5.0 + 0.1 * n, cubic=False) * (1, 1, 2) for n in range(count)
    ]
    rng = np.random.default_rng(1)
    for number, atoms in enumerate(made):
        atoms.rattle(0.05, seed=number)
        forces = rng.normal(size=(4, 3))
        energy = -20.0 + 0.1 * float(rng.normal())
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        for name, values in columns.items():
            (atoms.arrays if np.shape(values[number]) == (4,) else atoms.info)[name] = values[
                number
            ]
    return made


def oxides(**columns) -> list[Atoms]:
    """Sixteen different crystals of two atoms, with columns by their values."""
    kinds = ("MgO", "CaO", "NaF", "LiF") * 4
    made = [bulk(kind, "rocksalt", a=4.0 + 0.07 * n) for n, kind in enumerate(kinds)]
    for number, atoms in enumerate(made):
        for name, values in columns.items():
            atoms.info[name] = values[number]
    return made


def inspect_frames(folder: Path, structures: list[Atoms]) -> Inspection:
    write(folder / "frames.extxyz", structures)
    return inspect_files([folder / "frames.extxyz"])


def inspect_table(folder: Path, rows: list[str], **columns) -> Inspection:
    table = {"smiles": rows, **columns}
    lines = [
        ",".join(table),
        *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
    ]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return inspect_files([folder / "table.csv"])


def heads(seen: Inspection) -> Heads:
    return {target.key: target.head for target in seen.proposals.targets}


def reasons(seen: Inspection) -> dict[str, str]:
    return dict(seen.proposals.left_out)


def noise(count: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(size=count).round(4).tolist()


@pytest.mark.parametrize("name", ["resid", "molecule_nr", "grp"])
def test_a_label_of_atoms_is_no_target(tmp_path, name):
    """W11: whole numbers of atoms that are equal in all frames."""
    seen = inspect_frames(tmp_path, frames(**{name: [np.array([7, 7, 9, 9])] * 12}))
    assert heads(seen) == {"energy": True, "forces": True}
    assert "labels atoms" in reasons(seen)[name]


def test_what_the_structure_says_is_no_target(tmp_path):
    """W12: composition, cell, volume, density, mass: in whatever unit and under whatever name."""
    made = oxides(band_gap=noise(16), zeta=noise(16, 1))
    for atoms in made:
        share = {z: float(np.mean(atoms.numbers == z)) for z in (8, 12)}
        volume = atoms.cell.volume
        mass = float(atoms.get_masses().sum())
        atoms.info |= {"pct_mg": 100 * share[12], "o_fraction": share[8], "V_nm3": volume / 1000}
        atoms.info |= {"edge": round(atoms.cell.lengths()[0], 3), "u": round(mass, 2)}
        atoms.info |= {"rho": round(1.66053907 * mass / volume, 3), "system": atoms.symbols[0]}
    seen = inspect_frames(tmp_path, made)
    assert heads(seen) == {"band_gap": True, "zeta": True}
    told = reasons(seen)
    for name in ("pct_mg", "o_fraction", "V_nm3", "edge", "u", "rho"):
        assert "the structure itself says it" in told[name], (name, told)


def test_a_formula_is_no_class(tmp_path):
    """W12: a text that spells the structure's own formula, beside a class that does not."""
    formulas = [str(atoms.symbols) for atoms in oxides()]
    classes = {"phase": ["a", "b"] * 8, "polarity": ["+", "-"] * 8, "group": ["g0", "g1"] * 8}
    seen = inspect_frames(tmp_path, oxides(gap=noise(16), compound_class=formulas, **classes))
    assert heads(seen) == {"gap": True, "phase": True, "polarity": True, "group": True}
    assert "spells what the structure consists of" in reasons(seen)["compound_class"]


def test_of_many_columns_the_most_target_like_keep_their_heads(tmp_path):
    """W12: eight columns without a unit stand before a gap, a dipole and an energy."""
    columns = {f"col{letter}": noise(16, n) for n, letter in enumerate("abcdefgh")}
    columns |= {"gap_ev": noise(16, 20), "mu (D)": noise(16, 21)}
    seen = inspect_table(tmp_path, ALKANES, **columns)
    chosen = {name for name, head in heads(seen).items() if head}
    assert chosen == {"gap_ev", "mu (D)", *(f"col{letter}" for letter in "abcdef")}


def test_descriptors_and_predictions_of_another_model_are_no_targets(tmp_path):
    """W13: RDKit's descriptors, counted by hand for alkanes of n carbons and one other atom."""
    carbons = [len(text.replace("Cl", "X")) - 1 for text in ALKANES]
    heavy = [n + 1 for n in carbons]
    bonds_that_turn = [max(n - 2, 0) for n in carbons]
    measured = noise(16)
    seen = inspect_table(
        tmp_path,
        ALKANES,
        **{"heavy atoms": heavy, "num rotatable": bonds_that_turn, "measured log sol": measured},
        **{"ESOL predicted log sol": noise(16, 1), "log sol std": noise(16, 2)},
    )
    assert heads(seen) == {"measured log sol": True}
    told = reasons(seen)
    assert "of RDKit" in told["heavy atoms"]
    assert "of RDKit" in told["num rotatable"]
    assert "another model predicts for measured log sol" in told["ESOL predicted log sol"]
    assert "error bar of measured log sol" in told["log sol std"]


def test_descriptors_among_the_tags_of_an_sd_file_are_no_targets(tmp_path):
    """W13: heavy atoms and bonds that turn, counted by hand as above, without any SMILES."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    gaps = noise(16)
    with Chem.SDWriter(str(tmp_path / "tags.sdf")) as writer:
        for number, smiles in enumerate(ALKANES):
            molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
            AllChem.EmbedMolecule(molecule, randomSeed=1)
            carbons = smiles.count("C") - smiles.count("Cl")
            tags = {"heavy atoms": carbons + 1, "num rotatable": max(carbons - 2, 0)}
            for name, value in (tags | {"gap": gaps[number]}).items():
                molecule.SetProp(name, str(value))
            writer.write(molecule)
    seen = inspect_files([tmp_path / "tags.sdf"])
    assert heads(seen) == {"gap": True}
    assert "of RDKit" in reasons(seen)["num rotatable"]


def test_a_whole_number_near_a_quantity_is_a_target(tmp_path):
    """W13: within 0.5 of RDKit's Chi0, 2 + (n - 1) / sqrt(2) of n carbons, is not equal to it."""
    rows = [f"{'C' * n}O" for n in range(1, 17)]
    signals = [round(2 + (n - 1) / 2**0.5) for n in range(1, 17)]
    seen = inspect_table(tmp_path, rows, number_of_signals=signals)
    assert heads(seen) == {"number_of_signals": True}


def test_how_a_structure_was_made_is_offered_alone(tmp_path):
    """W14: words and two whole numbers beside energy and forces."""
    made = frames(buildcell_type=["narrow", "wide"] * 6, num_dump_cycles=[-1, 0] * 6)
    seen = inspect_frames(tmp_path, made)
    wanted = {"energy": True, "forces": True, "buildcell_type": False, "num_dump_cycles": False}
    assert heads(seen) == wanted


def test_a_class_is_still_predicted_without_forces(tmp_path):
    """W14: a class of molecules is what is wanted, a source of the data is not."""
    seen = inspect_table(tmp_path, ALKANES, active=["yes", "no"] * 8, source=["A", "B"] * 8)
    assert heads(seen) == {"active": True, "source": False}


def test_the_same_energy_at_another_temperature_is_a_second_set(tmp_path):
    """W15: u298 is u0 and a little; the formation energy beside them is another quantity."""
    made = []
    for number in range(40):
        atoms = Atoms("C" * (1 + number % 5) + "O" * (1 + number % 3) + "H" * (2 + number % 7))
        atoms.positions[:, 0] = 1.2 * np.arange(len(atoms))
        total = float(atoms.numbers.sum()) * -30.0 + float(noise(40)[number])
        extra = {"u298_ev": total + 0.02 * len(atoms) + 1e-4 * float(noise(40, 1)[number])}
        extra["other_energy_ev"] = -3.0 * len(atoms) + float(noise(40, 2)[number])
        atoms.info |= {"u0_ev": total, **extra}
        made.append(atoms)
    seen = inspect_frames(tmp_path, made)
    assert heads(seen) == {"u0_ev": True, "u298_ev": False, "other_energy_ev": True}


@pytest.mark.parametrize("name", ["q", "total_charge", "chg", "multiplicity"])
def test_charge_and_spin_are_attributes(tmp_path, name):
    """W16: a total charge, whatever its name."""
    seen = inspect_frames(tmp_path, oxides(gap=noise(16), **{name: [0, 1] * 8}))
    assert (heads(seen), seen.proposals.attributes) == ({"gap": True}, (name,))


@pytest.mark.parametrize("name", ["weight", "config_energy_weight", "sample_wt"])
def test_weights_are_no_targets(tmp_path, name):
    """W17."""
    seen = inspect_frames(tmp_path, oxides(gap=noise(16), **{name: [0.5, 1.0, 2.5, 7.0] * 4}))
    assert heads(seen) == {"gap": True}
    assert "weight for training" in reasons(seen)[name]


def test_forces_of_too_few_structures_take_no_head_away(tmp_path):
    """W19: forces of two structures are left out, and the number beside them is predicted."""
    made = frames(zeta=noise(12))
    for atoms in made[2:]:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy())
    seen = inspect_frames(tmp_path, made)
    assert heads(seen) == {"energy": True, "zeta": True}
    assert "only 2 structures have it" in reasons(seen)["forces"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nr", [1, 2, 4, 5, 6, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 22]),
        ("running", [1, 2, 4, 5, 6, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 22]),
        ("running", [5, 3, 16, 1, 9, 12, 2, 4, 14, 7, 6, 11, 10, 15, 13, 8]),
        ("sample_id", [501, 77, 1200, 3, 9, 12, 2, 4, 14, 7, 6, 11, 10, 15, 13, 8]),
    ],
)
def test_serial_numbers_with_gaps_or_without_order_are_no_targets(tmp_path, name, values):
    """W20."""
    seen = inspect_frames(tmp_path, oxides(gap=noise(16), **{name: values}))
    assert heads(seen) == {"gap": True}


def test_whole_numbers_that_repeat_are_a_target(tmp_path):
    """W20: a measured number may be whole, and sorted."""
    seen = inspect_frames(tmp_path, oxides(melting=[300, 300, 301, 305, *range(310, 370, 5)]))
    assert heads(seen) == {"melting": True}


def test_a_word_in_a_number_that_nobody_predicts_sets_nothing_aside(tmp_path):
    """W21: 'none' in half of the structures, and 'no' in one that is not predicted at first."""
    made = frames(
        radical=[4.5, "none", 1.5, "none", 2.5, "none"] * 2, has_defect=[0, 1] * 5 + [1, "no"]
    )
    seen = inspect_frames(tmp_path, made)
    assert {name for name, head in heads(seen).items() if head} == {"energy", "forces"}
    assert (seen.set_aside, seen.max_bad) == ((), None)
    assert "is text in 6 of 12, as 'none'" in reasons(seen)["radical"]


@pytest.mark.parametrize("word", ["NA", "N/A", "#N/A", "None", "NULL", "-", "nan", "NaN", ""])
def test_words_for_missing_values_are_missing(tmp_path, word):
    """W21: as pandas and others write them, for numbers and for classes."""
    gaps = [word if n in (3, 8) else n / 7 for n in range(16)]
    active = [word if n in (4, 9) else ("yes", "no")[n % 2] for n in range(16)]
    parts = [word if n == 5 else ("train", "holdout")[n % 4 == 0] for n in range(16)]
    seen = inspect_table(tmp_path, ALKANES, gap_ev=gaps, active=active, split=parts)
    targets = {target.key: target.config for target in seen.proposals.targets}
    assert targets["gap_ev"].optional
    assert seen.set_aside == ()
    assert (seen.split.published, seen.split.published_test) == ("split", "holdout")
    if word != "-":  # a dash may be a class
        assert heads(seen) == {"gap_ev": True, "active": True}
        assert targets["active"].classes == ("no", "yes")
    atoms = Atoms("H", info={"gap_ev": word or None})
    assert target_of(atoms, "gap_ev", targets["gap_ev"], Place(tmp_path, 0, "x")) is None


@pytest.mark.parametrize("test", ["test", "Test", "testing", "holdout"])
def test_the_published_test_split_is_kept_by_its_usual_names(tmp_path, test):
    """W9."""
    parts = [("train", "val", test)[n % 3] for n in range(16)]
    split = inspect_table(tmp_path, ALKANES, gap_ev=noise(16), part=parts).split
    assert (split.published, split.published_test) == ("part", test)


def test_a_card_allows_what_init_sets_aside(tmp_path):
    """W21: two of twelve energies are words; the card that is written can be built."""
    made = frames()
    for atoms in made[:2]:
        atoms.calc = SinglePointCalculator(atoms, forces=np.zeros((4, 3)))
        atoms.info["energy"] = "failed"
    seen = inspect_frames(tmp_path, made)
    assert (len(seen.set_aside), seen.max_bad) == (2, 0.17)
    (tmp_path / "card.toml").write_text(render_card(seen, tmp_path))
    assert load_config(tmp_path / "card.toml", CardConfig).max_bad == 0.17


@pytest.mark.parametrize(
    ("names", "unit", "has_axis"),
    [
        ([f"{n}" for n in range(400, 424, 2)], "1", True),
        ([f"abs_{n}nm" for n in range(400, 424, 2)], "nm", True),
        ([f"{n}" for n in (*range(400, 412, 2), *range(414, 426, 2))], None, False),
        ([f"dos_{n}" for n in range(1, 13)], "1", True),
    ],
    ids=["wavelengths", "prefix and unit", "one is missing", "counted"],
)
def test_numbered_columns_are_one_spectrum(tmp_path, names, unit, has_axis):
    """W24: a peak that moves along twelve columns, which stand in another order in the file."""
    places = np.arange(12)
    peaks = [np.exp(-(((places - n / 2) / 3.0) ** 2)).round(4) for n in range(16)]
    columns = {names[p]: [peak[p] for peak in peaks] for p in np.roll(places, 5)}
    seen = inspect_table(tmp_path, ALKANES, **columns)
    [target] = seen.proposals.targets
    assert (target.config.shape, target.config.size, target.head) == ("spectrum", 12, True)
    assert target.config.columns == tuple(names)
    axis = target.config.axis
    assert (axis is not None) == has_axis
    assert axis is None or (axis.unit, axis.points(12)[1]) == (
        unit,
        axis.first + axis.points(12)[1] - axis.first,
    )
    (tmp_path / "card.toml").write_text(render_card(seen, tmp_path))
    card = load_config(tmp_path / "card.toml", CardConfig)
    [(name, config)] = card.targets.items()
    atoms = Atoms("H", info={key: float(n) for n, key in enumerate(names)})
    read = target_of(atoms, name, config, Place(tmp_path, 0, "x"))
    assert read is not None
    assert read.tolist() == list(range(12))


@pytest.mark.parametrize(
    "names",
    [
        [f"{n}cm-1" for n in range(1000, 1300, 25)],
        [f"{n} cm^-1" for n in range(12)],
        [f"dos_{n}" for n in range(-5, 7)],
        [f"{n / 2} eV" for n in range(-6, 6)],
    ],
    ids=["wavenumbers", "spaces", "signs behind a name", "signs"],
)
def test_signs_and_digits_of_units_are_no_other_spectrum(tmp_path, names):
    """W24: the numbers are 1000, 0, -5 or -3 first, whatever stands around them."""
    places = np.arange(12)
    peaks = [np.exp(-(((places - n / 2) / 3.0) ** 2)).round(4) for n in range(16)]
    columns = {names[p]: [peak[p] for peak in peaks] for p in np.roll(places, 5)}
    [target] = inspect_table(tmp_path, ALKANES, **columns).proposals.targets
    assert (target.config.shape, target.config.columns) == ("spectrum", tuple(names))


def test_numbered_tasks_are_no_spectrum(tmp_path):
    """W24: ten tasks that only have numbers are ten targets."""
    columns = {f"task_{n}": noise(16, n) for n in range(10)}
    assert len(heads(inspect_table(tmp_path, ALKANES, **columns))) == 10


def test_a_virial_is_offered_as_a_derivative(tmp_path):
    """W27: virial = -volume * stress; of 4 * 5 * 5 cubic angstrom -100 eV are 1 eV/angstrom^3."""
    made = frames()
    for number, atoms in enumerate(made):
        atoms.info["dft_virial"] = (1.0 + number) * np.eye(3)
        atoms.info["dft_energy"] = atoms.calc.results.pop("energy")
        atoms.arrays["dft_forces"] = atoms.calc.results.pop("forces")
    seen = inspect_frames(tmp_path, made)
    assert heads(seen) == {"dft_energy": True, "dft_forces": True, "dft_virial": False}
    virial = {t.key: t for t in seen.proposals.targets}["dft_virial"]
    assert (virial.config.derived_from, virial.unit.name) == ("dft_energy", "eV(virial)")
    box = Atoms("H", cell=[4, 5, 5], pbc=True, info={"v": -100.0 * np.eye(3)})
    config = TargetConfig(
        level="graph", shape="tensor", unit="eV(virial)", derived_from="e", key="v"
    )
    read = target_of(box, "v", config, Place(tmp_path, 0, "x"))
    assert read is not None
    np.testing.assert_allclose(read, np.eye(3).reshape(-1))


def test_stress_is_kept_where_there_is_a_cell(tmp_path):
    """W28: free atoms and dimers without a cell just lack it, whatever stands in the file."""
    made = frames()
    for number, atoms in enumerate(made):
        atoms.info["REF_stress"] = 0.01 * (number + 1) * np.eye(3)
        atoms.info["REF_energy"] = atoms.calc.results.pop("energy")
        atoms.arrays["REF_forces"] = atoms.calc.results.pop("forces")
    for atoms in made[:3]:
        atoms.pbc = False
        atoms.info["REF_stress"] = np.zeros((3, 3))
    seen = inspect_frames(tmp_path, made)
    stress = {t.key: t for t in seen.proposals.targets}["REF_stress"]
    assert stress.config.derived_from == "REF_energy"
    assert stress.config.optional
    assert not stress.head
    place = Place(tmp_path, 0, "x")
    assert target_of(made[0], "REF_stress", stress.config, place) is None
    assert target_of(made[3], "REF_stress", stress.config, place) is not None


def test_one_energy_far_off_is_named_for_one_composition(tmp_path):
    """W38."""
    made = frames()
    made[4].calc.results["energy"] = 19858.0
    warnings = inspect_frames(tmp_path, made).warnings
    assert any("energy has 1 of 12 values far from all others" in text for text in warnings)
