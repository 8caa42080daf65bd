"""The best once more with new seeds: after the search, once each, whatever dies meanwhile."""

from types import SimpleNamespace

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Killed, campaign, events_of, kill_when

from hydragnn_hpo.campaign import proposals as proposals_module
from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.promotion import LearningCurveFits, choose_curve_fits, choose_replicates
from hydragnn_hpo.campaign.setup import open_run, trial_config
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.campaign.status import build_status, describe_trial, rank_trials
from hydragnn_hpo.config.campaign_config import CampaignConfig, EnsembleConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.errors import ConfigError, RunError


@pytest.fixture
def start(tmp_path):
    """Run a campaign in the test's own directory, to its end; again and again."""

    def begin(reseed=0, ask=0, watch=lambda *_: None, backend=None):
        config = campaign(rungs=[2, 4], finalists=3)
        opened = open_run(config, tmp_path / "run")
        wanted = config.model_copy(update={"ensemble": EnsembleConfig(reseed=reseed)})
        ours = backend or StubBackend(full=4)
        controller = Controller(wanted, opened, cards={}, make_backend=lambda: ours, watch=watch)
        try:
            if ask:
                controller.replicates.request(ask)
            state = controller.run()
            controller.finish()
            return state
        finally:
            controller.close()

    return begin


def best_of(state, count):
    done = [t for t in state.with_status("completed") if t.parent is None]
    return [t.name for t in sorted(done, key=lambda t: (t.objective, t.name))[:count]]


def again(state):
    return {t.parent: t for t in state.trials.values() if t.parent}


def test_the_best_are_trained_again_to_the_full_budget_when_the_search_is_over(start, tmp_path):
    state = start(reseed=2)
    events = events_of(tmp_path / "run")
    closed = next(n for n, e in enumerate(events) if e["event"] == "promoted" and e["last"])
    late = [e for e in events[closed:] if e["event"] == "proposed"]
    assert [e["parent"] for e in late] == best_of(state, 2)
    assert [e["trial"] for e in late] == ["t0006", "t0007"]
    for parent, trial in again(state).items():
        assert trial.values == state.trials[parent].values
        assert describe_trial(trial).startswith(f"reseed of {parent}: ")
        assert (trial.status, trial.epoch, trial.until) == ("completed", 4, 4)
        epochs = [
            e["reached"] for e in events if e["event"] == "epoch" and e["trial"] == trial.name
        ]
        assert epochs == [1, 2, 3, 4]
    assert state.searched == 6, "they take no part in the search"
    assert [len(state.results[rung]) for rung in (2, 4)] == [6, 3]
    assert not {t.name for t in again(state).values()} & state.promoted[2]
    reckoning = JournalFold(events)
    standing = build_status(reckoning.state, reckoning.ledger, trials=6, rungs=[2, 4])
    assert (standing.budget, standing.at_rest, standing.phase) == (8, 8, "finished")


@pytest.mark.parametrize("after", ["promoted", "proposed", "placed", "epoch"])
def test_a_controller_that_dies_meanwhile_costs_no_seed_and_makes_no_second_one(
    start, tmp_path, after
):
    def crash(state, controller):
        late = [
            e
            for e in events_of(tmp_path / "run")
            if "parent" in e or e.get("trial") in ("t0006", "t0007")
        ]
        over = after == "promoted" and state.closed
        if over or any(e["event"] == after for e in late):
            raise Killed

    with pytest.raises(Killed):
        start(reseed=2, watch=crash)
    state = start(reseed=2)
    assert sorted(again(state)) == sorted(best_of(state, 2))
    assert len(state.trials) == 8


def test_a_finished_campaign_trains_them_when_a_person_asks_and_is_finished_again(start):
    state = start()
    assert state.finished
    assert not again(state)
    state = start(ask=2)
    assert sorted(again(state)) == sorted(best_of(state, 2))
    assert state.finished
    assert len(start(ask=2).trials) == 8, "asked twice for two: there are two"
    assert len(start(ask=50).trials) == 9, "no more than were trained to the end"


def test_what_a_person_requested_is_known_to_whoever_goes_on(start):
    start()

    with pytest.raises(Killed):
        start(ask=2, watch=kill_when(lambda state: True))
    assert len(again(start())) == 2


def test_it_cannot_be_requested_before_the_search_is_over(start):
    with pytest.raises(RunError, match="its search is not over"):
        start(ask=2)


def test_a_seed_that_fails_is_a_result_and_is_not_tried_again(start):
    def fate(trial, attempt, epoch):
        return "diverged" if trial == "t0006" else None

    state = start(reseed=2, backend=StubBackend(fate=fate, full=4))
    assert state.trials["t0006"].status == "failed"
    assert state.trials["t0007"].status == "completed"
    assert len(start(reseed=2).trials) == 8


