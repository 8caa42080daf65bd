"""Whose energy it was: counted by hand, and every joule of it once."""

import random
from dataclasses import asdict

import pytest

from hydragnn_hpo.campaign.accounting import REMEMBERED_SECONDS, SlotHolders
from hydragnn_hpo.campaign.energy_accounting import (
    GROUP_SECONDS,
    IN_A_ROW,
    PEERS,
    EnergyMeter,
    HostWarnings,
    charge_energy,
    split_energy,
)
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.energy_counters import CounterSample
from hydragnn_hpo.launching.job import Event, Slot


def gpus(count=4, host="h"):
    return [Slot(host, number, (number,), "cuda:0", str(number)) for number in range(count)]


def placed(trial, slots, time, attempt=1):
    width = {"width": len(slots), "attempt": attempt}
    return {"event": "placed", "trial": trial, "slots": slots, "time": time, **width}


def ended(trial, time):
    return {"event": "ended", "trial": trial, "time": time, "outcome": "interrupted"}


def holders(*events):
    slot_holders = SlotHolders()
    for event in events:
        slot_holders.apply(event)
    return slot_holders


def test_who_held_a_slot_and_for_how_long():
    result = holders(
        placed("a", ["h:0", "h:1"], 100.0), ended("a", 110.0),
        placed("b", ["h:0"], 112.0), placed("c", ["h:1"], 125.0),
    )  # fmt: skip
    assert result.find_holders("h:0", 100.0, 130.0) == {"a": 10.0, "b": 18.0}
    assert result.find_holders("h:1", 105.0, 130.0) == {"a": 5.0, "c": 5.0}
    assert result.find_holders("h:1", 110.0, 125.0) == {}
    assert result.find_holders("h:9", 0.0, 1e9) == {}


def test_a_trial_that_comes_back_is_on_its_new_slots_only():
    result = holders(placed("a", ["h:0"], 0.0), placed("a", ["h:1"], 10.0, attempt=2))
    assert result.find_holders("h:0", 0.0, 20.0) == {"a": 10.0}
    assert result.find_holders("h:1", 0.0, 20.0) == {"a": 10.0}


def test_what_is_long_over_is_forgotten():
    result = holders()
    for number in range(1000):
        result.apply(placed(f"t{number}", ["h:0"], 10.0 * number))
        result.apply(ended(f"t{number}", 10.0 * number + 10.0))
    assert len(result._holds["h:0"]) <= REMEMBERED_SECONDS / 10.0 + 2
    assert result.find_holders("h:0", 9990.0, 10_000.0) == {"t999": 10.0}


def test_a_host_by_hand():
    """Two cards of two devices; 30 s; a on slots 0 and 1 for all of it, b on slot 2 for 10 s."""
    sample = CounterSample(30.0, ("host",), 1200.0, ((("0", "1"), 600.0), (("2", "3"), 300.0)))
    held = {"h:0": {"a": 30.0}, "h:1": {"a": 30.0}, "h:2": {"b": 10.0}}
    shares = charge_energy(split_energy(sample, gpus()), held, 30.0)
    # a: its card, 600, and half of the rest, 600. b: a third of half of its card, 50, and a
    # third of a quarter of the rest, 100.
    assert shares.trials == {"a": pytest.approx(1200.0), "b": pytest.approx(150.0)}
    assert shares.idle == pytest.approx(2100.0 - 1350.0)


@pytest.mark.parametrize("names", [("0", "0"), ("MIG-0", "MIG-1")])
def test_slots_that_share_a_device_share_its_energy(names):
    """Slices of a GPU are named by ids that no counter knows: its card is theirs all the same."""
    lanes = [Slot("h", n, (n,), "cuda:0", name) for n, name in enumerate(names)]
    actual = split_energy(CounterSample(30.0, ("card",), None, ((("0", "GPU-a"), 80.0),)), lanes)
    assert actual == [(80.0, ("h:0", "h:1"))]
    shares = charge_energy(actual, {"h:0": {"a": 30.0}, "h:1": {"b": 15.0}}, 30.0)
    assert shares.trials == {"a": 40.0, "b": 20.0}
    assert shares.idle == 20.0


def test_a_card_without_slots_is_idle():
    two = gpus(2)
    sample = CounterSample(10.0, ("host",), 0.0, tuple(((str(n),), 5.0) for n in range(4)))
    shares = charge_energy(split_energy(sample, two), {s.name: {"a": 10.0} for s in two}, 10.0)
    assert (shares.trials, shares.idle) == ({"a": 10.0}, 10.0)
    processors = [Slot("h", n, (n,), "cpu") for n in range(2)]
    assert split_energy(sample, processors)[0] == (5.0, ())


