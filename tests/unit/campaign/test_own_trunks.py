"""A campaign that names a foundation model of the user's: what is checked, and when."""

import json
import shutil

import pytest
from own_trunks import write_own

from hydragnn_hpo.campaign.setup import find_trunks, open_run, settle, trial_config
from hydragnn_hpo.config import (
    CampaignConfig,
    TrialConfig,
    TrialHeads,
    load_config,
    parse_config,
    parse_toml,
)
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.resources import resource_path

OWN = """
[trunks.mine]
file = "models/mine.json"
"""

VALUES = {"model.embedding": "mine", "model.conv": "schnet"}
STORES = [{"store": "x.bp"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of a model, and of another one of the same name."""
    folder = tmp_path_factory.mktemp("models")
    write_own(folder / "one")
    write_own(folder / "other", factor=1.03)
    return folder


def write_campaign(folder, models, which="one", own=OWN, embedding='["elements", "mine"]'):
    folder.mkdir(exist_ok=True)
    shutil.copytree(models / which, folder / "models", dirs_exist_ok=True)
    text = resource_path("workflows/ci.toml").read_text()
    values = parse_toml(text)
    assert "model.embedding" not in values["space"]
    text = text.replace("[space]", f'{own}\n[space]\n"model.embedding" = {embedding}')
    (folder / "campaign.toml").write_text(text)
    return folder / "campaign.toml"


def settled(file):
    return settle(load_config(file, CampaignConfig), file)


def test_trials_know_the_model_without_its_file(tmp_path, models):
    config = settled(write_campaign(tmp_path / "here", models))
    assert config.trunks["mine"].file == str(tmp_path / "here/models/mine.json")
    shutil.rmtree(tmp_path / "here/models")
    made = trial_config(config, "t0000", VALUES, STORES)
    assert made.model.trunk_spec.blocks == 5
    assert made.model.trunk_spec.title.startswith("mine (")
    again = TrialConfig.model_validate(json.loads(made.model_dump_json()))
    assert again == made
    plain = trial_config(config, "t0001", {**VALUES, "model.embedding": "elements"}, STORES)
    assert plain.model.embedding_trunk is None


def test_models_of_a_search_are_those_that_ship_and_the_users(tmp_path, models):
    every = '["elements", "mine", "chgnet"]'
    config = settled(write_campaign(tmp_path / "here", models, embedding=every))
    assert list(find_trunks(config)) == ["chgnet", "mine"]


def test_elements_that_it_was_not_trained_on_are_told(tmp_path, models):
    """The fine-tuned model has the elements of CHGNet, which Po is none of."""
    config = settled(write_campaign(tmp_path / "here", models))
    made = trial_config(config, "t0000", VALUES, STORES)
    target = {"level": "graph", "shape": "scalar", "size": 1, "derived_from": None}
    fit = {"heads": {}, "targets": {"gap": target}, "model": made.model, "elements": (1, 84)}
    with pytest.raises(ConfigError, match=r"mine \(.*\) was not trained on Po, which the data"):
        parse_config(fit, TrialHeads, where="x")


def test_names_that_no_table_has_are_told(tmp_path, models):
    config = settled(write_campaign(tmp_path / "here", models, own=""))
    with pytest.raises(ConfigError, match=r"unknown embedding 'mine'.*\[trunks.NAME\]"):
        trial_config(config, "t0000", {**VALUES, "model.embedding": "mine"}, STORES)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (OWN.replace("mine.json", "none.json"), r"\[trunks.mine\]: .*none.json: .* cannot be read"),
        (OWN.replace("trunks.mine", "trunks.yours"), r"mine.json is of the model 'mine': write"),
        (OWN.replace("trunks.mine", "trunks.CHG"), "trunks"),
    ],
)
def test_files_that_are_missing_or_of_another_name_are_told(tmp_path, models, own, sentence):
    with pytest.raises(ConfigError, match=sentence):
        settled(write_campaign(tmp_path / "here", models, own=own))


def test_a_model_that_changed_between_two_runs_is_told(tmp_path, models):
    first = write_campaign(tmp_path / "one", models)
    open_run(settled(first), tmp_path / "run")
    open_run(settled(write_campaign(tmp_path / "moved", models)), tmp_path / "run")
    write_campaign(tmp_path / "one", models, "other")
    with pytest.raises(RunError, match=r"run: the foundation model 'mine' \(.*\) is another one"):
        open_run(settled(first), tmp_path / "run")
    weights = tmp_path / "one/models/mine.safetensors"
    weights.write_bytes((models / "one/mine.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"mine.safetensors: has the checksum [0-9a-f]{16} in"):
        settled(first)


def test_a_run_that_goes_on_by_its_own_file_reads_the_model_again(tmp_path, models):
    first = write_campaign(tmp_path / "one", models)
    run = open_run(settled(first), tmp_path / "run")
    assert settled(run.campaign) == load_config(run.campaign, CampaignConfig)
    write_campaign(tmp_path / "one", models, "other")
    with pytest.raises(ConfigError, match="is another one than when the campaign began"):
        settled(run.campaign)
