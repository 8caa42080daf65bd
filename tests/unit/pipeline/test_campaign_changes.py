"""Changes of a campaign from a command line: what is parsed, what is refused, what fits a time."""

import tomllib

import pytest

from hydragnn_hpo.campaign import open_run
from hydragnn_hpo.config import CampaignConfig, load_config
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline import load_campaign
from hydragnn_hpo.pipeline.campaign_changes import fit_to_time, parse_settings
from hydragnn_hpo.resources import resource_path

QUICKSTART = resource_path("workflows/quickstart.toml")


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["trial.training.global_batch=32"], {"trial": {"training": {"global_batch": 32}}}),
        (["search.rungs=[4, 16]"], {"search": {"rungs": [4, 16]}}),
        (["search.brain=random"], {"search": {"brain": "random"}}),
        (['name = "a b"'], {"name": "a b"}),
        (["ensemble.reseed=0", "ensemble.members=3"], {"ensemble": {"reseed": 0, "members": 3}}),
        (['space."model.conv".choices=["pna"]'], {"space": {"model.conv": {"choices": ["pna"]}}}),
        (["data.card=../my.toml"], {"data": {"card": "../my.toml"}}),
        (["trial.model.attention=false"], {"trial": {"model": {"attention": False}}}),
        (["machine={slots = 2}"], {"machine": {"slots": 2}}),
        (["search.note=a=b"], None),
        (["seed"], None),
        (["=3"], None),
        (["seed="], None),
        (["a b=3"], None),
        (["seed=3\ntrials=4"], None),
        (["seed=[3"], None),
    ],
    ids=str,
)
def test_settings_are_dotted_keys_and_values_of_toml(options, settings):
    if settings is None:
        with pytest.raises(ConfigError, match=r"^--set .*: write it as KEY=VALUE"):
            parse_settings(options)
        return
    assert parse_settings(options) == settings
    if all('"' in line or "[" in line or line[-1].isdigit() for line in options):
        assert tomllib.loads("\n".join(options)) == settings


def test_short_options_are_settings_and_no_key_is_given_twice():
    assert parse_settings([], 5, 7) == {"search": {"trials": 5}, "seed": 7}
    with pytest.raises(ConfigError, match=r"'search\.trials' is given twice: leave"):
        parse_settings(["search.trials=4"], 5)
    with pytest.raises(ConfigError, match="given twice"):
        parse_settings(["seed=1", "seed=1"])


def test_a_change_reaches_the_campaign_of_the_run_and_only_there(tmp_path):
    plain = load_campaign(QUICKSTART)
    changed = load_campaign(QUICKSTART, parse_settings(["search.initial=3"], 8, 5))
    expected = plain.search.model_copy(update={"initial": 3, "trials": 8})
    assert changed == plain.model_copy(update={"search": expected, "seed": 5})
    run = open_run(changed, tmp_path / "run")
    assert load_config(run.campaign, CampaignConfig) == changed
    assert open_run(changed, tmp_path / "run").path == run.path
    with pytest.raises(RunError):
        open_run(plain, tmp_path / "run")


def test_a_wrong_key_is_reported_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"changed in search: unknown key 'search.trails'. Did"):
        load_campaign(QUICKSTART, parse_settings(["search.trails=4"]))


def test_more_time_searches_more_and_an_existing_run_keeps_its_size(tmp_path):
    run = RunDir(tmp_path / "run")
    changes = parse_settings(["search.brain=random"])
    sizes = {}
    for minutes in (1.0, 30.0):
        more, why = fit_to_time(QUICKSTART, changes, minutes, run)
        config = load_campaign(QUICKSTART, more)
        assert config.search.brain == "random"
        assert f"{config.search.trials} trials on " in why[0]
        sizes[minutes] = config.search.trials * config.search.rungs[-1]
    assert sizes[1.0] < sizes[30.0]
    open_run(config, run.path)
    again, why = fit_to_time(QUICKSTART, changes, 1.0, run)
    assert load_campaign(QUICKSTART, again) == config
    assert why == (f"{run.path}: keeps the size that it began with.",)


@pytest.mark.parametrize(
    "setting", ["search.trials=9", "search.rungs=[4,8]", "ensemble.members=2", "search.initial=4"]
)
def test_a_time_and_a_size_contradict_each_other(setting):
    key = setting.partition("=")[0].replace(".", r"\.")
    with pytest.raises(ConfigError, match=rf"^--minutes chooses {key}, which is given, too: leave"):
        fit_to_time(QUICKSTART, parse_settings([setting]), 5.0)


def test_a_time_is_for_this_computer_and_one_data_set(tmp_path):
    run = open_run(load_campaign(QUICKSTART), tmp_path / "run")  # as `make demo` leaves one
    with pytest.raises(ConfigError, match="sizes a search of one data set on this computer"):
        fit_to_time(QUICKSTART, {}, 5.0, run, backend="slurm")
    values = tomllib.loads(QUICKSTART.read_text())
    values.update({"data": [], "command": {"argv": ["true"]}})
    (tmp_path / "command.toml").write_text(to_toml(values))
    with pytest.raises(ConfigError):
        fit_to_time(tmp_path / "command.toml", {}, 5.0)
