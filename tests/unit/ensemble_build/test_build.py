"""From a run's trials to the zip, the table, and what is refused."""

import ast
import contextlib
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.data import atomic_numbers, chemical_symbols
from safetensors.numpy import load_file, save_file
from stores import write_store
from unit.ensemble.conftest import campaign_text, toy_columns, trial_config, write_trial

import hydragnn_hpo
from hydragnn_hpo import errors
from hydragnn_hpo.config.data_config import SPLITS, CardConfig
from hydragnn_hpo.config.schema import dump_config, load_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.engine import Member, keep_heads, make_member, member_batches
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble_build import evidence, tested
from hydragnn_hpo.ensemble_build.build import build_ensemble, job_main
from hydragnn_hpo.ensemble_build.candidates import list_nets, open_build_context
from hydragnn_hpo.ensemble_build.evaluation import evaluate_ensemble, read_split
from hydragnn_hpo.ensemble_build.verdict_evidence import HeadEvidence
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.file_records import (
    CandidateErrors,
    ChosenMember,
    EnsembleMember,
    EnsembleSize,
    EnsembleTable,
    HeadDiversity,
    RankedTrial,
    SelectionScores,
)
from hydragnn_hpo.inspection.quality import TwinsOfModels
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.model.gnn import MultiHeadGNN, variance_key
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.uncertainty.calibrate import GRID, Calibration, calibrate, key
from hydragnn_hpo.uncertainty.uncertainty_scores import HeadOnLabels


def test_a_vector_has_the_mean_norm_of_its_error_and_a_number_none():
    """Errors (3, 0, 4) and (2, 3, 6) have the norms 5 and 7."""
    truth = np.array([[3.0, 0.0, 4.0], [2.0, 3.0, 6.0]])
    column = np.ones((2, 1))
    known = Calibration(a=1.0, b=0.0, quantiles=dict.fromkeys(map(key, GRID), 1.0), spread99=1.0,
                        rows=2, groups=2)  # fmt: skip
    predicted = HeadOnLabels(
        truth, 0 * truth, column, 0 * column, np.full(2, "all"), np.ones((2, 1))
    )
    target = {"unit": "eV/angstrom", "shape": "vector", "mean": 0.0}
    assert tested._head_scores(predicted, known, target)["test_norm_error"] == 6.0
    scores = tested._head_scores(predicted, known, target | {"shape": "scalar"})
    assert "test_norm_error" not in scores


def test_the_table_has_the_fields_of_its_type_and_no_others(built_run):
    run, result = built_run
    table = json.loads((run / "report/ensemble.json").read_text())

    assert Path(result["path"]) == run / "ensemble.zip"
    msgspec.convert(table, EnsembleTable)  # checks types and ignores further fields

    rows = [
        (HeadDiversity, table["diversity"].values()),
        (CandidateErrors, table["candidates"]),
        (EnsembleMember, table["members"]),
        (ChosenMember, table["selection"]["greedy"]["members"]),
        (SelectionScores, table["selection"].values()),
        (EnsembleSize, [size for sizes in table["by_size"].values() for size in sizes]),
        (RankedTrial, table["leaderboard"]),
    ]
    assert set(table) == set(EnsembleTable.__annotations__) - {"path"}
    for kind, several in rows:
        assert all(set(row) == set(kind.__annotations__) for row in several), kind
    assert set(table["selection"]) == {"greedy", "top", "single"}
    for name in table["heads"]:
        shares = [member["weights"].get(name, 0.0) for member in table["members"]]
        assert sum(shares) == pytest.approx(1.0)
    assert {name: scores["unit"] for name, scores in table["heads"].items()} == {
        "energy": "eV/atom",
        "charge": "e",
    }
    assert set(table["local_descriptors"]) == {"charge", "energy"}, "the toy has no forces"
    for name, scores in table["heads"].items():
        alone = not table["local_descriptors"].get(name, {}).get("weight")
        assert (scores["test_mae"] == scores["test_mae_greedy"]) == alone


