"""Predictions from the elements alone: exact where the target is additive, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.artefact import BaselineEntry
from hydragnn_hpo.ensemble.baselines import CompositionModel, fit_baseline

TARGETS = {
    "total": TargetConfig(level="graph", unit="eV", optional=True),
    "mean": TargetConfig(level="graph", unit="eV"),
    "charge": TargetConfig(level="node", unit="e", optional=True),
    "force": TargetConfig(level="node", unit="eV/angstrom", shape="vector"),
}
SUM = TargetConfig(level="graph", unit="eV", energy="total")
OF_ELEMENT = {1: -0.5, 6: -3.0, 8: 2.0}


def columns(formulas, *, noise=0.0):
    """Structures whose total is a sum over elements, and its mean, with charges of the elements."""
    random = np.random.default_rng(1)
    rules = Rules(1.0, 0.01, TARGETS)
    graphs = []
    for number, formula in enumerate(formulas):
        atoms = Atoms(formula, positions=np.arange(3 * len(Atoms(formula))).reshape(-1, 3) * 2.0)
        charge = np.array([OF_ELEMENT[z] for z in atoms.numbers]) + 0.1
        atoms.info |= {"total": charge.sum() + noise * random.normal(), "mean": charge.mean()}
        atoms.arrays["charge"] = charge
        atoms.arrays["force"] = atoms.positions
        graphs.append(graph_of(atoms, Place(Path("f"), number, str(number)), rules))
    return columns_of(graphs, TARGETS)


def fit(name, train, val, target=None):
    described = (target or TARGETS[name]).model_dump(include={"level", "shape", "energy"})
    return fit_baseline(name, described, train, val)


TRAIN = columns(["H2O", "CH4", "CO2", "CO", "H2", "CH2O", "C2H6", "C3H8", "H2O2"])
TEST = columns(["C2H2O4", "H10C4"])


@pytest.mark.parametrize("target", ["total", "mean", "charge"])
def test_what_the_elements_decide_is_predicted(target):
    fitted = fit(target, [TRAIN.take(np.arange(4)), TRAIN.take(np.arange(4, 9))], [TRAIN])
    assert fitted.predict(TEST) == pytest.approx(TEST.targets[target], abs=2e-3)


@pytest.mark.parametrize("formulas", [["C2H4", "C2H4"], ["H2O", "CH4", "CO", "C2H6", "CO2"]])
def test_a_sum_over_atoms_has_no_constant(formulas):
    """Of one composition, or of several: three cells have three times the energy of one."""
    some = columns(formulas, noise=0.5)
    fitted = fit("total", [some], [some], SUM)
    one, three = fitted.predict(columns(["CHO2", "C3H3O6"])).ravel()
    assert three == pytest.approx(3 * one, rel=1e-12)
    assert fitted.predict(some).mean() == pytest.approx(some.targets["total"].mean(), abs=0.2)


def test_an_energy_per_atom_does_not_depend_on_the_size():
    mean = TargetConfig(level="graph", unit="eV/atom", energy="per_atom")
    some = columns(["H2O", "CH4", "CO", "C2H6", "CO2"])
    one, three = fit("mean", [some], [some], mean).predict(columns(["CHO2", "C3H3O6"])).ravel()
    assert three == pytest.approx(one, rel=1e-12)


def test_an_element_that_was_not_seen_has_the_mean_of_all_atoms():
    some = columns(["H2", "CH4"])
    fitted = fit("charge", [some], [some])
    # six H of -.4 and one C of -2.9
    assert fitted.predict(columns(["CO"])).ravel() == pytest.approx([-2.9, -5.3 / 7])


def test_rows_without_a_label_do_not_count():
    some = columns(["H2O", "CO2", "CH4", "H2"])
    some.targets["total"][1] = np.nan
    some.masks["total"][1] = False
    without = fit("total", [some], [some])
    kept = some.take(np.array([0, 2, 3]))
    assert without.weights == pytest.approx(fit("total", [kept], [kept]).weights)
    some.masks["total"][:] = False
    assert fit("total", [some], [some]) is None
    assert fit("total", [], []) is None


def test_vectors_of_atoms_have_no_baseline():
    assert fit("force", [TRAIN], [TRAIN]) is None


def test_the_penalty_is_chosen_on_val(monkeypatch):
    train = columns(["H2O", "CH4", "CO2", "CO"], noise=3.0)
    val = columns(["H2O", "C2H6", "C3O2"])

    def error(*penalties):
        monkeypatch.setattr("hydragnn_hpo.ensemble.baselines.PENALTIES", penalties)
        predicted = fit("total", [train], [val]).predict(val)
        return float(np.abs(predicted - val.targets["total"]).mean())

    penalties = (1e-8, 1e-4, 1e-2, 1.0)
    alone = [error(penalty) for penalty in penalties]
    assert len(set(alone)) == 4
    assert error(*penalties) == min(alone)


@pytest.mark.parametrize("target", ["total", "mean", "charge"])
def test_an_ensemble_file_holds_a_baseline_that_predicts_the_same(target):
    fitted = fit(target, [TRAIN], [TRAIN])
    entry = BaselineEntry.model_validate_json(fitted.as_entry().model_dump_json())
    assert set(entry.atoms) == {"H", "C", "O"}  # of 118 elements, those with labels
    again = CompositionModel.from_entry(entry, is_node=target == "charge")
    assert again.predict(TEST) == pytest.approx(fitted.predict(TEST), rel=1e-7)
    assert again.weights.shape == fitted.weights.shape
