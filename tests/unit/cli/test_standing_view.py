"""What is shown of a campaign: short at any size, and every number where it belongs."""

import sys
from dataclasses import replace

import pytest
from rich.console import Console

from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.campaign.status import ROWS, build_status
from hydragnn_hpo.cli.standing_view import laid_out
from hydragnn_hpo.cli.words import count, duration, energy, percent


def standing(events, trials=3, rungs=(4, 8), **more):
    state, ledger = State(), SlotLedger()
    for event in events:
        for each in (state, ledger):
            each.apply({"epoch": 1, **event})
    return build_status(state, ledger, trials=trials, rungs=rungs, **more)


def shown(found, note=""):
    console = Console(width=140)
    with console.capture() as capture:
        console.print(laid_out(found, note=note))
    return [line.rstrip() for line in capture.get().splitlines()]


def story():
    values = {"model.conv": "egnn", "model.features": 64, "training.learning_rate": 0.004}
    slots = [f"{host}:{index}" for host in "abc" for index in range(2)]
    yield {"event": "opened", "time": 0.0, "units": {}, "slots": slots}
    for number in range(3):
        yield {
            "event": "proposed",
            "time": 0.0,
            "trial": f"t{number}",
            "values": values,
            "until": 4,
        }
    place = {"event": "placed", "time": 0.0, "attempt": 1}
    yield place | {"trial": "t0", "width": 4, "slots": slots[:4]}
    yield place | {"trial": "t1", "width": 1, "slots": slots[4:5]}
    for trial in ("t0", "t1"):
        yield {"event": "first_step", "time": 1.0, "trial": trial, "seconds": 1.0}
    told = {"objective": 0.5, "best_objective": 0.5, "joules": 1.8e6}
    yield told | {
        "event": "epoch",
        "time": 5.0,
        "trial": "t0",
        "reached": 2,
        "seconds": 4.0,
        "width": 4,
    }
    yield {
        "event": "ended",
        "time": 6.0,
        "trial": "t1",
        "outcome": "stopped",
        "objective": 0.25,
        "score": 0.25,
        "reached": 4,
    }
    yield {"event": "host_lost", "time": 6.0, "host": "c", "reason": "silent"}


def test_what_a_person_sees():
    lines = shown(standing(story(), now=8.0, ends_in=200.0), note="  (note)")
    assert lines == [
        "training: 1 of 3 trials at rest, 1 waiting, 1 running, about 3.3 min left  (note)",
        "",
        "trial  configuration  ranks  hosts  epoch                        objective  s/epoch",
        f"t0     egnn 64 0.004      4  a +1     2/4  {10 * chr(0x2501)}{10 * chr(0x2500)}"
        "     0.5000        4",
        "",
        "rungs   4 epochs: 1 wait, 1 run, 1 rest   8 epochs: 0 wait, 0 run, 0 rest",
        "slots   4 slots on 2 hosts: 100 % train now, 58 % so far; largest loss: 12 % idle "
        "although trials wait",
        "hosts   1 lost: c (silent)",
        "energy  1,800.0 kJ in training and validation",
        "best    t1 0.2500 (egnn 64 0.004), epoch 4",
    ]


def test_the_use_of_slots_by_hand():
    """Six slots for 8 s: t0 starts 4 x 1 s and trains 4 x 7 s, t1 starts 1 s and ends for 5 s.

    One slot idles for 6 s while t2 waits, then both of host c are away for 2 s.
    """
    found = standing(story(), now=8.0)
    assert found.losses.by_cause == {
        "training": 28.0,
        "start_up": 5.0,
        "between": 0.0,
        "ending": 5.0,
        "lost": 0.0,
        "held": 6.0,
        "brain": 0.0,
        "tail": 0.0,
        "away": 4.0,
    }
    assert found.losses.slot_seconds == 6 * 8


def test_plain_data_for_json():
    plain = standing(story(), now=8.0, ends_in=200.0).to_plain()
    assert plain["trials"] == {"running": 1, "stopped": 1, "queued": 1}
    hosts = {"here": 2, "slots": 4, "lost": {"c": "silent"}, "quarantined": {}, "excluded": 0}
    assert plain["hosts"] == hosts | {"warned": {}}
    assert plain["energy"]["joules"] is plain["energy"]["best_joules"] is None
    assert plain["rungs"][0] == {"epochs": 4, "waiting": 1, "running": 1, "resting": 1}
    assert plain["best"] == {"trial": "t1", "objective": 0.25}
    assert plain["running"][0]["hosts"] == ("a", "b")
    assert sum(plain["losses"].values()) == pytest.approx(1.0)


def counted(trials, idle):
    told = {"watts": 5400.0, "hosts": 2, "parts": ["card", "cpu"]}
    return {"event": "energy", "time": 7.0, "trials": trials, "idle": idle, **told}


