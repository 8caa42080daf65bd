"""Journals that are made for tests are what a controller could have written."""

from collections import defaultdict

import pytest
from made_campaign import SPREADS, make_campaign

from hydragnn_hpo.campaign.journal import read_journal

WISHES = {
    "plain": {},
    "two controllers": {"controllers": 2, "reseed": 2, "seed": 3},
    "unfinished": {"finished": False, "seed": 4},
    "one slot": {"hosts": 1, "slots": 1, "trials": 12, "failures": False, "energy": False},
}


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_a_made_journal_is_possible(wishes, tmp_path):
    events = list(read_journal(make_campaign(tmp_path / "run", **wishes).journal))
    for key in ("time", "epoch"):
        assert [e[key] for e in events] == sorted(e[key] for e in events)
    holder = {}
    away = set()
    resting = {}
    attempts = defaultdict(int)
    reached = defaultdict(int)
    saved = defaultdict(int)
    for event in events:
        name = event.get("trial")
        match event["event"]:
            case "host_lost":
                away.add(event["host"])
            case "host_joined":
                away.discard(event["host"])
            case "placed":
                attempts[name] += 1
                reached[name] = saved[name]
                assert event["attempt"] == attempts[name]
                assert reached[name] < event["until"]
                assert len(event["slots"]) == event["width"] <= 4
                assert not holder.keys() & set(event["slots"]), "a slot holds one trial"
                assert not away & {slot.partition(":")[0] for slot in event["slots"]}
                holder |= dict.fromkeys(event["slots"], name)
            case "epoch":
                reached[name] += 1
                assert event["reached"] == reached[name], "it goes on from its checkpoint"
            case "checkpoint":
                saved[name] = event["reached"]
            case "promoted":
                assert all(resting.pop(each) < event["until"] for each in event["trials"])
            case "ended":
                holder = {slot: trial for slot, trial in holder.items() if trial != name}
                if event["outcome"] == "stopped":
                    resting[name] = event["reached"]
                if event["outcome"] in ("stopped", "completed"):
                    assert event["reached"] == reached[name] == saved[name]
                    parts = [mae / SPREADS[head] for head, mae in event["val_mae"].items()]
                    assert event["objective"] == pytest.approx(sum(parts) / len(parts))
    assert (not holder) == (events[-1]["event"] == "finished")


def test_the_same_wishes_give_the_same_bytes(tmp_path):
    wish = {"trials": 12, "hosts": 4, "reseed": 1}
    one, two = (make_campaign(tmp_path / name, **wish).path for name in ("one", "two"))
    files = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)
