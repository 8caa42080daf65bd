"""The best configurations on folds: after the search, each fold once, whatever dies meanwhile."""

import logging
from types import SimpleNamespace

import pytest
from unit.campaign.stub_campaign import campaign
from unit.campaign.test_promotion import ended_search, trainings

from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.fold_fits import FoldFits, choose_epochs, choose_fold_fits
from hydragnn_hpo.campaign.promotion import choose_curve_fits, choose_replicates
from hydragnn_hpo.campaign.status import build_status, describe_trial, rank_trials
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.errors import ConfigError

SEARCH = {"t0": 0.3, "t1": 0.2, "t2": 0.1, "t3": 0.4}


def cross(**ensemble):
    config = trainings()
    changes = {"fit": "cross", "configurations": 2, "folds": 3, **ensemble}
    return config.model_copy(update={"ensemble": config.ensemble.model_copy(update=changes)})


def propose(state, name, values, parent, until=8):
    event = {"event": "proposed", "trial": name, "values": values, "until": until}
    state.apply({**event, "parent": parent})


def propose_all(state, fits):
    for number, fit in enumerate(fits):
        values = {
            **state.trials[fit.parent].values,
            "training.fold": fit.fold,
            "training.folds": fit.folds,
        }
        propose(state, f"t{4 + number}", values, fit.parent)


def test_the_best_of_the_full_budget_leave_out_each_fold_once():
    fits = choose_fold_fits(ended_search(**SEARCH), cross(), groups=100)
    assert [tuple(fit) for fit in fits] == [
        (parent, fold, 3, 8) for parent in ("t1", "t0") for fold in range(3)
    ]
    assert choose_fold_fits(ended_search(**SEARCH), trainings(), groups=100) == []


