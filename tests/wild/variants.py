"""Draws data sets in the shape of strangers' files, with a seed, and what is right for each column.

Shapes: G structures, N atoms of a structure.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.data import covalent_radii
from variant_columns import (
    CRYSTAL,
    MOLECULAR,
    PREFIXES,
    add_charge,
    add_foreign,
    add_gaps,
    add_mean,
    add_name,
    add_nuisances,
    add_quantity,
    add_serial,
    add_split,
    add_structural,
    add_weight,
    make_class,
    sort_rows,
    state_in_metadata,
    total_energy,
)
from variant_draft import (
    ANGSTROM,
    ASIDE,
    FREE_ATOMS,
    HEAD,
    PER_EV,
    SMILES,
    Array,
    Draft,
    Random,
    Truth,
    aside,
    make_molecule,
)


def use_molecules(draft: Draft, pool: Sequence[str] = SMILES) -> None:
    """Draw molecules of a pool."""
    draft.smiles = draft.draw.sample(pool, draft.draw.randint(16, 26))
    draft.structures = [make_molecule(text) for text in draft.smiles]


def draw_molecules(draft: Draft) -> None:
    """Draw measured or calculated numbers and classes of molecules."""
    use_molecules(draft)
    prefix = draft.draw.choice(PREFIXES)
    if draft.chance(0.12):
        make_class(draft, prefix)
    else:
        for quantity in draft.draw.sample(MOLECULAR, draft.draw.randint(1, 4)):
            add_quantity(draft, quantity, prefix)
        if draft.chance(0.1):
            make_class(draft, prefix)
        if draft.chance(0.2):
            add_foreign(draft, prefix)
    add_nuisances(draft)


def draw_quantum(draft: Draft) -> None:
    """Draw total energies, levels and more, as in QM9."""
    use_molecules(draft)
    draw = draft.draw
    unit = draw.choice(["eV", "Hartree", "kcal/mol", "Hartree"])
    stated = draft.chance(0.5)
    prefix = draw.choice(PREFIXES)

    def add(name: str, values: Array, truth: Truth) -> str:
        truth = replace(truth, unit=unit, stated=stated)
        spelt = draft.spell(prefix + name, unit if stated else None)
        return draft.add(spelt, (values * PER_EV[unit]).tolist(), truth)

    total = total_energy(draft)
    add(draw.choice(["u0", "U0", "energy", "total_energy", "E_tot"]), total,
        Truth(energy=("total",), evident=unit != "eV"))  # fmt: skip
    if draft.chance(0.12):
        add_mean(draft, draft.columns[-1])
    homo = draft.noise(0.5, -6.5)
    lumo = draft.noise(0.8, 0.9)
    for name, values in {"homo": homo, "lumo": lumo, "gap": lumo - homo}.items():
        if draft.chance(0.7):
            add(name, values, Truth(evident=unit != "eV" and name != "lumo"))
    if draft.chance(0.4):
        warm = total + 0.026 * draft.sizes + draft.noise(0.002)
        second = aside("prediction", "repeat", energy=("total",), evident=unit != "eV")
        add(draw.choice(["u298", "h298", "U298"]), warm, second)
    for quantity in draw.sample(MOLECULAR[7:8] + MOLECULAR[10:], draw.randint(0, 2)):
        add_quantity(draft, quantity, prefix)
    add_nuisances(draft, 0, 4)


SALTS = ("NaCl", "MgO", "LiF", "KBr", "CaO", "NaF", "KCl", "LiCl", "KF", "NaBr")


def draw_crystals(draft: Draft) -> None:
    """Draw properties of crystals."""
    draw = draft.draw
    for number in range(draw.randint(16, 26)):
        atoms = bulk(
            SALTS[number % 10], draw.choice(["rocksalt", "zincblende"]), a=4.0 + draw.random()
        )
        atoms = atoms.repeat((1, 1, draw.choice([1, 1, 2])))
        atoms.rattle(0.05, seed=draw.randrange(2**31))
        draft.structures.append(atoms)
    prefix = draw.choice(PREFIXES)
    for quantity in draw.sample(CRYSTAL, draw.randint(1, 4)):
        add_quantity(draft, quantity, prefix)
    if draft.chance(0.1):
        make_class(draft, prefix)
    if draft.chance(0.2):
        add_foreign(draft, prefix)
    add_nuisances(draft)


class Results(NamedTuple):
    """Energies and forces of structures."""

    energies: Array
    """eV, [G]."""
    forces: list[Array]
    """eV/angstrom, [N, 3] of each structure."""
    stresses: list[Array] | None = None
    """eV/angstrom^3, [3, 3] of each structure."""


def bind_pairs(atoms: Atoms) -> tuple[float, Array]:
    """Return the energy of free atoms and of a Morse potential for each pair, and its forces."""
    separation = atoms.positions[:, None] - atoms.positions[None]
    distance = np.linalg.norm(separation, axis=2) + 1e9 * np.eye(len(atoms))
    radii = covalent_radii[atoms.numbers]
    decay = np.exp(-1.8 * (distance - radii[:, None] - radii[None]))
    free = sum(FREE_ATOMS[symbol] for symbol in atoms.symbols) / PER_EV["Hartree"]
    slope = 2.0 * 1.8 * 2.0 * (decay - decay**2)
    forces = -(slope / distance)[:, :, None] * separation
    return free + float((decay**2 - 2.0 * decay).sum()), forces.sum(axis=1)


def use_metals(draft: Draft) -> Results:
    """Draw strained and displaced metals, with energies of effective medium theory."""
    draw = draft.draw
    energies = []
    forces = []
    stresses = []
    for _ in range(draw.randint(14, 22)):
        size = draw.choice([(1, 1, 1), (1, 1, 1), (2, 1, 1)])
        atoms = (
            bulk(draw.choice(["Cu", "Al", "Au"]), "fcc", a=draw.uniform(3.9, 4.2), cubic=True)
            * size
        )
        if draft.chance(0.4):
            atoms.symbols[0] = "Ni"
        atoms.rattle(0.1, seed=draw.randrange(2**31))
        draft.structures.append(atoms.copy())
        atoms.calc = EMT()
        energies.append(float(atoms.get_potential_energy()))
        forces.append(np.array(atoms.get_forces()))
        stresses.append(np.array(atoms.get_stress(voigt=False)))
    return Results(np.array(energies), forces, stresses)


def use_frames(draft: Draft, smiles: Sequence[str] = ("CCO",), count: int = 18) -> Results:
    """Draw displaced copies of molecules, with energies of free atoms and pairs."""
    results = []
    for number in range(count):
        atoms = make_molecule(smiles[number * len(smiles) // count])
        atoms.rattle(0.06, seed=draft.draw.randrange(2**31))
        draft.structures.append(atoms)
        results.append(bind_pairs(atoms))
    return Results(np.array([energy for energy, _ in results]), [forces for _, forces in results])


REFERENCES = ("REF_", "dft_", "DFT_", "qm_", "vasp_", "pbe_", "target_", "ref_", "", "")
MODELS = ("MACE_", "mace_", "gap_", "chgnet_", "pred_", "ml_", "emt_", "schnet_")


class Calculator(NamedTuple):
    """How the results of a calculator are named and written."""

    prefix: str
    length: str
    """Unit of length of its forces."""
    unit: str
    """Unit of its energies."""
    stated: bool
    per_atom: bool = False
    second: bool = False
    """Whether another one's results are predicted."""
    suffix: bool = False
    """Whether its name stands behind that of the quantity."""

    def name(self, stem: str) -> str:
        """Return the name of a quantity of this calculator."""
        behind = f"{stem}_{self.prefix.strip('_')}"
        return behind if self.suffix and self.prefix else f"{self.prefix}{stem}"


