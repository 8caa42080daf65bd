"""Campaigns over a command: what they accept and refuse."""

import pytest

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.command_config import fill_arguments
from hydragnn_hpo.config.schema import dump_config, parse_config, read_toml
from hydragnn_hpo.errors import ConfigError


def campaign(**changes):
    values = {
        "name": "any",
        "trial": {"ranks": 8, "launch": {"nested": True}},
        "space": {"launch.tensor": [1, 2, 4], "x": {"low": 0.0, "high": 1.0}},
        "search": {"trials": 3, "finalists": 1, "rungs": [1]},
        "command": {"argv": ["{python}", "{here}/do.py", "{trial}"]},
    }
    return parse_config(values | changes, CampaignConfig, where="c.toml")


def test_a_campaign_over_a_command_needs_no_data_and_may_have_any_keys(tmp_path):
    made = campaign()
    assert (made.data, made.command.width, made.command.per) == ((), 1, "rank")
    (tmp_path / "c.toml").write_text(dump_config(made))
    assert parse_config(read_toml(tmp_path / "c.toml"), CampaignConfig, where="") == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": {"argv": []}}, "command.argv"),
        ({"command": {"argv": [""]}}, "command.argv.0"),
        ({"command": {"argv": ["run", "{trail}"]}}, "unknown field 'trail'. Did you mean 'trial'"),
        ({"command": {"argv": ["run"], "timeout": 0}}, "command.timeout"),
        ({"command": {"argv": ["run"], "per": "host"}}, "command.per"),
        ({"trial": {"seed": 3}}, "'seed' of a trial is written by the campaign: rename yours."),
        ({"space": {"trial": [1, 2]}}, "'trial' of a trial is written by the campaign"),
        ({"data": {"card": "g2_xtb"}}, "either [[data]] or a [command]: drop one."),
        ({"command": None}, "'data' is missing; add it."),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ConfigError) as error:
        campaign(**changes)
    assert message in str(error.value)


def test_only_known_fields_are_filled_in_and_values_are_never_read_again():
    argv = ("{trial}", '--json={"a": {"b": 1}}', "x{width}y{width}", "{epochs}")
    actual = fill_arguments(argv, {"trial": "a {width}", "width": 2})
    assert actual == ("a {width}", '--json={"a": {"b": 1}}', "x2y2", "{epochs}")
