"""Relax a molecule with an ensemble's energy and forces, and print energy +- std on the way.

    python workflows/relax_with_ensemble.py runs/quickstart/ensemble.zip workflows/molecules.xyz

The ensemble needs an energy head: a target whose card says ``energy = "per_atom"`` or
``energy = "total"``. It is only as good as its data: forces are learnt from energies alone, so
far from the training structures they mean little, and the spread grows: ``--limit`` stops there.
"""

import argparse
import sys
from pathlib import Path

import ase.io
from ase.optimize import BFGS

from hydragnn_hpo.ensemble import EnsembleCalculator, SpreadExceeded, StopAtSpread


def main() -> None:
    """Read a structure, relax it, write it."""
    parser = argparse.ArgumentParser(description="Relax a molecule with an ensemble.")
    parser.add_argument("ensemble", type=Path, help="the ensemble.zip of a run")
    parser.add_argument("structure", help="any file that ASE reads; FILE@2 is its third structure")
    parser.add_argument("--fmax", type=float, default=0.05, help="largest force left, eV/angstrom")
    parser.add_argument("--steps", type=int, default=50, help="most steps")
    parser.add_argument("--out", type=Path, help="relaxed structure to write, e.g. relaxed.xyz")
    parser.add_argument("--limit", type=float, default=1e3, help="largest spread, eV/angstrom")
    given = parser.parse_args()

    atoms = ase.io.read(given.structure)
    atoms.calc = EnsembleCalculator(given.ensemble)

    def tell() -> None:
        results = atoms.calc.results
        largest = (results["forces"] ** 2).sum(axis=1).max() ** 0.5
        print(
            f"step {optimizer.nsteps:3}: {results['energy']:10.4f} +- {results['energy_std']:.4f} "
            f"eV, largest force {largest:.3f} eV/angstrom, spread {results['forces_max_std']:.3f}"
        )

    optimizer = BFGS(atoms, logfile=None, maxstep=0.1)
    optimizer.attach(tell)
    optimizer.attach(StopAtSpread(atoms, limit=given.limit, write="label.extxyz"))
    try:
        done = optimizer.run(fmax=given.fmax, steps=given.steps)
    except SpreadExceeded as reason:
        sys.exit(str(reason))
    print(f"{atoms.symbols}: {'relaxed' if done else f'not relaxed after {given.steps} steps'}")
    if given.out:
        atoms.calc = None
        ase.io.write(given.out, atoms)


if __name__ == "__main__":
    main()