def name_results(draft: Draft, calculator: Calculator) -> tuple[str, str]:
    """Return the names of energies and forces."""
    energy = f"{calculator.unit}/atom" if calculator.per_atom else calculator.unit
    stem = "energy_per_atom" if calculator.per_atom and not calculator.stated else "energy"
    force = f"{calculator.unit}/{calculator.length}"
    names = (calculator.name(stem), calculator.name("forces"))
    if not calculator.stated:
        return names
    return names[0] + draft.spell_unit(energy), names[1] + draft.spell_unit(force)


def add_results(draft: Draft, results: Results, calculator: Calculator) -> None:
    """Add energies and forces of a calculator.

    Args:
        draft: the data set.
        results: energies and forces.
        calculator: how they are named and written.
    """
    factor = PER_EV[calculator.unit]
    energy_name, forces_name = name_results(draft, calculator)
    energies = results.energies * factor
    kind = "per_atom" if calculator.per_atom else "total"
    unit = f"{calculator.unit}/atom" if calculator.per_atom else calculator.unit
    if calculator.per_atom:
        energies = energies / draft.sizes
    roles = ASIDE if calculator.second else HEAD
    kinds = ("prediction", "repeat") if calculator.second else ()
    truth = Truth(
        roles, kinds, unit=unit, stated=calculator.stated, energy=(kind,), leak=calculator.second
    )
    draft.add(energy_name, energies.tolist(), truth)
    of_forces = replace(
        truth,
        level="node",
        shape="vector",
        unit=f"{calculator.unit}/{calculator.length}",
        energy=(None,),
        derived_from=energy_name,
    )
    scale = factor / ANGSTROM[calculator.length]
    draft.add(forces_name, [forces * scale for forces in results.forces], of_forces)
    if results.stresses and not calculator.second and calculator.unit == "eV" and draft.chance(0.4):
        add_stress(draft, results.stresses, calculator, energy_name)


