"""An ensemble of heads of several numbers: built, saved, loaded, used, and written down."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from ase.io import read
from safetensors.numpy import load_file
from scipy.spatial.transform import Rotation
from stores import write_store
from typer.testing import CliRunner
from unit.ensemble.conftest import molecule, write_training

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.data_config import SPLITS, CardConfig
from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.artefact import LOCAL_MEMBER, read_artefact
from hydragnn_hpo.ensemble.baselines import CompositionModel
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.predict_file import select_columns
from hydragnn_hpo.ensemble.predict_output import OutputColumns, make_rows
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble.serve import Limits, describe_service
from hydragnn_hpo.ensemble.structure_batches import Structures, columns_of_atoms
from hydragnn_hpo.ensemble.torch_export import check_exportable
from hydragnn_hpo.ensemble.writers import WRITERS
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.head_figures import draw_head
from hydragnn_hpo.uncertainty.class_probabilities import calibrate_probabilities

CARD = {
    "name": "kinds",
    "files": [{"path": "kinds.extxyz"}],
    "targets": {
        "dos": {
            "level": "graph", "shape": "spectrum", "size": 6, "unit": "1/eV", "min": 0.0,
            "axis": {"first": -1, "last": 4, "unit": "eV"}, "optional": True,
        },
        "local": {"level": "node", "shape": "spectrum", "size": 4, "unit": "1"},
        "phase": {"level": "graph", "shape": "class", "classes": ["big one", "small"]},
        "site": {"level": "node", "shape": "class", "classes": [0, 1, 2], "optional": True},
        "mu": {"level": "graph", "shape": "vector", "unit": "e*angstrom", "optional": True},
        "alpha": {"level": "graph", "shape": "tensor", "unit": "angstrom^3", "optional": True},
    },
    "graphs": {"cutoff": 4.0},
}  # fmt: skip
HEADS = {"dos": {"cumulative": True}, "local": {}, "phase": {}, "site": {}, "mu": {}, "alpha": {}}
TRIALS = {"t0001": "schnet", "t0002": "painn", "t0003": "egnn"}


def labelled(count, seed=0):
    """Molecules with a made spectrum of each, and of each atom; every sixth has none."""
    rng = np.random.default_rng(seed)
    structures = [molecule(rng) for _ in range(count)]
    for number, atoms in enumerate(structures):
        distances = atoms.get_all_distances()
        bins = np.histogram(distances[distances > 0], bins=6, range=(0.5, 5.0))[0]
        if number % 6:
            atoms.info["dos"] = bins / len(atoms)
        atoms.info["phase"] = "big one" if distances.mean() > 1.6 else "small"
        atoms.arrays["site"] = np.where(atoms.numbers == 1, np.nan, atoms.numbers % 3)
        if not atoms.pbc.any():
            arms = atoms.positions - atoms.positions.mean(axis=0)
            charges = atoms.numbers - 6.5
            atoms.info["mu"] = (charges - charges.mean()) @ arms
            atoms.info["alpha"] = len(atoms) * np.eye(3) + arms.T @ arms
        atoms.arrays["local"] = np.outer(atoms.numbers / 8.0, [1.0, 2.0, 0.0, -1.0])
    return structures


def make_run(run, structures):
    """Write a run directory of three trials with random weights and honest predictions."""
    card = parse_config(CARD, CardConfig, where="card")
    rules = Rules(card.graphs.cutoff, card.graphs.min_distance, card.targets)
    graphs = [
        graph_of(a, Place(Path("kinds"), k, f"m{k}"), rules) for k, a in enumerate(structures)
    ]
    columns = columns_of(graphs, card.targets)
    columns.split[:] = np.arange(len(graphs)) % len(SPLITS)
    columns.stats.update(
        size_stats(columns, card.graphs.cutoff),
        name="kinds",
        targets=fit_target_stats(columns, card.targets),
        elements=[1, 6, 7, 8],
        cutoff=card.graphs.cutoff,
    )
    (run / "data").mkdir(parents=True)
    write_store(run / "data/kinds.bp", [columns], columns.stats, card)
    campaign = {
        "name": "kinds", "data": [{"card": "kinds"}], "trial": {"heads": HEADS},
        "space": {"model.features": [16, 24]}, "search": {"trials": 6, "rungs": [2]},
    }  # fmt: skip
    (run / "campaign.toml").write_text(dump_config(parse_config(campaign, CampaignConfig, "c")))
    store = open_store(run / "data/kinds.bp")
    for number, trial in enumerate(TRIALS):
        write_trial(run, store, trial, number)


def write_trial(run, store, trial, number):
    plain = {
        "trial": trial, "seed": number, "data": {"store": "../../data/kinds.bp"}, "heads": HEADS,
        "model": {"conv": TRIALS[trial], "features": 16, "layers": 1, "cutoff": 4.0},
        "training": {"epochs": 2},
    }  # fmt: skip
    config = TrialConfig.model_validate(plain)
    write_training(run, store, config, 0.5 + number, dict.fromkeys(HEADS, 0.1))


@pytest.fixture(scope="module")
def run(tmp_path_factory, scratch):
    folder = tmp_path_factory.mktemp("kinds") / "run"
    with scratch():
        make_run(folder, labelled(120))
        build_ensemble(folder)
    return folder


@pytest.fixture(scope="module")
def ensemble(run):
    return Ensemble.load(run / "ensemble.zip")


def test_each_head_is_held_against_local_descriptors(run, ensemble):
    """The errors are those of the regressions in the file, computed here from the labels."""
    table = json.loads((run / "report/ensemble.json").read_text())
    done = CliRunner().invoke(
        app, ["ensemble", "evaluate", str(run / "data/kinds.bp"), "--ensemble", str(run), "--json"]
    )
    assert done.exit_code == 0, done.output
    evaluated = json.loads(done.stdout)["heads"]
    store = open_store(run / "data/kinds.bp")
    test = store.take(store.indices_of("test"))
    assert ensemble.local is not None
    assert set(ensemble.local.heads) == set(HEADS)
    for name, entry in ensemble.manifest.heads.items():
        node = entry.level == "node"
        own = entry.baseline
        start = None if own is None else CompositionModel.from_entry(own, is_node=node)
        mask, truth = test.masks[name], test.targets[name]
        local = ensemble.local.predict(name, test, start)[mask]
        local = np.maximum(local, 0.0) if name == "dos" else local  # its smallest value
        error = np.abs(local - truth[mask]).mean()
        if entry.shape == "class":
            error = -np.log((local * truth[mask]).sum(axis=1)).mean()
        scores = table["heads"][name]
        assert scores["descriptor_mae"] == pytest.approx(error, rel=1e-4, abs=1e-6), name
        assert evaluated[name]["descriptor_mae"] == pytest.approx(error, rel=1e-4, abs=1e-6), name
    dos = CompositionModel.from_entry(ensemble.manifest.heads["dos"].baseline, is_node=False)
    error = np.abs(np.maximum(dos.predict(test), 0.0) - test.targets["dos"])[test.masks["dos"]]
    for scores in (table["heads"]["dos"], evaluated["dos"]):
        assert scores["elements_mae"] == pytest.approx(error.mean(), rel=1e-4)
    for name in ("dos", "mu", "alpha"):
        assert table["heads"][name]["descriptor_mae"] < table["heads"][name]["mean_baseline_mae"]
    mu = table["heads"]["mu"]  # charges of elements times positions
    assert mu["descriptor_mae"] < 0.2 * mu["mean_baseline_mae"]
    assert set(table["local_descriptors"]) == set(HEADS), "none is an energy"
    rules = {(each["rule"], each["head"]) for each in table["verdict"]}
    assert {("descriptor", name) for name in ("dos", "phase", "mu", "alpha")} <= rules


def test_the_regression_is_a_member_of_heads_of_all_kinds(run, ensemble):
    """Nets with random weights know nothing; means, spreads and errors are computed here."""
    table = json.loads((run / "report/ensemble.json").read_text())
    store = open_store(run / "data/kinds.bp")
    test = store.take(store.indices_of("test"))
    (alone,) = ensemble.local_members
    prediction = ensemble.predict(test, members=True)
    regression = alone.predict(test)
    for name in HEADS:
        head = prediction[name]
        shares = ensemble.manifest.shares(name)
        classes = ensemble.manifest.heads[name].classes
        assert shares[LOCAL_MEMBER] == table["local_descriptors"][name]["weight"] > 0.1, name
        known = np.isfinite(head.mean[:, 0])  # no element without a label is predicted
        own = head.members[LOCAL_MEMBER]
        np.testing.assert_allclose(own[known], regression[name][known], atol=1e-12)
        mean = sum(weight * head.members[trial] for trial, weight in shares.items())
        mask, truth = test.masks[name], test.targets[name]
        if classes is not None:
            mean = calibrate_probabilities(mean, ensemble.manifest.heads[name].calibration)
            error = -np.log((mean * truth)[mask].sum(axis=1)).mean()
        else:
            mean = np.maximum(mean, 0.0) if name == "dos" else mean
            error = np.abs(mean - truth)[mask].mean()
        np.testing.assert_allclose(head.mean[known], mean[known], atol=1e-6, err_msg=name)
        assert table["heads"][name]["test_mae"] == pytest.approx(error, rel=1e-4), name
        assert table["heads"][name]["test_mae"] < table["heads"][name]["test_mae_greedy"], name


def test_vectors_and_tensors_turn_with_the_structure(ensemble):
    structures = labelled(6, seed=9)
    turn = Rotation.from_rotvec([0.3, -1.1, 0.7]).as_matrix()
    turned = [atoms.copy() for atoms in structures]
    for atoms in turned:
        atoms.positions[:] = atoms.positions @ turn.T
        atoms.set_cell(np.asarray(atoms.cell) @ turn.T)
    before = ensemble.predict(structures)
    after = ensemble.predict(turned)
    assert min(ensemble.manifest.shares(name)[LOCAL_MEMBER] for name in ("mu", "alpha")) > 0.1
    np.testing.assert_allclose(after["mu"].mean, before["mu"].mean @ turn.T, atol=1e-5)
    tensors = before["alpha"].mean.reshape(-1, 3, 3)
    expected = (turn @ tensors @ turn.T).reshape(-1, 9)
    np.testing.assert_allclose(after["alpha"].mean, expected, atol=1e-5)


def test_each_value_is_compared_with_its_own_mean(run):
    """The error of the mean is that of the mean spectrum, computed here from the labels alone."""
    table = json.loads((run / "report/ensemble.json").read_text())
    truth = load_file(run / "report/test_predictions.safetensors")["dos/truth"]
    store = open_store(run / "data/kinds.bp")
    train = store.take(store.indices_of("train"))
    center = train.targets["dos"][train.masks["dos"]].mean(axis=0)
    expected = np.abs(truth - center).mean()
    assert table["heads"]["dos"]["mean_baseline_mae"] == pytest.approx(expected)
    assert truth.shape == (20, 6)


def test_the_file_knows_size_axis_and_means(ensemble):
    dos = ensemble.manifest.heads["dos"]
    assert (dos.shape, dos.size, dos.width) == ("spectrum", 6, 6)
    assert dos.axis is not None
    assert dos.axis.points(6) == [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    description = describe_service(ensemble.manifest, Limits())["heads"]["dos"]
    assert (description["size"], description["axis"]["unit"]) == (6, "eV")
    assert dos.baseline is not None
    assert len(dos.baseline.mean) == 6


def test_predictions_of_spectra_lie_within_bounds(ensemble):
    structures = labelled(3, seed=5)
    prediction = ensemble.predict(structures)
    dos = prediction["dos"]
    assert (dos.mean.shape, dos.std.shape, dos.hi90.shape) == ((3, 6), (3, 1), (3, 6))
    assert dos.mean.min() >= 0.0
    assert dos.lo90.min() == 0.0
    frame = prediction.to_frame()
    assert [*frame.columns[1:8]] == [*(f"dos_{k}" for k in range(6)), "dos_std"]
    assert frame.attrs["units"]["dos_hi90_5"] == "1/eV"
    np.testing.assert_array_equal(frame["dos_lo90_2"], dos.lo90[:, 2])
    atoms = prediction.to_frame("atoms")
    assert {"local_0", "local_3", "local_std", "local_hi90_3"} <= set(atoms.columns)


def test_classes_have_frequencies_and_a_temperature(run, ensemble):
    phase = ensemble.manifest.heads["phase"]
    store = open_store(run / "data/kinds.bp")
    train = store.take(store.indices_of("train"))
    np.testing.assert_allclose(phase.means, train.targets["phase"].mean(axis=0))
    assert phase.classes == ("big one", "small")
    assert phase.std == pytest.approx(-sum(p * np.log(p) for p in phase.means))
    assert phase.calibration.temperature > 0
    site = ensemble.manifest.heads["site"]
    assert (site.width, site.elements) == (3, (6, 7, 8))
    scores = ensemble.manifest.evaluation["phase"]
    truth = load_file(run / "report/test_predictions.safetensors")["phase/truth"]
    expected = -np.log(np.array(phase.means))[truth.argmax(axis=1)].mean()
    assert scores["mean_baseline_mae"] == pytest.approx(expected)
    assert 0.0 <= scores["ece"] <= scores["accuracy"] <= 1.0


def test_probabilities_are_averaged_then_tempered(ensemble):
    structures = labelled(5, seed=9)
    prediction = ensemble.predict(structures, members=True)
    phase, entry = prediction["phase"], ensemble.manifest.heads["phase"]
    shares = ensemble.manifest.shares("phase")
    mean = sum(shares[trial] * values for trial, values in phase.members.items())
    powers = mean ** (1.0 / entry.calibration.temperature)
    np.testing.assert_allclose(phase.mean, powers / powers.sum(axis=1, keepdims=True), rtol=1e-9)
    assert (phase.hi90.sum(axis=1) >= 1).all()
    frame = prediction.to_frame()
    most = [entry.classes[place] for place in phase.mean.argmax(axis=1)]
    assert list(frame["phase"]) == most
    assert {"phase_big one", "phase_small", "phase_hi90_small"} <= set(frame.columns)
    assert f"phase {most[0]} ({phase.mean[0].max():.2f})" in repr(prediction[0])
    hydrogen = np.concatenate([atoms.numbers for atoms in structures]) == 1
    assert np.isnan(prediction["site"].mean[hydrogen]).all()
    assert np.isfinite(prediction["site"].mean[~hydrogen]).all()


def test_the_best_trial_has_a_temperature_of_its_own_fitted_on_cal(run, ensemble):
    """The temperature by trying four thousand, each group of structures with the same weight."""
    store = open_store(run / "data/kinds.bp")
    table = json.loads((run / "report/ensemble.json").read_text())
    best = table["leaderboard"][0]["trial"]
    for name in ("phase", "site"):
        learned, tested = (
            of_labelled(ensemble, store, split, best, name) for split in ("cal", "test")
        )
        weight = 1.0 / np.array([np.sum(learned["group"] == g) for g in learned["group"]])
        losses = {
            t: np.sum(weight * -np.log(tempered(learned, t))) for t in np.geomspace(0.05, 20, 4000)
        }
        temperature = min(losses, key=losses.get)
        expected = -np.log(tempered(tested, temperature)).mean()
        assert temperature != pytest.approx(1.0, rel=0.05)
        assert table["heads"][name]["single_mae"] == pytest.approx(expected, rel=1e-4)


def of_labelled(ensemble, store, split, trial, name):
    """Return what one member predicts for the labelled rows of a split, their labels and groups."""
    rows = store.indices_of(split)
    columns = store.take(rows)
    predicted = ensemble.predict(store, rows, members=True)[name]
    group = store.group[rows]
    if columns.levels[name] == "node":
        group = np.repeat(group, columns.num_nodes())
    known = columns.masks[name] & np.isfinite(predicted.mean).all(axis=1)
    return {
        "values": predicted.members[trial][known],
        "truth": columns.targets[name][known].argmax(axis=1),
        "group": group[known],
    }


def tempered(rows, temperature):
    """Return the probability of the true class of each row."""
    powers = rows["values"] ** (1.0 / temperature)
    return powers[np.arange(len(powers)), rows["truth"]] / powers.sum(axis=1)


def test_a_class_is_pruned_and_calibrated_again(run):
    content = read_artefact(run / "ensemble.zip")
    stay = [member.trial for member in content.manifest.members][1:]
    smaller, effects = prune_members(content, stay, where="here")
    assert smaller.manifest.heads["phase"].calibration.temperature is not None
    assert 1.0 <= effects["phase"].width90_after <= 2.0


def test_a_class_is_not_exported(ensemble):
    with pytest.raises(ConfigError, match="target 'phase' is a class"):
        check_exportable(ensemble, "phase")


def test_the_report_draws_reliability_and_confusion(run):
    facts = read_facts(RunDir(run))
    reliability, confusion = draw_head(facts, "phase")
    assert (reliability.key, confusion.key) == ("reliability.phase", "confusion.phase")
    arrays = load_file(run / "report/test_predictions.safetensors")
    truth, mean = arrays["phase/truth"], arrays["phase/mean"]
    counts = [
        [int((truth[:, a] * (mean.argmax(axis=1) == b)).sum()) for b in (0, 1)] for a in (0, 1)
    ]
    assert confusion.data[0]["z"] == counts


def written(ensemble, structures, suffix, out):
    """Write predictions in a format; return the path of the file."""
    columns = columns_of_atoms(structures, ensemble.rules)
    named = Structures(columns, tuple(f"m{k}" for k in range(len(structures))), {})
    rows = make_rows(named, ensemble.predict(structures))
    writer = WRITERS[suffix](OutputColumns(ensemble.manifest))
    share = writer.part([rows])
    return writer.join(lambda: iter([share]), out / f"out{suffix}")[0]


def test_a_spectrum_is_a_list_a_block_or_columns(ensemble, tmp_path):
    structures = labelled(2, seed=6)
    expected = ensemble.predict(structures)
    plain = json.loads(written(ensemble, structures, ".json", tmp_path).read_text())
    heads = plain["structures"][0]["heads"]
    np.testing.assert_allclose(heads["dos"]["lo90"], expected["dos"].lo90[0])
    assert np.shape(heads["local"]["mean"]) == (len(structures[0]), 4)
    first = read(written(ensemble, structures, ".extxyz", tmp_path), index=0)
    np.testing.assert_allclose(first.info["dos"], expected["dos"].mean[0], rtol=1e-6, atol=1e-6)
    assert first.arrays["local"].shape == (len(structures[0]), 4)
    title = written(ensemble, structures, ".csv", tmp_path).read_text().splitlines()[0]
    assert title.startswith("id,dos_0,dos_1,")
    assert (
        (tmp_path / "out.nodes.csv")
        .read_text()
        .startswith("id,structure_index,atom,element,local_0,local_1")
    )


def test_the_most_probable_class_is_named_in_every_format(ensemble, tmp_path):
    structures = labelled(3, seed=6)
    structures[0].numbers[0] = 1  # no hydrogen has a label of site
    expected = ensemble.predict(structures)
    names = [("big one", "small")[int(row[1] > row[0])] for row in expected["phase"].mean.tolist()]
    sites = [
        None if np.isnan(row).any() else "012"[row.index(max(row))]
        for row in expected["site"].mean.tolist()
    ]
    plain = json.loads(written(ensemble, structures, ".json", tmp_path).read_text())
    heads = [each["heads"] for each in plain["structures"]]
    assert [head["phase"]["class"] for head in heads] == names
    assert [name for head in heads for name in head["site"]["class"]] == sites
    assert None in sites
    assert "class" not in heads[0]["dos"]
    with written(ensemble, structures, ".csv", tmp_path).open(newline="") as file:
        assert [row["phase"] for row in csv.DictReader(file)] == names
    with (tmp_path / "out.nodes.csv").open(newline="") as file:
        assert [row["site"] or None for row in csv.DictReader(file)] == sites
    table = pyarrow.parquet.read_table(written(ensemble, structures, ".parquet", tmp_path))
    assert table["phase"].to_pylist() == names
    assert [site for of in table["site"].to_pylist() for site in of] == sites
    frames = read(written(ensemble, structures, ".extxyz", tmp_path), index=":")
    assert [frame.info["phase_class"] for frame in frames] == names
    shown = [str(site) for frame in frames for site in frame.arrays["site_class"]]
    assert shown == ["-" if site is None else site for site in sites]
    assert "dos_class" not in frames[0].info
    np.testing.assert_allclose(frames[0].arrays["local"][0], expected["local"].mean[0], rtol=1e-9)


@pytest.mark.parametrize("key", ["phase", "phase_class"])
def test_no_key_that_is_copied_has_the_name_of_a_class(run, ensemble, key):
    with pytest.raises(ConfigError, match=f"--keep {key}: the output has a column of this name"):
        select_columns(ensemble, run / "ensemble.zip", keep=(key,))


def test_the_report_draws_the_median_and_the_worst_spectrum(run):
    facts = read_facts(RunDir(run))
    median, worst = draw_head(facts, "dos")
    arrays = load_file(run / "report/test_predictions.safetensors")
    errors = np.abs(arrays["dos/truth"] - arrays["dos/mean"]).mean(axis=1)
    row = int(errors.argmax())
    _, high, truth, mean = worst.data
    np.testing.assert_allclose(truth["y"], arrays["dos/truth"][row])
    np.testing.assert_allclose(mean["x"], [-1, 0, 1, 2, 3, 4])
    np.testing.assert_allclose(high["y"], arrays["dos/mean"][row] + arrays["dos/half90"][row])
    assert median.key == "spectrum.dos.median"
    assert draw_head(facts, "unknown") == ()