def test_the_second_configuration_is_the_one_that_adds_most_to_the_best():
    state = ended_search(t0=0.2, t1=0.1, t2=0.3, t3=0.4)
    errors = {"t1": (1.0, 4.0), "t0": (1.05, 4.1), "t2": (3.0, 2.0)}
    for name, (energy, gap) in errors.items():
        trial = state.trials[name]
        trial.score = trial.objective
        trial.val_mae = {"gap": gap, "energy": energy}
        state.move(trial, "completed")
    fits = choose_fold_fits(state, cross(folds=2), groups=100)
    assert [(fit.parent, fit.fold) for fit in fits] == [("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)]


@pytest.mark.parametrize(("groups", "folds"), [(None, 3), (3, 3), (2, 2), (1, 0)])
def test_there_are_no_more_folds_than_groups(groups, folds):
    fits = choose_fold_fits(ended_search(**SEARCH), cross(configurations=1), groups)
    assert [fit.fold for fit in fits] == list(range(folds))
    assert {fit.folds for fit in fits} <= {folds}


@pytest.mark.parametrize(
    ("best", "epochs"), [(None, 40), (40, 40), (32, 40), (31, 31), (7, 7), (0, 1)]
)
def test_a_fit_trains_as_long_as_the_search_found_best(best, epochs):
    assert choose_epochs(best, 40) == epochs


@pytest.mark.parametrize("flag", ["ending", "finished", "not closed", "searching"])
def test_they_wait_for_the_search_and_are_left_out_where_a_person_ended_it(flag):
    state = ended_search(**SEARCH)
    state.ending, state.finished = flag == "ending", flag == "finished"
    state.closed = flag != "not closed"
    if flag == "searching":
        state.apply({"event": "proposed", "trial": "t9", "values": {}, "until": 2})
    assert choose_fold_fits(state, cross(), 100) == []


def test_after_a_crash_the_missing_fits_follow_and_are_those_of_the_same_configurations():
    state = ended_search(**SEARCH)
    config = cross(configurations=1)
    first, *rest = choose_fold_fits(state, config, 100)
    propose_all(state, [first])
    state.trials["t0"].objective = 0.05  # better by now
    changed = cross(configurations=1, folds=7)
    assert choose_fold_fits(state, changed, 100) == rest
    propose_all(state, [first, *rest])
    assert choose_fold_fits(state, config, 100) == []
    assert state.folds == {("t1", 0): "t4", ("t1", 1): "t5", ("t1", 2): "t6"}


def test_after_a_crash_between_two_configurations_the_second_follows():
    state = ended_search(**SEARCH)
    first, *rest = choose_fold_fits(state, cross(), 100)
    propose_all(state, [first])
    assert choose_fold_fits(state, cross(), 100) == rest
    assert {fit.parent for fit in rest} == {"t0", "t1"}


def test_they_are_no_part_of_the_search_nor_of_the_leaderboard():
    state = ended_search(**SEARCH)
    propose_all(state, choose_fold_fits(state, cross(configurations=1), 100))
    standing = build_status(state, SlotLedger(), trials=4, rungs=[2, 8])
    assert standing.phase == "training the best configurations on folds"
    for name in state.folds.values():
        trial = state.trials[name]
        trial.objective = trial.score = 0.001
        state.move(trial, "completed")
    for name in SEARCH:
        state.trials[name].score = state.trials[name].objective
    assert (state.searched, state.repeated) == (4, 3)
    assert not set(state.folds.values()) & {trial.name for trial in state.ranked()}
    ranks = {
        row.trial: row.rank for row in rank_trials(state, CampaignConfig.model_construct()).rows
    }
    assert (ranks["t4"], ranks["t5"]) == (None, None)
    assert [t.name for t in choose_replicates(state, 9)] == ["t1", "t0"]
    assert describe_trial(state.trials["t5"]).startswith("without fold 1, as t1: ")
    standing = build_status(state, SlotLedger(), trials=4, rungs=[2, 8])
    assert (standing.budget, standing.best.name) == (7, "t2")


def test_what_they_reach_is_not_shown_as_the_best_of_the_search():
    reckoning = JournalFold()
    for name, values, score in (("t0", {}, 0.4), ("t1", {"training.fold": 0}, 0.1)):
        parts = [
            {"event": "proposed", "values": values, "until": 2}
            | ({"parent": "t0"} if values else {}),
            {"event": "placed", "attempt": 1, "width": 1, "slots": ["h:0"]},
            {
                "event": "ended",
                "attempt": 1,
                "outcome": "completed",
                "reason": None,
                "score": score,
            },
        ]
        for time, part in enumerate(parts):
            reckoning.apply({"trial": name, "time": float(time), "epoch": 1, **part})
    assert reckoning.best_so_far == [0.4]


def test_they_do_not_wait_for_the_learning_curve():
    state = ended_search(**SEARCH)
    curve = choose_curve_fits(state, cross(), lambda trial: 1.0)
    propose(state, "t4", {"training.train_share": curve[0].share}, "t1")
    assert len(choose_fold_fits(state, cross(), 100)) == 6


def test_all_fits_share_one_assignment_and_need_no_validation_split(caplog):
    state = ended_search(**SEARCH)
    made = []
    state.trials["t1"].values["training.schedule"] = "plateau"
    store = SimpleNamespace(state=state)
    proposals = SimpleNamespace(
        propose=lambda values, parent, until: made.append((values, parent, until))
    )
    work = SimpleNamespace(stats={"groups": 2})
    with caplog.at_level(logging.WARNING):
        FoldFits(cross(), store, proposals, work).propose_missing()
    assert [(v["training.fold"], parent) for v, parent, _ in made] == [
        (0, "t1"), (1, "t1"), (0, "t0"), (1, "t0"),
    ]  # fmt: skip
    assert len({values["training.fold_seed"] for values, _, _ in made}) == 1
    assert [values.get("training.schedule") for values, _, _ in made] == ["cosine"] * 2 + [None] * 2
    assert {(v["training.epochs"], until) for v, _, until in made} == {(8, 8)}
    assert "2 groups of structures outside the test split" in caplog.text


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (trainings, "ensemble.reseed on the training split: drop one"),
        (campaign, "ensemble.fit = 'cross' is for trainings of ours"),
    ],
)
def test_what_does_not_go_together_is_refused(base, says):
    values = base().model_dump(mode="json")
    reseed = 0 if base is campaign else 2
    with pytest.raises(ConfigError, match=says):
        parse_config(
            {**values, "ensemble": {"fit": "cross", "reseed": reseed}}, CampaignConfig, "made"
        )


@pytest.mark.parametrize(
    ("ensemble", "says"),
    [
        ({"fit": "cross", "configurations": 3, "nets": 2}, "2, fewer than one net for each of 3"),
        ({"fit": "split", "nets": 6}, "ensemble.nets is for ensemble.fit = 'cross'"),
    ],
)
def test_nets_are_kept_of_each_configuration_of_a_cross_fit(ensemble, says):
    values = trainings().model_dump(mode="json")
    with pytest.raises(ConfigError, match=says):
        parse_config({**values, "ensemble": ensemble}, CampaignConfig, "made")
    kept = {"ensemble": {"fit": "cross", "configurations": 3, "nets": 3}}
    assert parse_config({**values, **kept}, CampaignConfig, "made").ensemble.nets == 3