def add_stress(
    draft: Draft, stresses: Sequence[Array], calculator: Calculator, energy: str
) -> None:
    """Add a stress, or the virial.

    Args:
        draft: the data set.
        stresses: eV/angstrom^3, [3, 3] of each structure.
        calculator: how they are named.
        energy: column of the energy.
    """
    of_energy = Truth((*HEAD, *ASIDE), shape="tensor", derived_from=energy)
    if draft.chance(0.5):
        truth = replace(of_energy, unit="eV/angstrom^3")
        draft.add(calculator.name("stress"), list(stresses), truth)
    else:
        pairs = zip(draft.structures, stresses, strict=True)
        values = [-atoms.cell.volume * stress for atoms, stress in pairs]
        draft.add(calculator.name("virial"), values, replace(of_energy, unit="eV(virial)"))


def disturb(draft: Draft, results: Results) -> Results:
    """Return what another model predicts for some results."""
    energies = results.energies + draft.noise(0.02) * draft.sizes
    forces = [f + draft.rng.normal(0.0, 0.1, f.shape) for f in results.forces]
    return Results(energies, forces)


def draw_calculator(draft: Draft) -> Calculator:
    """Draw how the results that are predicted are named and written."""
    draw = draft.draw
    unit, length = draw.choice(
        [("eV", "angstrom")] * 3 + [("kcal/mol", "angstrom"), ("Hartree", "bohr")]
    )
    prefix = "" if draft.container == "npz" else draw.choice(REFERENCES)
    per_atom = unit == "eV" and draft.chance(0.15)
    stated = draft.chance(0.4)
    suffix = draft.chance(0.2)
    return Calculator(prefix, length, unit, stated=stated, per_atom=per_atom, suffix=suffix)