def test_the_scores_are_those_of_the_zip_on_the_test_split(built_run):
    run, table = built_run
    columns = open_store(run / "data/toy.bp")
    test = columns.indices_of("test")

    prediction = Ensemble.load(run / "ensemble.zip").predict(columns, test)

    arrays = load_file(run / "report/test_predictions.safetensors")
    np.testing.assert_array_equal(arrays["index"], test)
    truth = columns.targets["energy"][test]
    head, scores = prediction.heads["energy"], table["heads"]["energy"]
    assert np.abs(head.mean - truth).mean() == pytest.approx(scores["test_mae"], rel=1e-6)
    inside = (head.lo90 <= truth) & (truth <= head.hi90)
    assert inside.mean() == pytest.approx(scores["coverage90"])
    mean = columns.targets["energy"][columns.indices_of("train")].mean()
    assert np.abs(mean - truth).mean() == pytest.approx(scores["mean_baseline_mae"], rel=1e-9)


def test_the_single_model_is_the_best_by_validation(make_run, predict_alone):
    run = make_run(method="top", members=3)
    table = build_ensemble(run)
    assert [member["trial"] for member in table["members"]] == ["t0001", "t0002", "t0003"]
    columns = open_store(run / "data/toy.bp")
    test = columns.indices_of("test")
    first = next(m for m in Ensemble.load(run / "ensemble.zip").members if m.trial == "t0001")
    alone = predict_alone(first, columns, test)
    expected = np.abs(alone["energy"] - columns.targets["energy"][test]).mean()
    assert table["heads"]["energy"]["single_mae"] == pytest.approx(expected, rel=1e-6)


def test_the_zip_says_where_it_comes_from_and_no_path_of_this_machine(built_run, make_run):
    run, _ = built_run
    content = read_artefact(run / "ensemble.zip")
    manifest = content.manifest
    assert manifest.created_by.campaign == "toy"
    assert manifest.created_by.seed == 7
    assert manifest.data.licence == "CC0-1.0"
    assert len(manifest.data.checksum) == 64
    assert manifest.elements == (1, 6, 7, 8)
    assert manifest.cutoff == max(c.model.cutoff for c in content.configs.values())
    assert {c.data[0].store for c in content.configs.values()} == {"toy.bp"}
    first = (run / "ensemble.zip").read_bytes()
    assert str(run.parent).encode() not in first
    build_ensemble(again := make_run())
    assert (again / "ensemble.zip").read_bytes() == first, "building twice gives equal bytes"


def test_one_trial_gives_a_constant_sigma_and_a_warning(make_run):
    run = make_run(trials=1)
    table = build_ensemble(run)
    assert any("one trial is all there is" in each["sentence"] for each in table["verdict"])
    columns = open_store(run / "data/toy.bp")
    head = Ensemble.load(run / "ensemble.zip").predict(columns).heads["energy"]
    assert np.ptp(head.std) == 0.0
    assert head.std[0, 0] > 0.0
    assert head.std_epistemic.max() == 0.0


def test_stopped_trials_serve_where_none_completed(make_run):
    table = build_ensemble(make_run(trials=3, status="stopped"))
    assert len(table["members"]) == 3
    assert any("full budget" in warning for warning in table["warnings"])


def test_a_trial_that_is_being_trained_on_does_not_count(make_run):
    run = make_run()
    (run / "trials/t0001/attempts/002").mkdir()
    trials = [row["trial"] for row in build_ensemble(run)["leaderboard"]]
    assert trials == ["t0002", "t0003", "t0004", "t0005", "t0006"]


def test_no_candidates_is_one_sentence(make_run):
    run = make_run(trials=2, status="cancelled")
    with pytest.raises(RunError, match="no trial has completed or reached a rung"):
        build_ensemble(run)
    assert not (run / "ensemble.zip").exists()


