"""Columns of strangers' files: quantities that are predicted, and columns that are no targets.

Shapes: G structures.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from rdkit import Chem
from rdkit.Chem import Descriptors
from variant_draft import (
    ASIDE,
    ATTRIBUTE,
    FREE_ATOMS,
    HEAD,
    PER_EV,
    UNIT_TEXTS,
    Array,
    Column,
    Draft,
    Truth,
    aside,
)


class Quantity(NamedTuple):
    """A quantity that is predicted."""

    names: tuple[str, ...]
    unit: str | None
    """Unit of ``make``."""
    units: tuple[str, ...]
    """Units in which it is written; empty for a pure number."""
    make: Callable[["Draft"], Array]
    """Returns its values, [G]."""
    energy: tuple[str | None, ...] = (None,)
    bounded: bool = False
    """Whether its size excludes other units than the usual one where none is stated."""


def total_energy(draft: Draft) -> Array:
    """Return free atoms, four eV per bond of a tree, and a part of its own; in eV."""
    free = sum(value * draft.count_atoms(symbol) for symbol, value in FREE_ATOMS.items())
    return free / PER_EV["Hartree"] - 4.2 * (draft.sizes - 1) + draft.noise(0.3)


def carbons(draft: Draft) -> Array:
    """Return the number of carbon atoms, [G]."""
    return draft.count_atoms("C")


LEVELS = ("eV", "Hartree", "kcal/mol", "meV")
MOLECULAR = (
    Quantity(("gap", "homo_lumo_gap", "bandgap", "HOMO_LUMO_gap", "E_gap"), "eV", LEVELS,
             lambda d: 9.0 - 0.4 * carbons(d) + d.noise(0.6), bounded=True),
    Quantity(("homo", "e_homo", "HOMO_energy"), "eV", LEVELS,
             lambda d: -6.8 + 0.1 * carbons(d) + d.noise(0.5), bounded=True),
    Quantity(("ionization_potential", "ip", "vertical_ip"), "eV", ("eV", "kcal/mol", "Hartree"),
             lambda d: 9.5 - 0.2 * carbons(d) + d.noise(0.4), bounded=True),
    Quantity(("logS", "log_solubility", "measured_log_solubility"), None, (),
             lambda d: -0.4 * carbons(d) + d.noise(0.7)),
    Quantity(("logP", "lipophilicity", "exp_logP", "logD"), None, (),
             lambda d: 0.4 * carbons(d) + d.noise(0.7)),
    Quantity(("pIC50", "pKa", "activity", "y", "target", "toxicity", "log_viscosity"), None, (),
             lambda d: d.noise(1.1, 6.0)),
    Quantity(("melting_point", "Tm", "boiling_temperature", "T_melt"), "K", ("K",),
             lambda d: 240.0 + 9.0 * carbons(d) + d.noise(30.0)),
    Quantity(("dipole", "dipole_moment", "mu"), "debye", ("debye",),
             lambda d: np.abs(d.noise(1.0, 2.0)) + 0.05),
    Quantity(("lambda_max", "absorption_max", "emission_wavelength"), "nm", ("nm",),
             lambda d: 280.0 + 12.0 * carbons(d) + d.noise(25.0)),
    Quantity(("solvation_energy", "dG_solv", "hydration_free_energy"), "eV",
             ("kcal/mol", "kJ/mol", "eV"), lambda d: d.noise(0.12, -0.2),
             energy=(None, "total", "per_atom")),
    Quantity(("cv", "heat_capacity"), None, (), lambda d: 6.0 + 2.3 * d.sizes + d.noise(0.8)),
    Quantity(("alpha", "polarizability"), "bohr^3", ("bohr^3",),
             lambda d: 5.0 + 8.0 * carbons(d) + d.noise(1.5)),
)  # fmt: skip

CRYSTAL = (
    Quantity(("formation_energy", "e_form", "formation_energy_per_atom", "Ef"), "eV/atom",
             ("eV/atom", "meV/atom"), lambda d: d.noise(0.6, -1.5), energy=("per_atom",)),
    Quantity(("band_gap", "bandgap", "gap", "gap_hse", "Eg"), "eV", ("eV", "meV"),
             lambda d: np.abs(d.noise(1.5, 3.5)) + 0.3),
    Quantity(("e_above_hull", "energy_above_hull", "ehull"), "eV/atom", ("eV/atom", "meV/atom"),
             lambda d: np.abs(d.noise(0.05, 0.06)), energy=(None, "per_atom")),
    Quantity(("bulk_modulus", "shear_modulus", "K_VRH"), "GPa", ("GPa",),
             lambda d: np.abs(d.noise(40.0, 110.0)) + 5.0),
    Quantity(("magnetization", "total_magnetization", "magmom_total"), "muB", ("muB",),
             lambda d: np.abs(d.noise(1.2, 2.0))),
    Quantity(("debye_temperature", "T_debye", "curie_temperature"), "K", ("K",),
             lambda d: d.noise(80.0, 420.0)),
    Quantity(("refractive_index", "poisson_ratio", "zT", "y", "ionic_conductivity_log"), None, (),
             lambda d: d.noise(0.4, 2.2)),
    Quantity(("work_function", "fermi_level"), "eV", ("eV",), lambda d: d.noise(0.5, 4.6)),
)  # fmt: skip

FOREIGN = (
    (("IC50", "Ki", "EC50"), (" (nM)", "_nM", " [nM]"), 900.0),
    (("viscosity",), (" (cP)", "_cP"), 4.0),
    (("melting_point", "boiling_point", "Tg"), (" (C)", "_degC", " [C]"), 120.0),
    (("youngs_modulus", "bulk_modulus"), (" (MPa)", "_MPa"), 5000.0),
    (("thermal_conductivity", "kappa"), (" (W/mK)", "_W_mK"), 12.0),
    (("surface_energy", "cleavage_energy"), (" (J/m^2)", "_J_m2"), 1.5),
    (("capacity",), (" (mAh/g)", "_mAh_g"), 150.0),
    (("voltage", "redox_potential", "average_voltage"), (" (V)", "_V"), 3.1),
    (("vibrational_frequency", "raman_shift"), (" (THz)", "_THz"), 12.0),
    (("seebeck",), (" (uV/K)", "_uV_K"), 80.0),
    (("ionic_conductivity",), (" (mS/cm)", "_mS_cm"), 2.0),
    (("permeability", "flux"), (" [Barrer]", "_barrer"), 40.0),
)
"""Names of quantities, how they end in a unit that no card knows, and a usual size."""

PREFIXES = ("", "", "", "", "target_", "y_", "dft_", "exp_", "pbe_", "label_")


def convert(unit: str | None, to: str | None) -> float:
    """Return the factor from one unit to another of the same kind."""
    if unit == to or unit is None or to is None:
        return 1.0
    of_energy = unit.removesuffix("/atom")
    return PER_EV[to.removesuffix("/atom")] / PER_EV[of_energy]


def add_quantity(draft: Draft, quantity: Quantity, prefix: str = "") -> Column:
    """Add a quantity in one of its units, which the name states or not.

    Args:
        draft: the data set.
        quantity: the quantity.
        prefix: what stands before its name.
    """
    draw = draft.draw
    unit = draw.choice(quantity.units) if quantity.units else None
    stated = unit is not None and draft.chance(0.6)
    values = quantity.make(draft) * convert(quantity.unit, unit)
    stem = draw.choice(quantity.names)
    name = draft.spell(prefix + stem, unit if stated else None)
    evident = quantity.bounded and unit != "eV"
    # A formation energy may be one per atom or per formula unit where nothing says it.
    open_kind = not stated and "per_atom" not in stem and quantity.energy == ("per_atom",)
    kinds = (None, "per_atom") if open_kind else quantity.energy
    truth = Truth(unit=unit, stated=stated, evident=evident, energy=kinds)
    digits = 0 if unit == "K" and draft.chance(0.4) else draw.choice([3, 4, 6])
    draft.add(name, np.round(values, digits).tolist(), truth)
    draft.columns[-1].stem = stem
    return draft.columns[-1]


def add_foreign(draft: Draft, prefix: str = "") -> None:
    """Add a quantity whose name states a unit that no card knows: its numbers stay as they are."""
    names, ends, size = draft.draw.choice(FOREIGN)
    end = draft.draw.choice([end for end in ends if end[0] == "_" or not draft.plain])
    values = size * np.exp(draft.noise(0.4))
    truth = Truth(stated=True, energy=(None,))
    draft.add(draft.spell(prefix + draft.draw.choice(names)) + end, values.round(3).tolist(), truth)


def make_class(draft: Draft, prefix: str = "") -> None:
    """Add a class of molecules or crystals that is predicted."""
    names = ("active", "toxic", "soluble", "label", "metallic", "bbb", "stable", "HIV_active")
    names += ("is_toxic", "is_metal", "p_np") if not draft.columns else ()
    words = draft.draw.choice(
        [("yes", "no"), ("active", "inactive"), (1, 0), ("A", "B"), ("+", "-")]
    )
    values = [words[n % 2] for n in range(draft.count)]
    draft.draw.shuffle(values)
    draft.add(draft.spell(prefix + draft.draw.choice(names)), values, Truth(shape="class"))


def add_serial(draft: Draft) -> None:
    """Add a running number: with breaks, shuffled or as an index of pandas."""
    draw = draft.draw
    names = [
        "id",
        "idx",
        "index",
        "serial",
        "no",
        "nr",
        "sample_id",
        "entry",
        "row",
        "mol_id",
        "cid",
    ]
    names += ["structure_id", "frame"] if draft.plain else ["Unnamed: 0", "#", "S.No.", "CID"]
    names += [""] if draft.container == "csv" else []
    start = draw.choice([0, 1, 1, 100, 20001])
    numbers = list(range(start, start + draft.count))
    if draft.chance(0.5):
        numbers = sorted(draw.sample(range(start, start + draft.count + 12), draft.count))
    if draft.chance(0.25):
        draw.shuffle(numbers)
    texts = [f"mol_{n:05d}" for n in numbers]
    values: list[Any] = texts if draft.chance(0.2) else list(map(float, numbers))
    if draft.container == "csv" and values[0] != texts[0]:
        values = numbers
    draft.add(draft.spell(draw.choice(names)), values, aside("serial", "identity"))


RDKIT = (
    (("mol_weight", "MW", "molwt", "molecular_weight"), Descriptors.MolWt),
    (("exact_mass", "monoisotopic_mass"), Descriptors.ExactMolWt),
    (("tpsa", "polar_surface_area"), Descriptors.TPSA),
    (("MolLogP", "clogp", "crippen_logp"), Descriptors.MolLogP),
    (("hbd", "num_h_donors"), Descriptors.NumHDonors),
    (("hba", "num_h_acceptors"), Descriptors.NumHAcceptors),
    (("rotatable_bonds", "num_rot_bonds", "n_rotb"), Descriptors.NumRotatableBonds),
    (("num_heavy_atoms", "heavy_atoms", "n_heavy", "n_ha"), Descriptors.HeavyAtomCount),
    (("BertzCT", "complexity"), Descriptors.BertzCT),
    (("LabuteASA", "labute_area"), Descriptors.LabuteASA),
)


def add_structural(draft: Draft) -> None:
    """Add a number or text that follows from the structure."""
    draw = draft.draw
    atoms = draft.structures
    volumes = np.array([a.cell.volume for a in atoms])
    masses = np.array([a.get_masses().sum() for a in atoms])
    kinds = sorted({symbol for a in atoms for symbol in a.symbols})
    kind = draw.choice(kinds)
    formula = [str(a.symbols.formula.format("hill")) for a in atoms]
    options: list[tuple[tuple[str, ...], Sequence[Any]]] = [
        (("n_atoms", "natoms", "num_atoms", "nsites", "number_of_atoms"), draft.sizes.tolist()),
        ((f"n_{kind}", f"num_{kind}", f"{kind}_count"), draft.count_atoms(kind).tolist()),
        ((f"x_{kind}", f"frac_{kind}"), (draft.count_atoms(kind) / draft.sizes).round(4).tolist()),
        (("formula", "composition", "chemical_formula", "pretty_formula"), formula),
    ]
    if volumes.all():
        lengths = np.array([a.cell.lengths()[0] for a in atoms])
        options += [
            (("volume", "vol", "cell_volume", "V_A3"), volumes.round(4).tolist()),
            (("volume_per_atom", "vpa"), (volumes / draft.sizes).round(4).tolist()),
            (("density", "rho"), (1.66053907 * masses / volumes).round(3).tolist()),
            (("a", "lattice_a", "cell_a", "lattice_parameter"), lengths.round(4).tolist()),
        ]
    if draft.smiles and draft.container in ("csv", "sdf"):
        molecules = [Chem.MolFromSmiles(text) for text in draft.smiles]
        # An SD file holds the structure without its SMILES; its descriptors follow all the same.
        options += [(names, [round(f(m), 3) for m in molecules]) for names, f in RDKIT]
    names, values = draw.choice(options)
    kinds_of = ("structure", "repeat", "constant", "record", "identity", "serial")
    draft.add(draft.spell(draw.choice(names)), list(values), aside(*kinds_of))


def add_prediction(draft: Draft) -> None:
    """Add what another model predicts for one of the targets."""
    draw = draft.draw
    scalars = [c for c in draft.columns if c.truth.roles == HEAD and c.truth.shape == "scalar"]
    if not scalars:
        return
    of = draw.choice(scalars)
    values = np.array([np.nan if v is None else v for v in of.values])
    spread = float(np.nanstd(values)) or 1.0
    error = 0.05 * PER_EV[of.truth.unit or "eV"] if of.truth.energy == ("total",) else 0.15 * spread
    values = values + draft.noise(error)
    b = draft.blank
    models = ("schnet", "alignn", "cgcnn", "chemprop", "ml", "model", "nn", "xgb", "gnn")
    forms = ("{n}{b}pred", "pred{b}{n}", "predicted{b}{n}", "{m}{b}{n}", "{n}{b}{m}", "{n}{b}hat")
    name = draw.choice(forms).format(n=of.name, m=draw.choice(models), b=b)
    truth = aside("prediction", leak=True, unit=of.truth.unit, energy=(None, "total", "per_atom"))
    draft.add(name, values.round(4).tolist(), replace(truth, stated=False))


def add_error(draft: Draft) -> None:
    """Add the error bar of one of the targets."""
    draw = draft.draw
    scalars = [c for c in draft.columns if c.truth.roles == HEAD and c.truth.shape == "scalar"]
    if not scalars:
        return
    of = draw.choice(scalars)
    forms = ("{n}{b}std", "{n}{b}err", "{n}{b}error", "{n}{b}uncertainty", "std{b}{n}", "{n}{b}sem")
    name = draw.choice(forms).format(n=of.name, b=draft.blank)
    truth = aside("error", unit=of.truth.unit, energy=(None, "total", "per_atom"))
    draft.add(name, np.abs(draft.noise(0.1, 0.2)).round(4).tolist(), truth)


def add_weight(draft: Draft) -> None:
    """Add a weight for training."""
    names = ("weight", "sample_weight", "config_weight", "train_weight", "loss_weight", "w")
    values = [draft.draw.choice([0.5, 1.0, 2.0, 5.0]) for _ in range(draft.count)]
    draft.add(draft.spell(draft.draw.choice(names)), values, aside("weight", "constant"))


RECORDS: dict[str, tuple[Any, ...]] = {
    "config_type": ("bulk", "md_300K", "surface"),
    "source": ("lit", "inhouse"),
    "method": ("PBE", "PBE+U"),
    "functional": ("B3LYP", "wB97X-D"),
    "origin": ("MP", "OQMD", "COD"),
    "generation_method": ("rattle", "strain"),
    "code_version": ("6.3", "6.4"),
    "reference": ("Smith2019", "Jones2021"),
    "batch": (1, 2, 3),
    "n_scf_steps": tuple(range(9, 30)),
    "wall_time": tuple(n / 7 for n in range(50, 500)),
    "cpu_time_s": tuple(n / 3 for n in range(50, 500)),
    "n_iterations": tuple(range(3, 60)),
    "comment": ("ok", "rerun"),
    "operator": ("anna", "bo"),
    "date": ("2021-03-04", "2021-03-05", "2022-10-11"),
    "kpoints": (2, 4, 6),
    "source_file": tuple(f"run_{n}/out.log" for n in range(60)),
    "doi": tuple(f"10.1000/{n}" for n in range(60)),
}
"""What says how a structure was made, and some of its values."""


def add_record(draft: Draft) -> None:
    """Add what says how a structure was made or calculated."""
    name = draft.draw.choice(sorted(RECORDS))
    values = [draft.draw.choice(RECORDS[name]) for _ in range(draft.count)]
    draft.add(draft.spell(name), values, aside("record", "identity", "serial", "structure"))


def add_split(draft: Draft) -> None:
    """Add a published split, perhaps with gaps, or numbers of folds."""
    if draft.published is not None:
        return
    draw = draft.draw
    if draft.chance(0.2):
        name = draft.spell(draw.choice(["fold", "cv_fold", "kfold"]))
        values: list[Any] = [n % 5 for n in range(draft.count)]
        draw.shuffle(values)
        draft.add(name, values, aside("split", "serial", "record", leak=True))
        return
    if draft.chance(0.15):
        name = draft.spell(draw.choice(["is_test", "test_set", "in_test"]))
        marks = [int(n % 5 == 0) for n in range(draft.count)]
        draw.shuffle(marks)
        draft.add(name, marks, aside("split", leak=True))
        draft.published = (name, "1")
        return
    parts = draw.choice(
        [("train", "val", "test"), ("train", "valid", "test"), ("train", "test"),
         ("Train", "Val", "Test"), ("TRAIN", "TEST"), ("training", "validation", "test"),
         ("training", "testing"), ("train", "holdout")]
    )  # fmt: skip
    name = draft.spell(
        draw.choice(["split", "set", "subset", "dataset_split", "partition", "part"])
    )
    values = [parts[-1] if n % 5 == 0 else parts[n % (len(parts) - 1)] for n in range(draft.count)]
    draw.shuffle(values)
    if draft.chance(0.3):
        place = next(n for n, value in enumerate(values) if value != parts[-1])
        values[place] = None
    draft.add(name, values, aside("split", leak=True))
    draft.published = (name, parts[-1])


def add_constant(draft: Draft) -> None:
    """Add a setting that is the same everywhere."""
    name, value = draft.draw.choice(
        [
            ("encut", 520),
            ("temperature", 298.15),
            ("pressure", 1.0),
            ("pH", 7.4),
            ("smearing", 0.05),
        ]
    )
    draft.add(draft.spell(name), [value] * draft.count, aside("constant"))


def add_name(draft: Draft) -> None:
    """Add text that names each structure."""
    names = ("name", "compound", "iupac", "material_id", "refcode", "cas")
    values = [f"{draft.draw.choice('abcxyz')}-{7 * n + 3}" for n in range(draft.count)]
    draft.add(draft.spell(draft.draw.choice(names)), values, aside("identity", "record", "serial"))


def add_charge(draft: Draft) -> None:
    """Add the total charge or spin: an input, not a target."""
    names = (
        "charge",
        "total_charge",
        "q",
        "net_charge",
        "spin",
        "multiplicity",
        "spin_multiplicity",
    )
    name = draft.draw.choice(names)
    options = {"spin": (0, 1, 2), "multiplicity": (1, 2, 3), "spin_multiplicity": (1, 2)}
    values = [draft.draw.choice(options.get(name, (-1, 0, 1))) for _ in range(draft.count)]
    if draft.container == "sdf" and name in ("charge", "spin"):  # a tag beside what the file holds
        return
    draft.add(draft.spell(name), values, Truth(roles=ATTRIBUTE))


def add_mask(draft: Draft) -> None:
    """Add what marks structures with 0 and 1."""
    names = ("converged", "is_relaxed", "outlier_flag", "has_error", "is_duplicate", "use_for_fit")
    values = [int(draft.chance(0.7)) for _ in range(draft.count)]
    draft.add(draft.spell(draft.draw.choice(names)), values, aside("mask", "constant"))


def add_unit_column(draft: Draft) -> None:
    """Add a text that states the unit of a column in each row."""
    able = [c for c in draft.columns if c.truth.unit in UNIT_TEXTS and not c.truth.stated]
    if able:
        of = draft.draw.choice(able)
        text = draft.draw.choice(UNIT_TEXTS[of.truth.unit])
        of.truth = replace(of.truth, stated=True)
        draft.add(f"{of.name}_unit", [text] * draft.count, aside())


def state_in_metadata(draft: Draft) -> None:
    """State units in the metadata of a database, as SchNetPack does."""
    for column in draft.columns:
        if column.truth.unit in UNIT_TEXTS and not column.truth.stated:
            text = draft.draw.choice(UNIT_TEXTS[column.truth.unit])
            draft.metadata[column.name] = text
            column.truth = replace(column.truth, stated=True)


def add_mean(draft: Draft, of: Column) -> None:
    """Add an energy per atom beside the total energy: one of the two is predicted."""
    values = [v / size for v, size in zip(of.values, draft.sizes, strict=True)]
    roles = (*HEAD, *ASIDE)
    per_atom = f"{of.truth.unit}/atom"
    truth = Truth(roles, unit=per_atom, stated=of.truth.stated, energy=("per_atom",))
    name = draft.add(f"{of.name}{draft.blank}per{draft.blank}atom", values, truth)
    if of.truth.derived_from is None and not draft.one_of:
        of.truth = replace(of.truth, roles=roles)
        draft.one_of.append((of.name, name))


def sort_rows(draft: Draft) -> None:
    """Sort the structures by one of the targets."""
    able = [c for c in draft.columns if c.truth.roles == HEAD and isinstance(c.values[0], float)]
    if able:
        keys = draft.draw.choice(able).values
        order = sorted(range(draft.count), key=keys.__getitem__)
        draft.structures = [draft.structures[n] for n in order]
        draft.smiles = [draft.smiles[n] for n in order] if draft.smiles else []
        for column in draft.columns:
            column.values = [column.values[n] for n in order]


def add_repeat(draft: Draft) -> None:
    """Add a target in another unit, or per atom: one of the two is predicted."""
    able = [
        column
        for column in draft.columns
        if column.stem and column.truth.stated and column.truth.unit in PER_EV
    ]
    if not able or draft.one_of:
        return
    of = draft.draw.choice(able)
    unit = draft.draw.choice([u for u in PER_EV if u != of.truth.unit])
    factor = convert(of.truth.unit, unit)
    values = [None if v is None else float(f"{v * factor:.8g}") for v in of.values]
    roles = (*HEAD, *ASIDE)
    kinds = (None, "total", "per_atom")
    name = draft.add(
        draft.spell(of.stem, unit), values, Truth(roles, unit=unit, stated=True, energy=kinds)
    )
    of.truth = replace(of.truth, roles=roles)
    draft.one_of.append((of.name, name))


def add_gaps(draft: Draft) -> None:
    """Remove some values of some targets."""
    for column in draft.columns:
        plain = column.truth.roles == HEAD and column.truth.shape in ("scalar", "class")
        if plain and column.truth.level == "graph" and draft.chance(0.25):
            share = draft.draw.uniform(0.02, 0.15)
            column.values = [None if draft.chance(share) else value for value in column.values]


NUISANCES: dict[Callable[[Draft], None], float] = {
    add_serial: 4,
    add_structural: 6,
    add_prediction: 3,
    add_error: 2,
    add_weight: 1,
    add_record: 3,
    add_split: 4,
    add_constant: 1,
    add_name: 2,
    add_charge: 1.5,
    add_mask: 1,
    add_unit_column: 1,
    add_repeat: 1.5,
}
"""How often each is drawn."""


def add_nuisances(draft: Draft, least: int = 1, most: int = 5) -> None:
    """Add columns that are no targets, of each kind one, of those that structures tell two."""
    kinds = dict(NUISANCES)
    for _ in range(draft.draw.randint(least, most)):
        kind = draft.draw.choices(list(kinds), list(kinds.values()))[0]
        kind(draft)
        kinds[kind] = kinds[kind] / 3 if kind is add_structural else 0.0
