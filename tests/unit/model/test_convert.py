"""Foundation models from files of a user's: conversion, hostile files and cards, the cache."""

import copy
import hashlib
import json
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from ase.build import bulk
from own_trunks import tuned_weights, write_checkpoint, write_own
from safetensors.torch import load, save
from trunk_structures import columns_without_edges as columns

from hydragnn_hpo.config import read_trunk_file
from hydragnn_hpo.config.trunk_specs import count_features, feature_columns
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.model.trunks import find_trunk, load_trunk, open_trunk
from hydragnn_hpo.model.trunks.convert import ConvertRequest, convert_trunk
from hydragnn_hpo.model.trunks.mace import INTERACTION, MACEConfig
from hydragnn_hpo.optional_packages import MissingPackage, is_installed

MACE = {
    "elements": [1, 6, 8],
    "features": 16,
    "order": 1,
    "harmonics": 2,
    "correlation": 2,
    "convolutions": 2,
    "first": "",
    "later": "Residual",
    "cutoff": 4.5,
    "radial": 8,
    "agnesi": False,
    "envelope": 5,
    "hidden": [8, 8],
    "neighbors": 10.0,
    "reduced_couplings": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    write_own(made)
    return made


@pytest.fixture
def own(folder, tmp_path):
    """A copy of the files, to be changed."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "mine.json"


def change_card(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_tuned_model_gives_the_features_of_its_weights(folder):
    trunk = load_trunk(str(folder / "mine.json"))
    network = copy.deepcopy(find_trunk("chgnet").network)
    network.load_state_dict(tuned_weights())
    expected = msgspec.structs.replace(find_trunk("chgnet"), network=network)
    salt = columns(bulk("NaCl", "rocksalt", a=5.6), bulk("Cu"))
    features = trunk.features(salt, range(2))
    np.testing.assert_array_equal(features, expected.features(salt, range(2)))
    assert np.abs(features - find_trunk("chgnet").features(salt, range(2))).max() > 1e-3


def test_the_card_says_where_it_is_from(folder):
    card = json.loads((folder / "mine.json").read_text())
    tuned = (folder / "tuned.pth.tar").read_bytes()
    weights = (folder / "mine.safetensors").read_bytes()
    assert card["source"]["sha256"] == hashlib.sha256(tuned).hexdigest()
    assert card["source"]["file"] == "tuned.pth.tar"
    assert card["sha256"] == hashlib.sha256(weights).hexdigest()
    assert (card["licence"], card["trained_on"]) == ("MIT", "our own relaxations")
    facts = read_trunk_file(folder / "mine.json")
    assert facts.name == "mine"
    assert (facts.spec.blocks, facts.spec.width) == (5, 64)
    assert facts.spec.checksum == load_trunk(str(folder / "mine.json")).checksum
    assert count_features(facts.spec, "all") == 320
    assert feature_columns(facts.spec, "late") == slice(128, 320)


def test_a_name_is_that_of_the_file_and_none_of_ours(tmp_path):
    file = write_checkpoint(tmp_path / "My CHGNet-v2.pth.tar")
    assert convert_trunk(ConvertRequest(file, tmp_path)).name == "my_chgnet_v2_pth"
    for name in ("chgnet", "elements"):
        with pytest.raises(ConfigError, match="a name of this program's own: .* --name"):
            convert_trunk(ConvertRequest(file, tmp_path, name))
    for name in ("../up", "a b", "A", "x" * 41, "a\n"):
        with pytest.raises(ConfigError, match="is no name for a model"):
            convert_trunk(ConvertRequest(file, tmp_path, name))
    assert not list(tmp_path.parent.glob("up*"))


class Program:
    """What a pickle may do when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_a_pickled_module_runs_nothing_unless_it_is_trusted(tmp_path):
    file = tmp_path / "some.model"
    ran = tmp_path / "ran"
    torch.save({"model": Program(ran)}, file)
    with pytest.raises(ConfigError, match=r"can run any command .* use --trusted, once"):
        convert_trunk(ConvertRequest(file, tmp_path))
    assert not ran.exists()


@pytest.mark.skipif(is_installed("mace"), reason="mace-torch is installed")
def test_without_its_package_a_trusted_module_is_not_opened(tmp_path):
    file = tmp_path / "some.model"
    ran = tmp_path / "ran"
    torch.save({"model": Program(ran)}, file)
    with pytest.raises(MissingPackage, match=r"needs mace-torch, .*'hydragnn-hpo\[mace\]'"):
        convert_trunk(ConvertRequest(file, tmp_path, trusted=True))
    assert not ran.exists()


def test_other_checkpoints_are_refused(tmp_path):
    for number, stored in enumerate(
        ({"weights": torch.zeros(3)}, {"model": {"state_dict": {}, "model_args": {}}}, [1])
    ):
        file = tmp_path / f"{number}.pth"
        torch.save(stored, file)
        with pytest.raises(DataError, match="holds no CHGNet and no pickled MACE"):
            convert_trunk(ConvertRequest(file, tmp_path, "some"))
    with pytest.raises(DataError, match="cannot be read"):
        convert_trunk(ConvertRequest(tmp_path / "none", tmp_path))
    assert not list(tmp_path.glob("*.json"))


def test_a_larger_network_is_refused_before_it_is_made(tmp_path):
    file = write_checkpoint(tmp_path / "tuned.pth.tar")
    stored = torch.load(file, weights_only=True)
    stored["model"]["model_args"]["n_conv"] = 1000
    torch.save(stored, file)
    with pytest.raises(DataError, match="its sizes are not those of this network"):
        convert_trunk(ConvertRequest(file, tmp_path, "some"))


def test_changed_files_are_told(own):
    weights = own.with_suffix(".safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"mine.safetensors: has the checksum [0-9a-f]{16} in"):
        read_trunk_file(own)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"mine.safetensors: .* cannot be read .*trunk convert"):
        read_trunk_file(own)
    own.unlink()
    with pytest.raises(ConfigError, match=r"mine.json: .* cannot be read"):
        read_trunk_file(own)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        '{"name": "x", "config": 3}',
        "3",
    ],
    ids=["cut", "deep", "list", "empty", "config", "number"],
)
def test_other_json_is_no_card(own, content):
    own.write_text(content)
    with pytest.raises(ConfigError, match=r"mine.json: is no card of a foundation model"):
        read_trunk_file(own)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "chgnet"},
        {"elements": [0]},
        {"elements": "all"},
        {"trained_on": "a\nb"},
        {"trained_on": "x" * 201},
        {"config": {"convolutions": 10**9, "features": 64}},
        {"config": {"convolutions": 4, "features": "64"}},
    ],
    ids=str,
)
def test_cards_with_other_values_are_refused(own, change):
    change_card(own, **change)
    with pytest.raises(ConfigError, match=r"mine.json: "):
        read_trunk_file(own)


