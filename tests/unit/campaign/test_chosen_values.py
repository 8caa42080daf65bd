"""Configurations that a user chose: refused outside of the space, else tried before all others."""

import tomllib

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Ran, campaign

from hydragnn_hpo.campaign import proposals as proposals_module
from hydragnn_hpo.campaign.chosen_values import (
    check_values,
    complete_initial_points,
    explain_skipped_points,
)
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.resources import resource_path

GOOD = {
    "model.conv": "schnet",
    "model.features": 48,
    "model.layers": 3,
    "model.cutoff": 4.5,
    "model.options.filters": 64,
    "training.learning_rate": 3e-3,
    "training.global_batch": 16,
}


@pytest.fixture
def make_config():
    def make(*points):
        values = tomllib.loads(resource_path("workflows/quickstart.toml").read_text())
        values["space"]["model.layers"] = {"low": 2, "high": 4}
        values["search"]["constraints"] = ["model.features * model.layers <= 192"]
        values["search"]["initial_points"] = points
        return CampaignConfig.model_validate(values)

    return make


BAD_VALUES = {
    "unknown": ({"model.feature": 48}, "Did you mean 'model.features'"),
    "choice": ({"model.conv": "gin"}, "choose from schnet, egnn, painn"),
    "outside": ({"model.features": 128}, "32 to 64 in steps of 16"),
    "between steps": ({"model.features": 40}, "in steps of 16"),
    "text": ({"model.layers": "3"}, "outside of the campaign's space"),
    "inactive": ({"model.options.attention": True}, "means nothing beside the other values"),
    "missing": ({"model.layers": None}, "active but has no value"),
    "constraint": ({"model.features": 64, "model.layers": 4}, "features * model.layers <= 192"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_outside_of_the_space_are_refused(name, make_config):
    check_values(make_config(), GOOD)
    change, message = BAD_VALUES[name]
    values = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ConfigError) as error:
        check_values(make_config(), values)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["unknown", "inactive"])
def test_points_that_mean_nothing_are_refused_by_their_number(name, make_config):
    point, message = BAD_VALUES[name]
    with pytest.raises(ConfigError) as error:
        complete_initial_points(make_config(GOOD, GOOD | point if name == "inactive" else point))
    assert str(error.value).startswith("search.initial_points[1]: ")
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["choice", "outside", "between steps", "text", "constraint"])
def test_points_outside_of_the_space_are_left_out_with_a_reason(name, make_config):
    """A user may narrow the space of a campaign that ``init`` wrote with its points."""
    point, message = BAD_VALUES[name]
    message = "meet search.constraints" if name == "constraint" else message
    config = make_config(point, GOOD)
    assert complete_initial_points(config) == [GOOD]
    (sentence,) = explain_skipped_points(config)
    assert sentence.startswith("search.initial_points[0]: ")
    assert message in sentence


def test_keys_that_a_point_leaves_out_take_the_middle_of_their_range(make_config):
    (point,) = complete_initial_points(make_config({"model.conv": "egnn"}, {"model.conv": "egnn"}))
    space = make_config().space
    rate = space["training.learning_rate"]
    assert point["training.learning_rate"] == pytest.approx((rate.low * rate.high) ** 0.5, rel=1e-5)
    assert point["model.features"] == 48
    assert point["model.layers"] == 3
    assert point["model.options.attention"] == space["model.options.attention"].choices[0]
    assert "model.options.filters" not in point


def test_initial_points_are_tried_first_and_once(tmp_path):
    points = [{"x": 0.75}, {"x": 0.25}, {"x": 0.75}]
    ran = Ran(tmp_path, campaign(initial_points=points, trials=6), StubBackend())
    proposed = [event["values"]["x"] for event in ran.events("proposed")]
    assert proposed[:2] == [0.75, 0.25]
    assert len(set(proposed)) == 6


def test_as_many_are_spread_beside_them_as_without_them(tmp_path, monkeypatch):
    spread = []
    make_brain = proposals_module.make_brain

    def listening(*args, initial, **kwargs):
        spread.append(initial)
        return make_brain(*args, initial=initial, **kwargs)

    monkeypatch.setattr(proposals_module, "make_brain", listening)
    points = [{"x": 0.125}, {"x": 0.25}, {"x": 0.125}]
    Ran(tmp_path, campaign(initial_points=points, trials=6, initial=3), StubBackend())
    assert spread == [3 + 2]
