"""Fewer members: weights still sum to one, and sigma is that of the members that stay."""

from dataclasses import replace

import numpy as np
import pytest

from hydragnn_hpo.ensemble.artefact import Manifest, read_artefact
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.model_card import render_model_card
from hydragnn_hpo.ensemble.prune import choose_members, prune_members
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.uncertainty import error_factors
from hydragnn_hpo.uncertainty.calibrate import calibrate
from hydragnn_hpo.uncertainty.calibration_data import (
    AtomsOfStructures,
    CalibrationData,
    HeadCalibrationData,
    from_arrays,
    to_arrays,
)


@pytest.fixture(scope="module")
def content(built_zip):
    return read_artefact(built_zip)


def weights_of(manifest: Manifest, head: str) -> dict[str, float]:
    return {m.trial: m.weights[head] for m in manifest.members if head in m.weights}


def test_the_calibration_data_repeats_the_calibration_of_the_build(content):
    assert content.calibration_data is not None
    for name, head in content.manifest.heads.items():
        again = content.calibration_data.calibrate_head(
            name, weights_of(content.manifest, name), head.std
        )
        assert (again.a, again.b, again.c) == pytest.approx(
            (head.calibration.a, head.calibration.b, head.calibration.c), rel=1e-9, abs=1e-15
        )
        assert again.quantiles == pytest.approx(head.calibration.quantiles, rel=1e-9)
        assert set(again.tables) == set(head.calibration.tables)
        for stratum, table in head.calibration.tables.items():
            assert again.tables[stratum] == pytest.approx(table, rel=1e-9)
        assert again.spread99 == pytest.approx(head.calibration.spread99, rel=1e-9)
        assert (again.rows, again.groups) == (head.calibration.rows, head.calibration.groups)


def test_two_members_are_calibrated_on_what_these_two_predicted(content, monkeypatch):
    monkeypatch.setattr(error_factors, "_FEW", 2)  # there are few structures
    names = [member.trial for member in content.manifest.members]
    stay = names[2:4]
    pruned, changes = prune_members(content, stay, where="here")
    assert [m.trial for m in pruned.manifest.members] == stay
    assert set(pruned.configs) == set(pruned.weights) == set(stay)
    assert pruned.manifest.evaluation == {}
    cutoff = max(content.configs[name].model.cutoff for name in stay)
    assert pruned.manifest.cutoff == cutoff < content.manifest.cutoff
    assert pruned.manifest.pruned[0].removed == tuple(sorted(set(names) - set(stay)))
    assert content.calibration_data is not None
    for name, head in pruned.manifest.heads.items():
        assert sum(weights_of(pruned.manifest, name).values()) == pytest.approx(1.0)
        seen = content.calibration_data.heads[name]
        old = weights_of(content.manifest, name)
        share = np.array([old[trial] for trial in stay])
        share /= share.sum()
        predictions = np.stack([seen.predictions[trial] for trial in stay])
        mean = np.tensordot(share, predictions, 1)
        spread = np.sqrt(np.tensordot(share, (predictions - mean) ** 2, 1))
        largest = [
            spread[seen.graph == g].max() for g in range(len(content.calibration_data.group))
        ]
        wanted = calibrate(
            (seen.truth - mean)[seen.mask],
            spread[seen.mask],
            group=content.calibration_data.group[seen.graph][seen.mask],
            largest=np.array(largest),
            scale=head.std,
            features=content.calibration_data._features(name, mean),
        )
        assert (head.calibration.a, head.calibration.b) == pytest.approx((wanted.a, wanted.b))
        assert head.calibration.quantiles == pytest.approx(wanted.quantiles)
        error = np.abs(mean - seen.truth)[seen.mask]
        assert changes[name].mae_after == pytest.approx(error.mean())
        factor = content.calibration_data.factor_of_rows(name, mean, head.calibration)
        assert np.ptp(factor) > 0.01
        half = head.calibration.half_width(head.calibration.sigma(spread, 0.0, factor))[seen.mask]
        assert changes[name].width90_after == pytest.approx(2.0 * half.mean())
        inside = error <= half
        assert inside.mean() >= 0.9


