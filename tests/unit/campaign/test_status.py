"""How long a campaign still takes, counted by hand; one goal ranks, several have a front."""

import gzip
import statistics
from pathlib import Path

import pytest

from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.status import (
    count_epochs_to_come,
    count_fit_epochs_to_come,
    predict_seconds_left,
    rank_trials,
    running_trials,
)
from hydragnn_hpo.config.campaign_config import CampaignConfig, EnsembleConfig
from hydragnn_hpo.config.search_config import SearchConfig

SEARCH = SearchConfig(trials=9, rungs=(2, 6), reduction=3, finalists=2)


def folded(*events):
    state = State()
    ledger = SlotLedger()
    for event in events:
        for each in (state, ledger):
            each.apply({"epoch": 1, **event})
    return state, ledger


def event(kind, time=0.0, **values):
    return {"event": kind, "time": time, **values}


OPENED = event("opened", units={}, slots=["a:0", "a:1"])


def proposed(*names):
    return [event("proposed", trial=name, values={"x": 1}, until=2) for name in names]


def placed(name, time=0.0, slot="a:0", **more):
    place = {"attempt": 1, "width": 1, "slots": [slot]}
    return event("placed", time, trial=name, **(place | more))


def epoch(name, time, reached, seconds=10.0):
    fields = {"objective": 1.0, "best_objective": 1.0, "width": 1}
    return event("epoch", time, trial=name, reached=reached, seconds=seconds, **fields)


TOGETHER = SEARCH.model_copy(update={"promotion": "together"})


def test_epochs_to_come_by_hand():
    """Nine trials of 2 epochs, and the best third, no fewer than two, 4 more: 18 + 12."""
    assert count_epochs_to_come(folded(OPENED)[0], TOGETHER) == 18 + 12
    state, _ = folded(OPENED, *proposed("t0", "t1"), placed("t0"), epoch("t0", 10.0, 1))
    assert count_epochs_to_come(state, TOGETHER) == 7 * 2 + 12
    many = TOGETHER.model_copy(update={"finalists": 5})
    assert count_epochs_to_come(folded(OPENED)[0], many) == 18 + 5 * 4, "more than a third"
    assert count_epochs_to_come(folded(OPENED)[0], SEARCH) == pytest.approx(18 + 1.2 * 12)


def test_who_was_sent_on_counts_once():
    rested = event("ended", 20.0, trial="t0", outcome="stopped", score=1.0, reached=2)
    sent = event("promoted", 21.0, trials=["t0"], until=6, last=False)
    state, _ = folded(OPENED, *proposed("t0"), placed("t0"), epoch("t0", 20.0, 2), rested, sent)
    assert count_epochs_to_come(state, TOGETHER) == 8 * 2 + 2 * 4
    # Eight of nine are still to rest: .4 of them go on, or .4 of nine without the one that went.
    more = (8 * 0.4 + 9 * 0.4 - 1) / 2
    assert count_epochs_to_come(state, SEARCH) == pytest.approx(8 * 2 + more * 4)


@pytest.mark.parametrize("kind", ["ending", "finished"])
def test_at_the_end_nothing_is_to_come(kind):
    state, _ = folded(OPENED, *proposed("t0"), event(kind, 1.0))
    assert count_epochs_to_come(state, SEARCH) == 0


def test_fits_on_folds_are_to_come_until_they_are_proposed():
    """2 x 5 fits of 6 epochs, of 1.2 times the steps each; then they are trials like others."""
    cross = EnsembleConfig(fit="cross", configurations=2, folds=5)
    state, _ = folded(OPENED, *proposed("t0"))
    assert count_fit_epochs_to_come(state, SEARCH, cross) == pytest.approx(2 * 5 * 6 * 1.2)
    assert count_fit_epochs_to_come(state, SEARCH, EnsembleConfig(fit="split")) == 0
    fit = event("proposed", trial="t1", parent="t0", values={"training.fold": 0}, until=6)
    state, _ = folded(OPENED, *proposed("t0"), fit)
    assert count_fit_epochs_to_come(state, SEARCH, cross) == 0
    first = event("first_step", 10.0, trial="t0", seconds=10.0)
    state, ledger = folded(OPENED, *proposed("t0"), placed("t0"), first, epoch("t0", 20.0, 1))
    left = [predict_seconds_left(state, ledger, TOGETHER, 20.0, ensemble=e) for e in (None, cross)]
    assert left[1] / left[0] == pytest.approx(1 + 2 * 5 * 6 * 1.2 / (1 + 8 * 2 + 12))


