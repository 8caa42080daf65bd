"""Run molecular dynamics with an ensemble, and stop where its members disagree.

    python workflows/md_with_ensemble.py runs/acetylacetone/ensemble.zip molecule.xyz --limit 0.5

A run that stops leaves the structure in ``--label``: compute it by the method of the training data,
add it to them, train again. The members agree where they have learned, and part elsewhere.
"""

import argparse
import sys
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.md.langevin import Langevin

from hydragnn_hpo.ensemble import EnsembleCalculator, SpreadExceeded, StopAtSpread


def main() -> None:
    """Read a structure, let it move, stop in time."""
    parser = argparse.ArgumentParser(description="Molecular dynamics with an ensemble.")
    parser.add_argument("ensemble", type=Path, help="the ensemble.zip of a run")
    parser.add_argument("structure", help="any file that ASE reads; FILE@2 is its third structure")
    parser.add_argument("--kelvin", type=float, default=300.0, help="temperature of the bath")
    parser.add_argument("--steps", type=int, default=1000, help="steps of 0.5 fs")
    parser.add_argument("--limit", type=float, default=0.5, help="largest spread, eV/angstrom")
    parser.add_argument("--label", type=Path, default=Path("label.extxyz"), help="where it stopped")
    given = parser.parse_args()

    atoms = ase.io.read(given.structure)
    atoms.calc = EnsembleCalculator(given.ensemble)
    rng = np.random.default_rng(0)
    widths = np.sqrt(atoms.get_masses() * units.kB * given.kelvin)
    atoms.set_momenta(rng.normal(size=(len(atoms), 3)) * widths[:, None])
    bath = {"temperature_K": given.kelvin, "friction": 0.01 / units.fs, "fixcm": False}
    dynamics = Langevin(atoms, 0.5 * units.fs, rng=rng, **bath)

    def tell() -> None:
        spread = atoms.calc.results["forces_max_std"]
        print(f"step {dynamics.nsteps:5}: {atoms.get_temperature():4.0f} K, forces +- {spread:.3f}")

    dynamics.attach(tell, interval=100)
    dynamics.attach(StopAtSpread(atoms, limit=given.limit, write=given.label))
    try:
        dynamics.run(given.steps)
    except SpreadExceeded as reason:
        print(reason)
        sys.exit(1)


if __name__ == "__main__":
    main()
