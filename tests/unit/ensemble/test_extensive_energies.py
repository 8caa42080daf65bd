"""Total energies of an ensemble: n cells have n times the energy of one, two apart that of both."""

from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk, molecule
from typer.testing import CliRunner
from unit.ensemble.test_torch_export import inputs

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.ensemble.artefact import Manifest, read_artefact
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.torch_export import EnsembleProgram
from hydragnn_hpo.errors import ConfigError


def structures():
    """Return one, two and eight cells, two molecules, and both of them 30 angstrom apart."""
    cell = bulk("C", "diamond", a=3.6)
    cell.numbers[1] = 7
    cell.rattle(0.05, seed=1)
    first = molecule("CH3OH")
    second = molecule("H2O")
    shifted = second.copy()
    shifted.positions += [30.0, 0.0, 0.0]
    return [cell, cell * (2, 1, 1), cell * (2, 2, 2), first, second, first + shifted]


def by_calculator(ensemble):
    calculator = EnsembleCalculator(ensemble)
    energies = []
    for atoms in structures():
        atoms.calc = calculator
        energies.append(atoms.get_potential_energy())
    return energies


def by_program(ensemble):
    program = EnsembleProgram(ensemble.members, "energy", ensemble.manifest.heads["energy"])
    return program(*inputs(structures(), ensemble.cutoff))["mean"].flatten().tolist()


@pytest.mark.parametrize(
    "predict",
    [
        lambda ensemble: ensemble.predict(structures()).heads["energy"].mean[:, 0].tolist(),
        by_calculator,
        by_program,
    ],
    ids=["predict", "calculator", "exported"],
)
def test_they_grow_with_the_structure(total_zip, predict):
    one, two, eight, first, second, both = predict(Ensemble.load(total_zip))
    assert [two, eight] == pytest.approx([2 * one, 8 * one], rel=1e-6)
    assert both == pytest.approx(first + second, rel=1e-6)


@pytest.mark.parametrize(
    "predict",
    [
        lambda ensemble: ensemble.predict(structures()).heads["energy"].mean[:, 0].tolist(),
        by_calculator,
    ],
    ids=["predict", "calculator"],
)
def test_they_grow_with_a_regression_as_a_member_too(joined_total_zip, predict):
    ensemble = Ensemble.load(joined_total_zip, precision="fp64")
    assert ensemble.manifest.heads["energy"].local.weight > 0.5
    one, two, eight, first, second, both = predict(ensemble)
    assert [two, eight] == pytest.approx([2 * one, 8 * one], rel=1e-5)
    assert both == pytest.approx(first + second, rel=1e-5)


def test_an_energy_with_a_regression_has_no_forces_and_says_so(joined_total_zip):
    atoms = molecule("H2O")
    atoms.calc = EnsembleCalculator(joined_total_zip)
    with pytest.raises(ConfigError, match="a regression on local descriptors is a member"):
        atoms.get_forces()
    values = read_artefact(joined_total_zip).manifest.model_dump()
    charge = values["heads"]["charge"]
    forces = {"derived_from": "energy", "shape": "vector", "unit": "eV/angstrom", "local": None}
    values["heads"]["charge"] = {**charge, **forces, "baseline": None}
    with pytest.raises(ValueError, match="'local' is not of energies that have derivatives"):
        Manifest.model_validate(values)


def test_a_size_far_from_those_of_training_is_a_reason_for_doubt(total_zip):
    """The toy molecules have 3 to 6 atoms: 2 and 12 are within a factor of two, 1 and 16 not."""
    some = [bulk("C"), bulk("C") * (6, 1, 1), bulk("C", "sc", a=2.0), bulk("C") * (2, 2, 2)]
    trust = Ensemble.load(total_zip).predict(some).trust
    assert ["unseen size" in reasons for reasons in trust] == [False, False, True, True]
    assert "unseen size (16 atoms, not 3 to 6)" in trust[3]


def test_a_constant_of_earlier_versions_is_named(total_zip, tmp_path, monkeypatch):
    content = read_artefact(total_zip)
    path = tmp_path / "earlier.zip"
    for weights in content.weights.values():
        weights["baselines.energy.mean"] += 4.25
    write_artefact(path, replace(content, manifest=content.manifest))
    monkeypatch.chdir(tmp_path)
    molecule("H2O").write("water.xyz")
    sentence = "energy has a constant of 4.25 once for each structure"
    for archive, count in ((total_zip, 0), (path, 1)):
        words = ["predict", "water.xyz", "--ensemble", str(archive)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert " ".join(result.stderr.split()).count(sentence) == count
        card = CliRunner().invoke(app, ["ensemble", "info", str(archive), "--card"]).stdout
        assert card.count("`energy` has a constant of 4.25 eV") == count
        assert Ensemble.load(archive).model_card() == card.removesuffix("\n")
    plain, shifted = (
        Ensemble.load(archive).predict(molecule("H2O")).heads["energy"].mean
        for archive in (total_zip, path)
    )
    np.testing.assert_allclose(shifted - plain, 4.25, rtol=1e-5)