def draw_potential(draft: Draft) -> None:
    """Draw energies and forces, perhaps of two calculators, and what stands beside them."""
    draw = draft.draw
    frames = draft.container == "npz" or (draft.container != "json" and draft.chance(0.3))
    results = use_frames(draft) if frames else use_metals(draft)
    first = draw_calculator(draft)
    add_results(draft, results, first)
    if first.prefix and draft.chance(0.4):
        second = first._replace(prefix=draw.choice(MODELS), second=True)
        add_results(draft, disturb(draft, results), second)
        if draft.chance(0.2):  # the forces of a model without its energy
            del draft.columns[-2]
            draft.columns[-1].truth = replace(draft.columns[-1].truth, derived_from=None)
    if draft.container == "npz" and not first.stated and not first.per_atom and draft.chance(0.5):
        draft.metadata = {"e_unit": first.unit, "r_unit": first.length}
        for column in draft.columns[:2]:
            column.truth = replace(column.truth, stated=True)
    if draft.chance(0.1):
        levels = results.energies * 1.1 + draft.noise(0.3)
        either = Truth((*HEAD, *ASIDE), energy=(None, "total", "per_atom"), unit="eV")
        draft.add("hse06_energy", levels.tolist(), either)
    elif not first.per_atom and not first.stated and draft.chance(0.12):
        add_mean(draft, draft.columns[0])
    if draft.chance(0.15) and draft.container != "json":
        charges = [draft.rng.normal(0.0, 0.2, len(atoms)) for atoms in draft.structures]
        either = Truth((*HEAD, *ASIDE), level="node", unit="e")
        draft.add(draft.spell(draw.choice(["hirshfeld", "bader_charges"])), charges, either)
    if draft.chance(0.2):
        name, words = draw.choice(
            [("buildcell_type", "ab"), ("config_type", "ab"), ("species", "xy")]
        )
        values = [words[n % 2] for n in range(draft.count)]
        draft.add(draft.spell(name), values, aside("record", "identity"))
    if draft.chance(0.2):
        name = draw.choice(["num_dump_cycles", "step", "time", "temperature", "n_scf"])
        values = [draw.choice([100, 200, 300]) for _ in range(draft.count)]
        draft.add(draft.spell(name), values, aside("record", "serial", "structure", "identity"))
    if draft.container != "json" and draft.chance(0.3):
        add_label(draft)
    extra = (add_serial, add_structural, add_weight, add_split, add_name, add_charge)
    for kind in draw.sample(extra, draw.randint(0, 2)):
        kind(draft)