def test_a_pruned_ensemble_is_written_opened_and_pruned_again(content, tmp_path):
    names = [member.trial for member in content.manifest.members]
    once, _ = prune_members(content, names[:3], where="here")
    write_artefact(tmp_path / "once.zip", once)
    artefact = read_artefact(tmp_path / "once.zip")
    twice, _ = prune_members(artefact, names[:1], where="here")
    write_artefact(tmp_path / "twice.zip", twice)
    ensemble = Ensemble.load(tmp_path / "twice.zip")
    assert [member.trial for member in ensemble.members] == names[:1]
    assert [len(step.removed) for step in ensemble.manifest.pruned] == [len(names) - 3, 2]
    assert ensemble.manifest.pruned[1].parent == artefact.identity
    card = render_model_card(twice.manifest, twice.configs, {})
    assert "It was not evaluated" in card
    assert "calibrated again" in card


def test_a_head_must_keep_a_member_and_the_calibration_data_be_there(content):
    manifest = content.manifest
    first, second, *others = manifest.members
    share = first.weights["charge"]
    moved = second.weights["charge"] + share
    members = (
        first.model_copy(update={"weights": {"energy": first.weights["energy"]}}),
        second.model_copy(update={"weights": second.weights | {"charge": moved}}),
        *others,
    )
    uneven = replace(content, manifest=manifest.model_copy(update={"members": members}))
    with pytest.raises(ConfigError, match="no member that stays takes part in head 'charge'"):
        prune_members(uneven, [first.trial], where="here")
    blind = replace(content, calibration_data=None)
    with pytest.raises(ConfigError, match="here: does not hold what its members said"):
        prune_members(blind, [first.trial], where="here")


def test_who_stays(content):
    first, *others = content.manifest.members
    heavier = {name: min(2 * w, 1.0) for name, w in others[-1].weights.items()}
    last = others[-1].model_copy(update={"weights": heavier})
    manifest = content.manifest.model_copy(update={"members": (first, *others[:-1], last)})
    assert choose_members(manifest, 1, []) == (last.trial,)
    assert choose_members(manifest, 2, []) == (first.trial, last.trial)
    assert choose_members(manifest, None, [last.trial, first.trial]) == (first.trial, last.trial)
    for keep, names in [(None, []), (2, ["t0001"]), (0, []), (len(manifest.members), [])]:
        with pytest.raises(ConfigError, match="--keep"):
            choose_members(manifest, keep, names)
    with pytest.raises(ConfigError, match="unknown member 't0009'"):
        choose_members(manifest, None, ["t0009"])
    with pytest.raises(ConfigError, match="all members"):
        choose_members(manifest, None, [member.trial for member in manifest.members])
    with pytest.raises(ConfigError, match="one member alone"):
        choose_members(manifest.model_copy(update={"members": (first,)}), 1, [])


def test_variances_of_members_count(content):
    """With residuals drawn from N(0, v) and no spread, sigma^2 = c v with c near 1."""
    rng = np.random.default_rng(0)
    variance = rng.uniform(0.1, 4.0, (4000, 1))
    truth = rng.normal(size=(4000, 1)) * np.sqrt(variance)
    head = HeadCalibrationData(
        truth=truth,
        mask=np.ones(4000, dtype=bool),
        graph=np.arange(4000),
        predictions={"a": np.zeros((4000, 1)), "b": np.zeros((4000, 1))},
        variances={"a": variance, "b": variance},
    )
    data = CalibrationData(np.arange(4000), np.full(4000, "all"), {"x": head})
    fit = data.calibrate_head("x", {"a": 0.5, "b": 0.5}, 1.0)
    assert fit.c == pytest.approx(1.0, abs=0.1)
    assert fit.quantiles["0.9"] == pytest.approx(1.645, abs=0.1)


