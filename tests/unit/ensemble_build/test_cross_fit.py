"""An ensemble of nets that were trained on folds: from a run to the zip, against hand sums."""

import logging
import shutil
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from unit.ensemble.conftest import MODELS, campaign_text, predict_one, trial_config, write_training

from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.data.folds import NONE, deal_folds, leave_fold_out
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble_build import candidates as candidates_module
from hydragnn_hpo.ensemble_build import simpler_models
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.ensemble_build.candidates import list_nets, open_build_context
from hydragnn_hpo.ensemble_build.member_selection import select_members
from hydragnn_hpo.ensemble_build.simpler_models import fit_simpler_models, join_local_models
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training import checkpoint

FOLDS = 3
PARENTS = ("t0001", "t0004")


FITS = {
    f"t{10 + number:04d}": (parent, fold)
    for number, (parent, fold) in enumerate((p, f) for p in PARENTS for f in range(FOLDS))
}
"""Configuration and fold of the trials that were trained without a fold."""


@pytest.fixture(scope="module", autouse=True)
def _state():
    """The journal's state, with the parents of the fits: there is no journal."""
    state = State()
    for trial in (*MODELS, *FITS):
        event = {"event": "proposed", "trial": trial, "values": {}, "until": 2}
        if trial in FITS:
            parent, fold = FITS[trial]
            event |= {"values": {"training.fold": fold}, "parent": parent}
        state.apply(event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates_module, "read_state", lambda _: state)
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, finished, _scratch):
    """The finished run, and two of its configurations on each of three folds, with random nets."""
    run = tmp_path_factory.mktemp("fitted") / "run"
    shutil.copytree(finished, run)
    (run / "campaign.toml").write_text(campaign_text(fit="cross", folds=FOLDS))
    store = open_store(run / "data/toy.bp")
    for name, (parent, fold) in FITS.items():
        write_fit(run, store, name, parent, fold)
    return run


@pytest.fixture(scope="module")
def built(tmp_path_factory, fitted):
    """A copy of that run with its ensemble, and the table, for tests that only read."""
    run = tmp_path_factory.mktemp("built") / "run"
    shutil.copytree(fitted, run)
    return run, build_ensemble(run)


@pytest.fixture
def cross_run(tmp_path, fitted):
    """Copy the run, without some of its fits, or with other settings."""

    def make(missing=(), **ensemble):
        run = tmp_path / "run"
        shutil.copytree(fitted, run)
        (run / "campaign.toml").write_text(campaign_text(fit="cross", folds=FOLDS, **ensemble))
        for name in missing:
            shutil.rmtree(run / "trials" / name)
        return run

    return make


def write_fit(run, store, name, parent, fold):
    """A trial directory as a training without a fold leaves it; the weights are random."""
    config = trial_config(parent, 100 + int(name[1:]))
    training = config.training.model_copy(update={"fold": fold, "folds": FOLDS, "fold_seed": 4})
    config = config.model_copy(update={"trial": name, "training": training})
    error = 0.5 + 0.01 * int(name[1:])
    maes = {"energy": error, "charge": error}
    write_training(run, leave_fold_out(store, training), config, error, maes, ["val"])


def predictions_of(run, name):
    return load_file(run / "trials" / name / "attempts/001/predictions.safetensors")


def test_each_structure_is_judged_by_the_nets_that_have_not_seen_it(cross_run):
    run = cross_run(method="top")
    table = build_ensemble(run)
    store = open_store(run / "data/toy.bp")
    fold = deal_folds(store, FOLDS, 4)
    free = np.flatnonzero(fold != NONE)
    truth = store.targets["energy"][free]
    of_parent = []
    for first in (10, 13):
        values = np.full((store.num_graphs, 1), np.nan)
        for number in range(FOLDS):
            stored = predictions_of(run, f"t{first + number:04d}")
            values[stored["val/index"]] = stored["val/energy"]
        of_parent.append(values[free])
    mean = np.mean(of_parent, axis=0)
    assert table["selection"]["top"]["sel_mae"]["energy"] == pytest.approx(
        float(np.abs(mean - truth).mean())
    )
    rows = {row["trial"]: row["sel_mae"]["energy"] for row in table["candidates"]}
    assert rows == {
        parent: pytest.approx(float(np.abs(own - truth).mean()))
        for parent, own in zip(PARENTS, of_parent, strict=True)
    }
    manifest = read_artefact(run / "ensemble.zip").manifest
    calibration = manifest.heads["energy"].calibration
    assert (calibration.rows, calibration.groups) == (len(free), len(free))
    single = predictions_of(run, "t0010")
    assert table["leaderboard"][0]["trial"] == "t0001", "fits are not ranked"
    assert manifest.created_by.folds == FOLDS
    with zipfile.ZipFile(run / "ensemble.zip") as file:
        page = file.read("MODEL_CARD.md").decode()
    assert f"by the members that have not seen it ({FOLDS} folds)" in " ".join(page.split())
    assert single["val/index"].tolist() == np.flatnonzero(fold == 0).tolist()


