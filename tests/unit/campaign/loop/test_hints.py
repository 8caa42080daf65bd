"""What is worth a word about a host, and that it is said once."""

from hydragnn_hpo.campaign.loop.hints import IN_A_ROW, PEERS, Hints
from hydragnn_hpo.launching.counters import CounterSample


def sample(**gauges):
    return CounterSample(30.0, devices={"3": gauges})


def said(hints, samples, trains, host="h"):
    return [found for each in samples if (found := hints.look(host, each, trains))]


def test_a_device_that_does_nothing_while_a_trial_trains():
    idle, trains = sample(busy=0.02), {"3": "t7"}
    assert said(Hints({}), [idle] * (IN_A_ROW - 1), trains) == []
    assert said(Hints({}), [idle] * (5 * IN_A_ROW), trains) == [
        "device 3 is 2 % busy while t7 trains"
    ]
    broken = [idle] * (IN_A_ROW - 1) + [sample(busy=0.5)]
    assert said(Hints({}), broken * 3, trains) == []
    assert said(Hints({}), [idle] * IN_A_ROW, {"2": "t7"}) == []
    assert said(Hints({}), [sample(watts=30.0)] * IN_A_ROW, trains) == []  # unknown is not 0


def test_a_device_that_lowers_its_clocks():
    hot = sample(busy=1.0, throttled=1.0, celsius=88.0)
    assert said(Hints({}), [hot] * 3 * IN_A_ROW, {}) == [
        "device 3 lowers its clocks at 88 C: heat, or its power supply"
    ]


def test_of_one_host_one_thing_is_said():
    warned = {}
    hints = Hints(warned)
    idle, hot = sample(busy=0.0), sample(busy=1.0, throttled=1.0)
    found = []
    for each in [idle] * IN_A_ROW + [hot] * IN_A_ROW:
        if sentence := hints.look("h", each, {"3": "t1"}):
            warned["h"] = sentence
            found.append(sentence)
    assert found == ["device 3 is 0 % busy while t1 trains"]
    assert said(hints, [hot] * IN_A_ROW, {}, host="other") != []


def test_a_host_with_less_power_than_its_peers():
    watts = {f"h{n}": 2000.0 + n for n in range(PEERS - 1)} | {"weak": 800.0}
    hints = Hints({})
    found = [hints.compare(watts) for _ in range(2 * IN_A_ROW)]
    assert [each for each in found if each] == [
        {"weak": "takes 800 W, busy hosts like it 2002 W"}  # median of 800, 2000 ... 2006
    ]
    assert not any(Hints({}).compare({"a": 1.0, "b": 100.0}) for _ in range(IN_A_ROW))
    fair = watts | {"weak": 1100.0}
    hints = Hints({})
    assert not any(hints.compare(fair) for _ in range(IN_A_ROW))
