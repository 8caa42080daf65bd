"""Make xtb_spectra.extxyz.gz: densities of states of 600 small organic molecules.

Molecules come from small_organics.extxyz.gz. Needs ``pip install "hydragnn-hpo[xtb]"``; run it in
this folder, for a minute or two. Each orbital energy of GFN2-xTB is a Gaussian of 0.5 eV, and their
sum is divided by the number of orbitals, so that the integral over all energies is 1.

Source: Bannwarth et al. (2019), J. Chem. Theory Comput. 15, 1652 (GFN2-xTB).
"""

import numpy as np
from ase import Atoms
from ase.units import Bohr, Hartree
from make_xtb_moments import label_molecules, to_text
from tblite.interface import Calculator

WIDTH = 0.5
"""Standard deviation of the Gaussians in eV."""

ENERGIES = np.linspace(-20.0, 4.0, 49)
"""Energies of the values of a spectrum, in eV."""


def compute_density(atoms: Atoms) -> np.ndarray:
    """Return the density of states of a molecule at ``ENERGIES``, in 1/eV."""
    solver = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / Bohr)
    solver.set("verbosity", 0)
    orbitals = solver.singlepoint().get("orbital-energies").ravel() * Hartree
    away = (ENERGIES[:, None] - orbitals) / WIDTH
    return np.exp(-0.5 * away**2).mean(axis=1) / (WIDTH * np.sqrt(2.0 * np.pi))


def frame(atoms: Atoms) -> str:
    """Return a labelled molecule as extended XYZ."""
    dos = " ".join(f"{value:.5f}" for value in compute_density(atoms))
    head = 'Properties=species:S:1:pos:R:3 pbc="F F F"'
    lines = [f'{head} smiles="{atoms.info["smiles"]}" dos="{dos}"']
    lines += [f"{atom.symbol} {to_text(atom.position)}" for atom in atoms]
    return "\n".join([str(len(atoms)), *lines]) + "\n"


if __name__ == "__main__":
    label_molecules(frame, "xtb_spectra.extxyz.gz")