def other_weights(trial: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = trial / "checkpoints/best.safetensors"
    tensors, state = checkpoint.read_checkpoint(path)
    tensors = {k: change(v) if v.is_floating_point() else v for k, v in tensors.items()}
    checkpoint.write_checkpoint(path, tensors, state)


def other_structures(trial: Path) -> None:
    path = trial / "attempts/001/predictions.safetensors"
    arrays = load_file(path)
    save_file({**arrays, "sel/index": arrays["sel/index"] + 1}, path)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda trial: other_weights(trial, lambda w: w + 0.1),
            "t0002.*does not repeat the predictions",
        ),
        (lambda trial: other_weights(trial, lambda w: w * torch.nan), "not finite"),
        (other_structures, "is about other structures"),
    ],
)
def test_a_trial_that_contradicts_itself_is_refused(make_run, spoil, sentence):
    run = make_run(trials=4)
    spoil(run / "trials/t0002")
    with pytest.raises(HydraError, match=sentence):
        build_ensemble(run)


def test_the_job_answers_with_the_table_or_the_sentence(make_run, tmp_path):
    run = make_run(trials=2)
    answer = tmp_path / "answer.json"
    assert job_main({"run": str(run), "answer": str(answer)}) == 0
    assert json.loads(answer.read_text())["method"] == "greedy"
    shutil.rmtree(run / "trials")
    assert job_main({"run": str(run), "answer": str(answer)}) == 0
    assert "nothing to build an ensemble from" in json.loads(answer.read_text())["error"]


def calibrations(run: Path) -> dict[str, Calibration]:
    build_ensemble(run)
    manifest = read_artefact(run / "ensemble.zip").manifest
    return {name: head.calibration for name, head in manifest.heads.items()}


@contextlib.contextmanager
def changed_store(run: Path) -> Iterator[Columns]:
    """Write the store of a run again as a block has changed it; what was recorded of it stays."""
    store = run / "data/toy.bp"
    columns = open_store(store)
    assert isinstance(columns, Columns)
    card = load_config(store / "card.toml", CardConfig)
    yield columns
    shutil.rmtree(store)
    stats = {name: value for name, value in columns.stats.items() if name != "checksum"}
    write_store(store, [columns], stats, card)


def change_labels(run: Path, *splits: str) -> None:
    """Add noise to the labels of some splits; what was recorded of the store stays."""
    with changed_store(run) as columns:
        rng = np.random.default_rng(1)
        chosen = np.isin(columns.split, [SPLITS.index(name) for name in splits])
        for name, values in columns.targets.items():
            rows = np.repeat(chosen, columns.num_nodes()) if name == "charge" else chosen
            columns.targets[name] = values + rows[:, None] * rng.normal(size=values.shape)


def test_only_labels_of_cal_change_the_calibration(make_run):
    run = make_run(trials=2, method="top")
    before = calibrations(run)
    change_labels(run, "train", "val", "sel", "test")
    assert calibrations(run) == before
    change_labels(run, "cal")
    after = calibrations(run)
    for name in before:
        assert after[name].quantiles != before[name].quantiles
        assert (after[name].a, after[name].b) != (before[name].a, before[name].b)


def test_kinds_of_structures_come_from_the_campaign(make_run):
    run = make_run(trials=2, intervals="size")
    build_ensemble(run)
    strata = read_artefact(run / "ensemble.zip").manifest.strata
    assert strata.by == "size"
    cal = open_store(run / "data/toy.bp")
    sizes = np.sort(cal.num_nodes()[cal.indices_of("cal")])
    assert set(strata.edges) <= set(sizes.tolist())


def test_elements_have_intervals_of_their_own_by_default(make_run):
    run = make_run(trials=2)
    build_ensemble(run)
    manifest = read_artefact(run / "ensemble.zip").manifest
    store = open_store(run / "data/toy.bp")
    cal = store.take(store.indices_of("cal"))
    charge, energy = (manifest.heads[name].calibration for name in ("charge", "energy"))
    assert set(charge.tables) == {chemical_symbols[z] for z in np.unique(cal.numbers)}
    assert set(energy.tables) == set(manifest.strata.names(cal).tolist())
    assert manifest.strata.by == "chemistry"
    prediction = Ensemble.load(run / "ensemble.zip").predict(store, store.indices_of("test"))
    test = store.take(store.indices_of("test"))
    half = prediction["charge"].hi90 - prediction["charge"].mean
    factor = (half / prediction["charge"].std)[:, 0]
    for symbol, table in charge.tables.items():
        own = factor[test.numbers == atomic_numbers[symbol]]
        assert own == pytest.approx(np.full(len(own), table["0.9"]))
    scores = json.loads((run / "report/ensemble.json").read_text())["heads"]["charge"]
    inside = np.abs(test.targets["charge"] - prediction["charge"].mean) <= half
    assert scores["coverage90"] == pytest.approx(inside.mean())


