"""Who is behind, from marks by hand; a rank that stands still ends with its own code."""

import logging
import re
import time

import pytest
import torch
from processes import SECONDS

from hydragnn_hpo.config.trial_config import STALE
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.training.ddp import COLLECTIVE_SECONDS, Ranks, collective_seconds
from hydragnn_hpo.training.watchdog import ProgressMark, Watchdog, name_stragglers


class Store:
    """A store in this process, with the calls that a watchdog makes."""

    def __init__(self, **marks):
        self.entries = {key.replace("_", "/"): value for key, value in marks.items()}

    def clone(self):
        return self

    def set_timeout(self, limit):
        self.limit = limit

    def set(self, key, value):
        self.entries[key] = value.encode()

    def get(self, key):
        return self.entries[key]

    def check(self, keys):
        return all(key in self.entries for key in keys)

    def add(self, key, number):
        self.entries[key] = self.entries.get(key, 0) + number
        return self.entries[key]


def mark(step, phase, *, since=0.0, silent=0.0, now=1000.0):
    return ProgressMark(step, phase, now - since, now - silent)


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        (
            [mark(121, "backward", since=300)] * 3 + [mark(120, "data", since=301)],
            "rank 3 is at step 120 (data) for 301 s; ranks 0-2 wait at step 121 (backward)",
        ),
        (
            [mark(7, "data", since=40), mark(7, "backward")],
            "rank 0 is at step 7 (data) for 40 s; rank 1 waits at step 7 (backward)",
        ),
        ([mark(7, "checkpoint", since=40), mark(7, "data")], "rank 0 is at"),
        ([mark(7, "val"), mark(7, "look", since=40)], "rank 1 is at"),
        (  # it stands in the same collective, but its watchdog does not speak either
            [mark(5, "backward"), mark(5, "backward", since=60, silent=60), mark(5, "backward")],
            "rank 1 is at step 5 (backward) for 60 s and is stopped or gone; "
            "ranks 0, 2 wait at step 5 (backward)",
        ),
        (
            [mark(5, "backward")] * 2,
            "and all ranks wait for each other at step 5 (backward): look at the network",
        ),
    ],
    ids=["steps", "phase", "checkpoint", "look", "silent", "network"],
)
def test_fewer_steps_an_earlier_phase_or_silence_is_behind(marks, message):
    assert name_stragglers(dict(enumerate(marks)), len(marks), now=1000.0, every=5.0).startswith(
        message
    )


def test_of_many_some_are_named():
    only = name_stragglers({0: mark(1, "data")}, 2, now=1000.0, every=5.0)
    assert only == "rank 1 has never said where it is; rank 0 waits at step 1 (data)"
    message = name_stragglers({9: mark(3, "update")}, 12, now=1000.0, every=5.0)
    assert message.count("has never said") == 8
    assert "; 3 more are behind; rank 9 waits at step 3 (update)" in message


def watchdog(at, store, limit=0.2, rank=1, world=2):
    ended = []
    ranks = Ranks(rank, world, torch.device("cpu"))
    dog = Watchdog(ranks, store, at, limit=limit, end=ended.append)
    return dog, ended


def test_who_stands_still_names_the_other_and_ends_with_its_own_code(caplog):
    store = Store()
    store.set(
        "watchdog/0", ProgressMark(4, "data", time.time() - 900.0, time.time() + 900.0).text()
    )
    dog, ended = watchdog(lambda: (4, "backward", 17), store)
    started = time.monotonic()
    with caplog.at_level(logging.ERROR):
        dog.start()
        dog._thread.join(SECONDS)
    assert ended == [STALE]
    assert time.monotonic() - started >= 0.2
    (message,) = [record.message for record in caplog.records]
    assert re.fullmatch(
        r"rank 1 has not moved for 0.2 s, rank 0 is at step 4 \(data\) for 9\d\d s; "
        r"rank 1 waits at step 4 \(backward\); ending with code 7\.",
        message,
    )
    assert store.get("watchdog/1").startswith(b"4 backward ")


def test_who_moves_is_left_alone():
    moves = iter(range(1000))
    dog, ended = watchdog(lambda: (0, "val", next(moves)), Store())
    dog.start()
    time.sleep(0.6)
    dog.stop()
    assert not dog._thread.is_alive()
    assert ended == []


def test_a_store_that_is_gone_is_rank_0s_fault(caplog):
    class Gone(Store):
        def set(self, key, value):
            raise RuntimeError("connection reset")

        add = set

    dog, ended = watchdog(lambda: (4, "backward", 17), Gone())
    dog.start()
    dog._thread.join(SECONDS)
    assert ended == [STALE]
    assert "rank 0, which keeps the marks of all, does not answer" in caplog.text


def test_the_limit_is_300_s_or_what_the_environment_says(monkeypatch):
    name = "HYDRAGNN_HPO_COLLECTIVE_SECONDS"
    monkeypatch.delenv(name, raising=False)
    assert collective_seconds() == COLLECTIVE_SECONDS == 300.0
    monkeypatch.setenv(name, "2.5")
    assert collective_seconds() == 2.5
    for wrong in ("", "0", "-1", "inf", "nan", "soon"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ConfigError, match=f"{name} is '{wrong}': set a number of seconds"):
            collective_seconds()