def test_a_card_changed_by_hand_is_another_model(own, folder):
    before = read_trunk_file(own).spec.checksum
    change_card(own, licence="Apache-2.0")
    assert read_trunk_file(own).spec.checksum != before
    assert load_trunk(str(own)).licence == "Apache-2.0"
    change_card(own, architecture="chgnet")  # the default, which 'convert' leaves out
    with pytest.raises(DataError, match="is not as 'trunk convert' writes cards"):
        load_trunk(str(own))


def record_of_mace(**changes):
    card = {**find_trunk("chgnet").record, "name": "small", "architecture": "mace"}
    return {**card, "elements": [1, 6, 8], "config": {**MACE, **changes}}


@pytest.mark.parametrize(
    "change",
    [
        {"first": "RealAgnosticInteractionBlock"},
        {"first": "os.system"},
        {"later": "../Residual"},
        {"agnesi": "__import__('os')"},
        {"radial_kind": "mace.modules.blocks.BesselBasis"},
        {"features": 257},
        {"features": "16x0e + 16x1o"},
        {"order": 4},
        {"harmonics": 11},
        {"correlation": 4},
        {"convolutions": 5},
        {"hidden": [64] * 9},
        {"hidden": [10**6]},
        {"hidden": []},
        {"elements": [1] * 119},
        {"elements": [119]},
        {"cutoff": 1e9},
        {"neighbors": 0.0},
        {"neighbors": "inf"},
        {"gate": "torch.nn.functional.silu"},
        {"reduced_couplings": 1},
    ],
    ids=str,
)
def test_a_hostile_card_names_no_class_and_no_large_network(change):
    """Refused by our own schema, whether or not the package is there."""
    with pytest.raises(DataError, match=r"a foundation model cannot be used \("):
        open_trunk(record_of_mace(**change), {})


def test_sizes_of_a_mace_are_read_before_its_package():
    assert msgspec.convert(MACE, MACEConfig).features == 16
    assert INTERACTION.format(MACE["first"]) == "RealAgnosticInteractionBlock"
    if not is_installed("mace"):
        with pytest.raises(MissingPackage, match=r"pip install 'hydragnn-hpo\[mace\]'"):
            open_trunk(record_of_mace(), {})


@pytest.mark.parametrize("change", ["lost", "wide", "more"])
def test_weights_of_another_form_are_refused(own, change):
    weights = load(own.with_suffix(".safetensors").read_bytes())
    key = "atom_convs.0.out.weight"
    if change == "lost":
        del weights[key]
    elif change == "wide":
        weights[key] = torch.zeros(64, 65)
    else:
        weights["other"] = torch.zeros(3)
    content = save(weights)
    own.with_suffix(".safetensors").write_bytes(content)
    change_card(own, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(DataError, match="its sizes are not those of this network"):
        load_trunk(str(own))


@pytest.mark.parametrize(
    ("licence", "travels"),
    [
        ("MIT", True),
        ("BSD-3-Clause", True),
        ("Apache-2.0", True),
        ("ASL", False),
        ("FAIR-Chemistry", False),
        ("CC-BY-NC-4.0", False),
        ("", False),
        ("mit", False),
    ],
)
def test_licences_that_let_weights_travel(folder, licence, travels):
    trunk = load_trunk(str(folder / "mine.json"))
    assert msgspec.structs.replace(trunk, licence=licence).may_travel is travels


def test_request_has_no_trust_by_default():
    assert ConvertRequest(SimpleNamespace(), SimpleNamespace()).trusted is False
