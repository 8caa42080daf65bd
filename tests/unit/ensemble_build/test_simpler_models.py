"""Regressions on local descriptors that join an ensemble: where, with what weight, and fairly."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sealed_zip import sealed

from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import LOCAL_MEMBER, LOCAL_MEMBERS, read_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.local_members import shift_to_sum
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble.torch_export import check_exportable
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.ensemble_build.candidates import open_build_context
from hydragnn_hpo.ensemble_build.member_selection import ScoredHead
from hydragnn_hpo.ensemble_build.simpler_models import (
    can_join,
    fit_simpler_models,
    is_promising,
    judge_joining,
)
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.layout import RunDir

ALONE = np.ones(1)
"""Weights of the nets where there is one."""


def scored(truth: np.ndarray, *predictions: np.ndarray) -> ScoredHead:
    """A head whose rows are groups of their own; the last candidate is the regression."""
    columns = np.stack(predictions)[..., None]
    return ScoredHead(columns, truth[:, None], 1.0, np.arange(len(truth)))


@pytest.mark.parametrize("error", [1.0, 1.5])
def test_independent_errors_are_weighted_by_their_inverse_variances(error: float) -> None:
    random = np.random.default_rng(0)
    rows = 2000
    truth, net, own = random.normal(size=(3, rows))
    judged = judge_joining(scored(truth, truth + net, truth + error * own), ALONE, 12)
    best = 1.0 / (1.0 + error**2)  # inverse variances: 1 and 1 / error^2
    assert judged["weight"] == pytest.approx(best, abs=0.05)
    # errors of the mix are normal, and so is their mean absolute value
    spread = np.hypot(1.0 - judged["weight"], error * judged["weight"])
    assert judged["mae_with"] == pytest.approx(np.sqrt(2.0 / np.pi) * spread, rel=0.05)
    assert judged["mae_without"] == pytest.approx(np.abs(net).mean())
    assert judged["mae"] == pytest.approx(error * np.abs(own).mean())
    assert judged["z"] < -2.0


def test_nothing_joins_where_the_target_is_noise() -> None:
    joined = 0
    for seed in range(40):
        truth, net, own = np.random.default_rng(seed).normal(size=(3, 100))
        judged = judge_joining(scored(truth, 0.1 * net, 0.1 * own), ALONE, 12)
        joined += judged["weight"] > 0.0
    assert joined == 0, "two standard errors of the gain are four of its slope"


def test_a_regression_that_is_far_worse_does_not_join() -> None:
    truth, net, own = np.random.default_rng(3).normal(size=(3, 300))
    judged = judge_joining(scored(truth, truth + 0.1 * net, truth + own), ALONE, 12)
    assert judged["weight"] == 0.0
    assert judged["mae_with"] == judged["mae_without"]
    assert judged["z"] == 0.0


@pytest.mark.parametrize(("with_it", "promising"), [(0.97, True), (0.99, False), (1.0, False)])
def test_a_fold_must_promise_two_percent(with_it: float, promising: bool) -> None:
    judged = {"weight": 0.3, "mae": 2.0, "mae_without": 1.0, "mae_with": with_it, "z": -1.0}
    assert is_promising(judged) is promising


def test_an_energy_has_no_regression_where_something_is_derived_from_it() -> None:
    energy = {"shape": "scalar", "level": "graph", "energy": "per_atom"}
    forces = {"shape": "vector", "level": "node", "derived_from": "energy"}
    targets = {"energy": energy, "forces": forces, "gap": {"shape": "scalar", "level": "graph"}}
    assert [name for name in targets if can_join(name, targets)] == ["gap"]
    assert can_join("energy", {"energy": energy})
    for shape in ("spectrum", "class", "vector", "tensor"):
        assert can_join("y", {"y": {"shape": shape, "level": "node"}}), shape


@pytest.mark.parametrize("least_gain", [0.0, 0.1])
def test_a_regression_that_costs_forces_must_gain_more(least_gain: float) -> None:
    truth, net, own = np.random.default_rng(1).normal(size=(3, 2000))
    head = scored(truth, truth + 0.1 * net, truth + 0.2 * own)
    judged = judge_joining(head, ALONE, 12, least_gain)
    gain = 1.0 - judged["mae_with"] / judged["mae_without"]
    assert gain == pytest.approx(1.0 - 0.8**0.5, abs=0.03)  # inverse variances: 1 and 1/4
    assert (judged["weight"] > 0.0) == (gain >= least_gain)
    stricter = judge_joining(head, ALONE, 12, gain + 0.01)
    assert stricter["weight"] == 0.0


def test_both_splits_are_sampled_where_they_have_many_atoms(monkeypatch, make_run) -> None:
    context = open_build_context(RunDir(make_run()), 0)
    atoms = context.graphs.num_nodes()
    drawn: list[np.ndarray] = []
    take = context.take
    monkeypatch.setattr(type(context), "take", lambda self, rows: drawn.append(rows) or take(rows))
    monkeypatch.setattr("hydragnn_hpo.ensemble_build.simpler_models.MOST_ATOMS", 40)
    simpler = fit_simpler_models(context)
    assert simpler.local is not None
    for split, rows in zip(("train", "val"), drawn[-2:], strict=True):
        whole = context.rows_of(split)
        assert set(rows) < set(whole)
        assert 30 < atoms[rows].sum() <= 40  # a molecule has at most six atoms
        np.testing.assert_array_equal(rows, np.sort(rows))


def test_values_of_atoms_are_shifted_to_their_sum() -> None:
    class Two:
        """Structures of two atoms and of one."""

        attributes = {"total": np.array([1.0, -1.0])}  # noqa: RUF012

        @staticmethod
        def num_nodes() -> np.ndarray:
            return np.array([2, 1])

    values = np.array([[0.2], [0.4], [5.0]])
    np.testing.assert_allclose(shift_to_sum(values, Two, "total").ravel(), [0.4, 0.6, -1.0])  # type: ignore[arg-type]
    np.testing.assert_allclose(shift_to_sum(values, Two, 0.0).ravel(), [-0.1, 0.1, 0.0])  # type: ignore[arg-type]
    assert shift_to_sum(values, Two, None) is values  # type: ignore[arg-type]
    tensors = np.zeros((3, 9))
    tensors[0, 1] = 0.6  # the pair has to lose .3 each, and gains half of the unit tensor
    half = [0.5, -0.3, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5]
    shifted = shift_to_sum(tensors, Two, "total")  # type: ignore[arg-type]
    np.testing.assert_allclose(shifted[1], half)
    np.testing.assert_allclose(shifted[2], -np.eye(3).ravel())


@pytest.fixture
def joined_run(built_run):
    """Nets with random weights, beside which a regression on charges helps; only read."""
    return built_run[0]


def test_the_mean_and_the_spread_are_those_of_nets_and_regression(joined_run: Path) -> None:
    table = json.loads((joined_run / "report/ensemble.json").read_text())
    assert set(table["local_descriptors"]) == {"charge", "energy"}, "the toy has no forces"
    name = "charge"
    judged = table["local_descriptors"][name]
    ensemble = Ensemble.load(joined_run / "ensemble.zip")
    shares = ensemble.manifest.shares(name)
    assert shares[LOCAL_MEMBER] == judged["weight"] > 0.0
    assert sum(shares.values()) == pytest.approx(1.0)
    store = open_store(joined_run / "data/toy.bp")
    test = store.indices_of("test")
    head = ensemble.predict(store, test, members=True)[name]
    each = np.stack([head.members[t] for t in shares])
    weights = np.array([*shares.values()])
    mean = np.tensordot(weights, each, 1)
    np.testing.assert_allclose(head.mean, mean, atol=1e-6)
    spread = np.sqrt(np.tensordot(weights, np.square(each - mean), 1))
    np.testing.assert_allclose(head.std_epistemic, spread, rtol=1e-6)
    truth = store.take(test).targets[name]
    scores = table["heads"][name]
    assert scores["test_mae"] == pytest.approx(float(np.abs(mean - truth).mean()), rel=1e-5)
    nets = each[1:], weights[1:] / weights[1:].sum()
    without = np.abs(np.tensordot(nets[1], nets[0], 1) - truth).mean()
    assert scores["test_mae_greedy"] == pytest.approx(float(without), rel=1e-5)
    assert scores["test_mae"] < scores["test_mae_greedy"]


def test_a_batch_changes_nothing_and_the_card_names_the_regression(joined_run: Path) -> None:
    ensemble = Ensemble.load(joined_run / "ensemble.zip")
    store = open_store(joined_run / "data/toy.bp").take(np.arange(8))
    together = ensemble.predict(store)["charge"].mean
    alone = [ensemble.predict(store, np.array([row]))["charge"].mean for row in range(8)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)
    assert "In `charge` a regression on the surroundings" in ensemble.model_card()


def test_a_pruned_ensemble_keeps_the_regression_and_is_calibrated_with_it(joined_run: Path) -> None:
    content = read_artefact(joined_run / "ensemble.zip")
    manifest = content.manifest
    stay = sorted(m.trial for m in manifest.members if "charge" in m.weights)[:1]
    stay += [m.trial for m in manifest.members if "energy" in m.weights][:1]
    smaller, _ = prune_members(content, sorted(set(stay)), where="x")
    share = smaller.manifest.shares("charge")
    assert share[LOCAL_MEMBER] == manifest.shares("charge")[LOCAL_MEMBER]
    assert sum(share.values()) == pytest.approx(1.0)
    data = smaller.calibration_data
    assert data is not None
    head = data.heads["charge"]
    mean = sum(weight * head.predictions[name] for name, weight in share.items())
    np.testing.assert_allclose(data.moments("charge", share).mean, mean, atol=1e-12)
    fit = smaller.manifest.heads["charge"].calibration
    assert fit.quantiles != manifest.heads["charge"].calibration.quantiles
    assert smaller.local_members == content.local_members


def test_a_program_refuses_the_head_that_has_a_regression(joined_run: Path) -> None:
    ensemble = Ensemble.load(joined_run / "ensemble.zip")
    check_exportable(ensemble, "energy")
    with pytest.raises(ConfigError, match="has a regression on local descriptors"):
        check_exportable(ensemble, "charge")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, f"lacks '{LOCAL_MEMBERS}'"),
        ("local_descriptors.safetensors", "cannot be used"),
    ],
)
def test_a_file_without_its_regressions_is_refused(
    joined_run: Path, tmp_path: Path, entry: str | None, sentence: str
) -> None:
    with zipfile.ZipFile(joined_run / "ensemble.zip") as file:
        entries = {name: file.read(name) for name in file.namelist()}
    if entry is None:
        del entries[LOCAL_MEMBERS]
    else:
        entries[LOCAL_MEMBERS] = entries[entry]
    (tmp_path / "e.zip").write_bytes(sealed(entries))
    with pytest.raises(DataError, match=sentence):
        read_artefact(tmp_path / "e.zip")


def test_the_campaign_can_leave_it_out(make_run) -> None:
    run = make_run(trials=2, local_descriptors="never")
    assert build_ensemble(run)["local_descriptors"] == {}
    manifest = read_artefact(run / "ensemble.zip").manifest
    assert all(head.local is None for head in manifest.heads.values())
    assert LOCAL_MEMBERS not in read_artefact(run / "ensemble.zip").sizes
    assert "charge/mean" in load_file(run / "report/test_predictions.safetensors")