def test_seconds_by_hand():
    """1 + 2 + 14 + 12 epochs at 10 slot-seconds over two slots.

    Of 2 x 20 slot-seconds, t0 started for 10 and trained for 10, the other slot idled for 20; as
    much as a trial on each slot, 2 x 20, is assumed to train for .9 of its time.
    """
    first = event("first_step", 10.0, trial="t0", seconds=10.0)
    state, ledger = folded(OPENED, *proposed("t0", "t1"), placed("t0"), first, epoch("t0", 20.0, 1))
    assert ledger.utilization(20.0).share("training") == 0.25
    share = (10.0 + 0.9 * 40.0) / (40.0 + 40.0)
    left = predict_seconds_left(state, ledger, TOGETHER, 20.0)
    assert left == pytest.approx(29 * 10 / 2 / share)


def test_what_follows_the_last_trial_counts_by_how_fast_this_computer_imports():
    ready = [event("zygote_ready", 0.0, host=h, import_seconds=s) for h, s in (("a", 4), ("b", 6))]
    first = event("first_step", 10.0, trial="t0", seconds=10.0)
    events = [OPENED, *ready, *proposed("t0"), placed("t0"), first, epoch("t0", 20.0, 1)]
    state, ledger = folded(*events)
    finishing = JournalFold({"epoch": 1, **one} for one in events).finish_seconds
    assert finishing == pytest.approx(1.5 * 5.0)
    plain = predict_seconds_left(state, ledger, TOGETHER, 20.0)
    left = predict_seconds_left(state, ledger, TOGETHER, 20.0, finishing=finishing)
    assert left == pytest.approx(plain + 7.5)
    assert JournalFold().finish_seconds == 0.0


def test_a_trial_that_is_open_takes_as_long_as_its_own_epochs():
    """t0 waits with two epochs of 6 s left, t1 runs with one of 10 s: 22 s over two slots.

    Of 2 x 10 s t1 trained for 10; two slots are assumed to train for .9 of two epochs of 8 s.
    """
    last = SearchConfig(trials=2, rungs=(2,), finalists=1)
    paused = event("ended", 0.0, trial="t0", outcome="interrupted", reason="paused")
    state, ledger = folded(
        OPENED,
        *proposed("t0", "t1"),
        placed("t0"),
        placed("t1", slot="a:1"),
        epoch("t0", 0.0, 1, seconds=6.0),
        paused,
        epoch("t1", 10.0, 1, seconds=10.0),
    )
    share = (10.0 + 0.9 * 32.0) / (20.0 + 32.0)
    left = predict_seconds_left(state, ledger, last, 10.0)
    assert left == pytest.approx(22.0 / 2 / share)


def test_the_longest_trial_is_waited_for():
    one = SearchConfig(trials=1, rungs=(8,), finalists=1)
    state, ledger = folded(
        OPENED,
        event("proposed", trial="t0", values={"x": 1}, until=8),
        placed("t0", width=2, slots=["a:0", "a:1"]),
        event("first_step", 0.0, trial="t0", seconds=0.0),
        {**epoch("t0", 10.0, 1), "width": 2},
    )
    assert predict_seconds_left(state, ledger, one, 13.0) == pytest.approx(7 * 10.0)


def test_nothing_is_predicted_before_the_first_epoch():
    state, ledger = folded(OPENED, *proposed("t0"), placed("t0"))
    assert predict_seconds_left(state, ledger, SEARCH, 5.0) is None


def test_a_trial_ends_when_its_epochs_are_over():
    state, _ = folded(OPENED, *proposed("t0", "t1"), placed("t0", predicted_epoch_seconds=30.0))
    assert running_trials(state, 9, 12.0)[0].ends_in == 60.0 - 12.0, "as was predicted"
    state, _ = folded(OPENED, *proposed("t0"), placed("t0"), epoch("t0", 10.0, 1))
    assert running_trials(state, 9, 14.0)[0].ends_in == 10.0 - 4.0
    assert running_trials(state, 9, 99.0)[0].ends_in == 0.0, "late, but never negative"