def hide_charges(run: Path, element: int, *splits: str) -> None:
    """Remove the charges of an element from some splits."""
    with changed_store(run) as columns:
        chosen = np.isin(columns.split, [SPLITS.index(name) for name in splits])
        hidden = np.repeat(chosen, columns.num_nodes()) & (columns.numbers == element)
        columns.masks["charge"] = columns.masks["charge"] & ~hidden


def hide_labels(run: Path, name: str, *splits: str) -> None:
    """Remove all labels of a target from some splits."""
    with changed_store(run) as columns:
        hidden = np.isin(columns.split, [SPLITS.index(split) for split in splits])
        if columns.levels[name] == "node":
            hidden = np.repeat(hidden, columns.num_nodes())
        columns.masks[name] = columns.masks[name] & ~hidden


def test_structures_without_any_neighbour_give_an_ensemble(tmp_path):
    """Single atoms, and pairs that are further apart than every cutoff."""
    rng = np.random.default_rng(0)
    structures = [Atoms(rng.choice(["H", "C", "N", "O"])) for _ in range(40)]
    structures += [Atoms("CO", [[0, 0, 0], [0, 0, 6.0 + 0.1 * k]]) for k in range(20)]
    columns, card = toy_columns(structures=structures)
    assert not len(columns.edges)
    run = tmp_path / "run"
    (run / "data").mkdir(parents=True)
    write_store(run / "data/toy.bp", [columns], columns.stats, card)
    (run / "campaign.toml").write_text(campaign_text())
    store = open_store(run / "data/toy.bp")
    for number, trial in enumerate(("t0001", "t0002", "t0003")):
        write_trial(run, store, trial, number)
    table = build_ensemble(run)
    assert table["heads"]["energy"]["descriptor_mae"] is not None
    assert np.isfinite(table["heads"]["charge"]["test_mae"])
    ensemble = Ensemble.load(run / "ensemble.zip")
    for atoms in ([Atoms("O")], [Atoms("O"), molecule("CH3OH")]):
        prediction = ensemble.predict(atoms)
        assert np.isfinite(prediction["energy"].mean).all()
        assert np.isfinite(prediction["charge"].hi90).all()
    done = evaluate_ensemble(ensemble, read_split(run / "data/toy.bp", "test", 4.0), card.targets)
    assert set(done.heads) == {"energy", "charge"}


REFUSALS = {
    "no training has ended, and so there is nothing to lose": ["candidates.find_candidates"],
    "the options of the command are checked before anything is read": [
        *("candidates._keep_nets", "engine.device_of", "engine._check_device"),
    ],
    "the files of the run were altered after the trainings": [
        *("candidates._check_heads", "candidates.read_stored_predictions"),
        *("predicted.check_members", "engine.make_member", "engine._check_fits"),
    ],
    "no head has labels, which the build of the store finds": ["candidates.leave_out_heads"],
}
"""Why each error that a build can raise is found before the first trial, or loses no other head:
see ``test_a_head_without_labels_in_a_split_leaves_the_others``, and ``check_labels``."""


BUILDING = {
    "ensemble": (
        *("artefact_writer", "baselines", "descriptors", "engine", "local_members"),
        *("local_descriptors", "neighbor_densities", "regressions"),
    ),
    "ensemble_build": (
        *("build", "build_report", "calibrated", "candidates", "cross_fit", "evidence"),
        *("member_selection", "packed", "predicted", "simpler_models", "tested", "verdict"),
        "verdict_evidence",
    ),
    "uncertainty": (
        *("calibrate", "class_probabilities", "cross_calibrate", "error_factors"),
        *("paired_comparison", "uncertainty_scores"),
    ),
}
"""Modules whose code a build runs."""


