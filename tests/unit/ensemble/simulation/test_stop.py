"""Simulations that end where the members disagree."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.lj import LennardJones
from ase.md.verlet import VelocityVerlet

from hydragnn_hpo.ensemble import Ensemble, EnsembleCalculator, SpreadExceeded, StopAtSpread
from hydragnn_hpo.errors import ConfigError


@pytest.fixture
def calculator(built_zip: Path) -> EnsembleCalculator:
    return EnsembleCalculator(Ensemble.load(built_zip, precision="fp64"))


def pulled(by: float) -> Atoms:
    """Methanol whose hydroxyl is pulled off."""
    atoms = molecule("CH3OH")
    away = [1, 3]
    axis = atoms.positions[1] - atoms.positions[0]
    atoms.positions[away] += by * axis / np.linalg.norm(axis)
    return atoms


@pytest.mark.parametrize(
    ("of", "key"), [("energy", "energy_std_epistemic"), ("forces", "forces_max_std")]
)
def test_a_structure_that_is_pulled_apart_stops(
    calculator: EnsembleCalculator, tmp_path: Path, of: str, key: str
) -> None:
    lengths = np.arange(0.0, 2.0, 0.1)
    spreads = [calculator.get_property(key, pulled(by)) for by in lengths]
    limit = 0.5 * (spreads[0] + max(spreads)) if max(spreads) > spreads[0] else 0.9 * spreads[0]
    expected = next(k for k, spread in enumerate(spreads) if spread > limit)
    atoms = pulled(0.0)
    atoms.calc = calculator
    watch = StopAtSpread(atoms, limit=limit, of=of, write=tmp_path / "label.extxyz")  # type: ignore[arg-type]

    for by in lengths[:expected]:
        atoms.positions = pulled(by).positions
        watch()
    atoms.positions = pulled(lengths[expected]).positions
    with pytest.raises(SpreadExceeded, match=f"at look {expected + 1}: .* apart, more than"):
        watch()

    kept = ase.io.read(tmp_path / "label.extxyz")
    assert isinstance(kept, Atoms)
    np.testing.assert_allclose(kept.positions, pulled(lengths[expected]).positions, atol=1e-7)
    assert kept.calc is None
    assert kept.info["spread"] == pytest.approx(spreads[expected])


def test_dynamics_end_with_the_structure_in_the_file(
    calculator: EnsembleCalculator, tmp_path: Path
) -> None:
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    path = tmp_path / "label.extxyz"
    for frames in (1, 2):
        dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
        dynamics.attach(StopAtSpread(atoms, limit=1e-12, write=path))
        with pytest.raises(SpreadExceeded, match=r"label\.extxyz: label it"):
            dynamics.run(3)
        assert len(ase.io.read(path, ":")) == frames


def test_dynamics_below_the_limit_go_on(calculator: EnsembleCalculator, tmp_path: Path) -> None:
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    watch = StopAtSpread(atoms, limit=1e6, write=tmp_path / "label.extxyz")
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    dynamics.attach(watch)
    dynamics.run(3)
    assert watch.looks == 4
    assert not list(tmp_path.iterdir())


def test_a_spread_that_is_no_number_stops(calculator: EnsembleCalculator) -> None:
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    watch = StopAtSpread(atoms, limit=1.0)
    atoms.get_forces()
    calculator.results["forces_max_std"] = float("nan")
    with pytest.raises(SpreadExceeded, match="nan eV/angstrom apart"):
        watch()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_a_positive_number(calculator: EnsembleCalculator, limit: float) -> None:
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    with pytest.raises(ConfigError, match="give a number above 0"):
        StopAtSpread(atoms, limit=limit)


def test_what_has_no_spread_cannot_be_watched() -> None:
    atoms = molecule("CH3OH")
    with pytest.raises(ConfigError, match="no EnsembleCalculator"):
        StopAtSpread(atoms, limit=1.0)
    atoms.calc = LennardJones()
    with pytest.raises(ConfigError, match="no EnsembleCalculator"):
        StopAtSpread(atoms, limit=1.0)


def test_only_forces_and_energy_are_watched(calculator: EnsembleCalculator) -> None:
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    with pytest.raises(ConfigError, match="'charge' cannot be watched"):
        StopAtSpread(atoms, limit=1.0, of="charge")  # type: ignore[arg-type]