def test_the_brain_never_receives_them(start, tmp_path, monkeypatch):
    start(reseed=2)
    messages = []

    def listening(*args, **kwargs):
        brain = make_brain(*args, **kwargs)
        replay = brain.replay
        brain.replay = lambda results, pending: (
            messages.append((len(results), len(pending))),
            replay(results, pending),
        )
        return brain

    make_brain = proposals_module.make_brain
    monkeypatch.setattr(proposals_module, "make_brain", listening)

    def widen(state, controller):
        if not state.added:
            controller.event_store.append("added", request="more", trials=2, values=[])

    state = start(ask=3, watch=widen)
    assert messages == [(6 + 3, 0)]  # six trials at the first rung, three of them at the second
    assert state.searched == 8


def test_only_completed_ones_of_the_search_are_chosen_and_none_before_its_end():
    state = State()
    proposed = [("t0", 0.3), ("t1", 0.1), ("t2", None), ("t3", 0.2), ("t4", 0.05)]
    for name, objective in proposed:
        event = {"event": "proposed", "trial": name, "values": {}, "until": 4}
        state.apply(event)
        trial = state.trials[name]
        trial.objective = objective
        state.move(trial, "completed" if objective else "failed")
    state.move(state.trials["t4"], "stopped")  # at a rung
    assert choose_replicates(state, 2) == []
    state.closed = True
    assert [t.name for t in choose_replicates(state, 2)] == ["t1", "t3"]
    state.apply({"event": "proposed", "trial": "t5", "values": {}, "until": 4, "parent": "t1"})
    assert choose_replicates(state, 2) == [], "first let those end that are under way"
    state.trials["t5"].objective = 0.01
    state.move(state.trials["t5"], "completed")
    assert [t.name for t in choose_replicates(state, 3)] == ["t3", "t0"]


def test_a_campaign_of_commands_refuses_it():
    values = {**campaign().model_dump(mode="json"), "ensemble": {"reseed": 1}}
    with pytest.raises(ConfigError, match="a command has no ensemble"):
        parse_config(values, CampaignConfig, "stub")


def trainings(learning_curve=1.0, **search):
    """A campaign that trains; its budget is 8 epochs."""
    values = {
        "name": "curve",
        "seed": 3,
        "data": [{"card": "small_organics"}],
        "space": {"model.features": [16, 32]},
        "search": {"trials": 4, "rungs": [2, 8], "finalists": 2, **search},
        "ensemble": {"learning_curve": learning_curve},
    }
    return parse_config(values, CampaignConfig, "made")


def ended_search(**objectives):
    """Two trials of 2 epochs and two of 8, whose objectives are given; all rest."""
    state = State()
    for number, (name, objective) in enumerate(objectives.items()):
        state.apply({"event": "proposed", "trial": name, "values": {"x": number}, "until": 2})
        trial = state.trials[name]
        trial.objective = objective
        trial.epoch = 8 if number < 2 else 2
        state.move(trial, "completed" if number < 2 else "stopped")
    state.closed = True
    return state


SEARCH = {"t0": 0.3, "t1": 0.2, "t2": 0.1, "t3": 0.4}
SHARES = (1.0, 0.5, 0.25)


def propose(state, name, fit):
    values = {**state.trials[fit.parent].values, "training.train_share": fit.share}
    event = {"event": "proposed", "trial": name, "values": values, "until": fit.epochs}
    state.apply({**event, "parent": fit.parent})


@pytest.mark.parametrize(
    ("share", "own", "epochs"),
    [
        (1.0, 1.0, 6),  # 2 x 8 + 2 x 2 = 20 epochs for three fits
        (0.5, 1.0, 3),
        (9.0, 1.0, 8),  # no more than the full budget
        (0.4, 1.0, None),  # 2 are less than a third of 8
        (0.0, 1.0, None),
        (1.0, 2.0, 4),  # the best costs twice as much: 8 x 2 + 8 + 2 + 2 = 28 in epochs of 2
    ],
)
def test_a_learning_curve_costs_a_share_of_the_search(share, own, epochs):
    config = trainings()
    ensemble = config.ensemble.model_copy(update={"learning_curve": share})
    config = config.model_copy(update={"ensemble": ensemble})
    fits = choose_curve_fits(
        ended_search(**SEARCH), config, lambda trial: own if trial.name == "t1" else 1.0
    )
    wanted = [] if epochs is None else [("t1", each, epochs) for each in SHARES]
    assert [tuple(fit) for fit in fits] == wanted