def test_each_refusal_of_a_build_loses_no_head_after_the_search():
    found = set()
    rooms = Path(hydragnn_hpo.__file__).parent
    for room, module in ((room, module) for room, names in BUILDING.items() for module in names):
        source = (rooms / room / f"{module}.py").read_text()
        functions = [f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef)]
        found |= {
            f"{module}.{function.name}"
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Raise) and names_error_for_users(node)
        }
    assert found == {name for names in REFUSALS.values() for name in names}


def names_error_for_users(node: ast.Raise) -> bool:
    made = node.exc.func.id if isinstance(node.exc, ast.Call) else ""  # type: ignore[attr-defined]
    return isinstance(getattr(errors, made, None), type)


@pytest.mark.parametrize("split", ["val", "sel", "cal", "test"])
@pytest.mark.parametrize("name", ["energy", "charge"])
def test_a_head_without_labels_in_a_split_leaves_the_others(make_run, name, split):
    run = make_run(trials=2, method="top")
    (kept,) = {"energy", "charge"} - {name}
    hide_labels(run, name, split)
    table = build_ensemble(run)
    assert set(table["heads"]) == {kept}
    assert set(table["diversity"]) == {kept}
    missing, *others = table["verdict"]
    assert (missing["rule"], missing["head"], missing["level"]) == ("missing", name, "warning")
    assert (
        f"{name} is not in the ensemble: no structure of the split '{split}'"
        in (missing["sentence"])
    )
    assert {sentence["head"] for sentence in others} <= {kept, None}
    ensemble = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    rows = store.indices_of("test")
    left = ensemble.predict(store, rows, members=True)
    assert list(left.heads) == [kept]
    for member in open_build_context(RunDir(run)).candidates:
        whole = load_config(run / "trials" / member.trial / "trial.toml", TrialConfig)
        tensors, _ = checkpoint.read_checkpoint(member.folder.best)
        net = make_member(whole, tensors, store.stats["targets"], weights={}, where="x")
        ((_, batch),) = member_batches([net], store, rows, torch.device("cpu"))
        expected = net.model(batch)[kept].double().numpy()
        np.testing.assert_allclose(left[kept].members[member.trial], expected, atol=1e-6)


@pytest.mark.parametrize(("name", "split"), [("energy", "train"), ("charge", "sel")])
def test_the_verdict_names_one_wrong_label_of_any_split(make_run, name, split):
    run = make_run(trials=2)
    far = [one for one in build_ensemble(run)["verdict"] if one["rule"] == "far"]
    assert far == []
    with changed_store(run) as columns:
        graph = columns.indices_of(split)[1]
        row = columns.node_offset[graph] if name == "charge" else graph
        columns.targets[name] = columns.targets[name].copy()
        columns.targets[name][row] = -1e6
    (far,) = (one for one in build_ensemble(run)["verdict"] if one["rule"] == "far")
    assert (far["head"], far["level"]) == (name, "warning")
    size, unit = ("-1e+06", "eV/atom") if name == "energy" else ("1e+06", "e")
    assert f"the label of structure m{graph}, {size} {unit}, is far from all" in far["sentence"]


def test_nothing_is_built_where_no_head_has_labels(make_run):
    run = make_run(trials=2)
    hide_labels(run, "energy", "sel")
    hide_labels(run, "charge", "cal")
    with pytest.raises(RunError, match=r"'sel' has the target 'energy' .* no head is left"):
        build_ensemble(run)


def test_the_learned_weights_of_heads_that_are_left_out_do_not_matter():
    config = trial_config("t0002", 1)
    training = config.training.model_copy(update={"balance": "uncertainty"})
    config = config.model_copy(update={"training": training})
    targets = toy_columns(20)[0].stats["targets"]
    model = MultiHeadGNN(config.model, config.heads, targets, learn_weights=True)
    heads = {"charge": config.heads["charge"]}
    reduced = config.model_copy(update={"heads": heads})
    tensors = keep_heads(model.state_dict(), reduced, targets)
    member = make_member(reduced, tensors, targets, weights={"charge": 1.0}, where="x")
    assert member.heads == ("charge",)
    own = model.heads["charge"].state_dict()
    kept = member.model.heads["charge"].state_dict()
    assert all(torch.equal(own[name], kept[name]) for name in own)


