"""Ensembles whose members begin from a foundation model of the user's."""

import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest
from own_trunks import write_own
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load
from sealed_zip import check_refused
from unit.ensemble.conftest import build_three_trials, frozen_models, toy_columns

from hydragnn_hpo.data import open_store
from hydragnn_hpo.ensemble.artefact import LOCAL, read_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.model.trunks.embed import feature_cache

ABOUT, WEIGHTS = "trunks/mine.json", "trunks/mine.safetensors"


def build(run, licence):
    own = write_own(run.parent / "models", licence=licence)
    columns, card = toy_columns()
    file = str(run.parent / "models/mine.json")
    spec = own.spec.model_dump(mode="json")
    with frozen_models("mine", embedding_trunk=spec):
        trunks = {"mine": {"file": file, "spec": spec}}
        build_three_trials(run, columns, card, trunk=file, trunks=trunks)
    return run


@pytest.fixture(scope="module")
def carried(tmp_path_factory, scratch):
    """A run whose ensemble carries the model."""
    with scratch():
        return build(tmp_path_factory.mktemp("mit") / "run", "MIT")


@pytest.fixture(scope="module")
def named(tmp_path_factory, scratch):
    """A run whose ensemble only names the model."""
    with scratch():
        return build(tmp_path_factory.mktemp("asl") / "run", "ASL")


@pytest.fixture(scope="module")
def entries(carried):
    with zipfile.ZipFile(carried / "ensemble.zip") as file:
        return {name: file.read(name) for name in file.namelist()}


def predict(path, run, *, stored=False):
    """Predict five structures of the store, from the features that trials read if ``stored``."""
    graphs = open_store(run / "data/toy.bp")
    ensemble = Ensemble.load(path)
    if stored:
        spec = ensemble.manifest.own_trunks["mine"]
        graphs = feature_cache(run / "data/toy.bp", "mine", spec).attach(graphs)
    heads = ensemble.predict(graphs, np.arange(5)).heads
    return {name: head.mean for name, head in heads.items()}


def assert_alike(path, run):
    """Stored features are in half precision, which is why the two differ at all."""
    expected = predict(path, run, stored=True)
    for name, mean in predict(path, run).items():
        np.testing.assert_allclose(mean, expected[name], atol=2e-3 * expected[name].std())
        assert np.ptp(mean) > 0


def test_an_ensemble_predicts_far_from_the_file_of_the_user(carried, tmp_path):
    shutil.copy(carried / "ensemble.zip", tmp_path)
    assert_alike(tmp_path / "ensemble.zip", carried)


def test_it_names_the_model_in_its_card(carried, entries):
    content = read_artefact(carried / "ensemble.zip")
    assert content.manifest.trunks == ("mine",)
    card = entries["MODEL_CARD.md"].decode()
    assert "Features of mine (" in card
    assert "trained on our own relaxations" in card
    record = json.loads(entries[ABOUT])
    tuned = (carried.parent / "models/tuned.pth.tar").read_bytes()
    assert record["source"]["sha256"] == hashlib.sha256(tuned).hexdigest()
    without, _ = prune_members(content, ["t0002"], where="x")
    assert without.manifest.own_trunks == {}


def test_a_licence_that_keeps_weights_at_home_is_obeyed(named, tmp_path):
    with zipfile.ZipFile(named / "ensemble.zip") as file:
        assert all(key.startswith("probe.") for key in load(file.read(WEIGHTS)))
    assert Ensemble.load(named / "ensemble.zip").trunks["mine"].licence == "ASL"
    alone = tmp_path / "ensemble.zip"
    shutil.copy(named / "ensemble.zip", alone)
    with pytest.raises(
        DataError, match=r"put mine.json and mine.safetensors, .* made from tuned.pth.tar \(sha256"
    ):
        Ensemble.load(alone)
    for file in (named.parent / "models").glob("mine.*"):
        shutil.copy(file, tmp_path)
    assert_alike(alone, named)

    write_own(tmp_path, licence="ASL", factor=1.03)
    with pytest.raises(DataError, match=r"mine.json: is another model than the 'mine' that"):
        Ensemble.load(alone)


def test_a_model_that_changed_before_the_ensemble_is_built_is_told(carried, tmp_path, scratch):
    for name in ("run", "models"):
        shutil.copytree(carried.parent / name, tmp_path / name)
    text = (tmp_path / "run/campaign.toml").read_text()
    text = text.replace(str(carried.parent / "models"), str(tmp_path / "models"))
    (tmp_path / "run/campaign.toml").write_text(text)
    write_own(tmp_path / "models", factor=1.03)
    with scratch(), pytest.raises(ConfigError, match="mine.json: was changed after the trials"):
        build_ensemble(tmp_path / "run")
    (tmp_path / "models/mine.json").unlink()
    with scratch(), pytest.raises(ConfigError, match="mine.json: a foundation model cannot be"):
        build_ensemble(tmp_path / "run")


def with_record(entries, **changes):
    return {**entries, ABOUT: json.dumps({**json.loads(entries[ABOUT]), **changes}).encode()}


def with_manifest(entries, **changes):
    values = {**json.loads(entries["ensemble.json"]), **changes}
    return {**entries, "ensemble.json": json.dumps(values).encode()}


def with_spec(entries, **changes):
    own = json.loads(entries["ensemble.json"])["own_trunks"]
    return with_manifest(entries, own_trunks={"mine": {**own["mine"], **changes}})


def hostile_sizes(entries):
    """A MACE in place of the model, with a class where a word belongs."""
    record = {"architecture": "mace", "config": {"first": "os.system", "features": 10**9}}
    return with_record(entries, **record)


def with_regressions(entries, change):
    """Change the arrays of the regressions on features of the model."""
    arrays = load_arrays(entries[LOCAL])
    change(arrays)
    return {**entries, LOCAL: save_arrays(arrays)}


def renamed(arrays):
    arrays["landmarks.other"] = arrays.pop("landmarks.mine")


def widened(arrays):
    arrays["mean"] = np.append(arrays["mean"], arrays["mean"][:1])
    arrays["axes"] = np.append(arrays["axes"], arrays["axes"][:1], axis=0)


FORGED = {
    "regressions of others": (lambda e: with_regressions(e, renamed), "that no member reads"),
    "wide regressions": (lambda e: with_regressions(e, widened), "reads other features than"),
    "another card": (lambda e: with_record(e, citation="x"), "another model"),
    "another name": (lambda e: with_record(e, name="yours"), "another model"),
    "a name of ours": (lambda e: with_record(e, name="sevennet"), "is no chgnet"),
    "hostile sizes": (hostile_sizes, "cannot be used"),
    "more elements": (lambda e: with_spec(e, elements=[1]), "otherwise than its members"),
    "wider": (lambda e: with_spec(e, width=63), "otherwise than its members"),
    "no facts": (lambda e: with_manifest(e, own_trunks={}), "otherwise than its members"),
    "facts of ours": (
        lambda e: with_manifest(
            e,
            own_trunks={n: v for n in ("mine", "chgnet") for v in [_facts(e)]},
        ),
        "otherwise than its members",
    ),
}


def _facts(entries):
    return json.loads(entries["ensemble.json"])["own_trunks"]["mine"]


@pytest.mark.parametrize(("forge", "sentence"), FORGED.values(), ids=FORGED)
def test_a_forged_model_is_one_sentence(entries, tmp_path, forge, sentence):
    check_refused(tmp_path / "hostile.zip", forge(dict(entries)), sentence)