def add_label(draft: Draft) -> None:
    """Add whole numbers of atoms that label them."""
    name = draft.draw.choice(
        ["resid", "mol_id", "molecule_id", "atom_type", "layer", "chain", "residue"]
    )
    labels = [np.arange(len(atoms)) // 3 + 1 for atoms in draft.structures]
    truth = aside("label", "constant", "structure", level="node")
    draft.add(draft.spell(name), labels, truth)


def draw_runs(draft: Draft) -> None:
    """Draw frames of some runs, with the run's name in each frame or without one."""
    draw = draft.draw
    pool = draw.sample(SMILES, draw.choice([3, 4]))
    runs = [pool[0], pool[0], *pool[1:], *pool[1:]]
    key = draw.choice(
        ["jid", "run", "traj", "material_id", "system", "trajectory_id", "calculation"]
    )
    length = draw.choice([4, 5])
    names = []
    energies = []
    forces = []
    for number, smiles in enumerate(runs):
        atoms = make_molecule(smiles)
        atoms.rotate(draw.uniform(0, 360), draft.rng.normal(size=3), center="COP")
        atoms.rattle(0.08, seed=draw.randrange(2**31))
        step = draft.rng.normal(0.0, 0.01, atoms.positions.shape)
        for _ in range(length):
            atoms = atoms.copy()
            atoms.positions += step
            energy, force = bind_pairs(atoms)
            draft.structures.append(atoms)
            names.append(f"run-{number}" if key != "calculation" else number)
            energies.append(energy)
            forces.append(force)
    if draft.chance(0.6):
        add_results(draft, Results(np.array(energies), forces), draw_calculator(draft))
    else:
        gaps = np.repeat(draft.rng.normal(6.0, 1.0, len(runs)), length) + draft.noise(0.02)
        draft.add(draft.spell("gap"), gaps.tolist(), Truth(unit="eV"))
    name = draft.spell(key)
    if draft.chance(0.7):
        draft.add(name, names, aside("group", "identity", "record", leak=True))
        draft.groups = (name, "trajectory")
    else:
        draft.groups = ("trajectory",)


def draw_spectra(draft: Draft) -> None:
    """Draw a spectrum in numbered columns."""
    draw = draft.draw
    use_molecules(draft)
    width = draw.choice([10, 16, 40])
    start, step = draw.choice([(400, 2), (0, 1), (1, 1), (200, 10), (-5, 1), (1000, 25)])
    forms = ["{}", "abs_{}", "dos_{}", "I_{}"] + (
        [] if draft.plain else ["{} nm", "{}cm-1", "{} cm^-1"]
    )
    form = (
        "dos_{}" if draft.plain and start < 0 else draw.choice(forms[1:] if draft.plain else forms)
    )
    places = np.arange(width)
    middle = draft.rng.uniform(0.2, 0.8, draft.count) * width
    peaks = np.exp(-(((places[None] - middle[:, None]) / (0.2 * width)) ** 2))
    peaks += draft.rng.normal(0.0, 0.002, peaks.shape)
    truth = Truth(shape="spectrum")
    if draft.chance(0.25):
        draft.add(
            draw.choice(["spectrum", "dos", "ir"]),
            [[*row.round(4).tolist()] for row in peaks],
            truth,
        )
        places = places[:0]
    for place in places:
        draft.add(form.format(start + step * int(place)), peaks[:, place].round(4).tolist(), truth)
    if draft.chance(0.3):
        add_quantity(draft, draw.choice(MOLECULAR))
    extra = (add_serial, add_structural, add_name, add_split, add_weight)
    for kind in draw.sample(extra, draw.randint(0, 2)):
        kind(draft)


def draw_atoms(draft: Draft) -> None:
    """Draw numbers of atoms that are predicted, and labels of atoms."""
    draw = draft.draw
    use_molecules(draft)
    if draft.chance(0.5):
        values = []
        for atoms in draft.structures:
            charges = draft.rng.normal(0.0, 0.2, len(atoms))
            values.append(charges - charges.mean())
        name = draw.choice(
            ["charges", "mulliken", "hirshfeld_charges", "partial_charge", "q_bader"]
        )
        truth = Truth(level="node", unit="e")
    else:
        values = [draft.rng.normal(90.0, 40.0, len(atoms)) for atoms in draft.structures]
        name = draw.choice(["shielding", "nmr_shift", "cs_iso", "chemical_shift"])
        truth = Truth(level="node", unit="ppm")
    draft.add(draft.spell(name), values, truth)
    if draft.chance(0.7):
        add_label(draft)
    extra = (add_serial, add_structural, add_name, add_split, add_weight, add_charge)
    for kind in draw.sample(extra, draw.randint(0, 2)):
        kind(draft)


class World(NamedTuple):
    """A kind of data set."""

    draw: Callable[[Draft], None]
    share: float
    """How often it is drawn."""
    containers: tuple[str, ...]
    """Containers, as often as they are drawn."""


WORLDS = {
    "molecules": World(draw_molecules, 80, ("csv", "csv", "csv", "sdf", "extxyz")),
    "quantum": World(draw_quantum, 45, ("csv", "sdf", "extxyz", "db", "npz")),
    "crystals": World(draw_crystals, 65, ("json", "extxyz", "db", "csv_of_cif")),
    "potential": World(draw_potential, 60, ("extxyz", "extxyz", "db", "json", "npz")),
    "runs": World(draw_runs, 20, ("extxyz", "db")),
    "spectra": World(draw_spectra, 15, ("csv", "csv", "sdf", "db")),
    "atoms": World(draw_atoms, 15, ("extxyz", "db")),
}


def draw_variant(seed: int, number: int) -> Draft:
    """Draw a data set; seed and number determine it."""
    draw = Random(f"{seed}-{number}")
    world = draw.choices(list(WORLDS), [w.share for w in WORLDS.values()])[0]
    container = draw.choice(WORLDS[world].containers)
    draft = Draft(draw, np.random.default_rng(draw.randrange(2**31)), world, container)
    WORLDS[world].draw(draft)
    if container == "db" and draft.chance(0.3):
        state_in_metadata(draft)
    if world in ("molecules", "crystals", "quantum") and draft.chance(0.1):
        sort_rows(draft)
    add_gaps(draft)
    draw.shuffle(draft.columns)
    return draft
