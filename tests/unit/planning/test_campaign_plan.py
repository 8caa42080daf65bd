"""Advice on the use of a machine, of forecasts made by hand."""

from dataclasses import replace

import pytest
from made_forecast import make_forecast

from hydragnn_hpo.planning.campaign_plan import advise


def test_the_longest_trial_is_the_bound():
    """80 % of 80 slots idle: the work of 14.4 keeps 18 slots, so three hosts, busy at 80 %."""
    (advice,) = advise(make_forecast(longest=0.9, tail=0.8))
    assert (advice.cause, advice.hosts) == ("tail", 3)
    assert advice.sentence == (
        "with 8 trials on 10 hosts the longest trial is the bound: more trials or fewer hosts. "
        "3 hosts would take about as long."
    )


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"longest": 0.2, "tail": 0.8}, "with 8 trials on 10 hosts the last rungs are the bound"),
        ({"held": 0.2}, "let trials be narrower"),
        ({"brain": 0.2}, "slots wait for the brain"),
        ({"start-up": 0.2}, "starting takes long"),
    ],
)
def test_each_loss_has_its_advice(shares, says):
    (advice,) = advise(make_forecast(**shares))
    assert says in advice.sentence
    assert advice.cause in shares


def test_what_is_small_needs_no_advice():
    assert list(advise(make_forecast(tail=0.05, held=0.04, brain=0.09))) == []
    assert list(advise(make_forecast(hours=0.1, **{"start-up": 0.3}))) == []


def test_what_is_left_undone_and_what_is_no_trial_is_reported():
    result = make_forecast()
    undone = replace(result.simulated, unfinished={"t0000@4": 0.5})
    messages = [advice.sentence for advice in advise(replace(result, simulated=undone, refused=3))]
    assert messages[0].startswith(
        "1 trial would not be finished when the allocation ends after 60.0 min"
    )
    assert messages[1].startswith("3 of 4 drawn configurations are no valid trial")
