"""Jobs wait for their slots; what a cluster answers is acted in a few lines here."""

from pathlib import Path

import pytest

from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.ray.reservations import Reservations


class Said:
    """In place of a membership: keeps what it is asked to say."""

    def __init__(self):
        self.orders = []

    def say(self, op, **order):
        self.orders.append((op, order))


@pytest.fixture
def driver():
    return Said()


@pytest.fixture
def reservations(driver):
    return Reservations(driver, patience=7.0)


def job(name="t.1", devices=("", "")):
    slots = tuple(Slot("h", i, (i,), "cuda:0", visible) for i, visible in enumerate(devices))
    return Job(name, "train", 2, {}, Path("log"), Path("lease"), None, slots)


WORTH = [{"CPU": 1.0}, {"CPU": 2.0}]


def test_a_job_asks_for_each_of_its_slots(reservations, driver):
    reservations.ask(job(), WORTH)
    slots = [["h", {"CPU": 1.0}], ["h", {"CPU": 2.0}]]
    assert driver.orders == [("reserve", {"job": "t.1", "slots": slots, "patience": 7.0})]
    assert reservations.waiting


def test_a_job_that_has_its_slots_can_start(reservations):
    reservations.ask(job(), WORTH)
    answer = {"event": "reserved", "job": "t.1", "devices": ["", ""]}
    assert reservations.hear([answer]) == ([job()], [])
    assert not reservations.waiting


def test_ranks_see_the_devices_that_ray_chose(reservations):
    reservations.ask(job(devices=("0", "1")), WORTH)
    answer = {"event": "reserved", "job": "t.1", "devices": ["3", "2"]}
    ((started,), _) = reservations.hear([answer])
    assert [slot.visible for slot in started.slots] == ["3", "2"]
    assert [slot.name for slot in started.slots] == ["h:0", "h:1"]


def test_a_refused_job_ends_with_the_reason(reservations, driver):
    reservations.ask(job(), WORTH)
    ready, (ended,) = reservations.hear([{"event": "refused", "job": "t.1", "reason": "why."}])
    assert ready == []
    assert (ended.kind, ended.job, ended.data["codes"]) == ("ended", "t.1", [-15, -15])
    assert (ended.data["error"], ended.data["signal_sent"]) == ("why.", False)
    reservations.release("t.1")
    assert len(driver.orders) == 1, "it held nothing"


def test_a_job_that_is_stopped_while_it_waits_ends_and_never_starts(reservations, driver):
    reservations.ask(job(), WORTH)
    ended = reservations.give_up("t.1")
    assert ended is not None
    assert (ended.data["codes"], ended.data["error"]) == ([-15, -15], None)
    assert driver.orders[-1] == ("release", {"job": "t.1"})
    assert reservations.give_up("t.1") is None
    answer = {"event": "reserved", "job": "t.1", "devices": ["", ""]}
    assert reservations.hear([answer]) == ([], [])


def test_slots_are_given_back_once(reservations, driver):
    reservations.ask(job(), WORTH)
    reservations.hear([{"event": "reserved", "job": "t.1", "devices": ["", ""]}])
    reservations.release("t.1")
    reservations.release("t.1")
    assert [op for op, _ in driver.orders] == ["reserve", "release"]


def test_jobs_of_an_earlier_controller_keep_their_slots_and_others_lose_them(reservations, driver):
    reservations.adopt("t.0")
    reservations.ask(job(), WORTH)
    reservations.tidy()
    assert driver.orders[-1] == ("tidy", {"jobs": ["t.0", "t.1"]})
    reservations.release("t.0")
    assert driver.orders[-1] == ("release", {"job": "t.0"})


def test_a_new_driver_is_asked_again_for_what_waits_alone(reservations, driver):
    reservations.ask(job("t.1"), WORTH)
    reservations.ask(job("t.2"), WORTH)
    reservations.hear([{"event": "reserved", "job": "t.1", "devices": ["", ""]}])
    new = Said()
    reservations.repeat(new)
    reservations.release("t.1")
    assert [(op, order["job"]) for op, order in new.orders] == [("reserve", "t.2")]