@pytest.mark.parametrize("jump", [-1e9, -10.0, 2e5, 1e9])
def test_a_clock_that_jumped_since_the_last_event_adds_nothing(jump):
    events = [OPENED, *proposed("t0"), placed("t0", 100.0), epoch("t0", 120.0, 1)]
    state, ledger = folded(*events)
    assert ledger.utilization(130.0).slot_seconds == 2 * 30.0
    assert ledger.utilization(120.0 + jump).slot_seconds == 2 * 20.0
    assert 0.0 <= predict_seconds_left(state, ledger, SEARCH, 120.0 + jump) < 1000.0


def test_a_controller_whose_clock_is_behind_takes_no_time_back():
    ended = event("ended", 50.0, trial="t0", outcome="completed", score=1.0, reached=2)
    state, ledger = folded(
        OPENED,
        *proposed("t0"),
        placed("t0", 100.0),
        epoch("t0", 120.0, 1),
        {**event("opened", 40.0, units={}, slots=["a:0", "a:1"]), "epoch": 2},
        {**ended, "epoch": 2},
    )
    assert state.trials["t0"].slot_seconds == 0.0
    assert min(ledger.utilization().by_cause.values()) >= 0.0


# -- the time left, over recorded campaigns --------------------------------------------------

RECORDED = {
    "acetylacetone": {"trials": 19, "rungs": (6, 23), "reduction": 3, "finalists": 6},
    "castelli_multitarget": {"trials": 22, "rungs": (3, 11), "reduction": 3, "finalists": 7},
    "g2_xtb": {"trials": 32, "rungs": (11, 45), "reduction": 3, "finalists": 10},
}
"""Campaigns of 104, 397 and 150 s on two slots, with deephyper. Their journals are in
``goldens/forecast``: without values, objectives and checkpoints, times from 1000 s on."""

MOMENTS = 200


def forecast_errors(path, search):
    """Return the mean absolute error of the time left in each quarter of a run, over its length."""
    events = list(read_journal(path))
    begin = next(event["time"] for event in events if event["event"] == "placed")
    length = max(event["time"] for event in events if event["event"] == "ended") - begin
    fold = JournalFold()
    quarters = [[], [], [], []]
    for moment in range(MOMENTS):
        spent = (moment + 0.5) * length / MOMENTS
        while events and events[0]["time"] <= begin + spent:
            fold.apply(events.pop(0))
        left = predict_seconds_left(fold.state, fold.ledger, search, begin + spent)
        if left is not None:
            quarters[4 * moment // MOMENTS].append(abs(left - (length - spent)) / length)
    return [statistics.fmean(errors) for errors in quarters]


@pytest.mark.parametrize("name", RECORDED)
def test_the_error_of_the_time_left_shrinks_in_each_quarter_of_a_recorded_run(tmp_path, name):
    packed = Path(__file__).parents[2] / "goldens" / "forecast" / f"{name}.jsonl.gz"
    path = tmp_path / "events.jsonl"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    errors = forecast_errors(path, SearchConfig(**RECORDED[name]))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 0.40
    assert errors[2] < 0.12
    assert errors[3] < 0.06


# -- the leaderboard -----------------------------------------------------------------------


def board(**scores):
    state = State()
    for name, score in scores.items():
        state.add(Trial(name, {"x": 1.5}, until=4, status="stopped", score=score, objective=0.5))
    state.add(Trial("failed", {"x": 2.0}, until=4, status="failed", reason="diverged"))
    return rank_trials(state, CampaignConfig.model_construct())


def test_one_goal_has_places_and_no_front():
    rows = board(a=0.3, b=0.1, c=0.2).rows
    assert [(row.rank, row.trial, row.front) for row in rows] == [
        (1, "b", None), (2, "c", None), (3, "a", None), (None, "failed", None),
    ]  # fmt: skip


def test_of_several_goals_the_front_is_kept():
    """a is the most exact, c the cheapest, b between them; d is worse than b at both."""
    rows = board(a=(0.1, 9.0), b=(0.2, 5.0), c=(0.4, 1.0), d=(0.3, 6.0)).rows
    assert {row.trial: row.front for row in rows} == {
        "a": True, "b": True, "c": True, "d": False, "failed": None,
    }  # fmt: skip
    assert rows[3].trial == "d", "who is dominated comes last"