@pytest.mark.parametrize("node", [False, True])
def test_factors_of_sigma_are_fitted_again(node):
    """With errors twice as large for rows with oxygen, on atoms or in structures of two."""
    rng = np.random.default_rng(0)
    count = 1500
    pairs = rng.choice([6, 7, 8], (count, 2))
    atoms = AtomsOfStructures(pairs.ravel(), np.repeat(np.arange(count), 2))
    rows = pairs.ravel() if node else np.arange(count)
    oxygen = rows == 8 if node else (pairs == 8).any(axis=1)
    truth = (np.where(oxygen, 2.0, 1.0) * rng.normal(size=len(rows)))[:, None]
    head = HeadCalibrationData(
        truth=truth,
        mask=rng.random(len(rows)) < 0.9,
        graph=atoms.structure if node else np.arange(count),
        predictions={"a": np.zeros((len(rows), 1))},
    )
    data = CalibrationData(np.arange(count), np.full(count, "all"), {"x": head}, atoms)
    again = from_arrays(to_arrays(data), {"x": {"a": 1.0}}, {"x": 1})
    for each in (data, again):
        fit = each.calibrate_head("x", {"a": 1.0}, 1.0)
        factor = each.factor_of_rows("x", np.zeros_like(truth), fit)[:, 0]
        assert factor[oxygen].mean() / factor[~oxygen].mean() == pytest.approx(2.0, rel=0.1)
        half = fit.half_width(fit.sigma(np.zeros_like(truth), 0.0, factor[:, None]))
        inside = np.abs(truth) <= half
        assert inside[oxygen].mean() == pytest.approx(0.9, abs=0.03)
        assert inside[~oxygen].mean() == pytest.approx(0.9, abs=0.03)
    old = replace(data, atoms=None)  # of a file of an earlier version
    assert old.calibrate_head("x", {"a": 1.0}, 1.0).factors is None


def test_calibration_data_comes_back_as_it_went_in(content):
    data = content.calibration_data
    assert data is not None
    weights = {name: weights_of(content.manifest, name) for name in data.heads}
    arrays = to_arrays(data)
    again = from_arrays(arrays, weights, dict.fromkeys(weights, 1))
    np.testing.assert_array_equal(again.group, data.group)
    np.testing.assert_array_equal(again.kind, data.kind)
    np.testing.assert_array_equal(again.atoms.numbers, data.atoms.numbers)
    np.testing.assert_array_equal(again.atoms.structure, data.atoms.structure)
    for name, head in data.heads.items():
        for trial, values in head.predictions.items():
            np.testing.assert_array_equal(again.heads[name].predictions[trial], values)
        assert (again.heads[name].element is None) == (name == "energy")
    np.testing.assert_array_equal(again.heads["charge"].element, data.heads["charge"].element)
    del arrays["charge/element"]  # a file of an earlier version
    assert from_arrays(arrays, weights, dict.fromkeys(weights, 1)).heads["charge"].element is None
    assert {a.dtype for k, a in arrays.items() if "/said/" in k} <= {
        np.dtype("f4"),
        np.dtype("f8"),
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a.pop("energy/truth"), "'energy/truth' is missing"),
        (lambda a: a.update({"energy/truth": a["energy/truth"][:3]}), "wrong shape"),
        (lambda a: a["energy/truth"].fill(np.nan), "not finite"),
        (lambda a: a["energy/graph"].fill(99), "structures that are not there"),
        (lambda a: a["energy/graph"].fill(-1), "structures that are not there"),
        (lambda a: a["charge/mask"].fill(0), "no row with a truth"),
        (lambda a: a.update({"other": np.zeros(3)}), "about nothing in the ensemble"),
        (lambda a: a["structures/kind/oxygen"].fill(2), "one kind each"),
        (lambda a: a.pop("structures/kind/oxygen"), "one kind each"),
        (lambda a: a["charge/element"].fill(200), "elements that do not exist"),
        (lambda a: a.update({"charge/element": a["charge/element"][:3]}), "wrong shape"),
        (lambda a: a["structures/atoms/numbers"].fill(200), "elements that do not exist"),
        (lambda a: a["structures/atoms/structure"].fill(0), "list the atoms of each structure"),
        (lambda a: a["structures/atoms/structure"][::-1].sort(), "list the atoms"),
        (lambda a: a.pop("structures/atoms/structure"), "'structures/atoms/structure' is missing"),
    ],
)
def test_calibration_data_that_lies(content, change, sentence):
    assert content.calibration_data is not None
    arrays = {key: array.copy() for key, array in to_arrays(content.calibration_data).items()}
    change(arrays)
    weights = {n: weights_of(content.manifest, n) for n in content.calibration_data.heads}
    with pytest.raises(ValueError, match=sentence):
        from_arrays(arrays, weights, dict.fromkeys(weights, 1))