def test_elements_without_a_label_in_training_are_left_out_and_missing(make_run):
    run = make_run(trials=2)
    hide_charges(run, 8, "train")
    table = build_ensemble(run)
    store = open_store(run / "data/toy.bp")
    indices = store.indices_of("test")
    test = store.take(indices)
    oxygen = test.numbers == 8
    assert oxygen.any()

    manifest = read_artefact(run / "ensemble.zip").manifest
    assert manifest.heads["charge"].elements == (1, 6, 7)
    assert manifest.heads["energy"].elements == (1, 6, 7, 8)
    assert "O" not in manifest.heads["charge"].calibration.tables
    rows = load_file(run / "report/test_predictions.safetensors")["charge/rows"]
    assert rows.tolist() == np.flatnonzero(~oxygen).tolist()
    assert table["heads"]["charge"]["test_rows"] == (~oxygen).sum()
    (warning,) = (text for text in table["warnings"] if "leaves out" in text)
    assert f"leaves out {oxygen.sum()} of {len(oxygen)} labels" in warning

    ensemble = Ensemble.load(run / "ensemble.zip")
    prediction = ensemble.predict(store, indices, levels=(50,), members=True)
    charge = prediction["charge"]
    for values in (charge.mean, charge.std, charge.lo90, charge.hi90, *charge.members.values()):
        assert np.isnan(values[oxygen]).all()
        assert np.isfinite(values[~oxygen]).all()
    assert np.isnan(charge.bounds[50][0][oxygen]).all()
    assert np.isfinite(prediction["energy"].mean).all()
    for row, trust in enumerate(prediction.trust):
        has_oxygen = oxygen[test.node_offset[row] : test.node_offset[row + 1]].any()
        assert ("no label of charge for O" in trust) == has_oxygen
        assert "not finite" not in trust
    assert np.isfinite(ensemble.predict(store, indices, unlabelled=True)["charge"].mean).all()


def test_a_structure_with_an_element_that_no_label_has_is_missing(built_zip):
    ensemble = Ensemble.load(built_zip)
    known = molecule("H2O")
    strange = molecule("SH2")
    prediction = ensemble.predict([known, strange])
    assert np.isfinite(prediction["energy"].mean[0])
    assert np.isnan(prediction["energy"].mean[1])
    assert np.isnan(prediction["charge"].mean[:, 0]).tolist() == [False] * 3 + [True, False, False]
    assert "unseen element S" in prediction.trust[1]
    assert "unseen element" not in prediction.trust[0]
    assert "energy missing" in repr(prediction[1])
    heads = {
        name: head.model_copy(update={"elements": None})
        for name, head in ensemble.manifest.heads.items()
    }
    ensemble.manifest = ensemble.manifest.model_copy(update={"heads": heads})
    assert np.isfinite(ensemble.predict([known, strange])["energy"].mean).all()


def bound_charges(run: Path, low: float, high: float) -> None:
    """Give the charge bounds, in the card and the store."""
    store = run / "data/toy.bp"
    columns = open_store(store)
    card = load_config(store / "card.toml", CardConfig)
    assert isinstance(columns, Columns)
    charge = card.targets["charge"].model_copy(update={"min": low, "max": high})
    card = card.model_copy(update={"targets": {**card.targets, "charge": charge}})
    stats = {name: value for name, value in columns.stats.items() if name != "checksum"}
    stats["targets"] = {
        **stats["targets"],
        "charge": {**stats["targets"]["charge"], "bounds": [low, high]},
    }
    shutil.rmtree(store)
    write_store(store, [columns], stats, card)


