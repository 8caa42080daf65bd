"""A wish that cannot come true is refused with one sentence."""

import tomllib

import pytest

from hydragnn_hpo.campaign.requests import Request
from hydragnn_hpo.campaign.state import fold
from hydragnn_hpo.campaign.wishes import check_values, check_wish
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.shipped import shipped

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
def config():
    values = tomllib.loads(shipped("workflows/quickstart.toml").read_text())
    values["search"]["constraints"] = ["model.features * model.layers <= 192"]
    return CampaignConfig.model_validate(values)


def at(kind, **values):
    return {"event": kind, "time": 0.0, "epoch": 1, **values}


def ended(name, outcome, **values):
    return at("ended", trial=name, outcome=outcome, **values)


@pytest.fixture
def state():
    """Six trials: queued, running, stopped, failed, cancelled, and one that could never run."""
    names = [f"t{number:04d}" for number in range(6)]
    place = {"attempt": 1, "width": 1, "slots": ["a:0"]}
    return fold(
        [
            *[at("proposed", trial=name, values={}, until=4) for name in names],
            *[at("placed", trial=name, **place) for name in names[1:5]],
            ended(names[2], "stopped", score=[0.5]),
            ended(names[3], "failed", reason="diverged"),
            ended(names[4], "cancelled", reason="cancelled"),
            ended(names[5], "failed", reason="bad_config", message="9 heads do not divide 32."),
        ]
    )


ALLOWED = [
    ("cancel", "t0000"),
    ("cancel", "t0001"),
    ("retry", "t0003"),
    ("retry", "t0004"),
    ("stop", None),
    ("pause", None),
]
REFUSED = {
    ("cancel", "t0002"): "ended already (stopped)",
    ("cancel", "t0003"): "ended already (diverged)",
    ("retry", "t0001"): "is running: only a failed or cancelled trial is retried; let it end",
    ("retry", "t0002"): "it keeps its result",
    ("retry", "t0005"): "9 heads do not divide 32",
    ("cancel", "t0099"): "no trial 't0099': name one of the 6 from t0000 to t0005",
}


@pytest.mark.parametrize(("kind", "trial"), ALLOWED)
def test_what_can_come_true_is_allowed(kind, trial, config, state):
    check_wish(Request(request=kind, trial=trial), config, state)


@pytest.mark.parametrize(("wish", "says"), REFUSED.items(), ids=lambda value: str(value)[:40])
def test_what_cannot_come_true_is_refused(wish, says, config, state):
    kind, trial = wish
    with pytest.raises((ConfigError, RunError)) as error:
        check_wish(Request(request=kind, trial=trial), config, state)
    assert says in str(error.value)


def test_nothing_is_asked_of_a_finished_campaign(config, state):
    state.apply(at("finished"))
    for request in (Request(request="stop"), Request(request="add-trials", count=3)):
        with pytest.raises(RunError, match="is finished"):
            check_wish(request, config, state)


def test_a_campaign_that_ends_takes_no_more_trials(config, state):
    state.apply(at("ending"))
    for request in (Request(request="stop"), Request(request="add-trials", count=3)):
        with pytest.raises(RunError, match="was asked to stop"):
            check_wish(request, config, state)
    check_wish(Request(request="cancel", trial="t0001"), config, state)


def test_before_the_first_proposal_there_is_no_trial(config):
    with pytest.raises(ConfigError, match="none was proposed yet"):
        check_wish(Request(request="cancel", trial="t0000"), config, fold([]))


def test_values_of_the_space_are_allowed(config):
    check_values(config, GOOD)


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
def test_values_outside_of_the_space_are_refused(name, config):
    change, says = BAD_VALUES[name]
    values = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ConfigError) as error:
        check_values(config, values)
    assert says in str(error.value)