def test_it_waits_for_the_search_and_not_for_replicates():
    state = ended_search(**SEARCH)
    config = trainings()
    state.apply({"event": "proposed", "trial": "t4", "values": {}, "until": 8, "parent": "t1"})
    assert len(choose_curve_fits(state, config, lambda trial: 1.0)) == 3
    state.apply({"event": "proposed", "trial": "t5", "values": {}, "until": 2})
    assert choose_curve_fits(state, config, lambda trial: 1.0) == []


@pytest.mark.parametrize("flag", ["ending", "finished", "not closed", "reseed"])
def test_it_is_left_out_where_a_person_wants_the_end_or_has_it(flag):
    state = ended_search(**SEARCH)
    state.ending, state.finished = flag == "ending", flag == "finished"
    state.closed = flag != "not closed"
    state.reseed = int(flag == "reseed")
    assert choose_curve_fits(state, trainings(), lambda trial: 1.0) == []


def test_commands_and_campaigns_with_a_share_of_their_own_have_no_learning_curve():
    state = ended_search(**SEARCH)
    config = campaign()
    ensemble = config.ensemble.model_copy(update={"learning_curve": 1.0})
    config = config.model_copy(update={"ensemble": ensemble})
    assert choose_curve_fits(state, config, lambda trial: 1.0) == []
    own = trainings().model_copy(update={"trial": {"training": {"train_share": 0.5}}})
    assert choose_curve_fits(state, own, lambda trial: 1.0) == []


def test_after_a_crash_the_fits_that_are_missing_follow_and_are_those_of_the_same_trial():
    state = ended_search(**SEARCH)
    config = trainings()
    first, *rest = choose_curve_fits(state, config, lambda trial: 1.0)
    propose(state, "t4", first)
    state.trials["t0"].objective = 0.05  # better by now; and other prices
    assert choose_curve_fits(state, config, lambda trial: 7.0) == rest
    for number, fit in enumerate(rest):
        propose(state, f"t{5 + number}", fit)
    assert choose_curve_fits(state, config, lambda trial: 1.0) == []
    assert state.curve == {1.0: "t4", 0.5: "t5", 0.25: "t6"}


def test_its_fits_are_no_part_of_the_search_nor_of_the_leaderboard():
    state = ended_search(**SEARCH)
    for number, fit in enumerate(choose_curve_fits(state, trainings(), lambda trial: 1.0)):
        propose(state, f"t{4 + number}", fit)
    assert build_status(state, SlotLedger(), trials=4, rungs=[2, 8]).phase == (
        "measuring whether more data would help"
    )
    for name in state.curve.values():
        trial = state.trials[name]
        trial.objective = trial.score = 0.001
        state.move(trial, "completed")
    for name in SEARCH:
        state.trials[name].score = state.trials[name].objective
    assert state.searched == 4
    assert not set(state.curve.values()) & {trial.name for trial in state.ranked()}
    board = rank_trials(state, CampaignConfig.model_construct())
    assert [row.rank for row in board.rows if row.trial in state.curve.values()] == [None] * 3
    assert [t.name for t in choose_replicates(state, 9)] == ["t1", "t0"]
    assert describe_trial(state.trials["t6"]).startswith("25 % of the data, as t1: ")
    standing = build_status(state, SlotLedger(), trials=4, rungs=[2, 8])
    assert (standing.budget, standing.best.name) == (7, "t2")


def test_a_fit_is_trained_for_its_epochs_on_nested_shares_of_one_seed():
    config = trainings()
    proposed = []
    state = ended_search(**SEARCH)
    store = SimpleNamespace(state=state)
    proposals = SimpleNamespace(propose=lambda values, **known: proposed.append((values, known)))
    price = SimpleNamespace(quote=SimpleNamespace(seconds=lambda width: 1.0))
    fits = LearningCurveFits(config, store, proposals, SimpleNamespace(price=lambda trial: price))
    fits.propose_missing()
    assert [values["training.train_share"] for values, _ in proposed] == list(SHARES)
    assert len({values["training.share_seed"] for values, _ in proposed}) == 1
    assert {known["until"] for _, known in proposed} == {6}
    values = {"model.features": 16, **proposed[2][0]}
    del values["x"]
    data = [{"store": "x.bp", "prefix": "", "ratio": None}]
    template = {"model": {"conv": "schnet", "cutoff": 4.0}, "heads": {"e": {}}}
    made = trial_config(config.model_copy(update={"trial": template}), "t6", values, data)
    assert (made.training.epochs, made.training.train_share) == (6, 0.25)
    del values["training.epochs"]
    made = trial_config(config.model_copy(update={"trial": template}), "t6", values, data)
    assert made.training.epochs == 8