def test_predictions_and_intervals_end_at_the_bounds(make_run):
    run = make_run(trials=3)
    free = build_ensemble(run)["heads"]["charge"]
    before = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    indices = store.indices_of("test")
    raw = before.predict(store, indices)["charge"].mean
    low, high = (float(end) for end in np.quantile(raw, (0.3, 0.7)))
    bound_charges(run, low, high)
    scores = build_ensemble(run)["heads"]["charge"]
    assert scores["test_mae"] != free["test_mae"]

    content = read_artefact(run / "ensemble.zip")
    entry = content.manifest.heads["charge"]
    assert entry.bounds == (low, high)
    assert content.manifest.heads["energy"].bounds is None
    ensemble = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    charge = ensemble.predict(store, indices, levels=(50,))["charge"]
    np.testing.assert_array_equal(charge.mean, np.clip(raw, low, high))
    sigma = entry.calibration.sigma(charge.std_epistemic)
    strata = content.manifest.strata.of_rows(store, indices, node=True)
    half = entry.calibration.half_width(sigma, 0.9, strata)
    np.testing.assert_allclose(charge.lo90, np.clip(charge.mean - half, low, high))
    np.testing.assert_allclose(charge.hi90, np.clip(charge.mean + half, low, high))
    for values in charge.bounds[50]:
        assert ((low <= values) & (values <= high)).all()
    assert scores["test_mae"] == pytest.approx(
        np.abs(charge.mean - store.take(indices).targets["charge"]).mean()
    )
    assert content.calibration_data is not None
    again = content.calibration_data.calibrate_head(
        "charge", content.manifest.shares("charge"), entry.std, entry.bounds
    )
    assert again.quantiles == pytest.approx(entry.calibration.quantiles)


def guess_unit_of_energy(run: Path) -> None:
    """Mark the unit of the energy as guessed in the store."""
    store = run / "data/toy.bp"
    columns = open_store(store)
    card = load_config(store / "card.toml", CardConfig)
    assert isinstance(columns, Columns)
    stats = {name: value for name, value in columns.stats.items() if name != "checksum"}
    energy = {**stats["targets"]["energy"], "unit_guessed": True}
    stats["targets"] = {**stats["targets"], "energy": energy}
    shutil.rmtree(store)
    write_store(store, [columns], stats, card)


def test_a_guessed_unit_is_shown_as_such_beside_every_number(make_run):
    run = make_run(trials=2)
    guess_unit_of_energy(run)
    table = build_ensemble(run)
    shown = {name: head["unit"] for name, head in table["heads"].items()}
    assert shown == {"energy": "eV/atom (guessed)", "charge": "e"}
    sentences = [each["sentence"] for each in table["verdict"]]
    numbers = [text for text in sentences if re.search(r"\d eV/atom", text)]
    assert numbers
    assert all(re.search(r"\d eV/atom \(guessed\)", text) for text in numbers)

    content = read_artefact(run / "ensemble.zip")
    assert content.manifest.units() == shown
    assert content.manifest.heads["energy"].unit == "eV/atom"
    with zipfile.ZipFile(run / "ensemble.zip") as archive:
        model_card = archive.read("MODEL_CARD.md").decode()
    assert "`energy` in eV/atom (guessed)" in model_card
    assert not re.search(r"eV/atom(?! \(guessed\))", model_card)

    ensemble = Ensemble.load(run / "ensemble.zip")
    store = open_store(run / "data/toy.bp")
    prediction = ensemble.predict(store, store.indices_of("test"))
    assert " eV/atom (guessed)" in repr(prediction)
    assert " e;" in repr(prediction)
    assert prediction.to_frame().attrs["units"]["energy"] == "eV/atom (guessed)"
    assert "energy [eV/atom (guessed)]" in repr(ensemble)


def predict_variances(run: Path, trials: list[str], predict_alone: Callable[..., dict]) -> None:
    """Return the energy heads of some trials a variance; stored predictions lack it, as ever."""
    columns = open_store(run / "data/toy.bp")
    for number, trial in enumerate(trials):
        folder = run / "trials" / trial
        config = load_config(folder / "trial.toml", TrialConfig)
        heads = dict(config.heads)
        heads["energy"] = heads["energy"].model_copy(update={"loss": "nll"})
        config = config.model_copy(update={"heads": heads})
        (folder / "trial.toml").write_text(dump_config(config))
        torch.manual_seed(number)
        model = MultiHeadGNN(config.model, config.heads, columns.stats["targets"])
        checkpoint.write_checkpoint(folder / "checkpoints/best.safetensors", model.state_dict(), {})
        member = Member(trial, {}, model.eval(), config.model.cutoff, torch.float32)
        arrays = {}
        for split in ("val", "sel", "cal"):
            arrays[f"{split}/index"] = columns.indices_of(split)
            for head, values in predict_alone(member, columns, arrays[f"{split}/index"]).items():
                if head != variance_key("energy"):
                    arrays[f"{split}/{head}"] = values
        save_file(arrays, folder / "attempts/001/predictions.safetensors")