def test_all_nets_predict_and_those_of_a_configuration_share_its_weight(built):
    run, table = built
    assert {member["trial"] for member in table["members"]} == {f"t{n:04d}" for n in range(10, 16)}
    store = open_store(run / "data/toy.bp")
    test = store.indices_of("test")
    answer = Ensemble.load(run / "ensemble.zip").predict(store, test)
    for head in ("energy", "charge"):
        shares = [member["weights"].get(head, 0.0) for member in table["members"]]
        assert sum(shares) == pytest.approx(1.0)
        assert len(set(shares[:FOLDS])) == 1
        assert len(set(shares[FOLDS:])) == 1
        truth = store.take(test).targets[head]
        error = float(np.abs(answer.heads[head].mean - truth).mean())
        assert table["heads"][head]["test_mae"] == pytest.approx(error, rel=1e-5)
    assert answer.heads["energy"].std.min() > 0


def test_the_best_single_member_is_the_one_of_lowest_error_out_of_fold(built):
    run, table = built
    store = open_store(run / "data/toy.bp")
    test = store.indices_of("test")
    context = open_build_context(RunDir(run))
    net = context.candidates[0].nets[0]
    assert net.trial == "t0010"
    tensors, _ = checkpoint.read_checkpoint(net.folder.best)
    model = MultiHeadGNN(net.config.model, net.config.heads, context.targets)
    model.load_state_dict(tensors)
    member = Member("x", 1.0, model.eval(), net.config.model.cutoff, torch.float32)
    alone = predict_one(member, store, test)["energy"]
    error = float(np.abs(alone - store.take(test).targets["energy"]).mean())
    assert table["heads"]["energy"]["single_mae"] == pytest.approx(error, rel=1e-5)


def test_weights_that_do_not_repeat_what_was_stored_are_refused(cross_run):
    run = cross_run()
    path = run / "trials/t0012/checkpoints/best.safetensors"
    shutil.copy(run / "trials/t0011/checkpoints/best.safetensors", path)
    with pytest.raises(RunError, match=r"t0012/checkpoints/best.*does not repeat the predictions"):
        build_ensemble(run)


def test_a_configuration_without_a_fold_is_left_out(cross_run):
    run = cross_run(missing=("t0014",))
    context = open_build_context(RunDir(run))
    assert [candidate.trial for candidate in context.candidates] == ["t0001"]
    members = {member["trial"] for member in build_ensemble(run)["members"]}
    assert members == {"t0010", "t0011", "t0012"}


def test_without_folds_the_trials_of_the_search_are_the_members(cross_run, caplog):
    run = cross_run(missing=("t0011", "t0014"))
    with caplog.at_level(logging.WARNING):
        table = build_ensemble(run)
    assert {member["trial"] for member in table["members"]} <= set(MODELS)
    assert "no configuration was trained on every fold" in caplog.text


@pytest.mark.parametrize(
    ("nets", "kept"),
    [
        (2, {"t0010", "t0014"}),
        (3, {"t0010", "t0011", "t0015"}),
        (4, {"t0010", "t0011", "t0015", "t0013"}),
        (60, {f"t{number:04d}" for number in range(10, 16)}),
    ],
)
def test_the_folds_take_turns_and_the_best_configuration_has_one_more(fitted, nets, kept):
    context = open_build_context(RunDir(fitted), nets)
    assert {net.trial for net in list_nets(context, (0, 1)) if net.share} == kept


