"""Structures with properties, and what ``init`` proposes to make of these."""

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn_hpo.data.properties import collect_properties
from hydragnn_hpo.inspection.targets import propose_targets

PER_ATOM = {29: -3.5, 79: -3.0}


def metals(count=30):
    """Copper and gold in cells of one to eight atoms, with the energy of their atoms."""
    random = np.random.default_rng(3)
    results = []
    for number in range(count):
        atoms = bulk("Cu", cubic=number % 2 == 0) * (1 + number % 2, 1, 1)
        atoms.numbers[0] = 79 if number % 3 else 29
        energy = sum(PER_ATOM[z] for z in atoms.numbers) + random.normal(0, 0.01)
        forces = random.normal(0, 1, (len(atoms), 3))
        atoms.calc = SinglePointCalculator(
            atoms, energy=energy, forces=forces, stress=random.normal(0, 0.1, 6)
        )
        results.append(atoms)
    return results


def look_at(structures, reader="extxyz", units=None, **more):
    result = collect_properties(structures)
    made = propose_targets(structures, result, reader=reader, units=units or {}, **more)
    return {target.key: target for target in made.targets}, made


def with_info(values, name="y", structures=None):
    structures = structures or [a.copy() for a in metals(len(values))]
    for atoms, value in zip(structures, values, strict=True):
        atoms.info[name] = value
    return structures


HARTREE = {1: -0.5, 6: -37.845, 7: -54.589, 8: -75.067}


def molecules():
    """Twenty molecules, and their all-electron energies in Hartree."""
    results = [molecule(name) for name in ("CH4", "H2O", "C2H6", "NH3", "CH3OH")] * 4
    return results, [
        sum(HARTREE[z] for z in atoms.numbers) - 0.15 * (len(atoms) - 1) - 1e-4 * number
        for number, atoms in enumerate(results)
    ]


LIGHT = {1: -0.6, 6: -38.06, 7: -54.7, 8: -75.15, 9: -99.8}
"""Energies of atoms in molecules in Hartree, all-electron."""

METAL = {30: -227.0, 46: -127.9, 78: -119.3}
"""Energies of zinc, palladium and platinum in Hartree whose cores are pseudopotentials."""


def complexes(count=60):
    """Metal complexes of one metal each, and their energies in Hartree."""
    random = np.random.default_rng(7)
    results, energies = [], []
    for number in range(count):
        metal = sorted(METAL)[number % 3]
        light = random.choice(sorted(LIGHT), random.integers(8, 30), p=[0.4, 0.3, 0.1, 0.1, 0.1])
        positions = 2.0 * np.indices((4, 4, 4)).reshape(3, -1).T[: len(light) + 1]
        results.append(Atoms([metal, *light], positions))
        energies.append(METAL[metal] + sum(LIGHT[z] for z in light) + random.normal(0, 0.05))
    return results, np.array(energies)
