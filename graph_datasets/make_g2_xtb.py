"""Make g2_xtb.extxyz.gz: the G2 molecules and displaced copies, labelled by GFN2-xTB.

Needs ``pip install "hydragnn-hpo[xtb]"``; run it in this folder (20 s). Unpaired electrons:
the sum of ASE's initial magnetic moments, for free atoms too. Source: Bannwarth et al. (2019),
J. Chem. Theory Comput. 15, 1652; molecules: Curtiss et al. (1997), J. Chem. Phys. 106, 1063.
"""

import gzip
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.collections import g2
from ase.units import Bohr, Hartree
from tblite.interface import Calculator

COPIES, STEP, SEED = 8, 0.07, 20261121  # displaced copies; angstrom per component


def solve(atoms: Atoms) -> tuple[dict, int]:
    """Give what GFN2-xTB says about a structure, and its number of unpaired electrons."""
    unpaired = round(abs(atoms.get_initial_magnetic_moments().sum()))
    solver = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / Bohr, uhf=unpaired)
    solver.set("verbosity", 0)
    return solver.singlepoint().dict(), unpaired


def label(atoms: Atoms) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Give atomization energy per atom, gap (eV), charges (e) and forces (eV/angstrom)."""
    found, unpaired = solve(atoms)
    free = sum(solve(g2[symbol])[0]["energy"] for symbol in atoms.get_chemical_symbols())
    majority = (round(found["orbital-occupations"].sum()) + unpaired) // 2
    highest, lowest = np.sort(found["orbital-energies"])[majority - 1 : majority + 1] * Hartree
    energy = (found["energy"] - free) * Hartree / len(atoms)
    return energy, lowest - highest, found["charges"], -found["gradient"] * Hartree / Bohr


def frame(name: str, copy: int, atoms: Atoms) -> str:
    """Give one labelled structure as extended XYZ; the labels belong to rounded positions."""
    energy, gap, charges, forces = label(atoms)
    head = "Properties=species:S:1:pos:R:3:partial_charge:R:1:forces:R:3"
    head += f" molecule={name} copy={copy} atomization_energy_per_atom={energy:.6f}"
    lines = [str(len(atoms)), f'{head} homo_lumo_gap={gap:.5f} pbc="F F F"']
    for atom, charge, force in zip(atoms, charges, forces, strict=True):
        numbers = np.round([*atom.position, charge, *force], 5) + 0.0  # no -0.00000
        lines.append(" ".join([atom.symbol, *(f"{number:.5f}" for number in numbers)]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    random = np.random.default_rng(SEED)
    frames = []
    for name in [name for name in g2.names if len(g2[name]) > 1]:
        for copy in range(COPIES + 1):
            atoms = g2[name]
            atoms.positions += (copy > 0) * random.normal(scale=STEP, size=(len(atoms), 3))
            atoms.positions = atoms.positions.round(5)
            try:
                frames.append(frame(name, copy, atoms))
            except RuntimeError as error:
                print(f"left out: {name}, copy {copy}: {error}")
    Path("g2_xtb.extxyz.gz").write_bytes(gzip.compress("".join(frames).encode(), mtime=0))
    print(f"{len(frames)} structures; the card needs what sha256sum says now")