def test_what_was_counted_is_what_is_charged_and_what_is_idle():
    draw = random.Random(5)
    for _ in range(200):
        slots = gpus(draw.randint(1, 8))
        cards = tuple(((str(n),), draw.uniform(0.0, 9e3)) for n in range(draw.randint(0, 8)))
        sample = CounterSample(30.0, (), draw.choice((None, draw.uniform(0.0, 3e4))), cards)
        held = {}
        for slot in slots:
            cut = sorted(draw.uniform(0.0, 30.0) for _ in range(2))
            held[slot.name] = {f"t{draw.randint(0, 3)}": cut[0], "x": cut[1] - cut[0]}
        shares = charge_energy(split_energy(sample, slots), held, 30.0)
        everything = sum(shares.trials.values()) + shares.idle
        assert everything == pytest.approx(sample.joules or 0.0)
        assert shares.idle > -1e-9


def sample(**gauges):
    return CounterSample(30.0, devices={"3": gauges})


def warnings_of(hints, samples, trains, host="h"):
    return [result for each in samples if (result := hints.check_sample(host, each, trains))]


def test_a_device_that_does_nothing_while_a_trial_trains():
    idle = sample(busy=0.02)
    trains = {"3": "t7"}
    assert warnings_of(HostWarnings({}), [idle] * (IN_A_ROW - 1), trains) == []
    assert warnings_of(HostWarnings({}), [idle] * (5 * IN_A_ROW), trains) == [
        "device 3 is 2 % busy while t7 trains"
    ]
    broken = [idle] * (IN_A_ROW - 1) + [sample(busy=0.5)]
    assert warnings_of(HostWarnings({}), broken * 3, trains) == []
    assert warnings_of(HostWarnings({}), [idle] * IN_A_ROW, {"2": "t7"}) == []
    assert (
        warnings_of(HostWarnings({}), [sample(watts=30.0)] * IN_A_ROW, trains) == []
    )  # unknown is not 0


def test_of_one_host_one_thing_is_reported():
    warned = {}
    hints = HostWarnings(warned)
    idle = sample(busy=0.0)
    hot = sample(busy=1.0, throttled=1.0, celsius=88.0)
    actual = []
    for each in [idle] * IN_A_ROW + [hot] * IN_A_ROW:
        if sentence := hints.check_sample("h", each, {"3": "t1"}):
            warned["h"] = sentence
            actual.append(sentence)
    assert actual == ["device 3 is 0 % busy while t1 trains"]
    assert warnings_of(hints, [hot] * 3 * IN_A_ROW, {}, host="other") == [
        "device 3 lowers its clocks at 88 C: heat, or its power supply"
    ]


def test_a_host_with_less_power_than_its_peers():
    watts = {f"h{n}": 2000.0 + n for n in range(PEERS - 1)} | {"weak": 800.0}
    hints = HostWarnings({})
    results = [hints.compare_power(watts) for _ in range(2 * IN_A_ROW)]
    assert [each for each in results if each] == [
        {"weak": "takes 800 W, busy hosts like it 2002 W"}  # median of 800, 2000 ... 2006
    ]
    assert not any(HostWarnings({}).compare_power({"a": 1.0, "b": 100.0}) for _ in range(IN_A_ROW))
    fair = watts | {"weak": 1100.0}
    hints = HostWarnings({})
    assert not any(hints.compare_power(fair) for _ in range(IN_A_ROW))


class Stage:
    def __init__(self, folder, hosts=2):
        self.now = 1000.0
        self.event_store = EventStore(folder / "events.jsonl", 1, lambda: self.now)
        self.slots = tuple(
            Slot(f"h{h}", n, (n,), "cuda:0", str(n)) for h in range(hosts) for n in range(2)
        )
        self.energy_meter = EnergyMeter(self.event_store, lambda: self.slots)

    def place(self, trial, *slots):
        self.event_store.append("proposed", trial=trial, values={}, until=9)
        self.event_store.append("placed", trial=trial, attempt=1, width=len(slots), slots=slots)
        self.event_store.append("first_step", trial=trial, seconds=0.0)

    def tell(self, host, sample, late=0.0):
        plain = asdict(sample.rounded()) | {"host": host}
        self.energy_meter.on_event(Event("counters", None, self.now - late, plain))

    def events_of(self, kind):
        return [event for event in read_journal(self.event_store.path) if event["event"] == kind]


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.event_store.close()