def test_few_nets_are_kept_and_those_of_a_configuration_share_its_weight(built, cross_run):
    before = {m["trial"]: m["weights"]["energy"] for m in built[1]["members"]}
    run = cross_run(nets=3)
    table = build_ensemble(run)
    weights = {member["trial"]: member["weights"]["energy"] for member in table["members"]}
    kept = {"t0010", "t0011", "t0015"}
    assert set(weights) == kept
    for parent in (("t0010", "t0011", "t0012"), ("t0013", "t0014", "t0015")):
        own = [weights[trial] for trial in parent if trial in kept]
        assert own == pytest.approx([sum(before[t] for t in parent) / len(own)] * len(own))
    ensemble = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    test = store.indices_of("test")
    truth = store.take(test).targets["energy"]
    error = float(np.abs(ensemble.predict(store, test).heads["energy"].mean - truth).mean())
    assert table["heads"]["energy"]["test_mae"] == pytest.approx(error, rel=1e-5)


def test_fewer_nets_than_configurations_are_refused(cross_run):
    run = cross_run()
    with pytest.raises(ConfigError, match=r"--nets 1 is fewer than one for each of 2"):
        build_ensemble(run, keep=1)
    (run / "campaign.toml").write_text(campaign_text())
    with pytest.raises(ConfigError, match=r"--nets 3: the members .* are not cross-fitted"):
        build_ensemble(run, keep=3)


def join_in(run, change=None):
    """The regressions that join a run, after a change of its context."""
    context = open_build_context(RunDir(run))
    if change is not None:
        change(context)
    choice = select_members(context)
    return context, join_local_models(context, choice, fit_simpler_models(context))


def test_no_regression_sees_the_fold_that_it_is_judged_on(fitted):
    def spoil(context):
        labels = context.graphs.targets["charge"].copy()
        nodes = np.repeat(context.fold == 1, context.graphs.num_nodes())
        labels[nodes] += 1e-3 * np.random.default_rng(0).normal(size=(nodes.sum(), 1))
        context.graphs.targets["charge"] = labels

    context, before = join_in(fitted)
    _, after = join_in(fitted, spoil)
    assert set(before.weights) == {"charge"}
    assert set(before.judged) == {"charge", "energy"}, "an energy without forces may be joined"
    assert len(before.members) == FOLDS
    fold = context.fold_of_row("charge")
    same = before.learned["charge"] == after.learned["charge"]
    assert same[fold == 1].all(), "the fold was left out"
    assert not same[fold == 0].any()
    assert not same[fold == 2].any()
    own = before.members[2].predict(context.graphs.take(np.flatnonzero(context.fold == 2)))
    np.testing.assert_array_equal(before.learned["charge"][fold == 2], own["charge"])


def test_a_regression_that_hardly_helps_on_one_fold_is_not_fitted_on_the_others(
    fitted, monkeypatch
):
    judge = simpler_models._judge_heads

    def judge_kindly(*arguments):
        judged = judge(*arguments)
        if "energy" in judged:
            error = judged["energy"]["mae_without"]
            judged["energy"] |= {"weight": 0.1, "mae_with": 0.999 * error}
        return judged

    monkeypatch.setattr(simpler_models, "_judge_heads", judge_kindly)
    _, joined = join_in(fitted)
    assert set(joined.weights) == {"charge"}
    assert joined.judged["energy"]["weight"] == 0.0
    assert [set(member.starts) for member in joined.members] == [{"charge"}] * FOLDS


def test_regressions_of_all_folds_predict_as_one_more_configuration(built):
    run, table = built
    ensemble = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    test = store.indices_of("test")
    prediction = ensemble.predict(store, test, members=True)["charge"]
    locals_of = [one.predict(store.take(test))["charge"] for one in ensemble.local_members]
    weight = table["local_descriptors"]["charge"]["weight"]
    shares = ensemble.manifest.shares("charge")
    each = [(prediction.members[t], share) for t, share in shares.items() if t.startswith("t")]
    each += [(values, weight / FOLDS) for values in locals_of]
    mean = sum(share * values for values, share in each)
    np.testing.assert_allclose(prediction.mean, mean, atol=1e-6)
    variance = sum(share * (values - mean) ** 2 for values, share in each)
    np.testing.assert_allclose(prediction.std_epistemic, np.sqrt(variance), rtol=1e-5)
    calibration = ensemble.manifest.heads["charge"].calibration
    nodes = store.num_nodes()[deal_folds(store, FOLDS, 4) != NONE].sum()
    assert calibration.rows == nodes


def test_a_cross_fitted_ensemble_is_not_pruned(built):
    content = read_artefact(built[0] / "ensemble.zip")
    with pytest.raises(ConfigError, match="cannot be given honest intervals"):
        prune_members(content, ["t0010"], where="ensemble.zip")