def test_variances_that_members_predict_reach_sigma(make_run, predict_alone):
    """The mean of the members' variances, 0 of the one that predicts none, times c."""
    run = make_run(trials=3, method="top", members=3)
    predict_variances(run, ["t0001", "t0002"], predict_alone)
    build_ensemble(run)
    columns = open_store(run / "data/toy.bp")
    ensemble = Ensemble.load(run / "ensemble.zip")
    known = ensemble.manifest.heads["energy"].calibration
    indices = columns.indices_of("test")
    noises = []
    for member in ensemble.members:
        predictions = predict_alone(member, columns, indices)
        noises.append(predictions.get(variance_key("energy"), np.zeros((len(indices), 1))))
    assert sum(bool(noise.any()) for noise in noises) == 2
    head = ensemble.predict(columns, indices).heads["energy"]
    noise = sum(noises) / 3
    expected = np.sqrt(known.a * head.std_epistemic**2 + known.c * noise + known.b)
    np.testing.assert_allclose(head.std, expected, rtol=1e-5)
    indices = columns.indices_of("cal")
    moments = ensemble.moments(columns, indices)["energy"]
    again = calibrate(
        columns.targets["energy"][indices] - moments.mean,
        moments.spread,
        group=columns.group[indices],
        largest=moments.spread[:, 0],
        scale=float(columns.stats["targets"]["energy"]["std"]),
        noise=moments.noise,
    )
    assert known.c == pytest.approx(again.c)
    assert known.quantiles["0.9"] == pytest.approx(again.quantiles["0.9"], rel=1e-4)


def test_near_twins_stand_by_their_place_in_the_test_split(built_zip, monkeypatch):
    """Three planted pairs: train and test, test and test, and one without a test structure."""
    context = open_build_context(RunDir(built_zip.parent))
    trials = {member.trial for member in read_artefact(built_zip).manifest.members}
    every = list_nets(context, range(len(context.candidates)))
    nets = [net for net in every if net.trial in trials]
    train, test = (context.graphs.indices_of(split).tolist() for split in ("train", "test"))
    base = {"target": "energy", "formula": "H2O", "distance": 0.1, "unit": "eV", "splits": []}
    base |= {"allowed": 1.0, "told_apart_by": []}
    pairs = [
        base | {"rows": [train[0], test[3]], "ids": ["a", "b"], "difference": 2.0},
        base | {"rows": [test[5], test[2]], "ids": ["c", "d"], "difference": 3.0},
        base | {"rows": train[:2], "ids": ["e", "f"], "difference": 9.0},
        base | {"rows": [train[0], test[0]], "ids": ["g", "h"], "target": "x", "difference": 9.0},
    ]
    found = TwinsOfModels(pairs, [np.array([train[1], test[4]]), np.array(train[:2])])
    monkeypatch.setattr(evidence, "find_twins_of_models", lambda path, read: found)
    listed, same = evidence.find_test_twins(context, nets)
    assert [rows.tolist() for rows in same] == [[train[1], test[4]]]
    assert [(one["test"], one["ids"]) for one in listed] == [(5, ["c", "d"]), (3, ["b", "a"])]
    energy = HeadEvidence("energy", "eV")
    head = evidence.count_independent(context, energy, same)
    groups = len(np.unique(context.graphs.group[test]))
    assert (head.groups, head.structures, head.remembered) == (groups, len(test), 1)
    both = [np.array([test[0], test[1]]), np.array([test[1], train[0], test[2]])]
    head = evidence.count_independent(context, energy, both)
    joined = len(np.unique(context.graphs.group[test[:3]])) - 1
    assert (head.groups, head.remembered) == (groups - joined, 2)
    monkeypatch.setattr(evidence, "MOST_SEARCHED", 10)
    assert evidence.find_test_twins(context, nets) is None