def sample_metering(rest, *cards, seconds=30.0, **more):
    cards = tuple(((str(number),), joules) for number, joules in enumerate(cards))
    return CounterSample(seconds, ("host",), rest, cards, **more)


def test_one_line_for_many_hosts(stage):
    stage.place("a", "h0:0", "h0:1", "h1:0")
    stage.now += 30.0
    stage.tell("h0", sample_metering(600.0, 90.0, 60.0))
    stage.tell("h1", sample_metering(400.0, 50.0, 10.0))
    stage.energy_meter.flush_if_due()
    (line,) = stage.events_of("energy")
    assert line["trials"] == {"a": [600.0 + 150.0 + 200.0 + 50.0, 90.0]}
    assert line["idle"] == 210.0
    assert line["watts"] == pytest.approx((750.0 + 460.0) / 30.0, abs=0.1)
    assert (line["hosts"], line["parts"]) == (2, ["host"])
    assert stage.event_store.state.trials["a"].energy == 1000.0
    assert stage.event_store.state.energy.joules == 1210.0


def test_nothing_is_written_before_it_is_time_and_nothing_where_nothing_was_counted(stage):
    stage.now += GROUP_SECONDS / 2
    stage.tell("h0", sample_metering(600.0))
    stage.energy_meter.flush_if_due()
    assert stage.events_of("energy") == []
    stage.now += GROUP_SECONDS / 2
    stage.energy_meter.flush_if_due()
    assert len(stage.events_of("energy")) == 1
    stage.now += 10 * GROUP_SECONDS
    stage.tell("h0", CounterSample(30.0))
    stage.energy_meter.flush_if_due()
    assert len(stage.events_of("energy")) == 1


def test_a_sample_that_was_late_is_of_its_own_time(stage):
    stage.now += 30.0
    stage.place("a", "h0:0", "h0:1")
    stage.now += 40.0
    stage.tell("h0", sample_metering(600.0), late=40.0)  # it ended when a began
    stage.energy_meter.flush()
    assert stage.events_of("energy")[0]["trials"] == {}
    assert stage.events_of("energy")[0]["idle"] == 600.0


def test_no_second_is_charged_twice_after_a_late_sample(stage):
    stage.place("a", "h0:0")
    for seconds, joules in ((50.0, 600.0), (10.0, 600.0), (0.0, 60.0)):  # the first 20 s late
        stage.now += seconds
        stage.tell("h0", sample_metering(joules, seconds=30.0 if seconds else 3.0))
    stage.energy_meter.flush()
    (line,) = stage.events_of("energy")
    assert line["trials"]["a"] == [630.0, pytest.approx(40.0, abs=0.01)]  # half of 1260 J
    assert line["idle"] == 630.0


def test_what_another_agent_says_does_no_harm(stage):
    for data in ({}, {"host": "h0"}, {"host": "h0", "seconds": "long"}, {"seconds": 3, "cards": 1}):
        stage.energy_meter.on_event(Event("counters", None, stage.now, data))
    stage.energy_meter.flush()
    assert stage.events_of("energy") == []


def test_why_nothing_is_known_is_written_once(stage):
    for host in ("h0", "h1"):
        stage.tell(host, CounterSample(30.0, notes=("energy_uj may only be read by root",)))
    (line,) = stage.events_of("unread")
    assert (line["host"], line["reason"]) == ("h0", "energy_uj may only be read by root")
    assert stage.event_store.state.energy.unread == line["reason"]


def test_an_idle_device_is_written_once(stage):
    stage.place("a", "h0:0", "h0:1")
    for _ in range(3 * IN_A_ROW):
        stage.now += 30.0
        stage.tell("h0", sample_metering(600.0, devices={"1": {"busy": 0.01}, "0": {"busy": 0.9}}))
    (line,) = stage.events_of("host_warned")
    assert (line["host"], line["reason"]) == ("h0", "device 1 is 1 % busy while a trains")
    assert stage.event_store.state.hosts.warned == {"h0": line["reason"]}


def test_weak_hosts_are_found_among_the_busy_ones(tmp_path):
    stage = Stage(tmp_path, hosts=10)
    for number in range(9):  # the last one waits for work: it may take little
        stage.place(f"t{number}", f"h{number}:0", f"h{number}:1")
    for _ in range(IN_A_ROW):
        stage.now += 30.0
        for number in range(10):
            stage.tell(f"h{number}", sample_metering(3000.0 if number in (4, 9) else 60_000.0))
        stage.energy_meter.flush_if_due()
    (line,) = stage.events_of("host_warned")
    assert (line["host"], line["reason"]) == ("h4", "takes 100 W, busy hosts like it 2000 W")
    stage.event_store.close()