def test_what_hosts_count_is_shown_in_place_of_what_ranks_count():
    found = standing([*story(), counted({"t0": [1.8e6, 9.0], "t1": [0.9e6, 9.0]}, 0.9e6)])
    assert (
        "energy  1.0 kWh so far (card, cpu), 25 % of it idle; 5.4 kW on 2 hosts now; t1: 900.0 kJ"
    ) in shown(found)
    plain = found.to_plain()["energy"]
    assert (plain["joules"], plain["idle"], plain["best_joules"]) == (3.6e6, 0.9e6, 0.9e6)


def test_why_energy_is_unknown_is_said():
    events = [event for event in story() if event["event"] != "epoch"]
    events.append({"event": "unread", "time": 7.0, "host": "a", "reason": "root only"})
    assert "energy  unknown: root only" in shown(standing(events))


def test_odd_hosts_are_named():
    told = {"event": "host_warned", "time": 7.0, "host": "b", "reason": "device 1 is hot"}
    found = standing([*story(), told])
    assert "look at b (device 1 is hot)" in shown(found)
    assert found.to_plain()["hosts"]["warned"] == {"b": "device 1 is hot"}


def test_hosts_that_are_left_alone_are_counted():
    found = replace(standing(story()), excluded=1234)
    assert "1,234 left alone (exclude.hosts)" in "\n".join(shown(found))
    assert found.to_plain()["hosts"]["excluded"] == 1234
    assert "left alone" not in "\n".join(shown(standing(story())))


def test_who_has_come_further_is_better_than_who_scores_better():
    further = [
        {"event": "promoted", "time": 9.0, "trials": ["t1"], "until": 8, "last": False},
        {"event": "placed", "time": 9.0, "trial": "t1", "attempt": 2, "width": 1, "slots": ["a:0"]},
        {"event": "ended", "time": 9.0, "trial": "t1", "outcome": "completed", "score": 0.3},
        {"event": "ended", "time": 9.0, "trial": "t0", "outcome": "stopped", "score": 0.1},
    ]
    assert standing([*story(), *further]).best.name == "t1"


def many(running=500, ended=1500):
    slots = [f"h{n // 8}:{n % 8}" for n in range(2 * running)]
    yield {"event": "opened", "time": 0.0, "units": {}, "slots": slots}
    for n in range(running + ended):
        trial = f"t{n:04d}"
        yield {"event": "proposed", "time": 0.0, "trial": trial, "values": {"a": n}, "until": 4}
        width = 2 if n % 100 == 0 else 1
        place = slots[2 * (n % running) : 2 * (n % running) + width]
        yield {
            "event": "placed",
            "time": 1.0,
            "trial": trial,
            "attempt": 1,
            "width": width,
            "slots": place,
        }
        if n < ended:
            yield {
                "event": "ended",
                "time": 1.0,
                "trial": trial,
                "outcome": "stopped",
                "score": 1.0 / (n + 1),
                "reached": 4,
            }


def test_many_trials_stay_a_page_and_a_moment():
    found = standing(many(), trials=3000)
    lines = shown(found)
    assert len(lines) < ROWS + 12
    assert "and 480 more; these are the widest 20" in lines
    assert [row.width for row in found.running] == [2] * 5 + [1] * 15
    assert found.best.name == "t1499"
    assert calls_to_show(500, 1500) < 20 * 2000, "a few calls for each trial, not for each pair"


def calls_to_show(running, ended):
    """Count calls of functions, which are the same on a busy machine."""
    state, ledger = State(), SlotLedger()
    for event in many(running, ended):
        for each in (state, ledger):
            each.apply({"epoch": 1, **event})
    calls = 0

    def count_one(frame, kind, value):
        nonlocal calls
        calls += kind in ("call", "c_call")

    console = Console(width=140)
    sys.setprofile(count_one)
    try:
        with console.capture():
            console.print(laid_out(build_status(state, ledger, trials=3000, rungs=(4, 8), now=3.0)))
    finally:
        sys.setprofile(None)
    return calls


def test_a_campaign_that_has_not_begun():
    lines = shown(standing([]))
    assert lines[0] == "preparing: 0 of 3 trials at rest, 0 waiting, 0 running"
    assert "slots   0 slots on 0 hosts" in lines


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        ({"event": "ending", "time": 9.0}, "stopping"),
        ({"event": "finished", "time": 9.0}, "finished"),
        (
            {"event": "promoted", "time": 9.0, "trials": ["t1"], "until": 8},
            "training the finalists",
        ),
    ],
)
def test_the_phase_of_a_campaign(event, phase):
    assert standing([*story(), event]).phase.startswith(phase)


def test_numbers_as_people_read_them():
    assert [duration(s) for s in (0.5, 45, 90, 200, 7200, 3 * 86400)] == [
        "0.5 s",
        "45 s",
        "1.5 min",
        "3.3 min",
        "2.0 h",
        "3.0 d",
    ]
    assert [percent(share) for share in (0.0, 0.034, 0.0994, 0.0996, 0.5, 1.0)] == [
        "0.0 %",
        "3.4 %",
        "9.9 %",
        "10 %",
        "50 %",
        "100 %",
    ]
    assert [count(1, "host"), count(9408, "host")] == ["1 host", "9,408 hosts"]
    assert [energy(2e3), energy(7.2e6)] == ["2.0 kJ", "2.0 kWh"]
