"""Energy is conserved as well as velocity Verlet can: the error falls with the step squared."""

from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet

from hydragnn_hpo.ensemble import Ensemble, EnsembleCalculator


def total_energies(
    atoms: Atoms, calculator: EnsembleCalculator, steps: int, step: float
) -> np.ndarray:
    """Move a copy; give the total energy after each step in eV, [steps + 1]."""
    moving, found = atoms.copy(), list[float]()
    moving.calc = calculator
    dynamics = VelocityVerlet(moving, timestep=step * units.fs)
    dynamics.attach(lambda: found.append(moving.get_total_energy()))
    dynamics.run(steps)
    return np.array(found)


def test_halving_the_step_quarters_the_error_of_the_energy(built_zip: Path) -> None:
    """Source: Hairer, Lubich, Wanner (2003), Acta Numerica 12, 399: second order, no drift."""
    atoms = molecule("CH3OH")
    rng = np.random.default_rng(0)
    atoms.set_velocities(rng.normal(scale=0.02, size=(len(atoms), 3)))
    whole = Ensemble.load(built_zip, precision="fp64")
    calculator = EnsembleCalculator(Ensemble(whole.manifest, whole.members[:2]))

    coarse = total_energies(atoms, calculator, 40, 1.0)
    fine = total_energies(atoms, calculator, 80, 0.5)

    errors = [np.abs(each - each[0]).max() for each in (coarse, fine)]
    assert errors[1] > 1e-7
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert calculator.neighbors.searches < 60
