"""An ensemble with heads for a dipole and tensors: rotation, tables, ASE's properties, crystals."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.io import write
from rich.console import Console
from scipy.spatial.transform import Rotation

from hydragnn_hpo.cli.ensemble_evaluate import evaluation_table
from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble_build.evaluation import (
    evaluate_ensemble,
    parse_label_options,
    read_labelled,
)
from hydragnn_hpo.model.gnn import MultiHeadGNN

KINDS = {
    "mu": {"level": "graph", "shape": "vector", "unit": "e*angstrom", "origin": "mass"},
    "alpha": {"level": "graph", "shape": "tensor", "unit": "angstrom^3", "origin": "mass"},
    "born": {"level": "node", "shape": "tensor", "unit": "e"},
}
TURN = Rotation.from_euler("zyx", [0.4, 1.0, -2.0]).as_matrix()


@pytest.fixture
def ensemble(built_zip):
    """One random PaiNN with all heads, and an energy."""
    known = Ensemble.load(built_zip, precision="fp64")
    values = known.manifest.model_dump()
    heads = values["heads"]
    heads["energy"] |= {"energy": "total", "unit": "eV"}
    plain = {"energy": None, "baseline": None, "elements": None, "mean": 0.0, "std": 1.0}
    heads |= {name: heads["charge"] | plain | kind for name, kind in KINDS.items()}
    heads["alpha"]["mean"] = 7.0
    entry = next(each for each in values["members"] if each["trial"] == "t0002")
    entry["weights"] = dict.fromkeys(heads, 1.0)
    values["members"] = [entry]
    manifest = Manifest.model_validate(values)
    member = next(each for each in known.members if each.trial == "t0002")
    torch.manual_seed(2)
    config = known.configs["t0002"].model
    net = MultiHeadGNN(config, dict.fromkeys(heads, HeadConfig()), manifest.targets())
    return Ensemble(
        manifest, [replace(member, model=net.double().eval(), weights=entry["weights"])]
    )


def test_predictions_rotate_and_sigma_does_not(ensemble):
    atoms = molecule("CH3OH")
    turned = Atoms(atoms.numbers, atoms.positions @ TURN.T + 5.0)
    before = ensemble.predict(atoms).heads
    after = ensemble.predict(turned).heads
    np.testing.assert_allclose(after["mu"].mean, before["mu"].mean @ TURN.T, atol=1e-10)
    for name in ("alpha", "born"):
        tensors = before[name].mean.reshape(-1, 3, 3)
        expected = (TURN @ tensors @ TURN.T).reshape(-1, 9)
        np.testing.assert_allclose(after[name].mean, expected, atol=1e-10)
        assert np.abs(tensors).max() > 1e-3
    for name in KINDS:
        np.testing.assert_allclose(after[name].std, before[name].std, atol=1e-12)


def test_evaluate_has_the_mean_norm_of_what_is_missed(ensemble, tmp_path):
    """Where all labels are zero, the errors are the predictions."""
    structures = [molecule(name) for name in ("CH3OH", "H2O", "NH3")]
    for atoms in structures:
        atoms.info |= {"no_mu": np.zeros(3), "no_alpha": np.zeros((3, 3))}
        atoms.arrays["no_born"] = np.zeros((len(atoms), 9))
    write(tmp_path / "zeros.extxyz", structures)
    labels = parse_label_options(ensemble.manifest, [f"{head}=no_{head}" for head in KINDS])
    rules = replace(ensemble.rules, targets=labels)
    done = evaluate_ensemble(ensemble, read_labelled([tmp_path / "zeros.extxyz"], rules), labels)
    predicted = ensemble.predict(structures).heads
    for head, one in done.heads.items():
        norms = [np.sqrt((row**2).sum()) for row in predicted[head].mean]
        assert one.figures["norm_error"] == pytest.approx(np.mean(norms), rel=1e-6)
    output = io.StringIO()
    Console(file=output, width=80).print(evaluation_table(done))
    (line,) = (line for line in output.getvalue().splitlines() if "norm of the error" in line)
    assert f"{done.heads['mu'].figures['norm_error']:.3g}" in line


def test_tables_have_a_column_per_component(ensemble):
    predicted = ensemble.predict(molecule("CH3OH"))
    structures = predicted.to_frame("structures")
    atoms = predicted.to_frame("atoms")
    axes = [f"{a}{b}" for a in "xyz" for b in "xyz"]
    assert {f"mu_{axis}" for axis in "xyz"} <= set(structures)
    assert {f"alpha_{pair}" for pair in axes} <= set(structures)
    assert {f"born_{pair}" for pair in axes} <= set(atoms)
    assert {"mu_std", "alpha_std"} <= set(structures)


def test_a_crystal_has_no_dipole_but_what_needs_no_positions(ensemble):
    predicted = ensemble.predict([bulk("C", "diamond", a=3.6), molecule("CH4")])
    for name in ("mu", "alpha"):
        assert np.isnan(predicted.heads[name].mean[0]).all()
        assert np.isfinite(predicted.heads[name].mean[1]).all()
        assert f"no {name} of periodic structures" in predicted.trust[0]
        assert name not in predicted.trust[1]
    assert np.isfinite(predicted.heads["born"].mean).all()


def test_ase_gets_its_properties_when_it_asks(ensemble):
    atoms = molecule("CH3OH")
    atoms.calc = EnsembleCalculator(ensemble)
    atoms.get_potential_energy()
    assert not {"dipole", "polarizability"} & set(atoms.calc.results)
    predicted = ensemble.predict(atoms).heads
    np.testing.assert_allclose(atoms.get_dipole_moment(), predicted["mu"].mean[0])
    charges = atoms.calc.get_property("born_effective_charges", atoms)
    np.testing.assert_allclose(charges, predicted["born"].mean.reshape(-1, 3, 3))
    atoms.calc.calculate(atoms, ["polarizability"])
    alpha = atoms.calc.results["polarizability"]
    np.testing.assert_allclose(alpha, predicted["alpha"].mean.reshape(3, 3))
    with pytest.raises(PropertyNotImplementedError):
        atoms.calc.get_property("dielectric_tensor", atoms)
