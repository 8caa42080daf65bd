"""Samples become lines of the journal: sums by trial, now and then."""

import pytest

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.loop.hints import IN_A_ROW
from hydragnn_hpo.campaign.loop.metering import GROUP_SECONDS, Metering
from hydragnn_hpo.launching.host.counters.sample import Sample
from hydragnn_hpo.launching.job import Event, Slot


class Stage:
    def __init__(self, folder, hosts=2):
        self.now = 1000.0
        self.book = Book(folder / "events.jsonl", 1, lambda: self.now)
        self.slots = tuple(
            Slot(f"h{h}", n, (n,), "cuda:0", str(n)) for h in range(hosts) for n in range(2)
        )
        self.metering = Metering(self.book, lambda: self.slots)

    def place(self, trial, *slots):
        self.book.note("proposed", trial=trial, values={}, until=9)
        self.book.note("placed", trial=trial, attempt=1, width=len(slots), slots=slots)
        self.book.note("first_step", trial=trial, seconds=0.0)

    def tell(self, host, sample, late=0.0):
        plain = sample.to_plain() | {"host": host}
        self.metering.hear(Event("counters", None, self.now - late, plain))

    def told(self, kind):
        return [event for event in read_journal(self.book.path) if event["event"] == kind]


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.book.close()


def sample(rest, *cards, seconds=30.0, **more):
    cards = tuple(((str(number),), joules) for number, joules in enumerate(cards))
    return Sample(seconds, ("host",), rest, cards, **more)


def test_one_line_for_many_hosts(stage):
    stage.place("a", "h0:0", "h0:1", "h1:0")
    stage.now += 30.0
    stage.tell("h0", sample(600.0, 90.0, 60.0))
    stage.tell("h1", sample(400.0, 50.0, 10.0))
    stage.metering.turn()
    (line,) = stage.told("energy")
    assert line["trials"] == {"a": [600.0 + 150.0 + 200.0 + 50.0, 90.0]}
    assert line["idle"] == 210.0
    assert line["watts"] == pytest.approx((750.0 + 460.0) / 30.0, abs=0.1)
    assert (line["hosts"], line["parts"]) == (2, ["host"])
    assert stage.book.state.trials["a"].energy == 1000.0
    assert stage.book.state.energy.joules == 1210.0


def test_nothing_is_written_before_it_is_time_and_nothing_where_nothing_was_counted(stage):
    stage.now += GROUP_SECONDS / 2
    stage.tell("h0", sample(600.0))
    stage.metering.turn()
    assert stage.told("energy") == []
    stage.now += GROUP_SECONDS / 2
    stage.metering.turn()
    assert len(stage.told("energy")) == 1
    stage.now += 10 * GROUP_SECONDS
    stage.tell("h0", Sample(30.0))
    stage.metering.turn()
    assert len(stage.told("energy")) == 1


def test_a_sample_that_was_late_is_of_its_own_time(stage):
    stage.now += 30.0
    stage.place("a", "h0:0", "h0:1")
    stage.now += 40.0
    stage.tell("h0", sample(600.0), late=40.0)  # it ended when a began
    stage.metering.flush()
    assert stage.told("energy")[0]["trials"] == {}
    assert stage.told("energy")[0]["idle"] == 600.0


def test_a_host_whose_slots_nobody_knows_any_more_is_idle(stage):
    stage.slots = stage.slots[:2]
    stage.now += 30.0
    stage.tell("h1", sample(600.0, 60.0))
    stage.metering.flush()
    assert stage.told("energy")[0]["idle"] == 660.0


def test_what_another_agent_says_does_no_harm(stage):
    for data in ({}, {"host": "h0"}, {"host": "h0", "seconds": "long"}, {"seconds": 3, "cards": 1}):
        stage.metering.hear(Event("counters", None, stage.now, data))
    stage.metering.flush()
    assert stage.told("energy") == []


def test_why_nothing_is_known_is_written_once(stage):
    for host in ("h0", "h1"):
        stage.tell(host, Sample(30.0, notes=("energy_uj may only be read by root",)))
    (line,) = stage.told("unread")
    assert (line["host"], line["reason"]) == ("h0", "energy_uj may only be read by root")
    assert stage.book.state.energy.unread == line["reason"]


def test_an_idle_device_is_written_once(stage):
    stage.place("a", "h0:0", "h0:1")
    for _ in range(3 * IN_A_ROW):
        stage.now += 30.0
        stage.tell("h0", sample(600.0, devices={"1": {"busy": 0.01}, "0": {"busy": 0.9}}))
    (line,) = stage.told("host_warned")
    assert (line["host"], line["reason"]) == ("h0", "device 1 is 1 % busy while a trains")
    assert stage.book.state.hosts.warned == {"h0": line["reason"]}


def test_weak_hosts_are_found_among_the_busy_ones(tmp_path):
    stage = Stage(tmp_path, hosts=10)
    for number in range(9):  # the last one waits for work: it may take little
        stage.place(f"t{number}", f"h{number}:0", f"h{number}:1")
    for _ in range(IN_A_ROW):
        stage.now += 30.0
        for number in range(10):
            stage.tell(f"h{number}", sample(3000.0 if number in (4, 9) else 60_000.0))
        stage.metering.turn()
    (line,) = stage.told("host_warned")
    assert (line["host"], line["reason"]) == ("h4", "takes 100 W, busy hosts like it 2000 W")
    stage.book.close()
