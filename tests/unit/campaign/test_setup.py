"""Opening a run directory: what a killed process left behind."""

import platform

import numpy
import pytest
from unit.campaign.stub_campaign import campaign

import hydragnn_hpo
from hydragnn_hpo.campaign.setup import (
    check_labels,
    check_search,
    controller_versions,
    open_run,
    read_software_versions,
    settle,
    tidy,
)
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.resources import resource_path

LEFT = ("events.part", "data/.tiny.bp.1.part", "trials/t0000/checkpoints/.last.json.2.part")


@pytest.mark.parametrize("alive", [False, True])
def test_what_was_left_unfinished_goes_but_not_what_a_trial_is_writing(tmp_path, alive):
    for name in (*LEFT, ".summary.json.9.part", "trials/t0000/trial.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    tidy(RunDir(tmp_path), trials_may_live=alive)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    kept = {"trials/t0000/trial.toml", "events.part"}
    assert left == kept | ({LEFT[2]} if alive else set())


def settled(folder, card):
    """Settle the shipped test campaign, with a card beside it."""
    folder.mkdir(exist_ok=True)
    (folder / card).touch()
    file = folder / "campaign.toml"
    file.write_text(resource_path("workflows/ci.toml").read_text().replace('"g2_xtb"', f'"{card}"'))
    return settle(load_config(file, CampaignConfig), file)


def test_a_settled_campaign_names_its_card_wherever_it_is_run_from(tmp_path):
    made = settled(tmp_path / "one", "own.toml")
    assert [entry.card for entry in made.data] == [str(tmp_path / "one" / "own.toml")]
    here = resource_path("workflows/ci.toml")
    assert settle(load_config(here, CampaignConfig), here).data[0].card == "g2_xtb"


def test_a_campaign_may_move_with_its_card_but_not_take_another(tmp_path):
    open_run(settled(tmp_path / "one", "own.toml"), tmp_path / "run")
    open_run(settled(tmp_path / "two", "own.toml"), tmp_path / "run")
    with pytest.raises(RunError, match="data"):
        open_run(settled(tmp_path / "two", "other.toml"), tmp_path / "run")


def test_several_may_open_one_run_in_the_same_moment(tmp_path):
    """Whoever comes while another one writes the campaign does not take that for something else."""
    config = campaign()
    (tmp_path / ".campaign.toml.abc.part").write_text("na")
    assert open_run(config, tmp_path).campaign.exists()
    (tmp_path / "campaign.toml").unlink()
    (tmp_path / "notes").touch()
    with pytest.raises(RunError, match="holds no campaign"):
        open_run(config, tmp_path)


def test_versions_are_those_that_run():
    result = controller_versions()
    assert result["hydragnn-hpo"] == hydragnn_hpo.__version__
    assert result["python"] == platform.python_version()
    assert result["numpy"] == numpy.__version__
    assert platform.machine() in result["system"]
    assert read_software_versions(["no-such-package-anywhere"]).keys() == {"python"}


def stats_without(**unlabelled):
    """Statistics of a store, of which each target lacks labels in some splits."""
    lacking = {name: {"unlabelled": some, "empty": some} for name, some in unlabelled.items()}
    return {"targets": lacking}


def two_heads(fit="split"):
    made = campaign()
    heads = {"energy": {}, "gap": {}}
    ensemble = made.ensemble.model_copy(update={"fit": fit})
    return made.model_copy(update={"trial": {"heads": heads}, "ensemble": ensemble})


@pytest.mark.parametrize("split", ["sel", "cal", "test"])
def test_a_head_without_labels_in_a_split_is_said_before_the_first_trial(split):
    (sentence,) = check_labels(two_heads(), stats_without(energy=[], gap=[split]))
    assert f"head 'gap': no structure of the split '{split}' has a label" in sentence
    assert "the ensemble will leave it out" in sentence
    assert check_labels(two_heads(), stats_without(energy=[], gap=[])) == []


def test_a_campaign_whose_ensemble_would_have_no_head_is_refused():
    with pytest.raises(ConfigError, match=r"'sel' or 'cal' .* the ensemble would have no head"):
        check_labels(two_heads(), stats_without(energy=["sel", "cal"], gap=["test"]))
    with pytest.raises(ConfigError, match=r"head 'gap'.*'val', on which trials are validated"):
        check_labels(two_heads(), stats_without(energy=[], gap=["val"]))
    unknown = {"targets": {"energy": {}, "gap": {"unlabelled": ["val"], "empty": []}}}
    assert len(check_labels(two_heads(), unknown)) == 1, "its elements are not in train"


def test_folds_need_no_labels_in_sel_and_cal():
    assert check_labels(two_heads("cross"), stats_without(energy=["sel", "cal"], gap=[])) == []
    assert len(check_labels(two_heads("cross"), stats_without(energy=["test"], gap=[]))) == 1


def test_classes_that_a_split_lacks_are_counted_before_the_first_trial():
    unseen = {"test": ["toxic"], "cal": ["a", "b", "c"]}
    stats = {"targets": {"energy": {}, "gap": {"unseen": unseen}}}
    first, second = check_labels(two_heads(), stats)
    assert "head 'gap': no structure of the split 'test' has the class 'toxic': add" in first
    assert "no structure of the split 'cal' has the class 'a' or 2 others: add" in second


def test_a_prior_is_refused_where_the_brain_reads_none():
    believed = campaign(brain="gp").model_dump()
    believed["space"]["x"]["prior"] = 0.25
    check_search(CampaignConfig.model_validate(believed), parts=None)
    believed["search"]["brain"] = "optuna"
    with pytest.raises(ConfigError, match=r"space.x: brain 'optuna' reads no prior: drop it, or"):
        check_search(CampaignConfig.model_validate(believed), parts=None)
