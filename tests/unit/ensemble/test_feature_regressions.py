"""Kernel ridge regressions on features of a foundation model: what they know, and as members."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ase import Atoms
from safetensors.numpy import load, save
from sealed_zip import sealed
from unit.ensemble.conftest import campaign_text
from unit.ensemble.test_neighbor_densities import graphs
from unit.ensemble.test_packed_trunk import as_atoms

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data import open_store
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.artefact import LOCAL_MEMBER, LOCAL_MEMBERS, read_artefact
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.local_descriptors import LocalBasis, LocalModels, fit_local_models
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble.regressions import PENALTIES
from hydragnn_hpo.ensemble_build import simpler_models
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.errors import ConfigError, DataError

TRUNK = "chgnet"
WIDTH = 320
"""Features of an atom: five blocks of 64."""

TARGETS = {
    "shift": TargetConfig(level="graph", unit="1"),
    "total": TargetConfig(level="graph", unit="eV", energy="total"),
    "site": TargetConfig(level="node", unit="1"),
    "kind": TargetConfig(level="graph", shape="class", classes=("no", "yes")),
}
LATENT = np.random.default_rng(9).normal(size=(3, WIDTH))
"""Features are linear in three numbers of each atom."""


def featured(count: int, seed: int) -> Columns:
    """Structures of two to four atoms, whose labels are functions of features, not of positions."""
    random = np.random.default_rng(seed)
    structures, hidden = [], []
    for _ in range(count):
        size = int(random.integers(2, 5))
        own = random.normal(size=(size, 3)) + random.normal(size=3)
        atoms = Atoms("CNOH"[:size], positions=2.0 * np.arange(size)[:, None] * [1.0, 0.0, 0.0])
        mean = own.mean(axis=0)
        atoms.info |= {"shift": 2.0 * mean[0] - mean[1] + 30.0, "total": size * (mean[2] - 4.0)}
        atoms.info["kind"] = "yes" if mean[0] > 0.0 else "no"
        atoms.arrays["site"] = own @ [1.0, -2.0, 0.5]
        structures.append(atoms)
        hidden.append(own)
    columns = graphs(structures, TARGETS)
    features = (np.concatenate(hidden) @ LATENT).astype(np.float32)
    return replace(columns, features={TRUNK: features})


def fit(train: Columns, val: Columns, *, refit: bool = False) -> LocalModels:
    keys = ("level", "shape", "origin", "charge", "derived_from", "energy", "extensive")
    known = {name: {key: getattr(t, key) for key in keys} for name, t in TARGETS.items()}
    models = fit_local_models(
        known, {}, train=[train], val=[val], cutoff=4.0, refit=refit, trunk=TRUNK
    )
    assert models is not None
    return models


@pytest.fixture(scope="module")
def models() -> LocalModels:
    return fit(featured(150, 0), featured(50, 1))


@pytest.mark.parametrize("name", ["shift", "total", "site"])
def test_linear_functions_of_features_are_known(models: LocalModels, name: str) -> None:
    test = featured(60, 2)
    truth = test.targets[name]
    error = np.abs(models.predict(name, test, None) - truth).mean()
    assert error < 0.03 * np.abs(truth - truth.mean()).mean()


def test_classes_are_known(models: LocalModels) -> None:
    test = featured(200, 3)
    probability = models.predict("kind", test, None)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    right = probability.argmax(axis=1) == test.targets["kind"].argmax(axis=1)
    assert right.mean() > 0.95


def slow_summary(basis: LocalBasis, columns: Columns) -> np.ndarray:
    """Mean and deviation of the features on the axes, structure by structure."""
    rows = []
    for a, b in zip(columns.node_offset[:-1], columns.node_offset[1:], strict=True):
        points = [(row - basis.mean) @ basis.axes for row in columns.features[TRUNK][a:b]]
        rows.append(np.concatenate([np.mean(points, axis=0), np.std(points, axis=0)]))
    return np.array(rows)


def slow_kernel(first: np.ndarray, second: np.ndarray, length: float) -> np.ndarray:
    """One and a Matern kernel (Rasmussen and Williams 2006, equation 4.17), pair by pair."""
    kernel = np.empty((len(first), len(second)))
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            r = np.sqrt(5.0) * np.linalg.norm(one - other) / length
            kernel[i, j] = 1.0 + (1.0 + r + r * r / 3.0) * np.exp(-r)
    return kernel


@pytest.mark.parametrize("refit", [False, True])
def test_numbers_are_those_of_a_kernel_ridge_regression(refit: bool) -> None:
    """Without a constant, as of extensive values, each row of which is that of an atom times n."""
    train = featured(40, 4)
    val = featured(20, 5)
    test = featured(15, 6)
    fitted = fit(train, val, refit=refit)
    rows = {
        name: slow_summary(fitted.basis, one)
        for name, one in {"train": train, "val": val, "test": test}.items()
    }
    sizes = {"train": train, "val": val, "test": test}
    sizes = {name: one.num_nodes()[:, None] for name, one in sizes.items()}
    land = np.concatenate([rows["train"], rows["val"]]) if refit else rows["train"]
    away = [[np.linalg.norm(one - other) for one in land] for other in land]
    length = 2.0 * float(np.median(away))

    def kernel(first: str, second: str) -> np.ndarray:
        scale = sizes[first] * sizes[second].T
        return scale * slow_kernel(rows[first], rows[second], length)

    labels = {"train": train.targets["total"], "val": val.targets["total"]}
    alike = np.trace(kernel("train", "train")) / len(land)
    tried = []
    for penalty in PENALTIES:
        damped = kernel("train", "train") + penalty * alike * np.eye(40)
        alpha = np.linalg.solve(damped, labels["train"])
        errors = np.abs(kernel("val", "train") @ alpha - labels["val"])
        tried.append((errors.sum(), penalty, kernel("test", "train") @ alpha))
    _, penalty, expected = min(tried, key=lambda one: one[0])
    if refit:
        for part in (rows, sizes, labels):
            part["both"] = np.concatenate([part["train"], part["val"]])
        damped = kernel("both", "both")
        damped += penalty * np.trace(damped) / len(land) * np.eye(60)
        expected = kernel("test", "both") @ np.linalg.solve(damped, labels["both"])
    got = fitted.predict("total", test, None)
    spread = np.std(test.targets["total"])
    np.testing.assert_allclose(got, expected, atol=2e-3 * spread)


def test_a_supercell_has_a_multiple_of_the_energy(models: LocalModels) -> None:
    one = featured(1, 7)
    atoms = as_atoms(one, 0)
    twice = Atoms(list(atoms.symbols) * 2, positions=[*atoms.positions, *atoms.positions + 50.0])
    double = graphs([twice])
    double = replace(double, features={TRUNK: np.tile(one.features[TRUNK], (2, 1))})
    energy = models.predict("total", one, None)
    np.testing.assert_allclose(models.predict("total", double, None), 2.0 * energy, rtol=1e-9)


def test_a_batch_and_single_graphs_get_the_same(models: LocalModels) -> None:
    test = featured(12, 8)
    for name in TARGETS:
        together = models.predict(name, test, None)
        alone = [models.predict(name, test.take(np.array([k])), None) for k in range(12)]
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-9)


def test_a_file_gives_the_same_predictions(models: LocalModels) -> None:
    again = LocalModels.from_arrays(load(save(models.as_arrays())))
    test = featured(20, 9)
    for name in TARGETS:
        expected = models.predict(name, test, None)
        np.testing.assert_allclose(
            again.predict(name, test, None), expected, atol=1e-3 * expected.std()
        )
    assert again.find_trunk("shift") == TRUNK


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.pop("landmarks.chgnet"),
        lambda a: a.update({"landmarks.sevennet": a.pop("landmarks.chgnet")}),
        lambda a: a.update({"landmarks.": a.pop("landmarks.chgnet")}),
        lambda a: a.update({"landmarks.chgnet": a["landmarks.chgnet"][:, 1:]}),
        lambda a: a.update({"landmarks.chgnet": a["landmarks.chgnet"][:0]}),
        lambda a: a.update({"landmarks.chgnet": a["landmarks.chgnet"][:-1]}),
        lambda a: a.update({"landmarks.chgnet": np.tile(a["landmarks.chgnet"], (9, 1))}),
        lambda a: a.update({"landmarks.chgnet": a["landmarks.chgnet"] * np.nan}),
        lambda a: a.update({"landmarks.chgnet": np.array(1.0)}),
        lambda a: a.update({"landmarks.chgnet": a["landmarks.chgnet"].astype("f8") * 1e300}),
        lambda a: a.update(mean=a["mean"][:-1]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(models: LocalModels, spoil) -> None:
    arrays = models.as_arrays()
    spoil(arrays)
    with np.errstate(all="ignore"), pytest.raises((ValueError, KeyError)):
        LocalModels.from_arrays(arrays)


@pytest.fixture(scope="module")
def joined(frozen_run: Path, tmp_path_factory) -> Path:
    """A run of nets with random weights, two on features, beside which regressions help."""
    run = tmp_path_factory.mktemp("joined") / "run"
    shutil.copytree(frozen_run, run)
    (run / "campaign.toml").write_text(campaign_text())
    with pytest.MonkeyPatch.context() as patch:  # two standard errors take more structures
        patch.setattr("hydragnn_hpo.ensemble_build.simpler_models.CLEAR", 1.0)
        build_ensemble(run)
    return run


def test_an_energy_on_features_has_a_member_on_features(joined: Path) -> None:
    content = read_artefact(joined / "ensemble.zip")
    share = content.manifest.heads["energy"].local
    assert share is not None
    assert (share.trunk, share.title) == (TRUNK, "features of CHGNet 0.3.0")
    assert content.manifest.trunks == (TRUNK,)
    table = json.loads((joined / "report/ensemble.json").read_text())
    assert table["described_by"] == "features of CHGNet 0.3.0"
    (sentence,) = (
        one["sentence"]
        for one in table["verdict"]
        if one["rule"] == "local" and one["sentence"].startswith("energy")
    )
    assert "a regression on features of CHGNet 0.3.0 is a member" in sentence
    assert "a regression on features of CHGNet 0.3.0" in Ensemble.load(
        joined / "ensemble.zip"
    ).model_card().replace("\n", " ")


@pytest.mark.parametrize(
    ("read", "computed", "chosen"),
    [
        (("elements", "sevennet", "chgnet"), ("chgnet", "sevennet"), "sevennet"),
        (("elements",), ("chgnet", "sevennet"), "chgnet"),
        (("elements",), (), ""),
    ],
)
def test_a_regression_reads_what_the_best_trial_on_features_reads(read, computed, chosen) -> None:
    trials = [
        SimpleNamespace(config=SimpleNamespace(model=SimpleNamespace(embedding=embedding)))
        for embedding in read
    ]
    graphs = SimpleNamespace(stats={"features": dict.fromkeys(computed)})
    context = SimpleNamespace(candidates=trials, graphs=graphs)
    assert simpler_models._choose_trunk(context) == chosen


def test_new_structures_are_predicted_with_it_whatever_the_batch(joined: Path) -> None:
    ensemble = Ensemble.load(joined / "ensemble.zip")
    store = open_store(joined / "data/toy.bp")
    together = ensemble.predict(store, np.arange(6), members=True)["energy"]
    atoms = [as_atoms(store, row) for row in range(6)]
    alone = np.concatenate([ensemble.predict(one)["energy"].mean for one in atoms])
    np.testing.assert_allclose(alone, together.mean, atol=1e-4)
    shares = ensemble.manifest.shares("energy")
    mean = sum(weight * together.members[name] for name, weight in shares.items())
    np.testing.assert_allclose(together.mean, mean, atol=1e-6)
    assert np.std(together.members[LOCAL_MEMBER]) > 0.0


def test_forces_of_an_energy_with_it_are_refused(joined: Path) -> None:
    atoms = as_atoms(open_store(joined / "data/toy.bp"), 0)
    calculator = EnsembleCalculator(joined / "ensemble.zip")
    atoms.calc = calculator
    expected = calculator.ensemble.predict(atoms)["energy"].mean[0, 0] * len(atoms)
    assert atoms.get_potential_energy() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="no forces and no stress: its energy begins from"):
        atoms.get_forces()


def test_a_smaller_ensemble_of_plain_nets_keeps_the_model_for_it(joined: Path) -> None:
    content = read_artefact(joined / "ensemble.zip")
    plain = [t for t, c in content.configs.items() if c.model.embedding == "elements"]
    assert plain
    smaller, _ = prune_members(content, plain, where="x")
    assert smaller.manifest.trunks == (TRUNK,)
    assert set(smaller.trunks) == {TRUNK}
    assert smaller.local is not None


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ("energy", "is about other heads than"),
        ("charge", f"'{LOCAL_MEMBERS}' is about other heads"),
    ],
)
def test_a_file_that_names_another_description_is_refused(
    joined: Path, tmp_path: Path, head: str, sentence: str
) -> None:
    with zipfile.ZipFile(joined / "ensemble.zip") as file:
        entries = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(entries["ensemble.json"])
    manifest["heads"][head]["local"]["trunk"] = None
    entries["ensemble.json"] = json.dumps(manifest).encode()
    (tmp_path / "e.zip").write_bytes(sealed(entries))
    with pytest.raises(DataError, match=sentence):
        read_artefact(tmp_path / "e.zip")
