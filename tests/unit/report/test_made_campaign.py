"""What is made must be what a controller could have written; else who reads it proves nothing."""

import math
from collections import defaultdict

import numpy as np
import pytest
from made_campaign import EFFECTS, SPREADS, make_campaign

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.report.facts import read_facts

WISHES = {
    "plain": {},
    "two controllers": {"controllers": 2, "reseed": 2, "seed": 3},
    "unfinished": {"finished": False, "seed": 4},
    "pareto": {"objective": ("weighted", "parameters"), "trials": 30},
    "one slot": {"hosts": 1, "slots": 1, "trials": 12, "failures": False, "energy": False},
}


@pytest.fixture(params=WISHES.values(), ids=WISHES, scope="module")
def facts(request, tmp_path_factory):
    return read_facts(make_campaign(tmp_path_factory.mktemp("made") / "run", **request.param))


def test_time_goes_forward_and_controllers_follow_each_other(facts):
    times = [event["time"] for event in facts.events]
    epochs = [event["epoch"] for event in facts.events]
    assert times == sorted(times)
    assert epochs == sorted(epochs)


def test_no_slot_holds_two_trials_and_none_is_used_while_its_host_is_away(facts):
    holder, away = {}, set()
    for event in facts.events:
        match event["event"]:
            case "host_lost":
                away.add(event["host"])
            case "host_joined":
                away.discard(event["host"])
            case "placed":
                for slot in event["slots"]:
                    assert slot not in holder
                    assert slot.partition(":")[0] not in away
                    holder[slot] = event["trial"]
                assert len(event["slots"]) == event["width"] <= 4
            case "ended":
                for slot in [s for s, trial in holder.items() if trial == event["trial"]]:
                    del holder[slot]
    assert facts.state.finished == (not holder)


def test_attempts_count_up_and_epochs_go_on_from_the_last_checkpoint(facts):
    attempts, reached, saved = defaultdict(int), defaultdict(int), defaultdict(int)
    for event in facts.events:
        name = event.get("trial")
        match event["event"]:
            case "placed":
                attempts[name] += 1
                assert event["attempt"] == attempts[name]
                reached[name] = saved[name]
                assert reached[name] < event["until"]
            case "epoch":
                reached[name] += 1
                assert event["reached"] == reached[name]
            case "checkpoint":
                saved[name] = event["reached"]
            case "ended" if event["outcome"] in ("stopped", "completed"):
                assert event["reached"] == reached[name] == saved[name]


def test_only_who_rests_at_a_rung_goes_on(facts):
    resting = {}
    for event in facts.events:
        if event["event"] == "ended" and event["outcome"] == "stopped":
            resting[event["trial"]] = event["reached"]
        if event["event"] == "promoted":
            for name in event["trials"]:
                assert resting.pop(name) < event["until"]


def test_heads_make_up_the_objective_and_energy_fits_the_slots(facts):
    for event in facts.events:
        if event["event"] == "ended" and event.get("val_mae"):
            parts = [mae / SPREADS[head] for head, mae in event["val_mae"].items()]
            assert event["objective"] == pytest.approx(sum(parts) / len(parts))
    for trial in facts.state.trials.values():
        if not trial.slots:
            assert trial.metered_seconds <= trial.slot_seconds + 0.1 * (1 + trial.attempt)


def test_the_same_wishes_give_the_same_bytes(tmp_path):
    wish = {"trials": 12, "hosts": 4, "reseed": 1}
    one, two = (make_campaign(tmp_path / name, **wish) for name in ("one", "two"))
    files = [path.relative_to(one.path) for path in one.path.rglob("*") if path.is_file()]
    assert len(files) > 6
    for name in files:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()


def spread_by(run, key):
    """Return the share of variance of log(objective) between bins of one key, first rung only."""
    values, found = {}, []
    for event in read_journal(run.journal):
        if event["event"] == "proposed":
            values[event["trial"]] = event["values"]
        if event["event"] == "ended" and event.get("reached") == 3:
            found.append((values[event["trial"]][key], math.log(event["objective"])))
    x, y = map(np.array, zip(*found, strict=True))
    bins = np.digitize(x, np.quantile(x, [0.2, 0.4, 0.6, 0.8]))
    means = [y[bins == b].mean() * np.ones(np.sum(bins == b)) for b in np.unique(bins)]
    return np.concatenate(means).var() / y.var()


def test_the_ranking_is_planted_or_not(tmp_path):
    wish = {"trials": 300, "hosts": 16, "failures": False, "energy": False}
    keys = [*EFFECTS, "training.warmup"]
    run = make_campaign(tmp_path / "planted", **wish)
    shares = [spread_by(run, key) for key in keys]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4 > shares[2] > 0.04 > shares[3]
    noise = make_campaign(tmp_path / "noise", noise_only=True, **wish)
    assert max(spread_by(noise, key) for key in keys) < 0.06


def test_failures_have_their_reasons(tmp_path):
    facts = read_facts(make_campaign(tmp_path / "run", trials=200, hosts=8))
    reasons = {trial.reason for trial in facts.state.trials.values() if trial.status == "failed"}
    assert reasons == {"diverged", "out_of_memory", "bug", "bad_config"}
    assert facts.figures["restarts"].keys() == {"out_of_memory", "host_lost", "stale"}
    assert facts.state.hosts.quarantined.keys() == {"host0000"}
