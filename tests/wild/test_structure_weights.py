"""Weights of structures in the files of strangers: a number for each, or for each of its kinds."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write

from hydragnn_hpo.config import CampaignConfig, CardConfig, parse_config
from hydragnn_hpo.data.structure import Place, Rules, attributes_of
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.pipeline.init_files import InitRequest, init_from_card, init_from_files

pytestmark = pytest.mark.usefixtures("usual_speed")

KINDS = ["bulk"] * 6 + ["slab"] * 4 + ["isolated_atom"] * 2


def write_frames(folder: Path, **columns) -> Path:
    """Twelve crystals with an energy, and further properties by their values; None for absent."""
    frames = []
    for number in range(len(KINDS)):
        frames.append(bulk("Cu", a=3.5 + 0.02 * number, cubic=True).repeat((1 + number % 2, 1, 1)))
        frames[-1].info["dft_energy"] = -3.7 * len(frames[-1]) + 0.1 * number
    for name, values in columns.items():
        for atoms, value in zip(frames, values, strict=True):
            if value is not None:
                atoms.info[name] = value
    write(folder / "frames.xyz", frames, format="extxyz")
    return folder / "frames.xyz"


def init_weighted(folder: Path, column: str, **columns) -> tuple[CardConfig, CampaignConfig]:
    """Run ``init`` with a weight column on files that have it."""
    request = InitRequest(convs=("schnet",), minutes=5.0, trunks=False, weight=column)
    made = init_from_files([write_frames(folder, **columns)], request, {"dft_energy": "eV"}, folder)
    card = parse_config(tomllib.loads(made.card_text), CardConfig, where="card")
    campaign = parse_config(tomllib.loads(made.campaign_text), CampaignConfig, where="campaign")
    made.card.write_text(made.card_text)
    return card, campaign


def test_a_column_of_numbers_weighs_structures_and_is_not_told_to_the_model(tmp_path):
    weights = [0.5 * number for number in range(11)]
    card, campaign = init_weighted(tmp_path, "w", w=[*weights, None])
    assert [*card.targets] == ["dft_energy"]
    assert (card.attributes["w"].key, card.attributes["w"].default) == ("w", 1.0)
    assert campaign.trial["training"]["weight_by"] == "w"
    assert "model" not in campaign.trial
    again = tomllib.loads(init_from_card(str(tmp_path / "frames.toml"), InitRequest()))
    assert again["trial"] == campaign.trial


def test_each_config_type_has_a_weight_that_the_card_lists(tmp_path):
    card, campaign = init_weighted(tmp_path, "config_type", config_type=KINDS)
    attribute = card.attributes["config_type"]
    assert attribute.numbers == {"bulk": 1.0, "slab": 1.0, "isolated_atom": 1.0}
    assert attribute.default is None
    assert campaign.trial["training"]["weight_by"] == "config_type"
    numbers = {"config_type": attribute.model_copy(update={"numbers": {"slab": 4.0}})}
    rules = Rules(3.0, 0.1, {}, attributes=numbers)
    atoms = bulk("Cu")
    atoms.info["config_type"] = "slab"
    assert attributes_of(atoms, Place("f", 3, "it"), rules) == {"config_type": 4.0}
    atoms.info["config_type"] = "bulk"
    with pytest.raises(DataError, match=r"'bulk', which attributes.config_type.numbers lacks; add"):
        attributes_of(atoms, Place("f", 3, "it"), rules)
    numbers["config_type"] = attribute.model_copy(update={"numbers": {}, "default": 0.5})
    del atoms.info["config_type"]
    assert attributes_of(atoms, Place("f", 3, "it"), rules) == {"config_type": 0.5}


def test_a_card_with_the_attribute_makes_the_same_campaign(tmp_path):
    card, _ = init_weighted(tmp_path, "w", w=[1.0] * 12, charge=[0, 1] * 6)
    path = str(tmp_path / "frames.toml")
    text = init_from_card(path, InitRequest(weight="w"))
    trial = tomllib.loads(text)["trial"]
    assert trial["training"]["weight_by"] == "w"
    assert trial["model"]["attributes"] == ["charge"]
    assert {*card.attributes} == {"w", "charge"}
    with pytest.raises(ConfigError, match="--weight-column v: is no attribute .*: charge, w"):
        init_from_card(path, InitRequest(weight="v"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([-1.0] + [1.0] * 11, "w: is not one number of 0 or more for each structure: correct it"),
        ([0.0] * 12, "w: is not one number of 0 or more for each structure: correct it"),
        ([np.arange(3.0)] * 12, "w: is not one number of 0 or more for each structure: correct it"),
        (["high"] * 3 + [1.0] * 9, "w: is not one number of 0 or more for each structure"),
        ([None] * 12, "w: the files have no such property. Known: dft_energy"),
    ],
    ids=["negative", "all 0", "vectors", "words among numbers", "absent"],
)
def test_what_is_no_weight_is_refused(tmp_path, values, says):
    with pytest.raises(ConfigError, match=f"--weight-column {says}"):
        init_weighted(tmp_path, "w", w=values)


def test_more_texts_than_anyone_would_weigh_are_refused(tmp_path):
    path = write_frames(tmp_path, name=[f"frame {number}" for number in range(12)])
    request = InitRequest(weight="name")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn_hpo.inspection.file_inspection.MOST_TEXTS", 11)
        with pytest.raises(ConfigError, match="name: has 12 different texts; name a number"):
            init_from_files([path], request, {}, tmp_path)
