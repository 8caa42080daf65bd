"""The loop over a backend without processes: rungs, faults, hosts, wishes, and going on."""

import errno
import itertools
import os
import time

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Killed, Ran, asking, campaign, events_of, kill_when

from hydragnn_hpo.campaign import controller as controller_module
from hydragnn_hpo.campaign import user_requests
from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.campaign.shutdown import Drained, ShutdownRequest
from hydragnn_hpo.campaign.state import State, Trial, fold
from hydragnn_hpo.campaign.status import explain_no_result
from hydragnn_hpo.campaign.trial_kind import CommandTrials
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.command_config import CommandConfig
from hydragnn_hpo.config.schema import load_config, read_toml
from hydragnn_hpo.errors import ConfigError, JobError, RunError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.job import Event
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import DRAINED, FAILED, find_controller, read_release_reason
from hydragnn_hpo.placement.cost_model import CostModel


@pytest.fixture
def run(tmp_path):
    return lambda config, backend=None, **more: Ran(
        tmp_path, config, backend or StubBackend(), **more
    )


def at(state, epochs):
    return {name for name, trial in state.trials.items() if epochs in trial.rung_scores}


def test_every_trial_rests_at_the_first_rung_and_the_best_climb(run):
    ran = run(campaign(trials=9, rungs=[2, 4, 8], reduction=3, finalists=1))
    assert len(at(ran.state, 2)) == 9
    (opened,) = ran.events("opened")
    assert {"hydragnn-hpo", "python", "numpy"} <= opened["software"].keys()
    best = min(ran.state.trials.values(), key=lambda trial: trial.values["x"])
    assert at(ran.state, 8) >= {best.name}
    assert ran.state.ranked()[0] is best
    for trial in ran.state.trials.values():
        assert all(
            score == trial.values["x"] + 1.0 / rung for rung, score in trial.rung_scores.items()
        )


def test_a_lost_rank_sends_its_trial_back_to_its_checkpoint(run):
    killed = iter([True])

    def fate(trial, attempt, epoch):
        return "killed" if trial == "t0001" and epoch == 3 and next(killed, None) else None

    ran = run(campaign(rungs=[4]), StubBackend(fate=fate))
    lost = [e for e in ran.events("ended") if e["outcome"] == "interrupted"]
    assert [(e["trial"], e["reason"]) for e in lost] == [("t0001", "host_lost")]
    epochs = [e["reached"] for e in ran.events("epoch") if e["trial"] == "t0001"]
    assert epochs == [1, 2, 3, 4]
    assert ran.state.trials["t0001"].status == "stopped"


def test_a_trial_that_is_lost_again_and_again_fails_alone(run):
    def fate(trial, attempt, epoch):
        return "killed" if trial == "t0002" else None

    ran = run(campaign(max_restarts=2), StubBackend(hosts=3, fate=fate))
    bad = ran.state.trials["t0002"]
    assert (bad.status, bad.reason, bad.attempt) == ("failed", "bug", 3)
    assert "3 times in a row" in bad.message
    assert ran.state.hosts.quarantined == {}, "one bad trial is no proof against its hosts"
    assert len(ran.state.with_status("stopped")) == 5


def killing():
    """Return a backend of two hosts, of which one kills whatever runs there."""
    backend = StubBackend(hosts=2)

    def fate(trial, attempt, epoch):
        running = backend.running.get(f"{trial}.{attempt}")
        return "killed" if running and running.job.slots[0].host == "h1" else None

    backend.fate = fate
    return backend


def test_a_host_that_fails_two_trials_gets_no_more(run):
    ran = run(campaign(trials=8), killing())
    assert list(ran.state.hosts.quarantined) == ["h1"]
    after = ran.events("quarantined")[0]["time"]
    late = [e for e in ran.events("placed") if e["time"] > after]
    assert late
    assert {slot.partition(":")[0] for e in late for slot in e["slots"]} == {"h0"}
    assert len(ran.state.with_status("stopped")) == 8


def test_the_last_host_is_never_quarantined(run):
    backend = StubBackend(fate=lambda trial, attempt, epoch: "killed" if attempt == 1 else None)
    ran = run(campaign(), backend)
    assert ran.state.hosts.quarantined == {}
    assert len(ran.state.with_status("stopped")) == 6


@pytest.mark.parametrize("reason", ["diverged", "bad_config", "out_of_memory"])
def test_a_failure_of_a_trial_is_a_result_and_no_score(run, reason):
    ran = run(campaign(), StubBackend(fate=lambda t, a, e: reason if t == "t0003" else None))
    trial = ran.state.trials["t0003"]
    assert (trial.status, trial.reason, trial.score) == ("failed", reason, None)
    assert trial not in ran.state.ranked()
    assert len(ran.state.ranked()) == 5


def bugs_of(count):
    return StubBackend(fate=lambda trial, attempt, epoch: "bug" if int(trial[1:]) < count else None)


def test_three_bugs_alike_end_the_campaign_and_two_do_not(tmp_path):
    assert len(Ran(tmp_path / "two", campaign(), bugs_of(2)).state.with_status("failed")) == 2
    with pytest.raises(JobError, match=r"^3 trials failed alike.*said: bug") as caught:
        Ran(tmp_path / "three", campaign(), bugs_of(3))
    assert str(caught.value).count("said: bug") == 1


def test_trials_that_are_added_while_it_runs_are_added_once(run, monkeypatch):
    """As if the controller had died between the journal's line and the removal of the file."""
    monkeypatch.setattr(user_requests, "remove_request", lambda path: None)

    def begun(state):
        return len(state.trials) >= 3

    chosen = [{"x": 0.125}, {"x": 0.25}]
    watch = asking((begun, "add-trials", {"count": 3}), (begun, "add-trials", {"values": chosen}))
    ran = run(campaign(trials=30), watch=watch)
    assert len(ran.state.trials) == 35
    assert {0.125, 0.25} <= {trial.values["x"] for trial in ran.state.trials.values()}


def test_stop_lets_running_trials_rest_and_drops_the_others(run):
    watch = asking((lambda state: state.count("stopped") >= 2, "stop", {}))
    ran = run(campaign(trials=400, rungs=[2, 40], promotion="together"), watch=watch)
    assert ran.state.count("queued", "running", "failed") == 0
    assert ran.state.count("stopped") >= 2
    assert len(ran.state.trials) < 400
    assert not at(ran.state, 40)


def test_pause_ends_the_controller_and_a_new_one_goes_on(tmp_path):
    watch = asking((lambda state: state.count("stopped") >= 2, "pause", {}))
    config = campaign(trials=60, rungs=[3])
    backend = StubBackend()
    with pytest.raises(KeyboardInterrupt):
        Ran(tmp_path, config, backend, watch=watch)
    assert backend.closed
    assert not backend.running
    again = StubBackend(checkpoints=backend.checkpoints)
    ran = Ran(tmp_path, config, again)
    assert len(ran.state.ranked()) == 60
    reached = [(e["trial"], e["reached"]) for e in ran.events("epoch")]
    assert len(reached) == len(set(reached)) == 180, "no epoch was trained twice"


def test_what_ran_when_the_controller_died_is_adopted_or_queued_again(tmp_path):
    kill = kill_when(lambda state: state.count("stopped") >= 2 and state.count("running") == 2)
    config = campaign(trials=8, rungs=[4])
    dead = StubBackend()
    with pytest.raises(Killed):
        Ran(tmp_path, config, dead, watch=kill)
    kept, lost = sorted(dead.running)
    (tmp_path / "run" / "controller").mkdir(exist_ok=True)
    heir = StubBackend(checkpoints=dead.checkpoints)
    heir.running[kept] = dead.running[kept]
    heir._tell("adopted", kept)
    for epoch in range(1, dead.running[kept].epoch + 1):  # it tells all its records again
        fields = {"epoch": epoch, "objective": 0.5, "train_seconds": 1.0, "time": 0.0}
        heir._tell("record", kept, record="epoch", **fields)
    ran = Ran(tmp_path, config, heir)
    ended = {(e["trial"], e["attempt"]): e["outcome"] for e in ran.events("ended")}
    name, attempt = kept.split(".")
    assert ended[name, int(attempt)] == "stopped", "it was taken over"
    assert [e["reached"] for e in ran.events("epoch") if e["trial"] == name] == [1, 2, 3, 4]
    name, attempt = lost.split(".")
    assert ended[name, int(attempt)] == "interrupted"
    assert len(ran.state.ranked()) == 8


def test_a_scheduler_that_says_so_has_trials_drained(tmp_path):
    pause = ShutdownRequest()

    def watch(state, controller):  # a slow plan may leave all slots free for some turns
        pause.draining |= state.count("stopped") >= 2 and state.count("running") > 0

    backend = StubBackend()
    with pytest.raises(Drained, match="the scheduler ends the allocation"):
        Ran(tmp_path, campaign(trials=60, rungs=[3]), backend, watch=watch, pause=pause)
    assert not backend.running
    results = list(read_journal(tmp_path / "run" / "events.jsonl"))
    assert {e["reason"] for e in results if e.get("outcome") == "interrupted"} == {"walltime"}
    assert fold(results).draining
    ran = Ran(
        tmp_path, campaign(trials=60, rungs=[3]), StubBackend(checkpoints=backend.checkpoints)
    )
    assert len(ran.state.ranked()) == 60
    assert not ran.state.draining


def test_nothing_starts_when_the_allocation_ends(tmp_path):
    backend = StubBackend(ends_at=0.0)
    with pytest.raises(Drained, match="the allocation ends"):
        Ran(tmp_path, campaign(), backend)
    assert backend.started == []


def hanging(backend):
    """All trials hang in their second epoch; once all do, 30.2 s are left, 30 are kept free."""

    def fate(trial, attempt, epoch):
        if epoch < 2:
            return None
        hung.add(trial)
        if len(hung) == len(backend.slots):
            backend.ends_at = min(backend.ends_at, time.time() + 30.2)
        return "frozen"

    hung = set()
    backend.fate = fate
    return backend


def test_the_journal_replayed_gives_the_same_state(run):
    deaths = itertools.cycle([None, None, None, "killed", None, "diverged", None])
    ran = run(
        campaign(trials=30, rungs=[1, 2, 4], finalists=3),
        StubBackend(hosts=2, fate=lambda t, a, e: next(deaths)),
    )
    again = fold(read_journal(ran.run.journal))
    assert vars(again).keys() == vars(ran.state).keys()
    for name in vars(again):
        assert getattr(again, name) == getattr(ran.state, name), name


def test_one_slot_gives_the_same_campaign_twice(tmp_path):
    """Also where the second time trials take long, or the controller gets no turn for long."""

    def trials(name, rests):
        config = campaign(trials=12, rungs=[1, 3], brain="deephyper", initial=4)
        pace = itertools.cycle(["frozen"] * rests + [None])
        backend = StubBackend(slots_per_host=1, fate=lambda trial, attempt, epoch: next(pace))
        ran = Ran(tmp_path / name, config, backend)
        return [(t.name, t.values, t.rung_scores) for t in ran.state.trials.values()]

    assert trials("once", 0) == trials("slowly", 20)


@pytest.mark.parametrize("comes_back", [True, False])
def test_one_loss_of_a_host_is_one_failure_however_much_ran_there(run, comes_back):
    lost = iter([True])
    backend = StubBackend(hosts=2, slots_per_host=4)
    backend.fate = lambda t, a, epoch: "h1" if epoch == 2 and next(lost, None) else None

    def watch(state, controller):
        if comes_back and state.hosts.lost and backend.gone:
            backend.gone.clear()
            names = [f"h1:{n}" for n in range(4)]
            backend._tell("host_joined", None, host="h1", slots=names)

    ran = run(campaign(trials=30, rungs=[3]), backend, watch=watch)
    assert ran.state.hosts.failures == {"h1": {"lost 1"}}
    assert ran.state.hosts.quarantined == {}
    assert len(ran.state.with_status("stopped")) == 30
    interrupted = [e for e in ran.events("ended") if e["outcome"] == "interrupted"]
    assert {e["reason"] for e in interrupted} == {"host_lost"}
    assert {trial.restarts for trial in ran.state.trials.values()} == {0}


def test_a_host_in_quarantine_is_better_than_none(run):
    backend = killing()

    def watch(state, controller):
        if state.hosts.quarantined and not backend.gone:
            backend.fate = lambda trial, attempt, epoch: None
            backend.lose("h0")

    ran = run(campaign(trials=20), backend, watch=watch)
    assert list(ran.state.hosts.quarantined) == ["h1"]
    assert len(ran.state.ranked()) == 20


def test_what_fits_nowhere_is_not_waited_for_without_end(run, monkeypatch):
    monkeypatch.setattr(controller_module, "HOST_SECONDS", 0.2)
    wide = campaign(trials=2, finalists=1)
    wide = wide.model_copy(update={"command": CommandConfig(argv=("true",), width=4)})
    with pytest.raises(JobError, match=r"nothing could start.*t000\d needs 4 slots, there are 2"):
        run(wide)


def test_values_that_make_no_trial_are_a_result_though_the_controller_died(tmp_path, monkeypatch):
    """It had noted the proposal, and not yet that nothing can come of it."""

    def refuse(self, name, values):
        if name == "t0001":
            raise ConfigError("no")
        return configure(self, name, values)

    def append(self, kind, **values):
        if values.get("reason") == "bad_config" and not died:
            died.append(True)
            raise Killed
        noted(self, kind, **values)

    died = []
    configure = CommandTrials.configure
    noted = EventStore.append
    monkeypatch.setattr(CommandTrials, "configure", refuse)
    monkeypatch.setattr(EventStore, "append", append)
    with pytest.raises(Killed):
        Ran(tmp_path, campaign(), StubBackend())
    ran = Ran(tmp_path, campaign(), StubBackend())
    assert ran.state.trials["t0001"].reason == "bad_config"
    assert len(ran.state.ranked()) == 5


def test_a_host_on_which_nothing_can_start_does_not_end_the_campaign(run):
    backend = StubBackend(hosts=2)
    backend._tell("zygote_lost", None, host="h1", error="no module named torch; install it.")
    ran = run(campaign(), backend)
    assert list(ran.state.hosts.quarantined) == ["h1"]
    assert {slot.host for job in backend.started for slot in job.slots} == {"h0"}


def test_when_nothing_can_start_on_any_host_that_is_reported(run):
    backend = StubBackend(hosts=2)
    for host in ("h1", "h0"):
        backend._tell("zygote_lost", None, host=host, error="no module named torch; install it.")
    with pytest.raises(JobError, match="^no module named torch"):
        run(campaign(), backend)


def test_what_hosts_take_is_in_the_journal_before_a_campaign_ends(run):
    backend = StubBackend()
    took = {"seconds": 5.0, "parts": ["host"], "rest": 500.0, "cards": []}

    def measure(state, controller):
        if state.count("running"):
            backend._tell("counters", None, host="h0", devices={}, notes=[], **took)

    ran = run(campaign(), backend, watch=measure)
    lines = ran.events("energy")
    charged = sum(joules for line in lines for joules, _ in line["trials"].values())
    idle = sum(line["idle"] for line in lines)
    assert charged > 0.0
    samples = (charged + idle) / 500.0
    assert samples == pytest.approx(round(samples), abs=1e-3)
    assert ran.state.energy.joules == pytest.approx(charged + idle)


def leaving(backend, host, seconds):
    fields = {"host": host, "ends_at": time.time() + seconds}
    backend.events.append(Event("host_leaving", None, time.time(), fields))
    return backend


def hosts_of(ran):
    return {slot.partition(":")[0] for e in ran.events("placed") for slot in e["slots"]}


def test_nothing_starts_on_a_host_that_is_taken_before_a_checkpoint_is_reached(run):
    """30 s before its end are kept free, 0.6 s are a start and a restart: 30.5 s are too few."""
    ran = run(campaign(), leaving(StubBackend(hosts=2), "h1", 30.5))
    assert hosts_of(ran) == {"h0"}
    assert len(ran.state.ranked()) == 6


def test_trials_yield_before_their_host_is_taken_and_go_on_elsewhere(run):
    backend = StubBackend(hosts=2)
    hung = set()

    def fate(trial, attempt, epoch):
        if epoch < 2 or attempt > 1:
            return None
        hung.add(trial)
        if len(hung) == 4 and not notices:
            notices.append(leaving(backend, "h1", 30.2))
        return "frozen"

    backend.fate = fate
    notices = []
    ran = run(campaign(trials=4), backend, watch=lambda s, c: thaw(backend, s))
    yielded = [e for e in ran.events("ended") if e["reason"] == "walltime"]
    assert len(yielded) == 2
    first = {e["trial"]: e["slots"] for e in ran.events("placed") if e["attempt"] == 1}
    assert all(first[e["trial"]][0].startswith("h1:") for e in yielded)
    second = [e for e in ran.events("placed") if e["attempt"] == 2]
    assert {slot.partition(":")[0] for e in second for slot in e["slots"]} == {"h0"}
    assert len(ran.state.ranked()) == 4


def thaw(backend, state):
    """Thaw all once two have yielded."""
    if sum(trial.attempt == 1 and trial.status == "queued" for trial in state.trials.values()) == 2:
        backend.fate = lambda t, a, e: None


def test_what_runs_on_other_allocations_is_left_to_whoever_takes_over(tmp_path):
    backend = hanging(StubBackend(hosts=2, foreign_hosts=frozenset({"h1"})))
    with pytest.raises(Drained):
        Ran(tmp_path, campaign(), backend)
    ended = {e["trial"]: e["reason"] for e in events_of(tmp_path / "run", "ended")}
    assert set(ended.values()) == {"walltime"}
    for event in events_of(tmp_path / "run", "placed"):
        assert (event["trial"] in ended) == event["slots"][0].startswith("h0:")
    assert len(backend.running) == 2
    assert find_controller(tmp_path / "run") is None
    assert read_release_reason(tmp_path / "run") == DRAINED


def test_a_campaign_whose_hosts_are_all_lost_goes_on_in_another_allocation(tmp_path, monkeypatch):
    """A switch that fails at night is no word for a person: the next job of a chain goes on."""
    monkeypatch.setattr(controller_module, "HOST_SECONDS", 0.2)
    backend = StubBackend(hosts=2, fate=lambda trial, attempt, epoch: "frozen")

    def watch(state, controller):
        if state.count("running"):
            for host in {"h0", "h1"} - backend.gone:
                backend.lose(host)

    with pytest.raises(Drained, match="nothing could start for"):
        Ran(tmp_path, campaign(), backend, watch=watch)
    assert read_release_reason(tmp_path / "run") == DRAINED
    assert Ran(tmp_path, campaign(), StubBackend()).state.count("stopped") == 6


def test_a_backend_that_is_lost_is_no_error_of_the_campaign(tmp_path):
    class Cluster(StubBackend):
        def poll(self, timeout):
            if self.started:
                raise JobError("the Ray cluster was lost.")
            return super().poll(timeout)

    backend = Cluster()
    with pytest.raises(Drained, match="the Ray cluster was lost"):
        Ran(tmp_path, campaign(), backend)
    assert backend.closed
    assert read_release_reason(tmp_path / "run") == DRAINED


def test_a_backend_that_never_came_is_an_error(tmp_path):
    class Cluster(StubBackend):
        slots = ()

        def poll(self, timeout):
            raise JobError("no agent can start: host a is down; see its log.")

    with pytest.raises(JobError, match="no agent can start"):
        Ran(tmp_path, campaign(), Cluster())


@pytest.mark.parametrize(("code", "word"), [(errno.EIO, DRAINED), (errno.ENOSPC, FAILED)])
def test_a_file_system_that_is_away_is_another_thing_than_one_that_is_full(
    tmp_path, monkeypatch, code, word
):
    """Trials leave checkpoints in both cases; only a full disk waits for a person."""
    backend = StubBackend(fate=lambda t, a, e: "frozen" if e > 1 else None)
    fails = []

    def flush(event_store):
        if event_store.state.count("running") and not fails:
            fails.append(True)
            with storage(event_store.path):
                raise OSError(code, os.strerror(code))

    monkeypatch.setattr(EventStore, "flush", flush)
    with pytest.raises(Drained if word == DRAINED else StorageError, match=os.strerror(code)):
        Ran(tmp_path, campaign(), backend)
    assert fails
    assert not backend.running
    assert read_release_reason(tmp_path / "run") == word


def test_what_fails_at_the_end_hides_neither_how_it_ended_nor_keeps_the_lease(
    tmp_path, monkeypatch, caplog
):
    def full(costs, path):
        raise StorageError(f"{path}: cannot be written (Disk quota exceeded); make room.")

    monkeypatch.setattr(CostModel, "save", full)
    backend = StubBackend()
    pause = ShutdownRequest()

    def watch(state, controller):
        pause.draining |= bool(backend.started)

    with pytest.raises(Drained, match="the scheduler ends"):
        Ran(tmp_path, campaign(trials=60), backend, watch=watch, pause=pause)
    assert "Disk quota exceeded" in caplog.text
    assert backend.closed
    assert read_release_reason(tmp_path / "run") == DRAINED


def test_an_heir_that_is_drained_before_it_knows_the_trials_leaves_them_as_they_are(tmp_path):
    dead = StubBackend(fate=lambda t, a, e: "frozen" if e > 1 else None)
    with pytest.raises(Killed):
        Ran(tmp_path, campaign(), dead, watch=kill_when(lambda state: state.count("running")))
    heir = StubBackend(hosts=0)
    pause = ShutdownRequest()
    for job in dead.running:
        heir.running[job] = dead.running[job]
        heir._tell("adopted", job)

    def drain(state, controller):
        pause.draining = True
        for job in list(heir.running):
            heir._end(heir.running[job], [-9])

    with pytest.raises(Drained):
        Ran(tmp_path, campaign(), heir, watch=drain, pause=pause)
    assert Ran(tmp_path, campaign(), StubBackend()).state.count("stopped") == 6


def test_requests_that_cannot_be_read_now_are_read_later(run, monkeypatch):
    """A file server that is away for a moment costs no campaign."""
    real = user_requests.read_requests
    failures = iter([errno.ESTALE, errno.EIO])

    def read_requests(where):
        if (code := next(failures, None)) is not None:
            raise OSError(code, os.strerror(code))
        return real(where)

    monkeypatch.setattr(user_requests, "read_requests", read_requests)
    assert run(campaign()).state.count("stopped") == 6
    assert next(failures, None) is None


@pytest.mark.parametrize(("backend", "stays"), [("local", False), ("ray", True), ("mpiexec", True)])
def test_what_a_trial_of_a_lost_controller_may_be_writing_stays(tmp_path, backend, stays):
    """A checkpoint that vanished below its writer was called a full disk, which ends a campaign."""
    machine = campaign().machine.model_copy(update={"backend": backend})
    config = campaign().model_copy(update={"machine": machine})
    part = open_run(config, tmp_path / "run").path / "trials/t0000/checkpoints/.last.json.2.part"
    part.parent.mkdir(parents=True)
    part.touch()
    Controller(config, RunDir(tmp_path / "run"), cards={}, make_backend=StubBackend).close()
    assert part.exists() == stays


def test_a_controller_that_stood_still_while_it_planned_plans_again_at_once(run, monkeypatch):
    """A frozen host of its own: 7 s in the middle of a plan held all trials back for 71 s."""
    decide = Dispatch.decide
    stops = iter([0.5])
    pauses = []

    def stand_still(self, *arguments, **options):
        time.sleep(next(stops, 0.0))
        return decide(self, *arguments, **options)

    monkeypatch.setattr(Dispatch, "decide", stand_still)

    def watch(state, controller):
        pauses.append(controller._plan_due - time.monotonic())

    assert run(campaign(), watch=watch).state.count("stopped") == 6
    assert max(pauses) < 0.5 / controller_module.PLANNING_SHARE / 2


class Speedy(StubBackend):
    """Trials also write ``speed``, which is best where the objective is worst."""

    def _result(self, faked, **values):
        trial = read_toml(faked.job.log.parents[2] / "trial.toml")
        super()._result(faked, speed=-trial["x"], **values)


def test_a_refused_configuration_ends_the_campaign_and_not_trial_by_trial(run):
    with pytest.raises(JobError, match=r"t000\d cannot train, .*: said: bad_config\. Correct"):
        run(campaign(trials=50), StubBackend(fate=lambda *_: "bad_config"))


def test_a_refused_configuration_fails_alone_where_others_train(run):
    def fate(trial, attempt, epoch):
        return "bad_config" if trial == "t0004" else None

    ran = run(campaign(), StubBackend(fate=fate))
    assert ran.state.trials["t0004"].status == "failed"
    assert len(ran.state.with_status("stopped")) == 5


def test_a_command_without_the_objective_ends_the_campaign_and_goes_on_once_it_is_corrected(
    run, tmp_path
):
    with pytest.raises(JobError, match="no finite number for search.objective 'speeed'"):
        run(campaign(objective="speeed"), Speedy())
    lost = {e["trial"] for e in events_of(tmp_path / "run", "ended")}
    assert len(lost) <= 2, "no more than ran at once"
    ran = run(campaign(objective="speed"), Speedy())
    assert {t.name for t in ran.state.with_status("failed")} <= lost
    assert ran.state.ranked()[0].score == min(-t.values["x"] for t in ran.state.ranked())


def test_a_campaign_goes_on_with_another_objective_and_keeps_its_trials(run, tmp_path):
    config = campaign(rungs=[2, 4], trials=8, reduction=4, finalists=1)
    done = kill_when(lambda state: state.count("stopped") >= 5)
    with pytest.raises(Killed):
        run(config, Speedy(), watch=done)
    before = fold(read_journal(tmp_path / "run" / "events.jsonl"))
    kept = {t.name: t.values["x"] for t in before.with_status("stopped")}

    speed = campaign(rungs=[2, 4], trials=8, reduction=4, finalists=1, objective="speed")
    ran = run(speed, Speedy())

    [changed] = ran.events("objective_changed")
    assert changed["objective"] == "speed"
    assert {name: scores["2"] for name, scores in changed["scores"].items() if name in kept} == {
        name: -x for name, x in kept.items()
    }
    assert len(ran.state.trials) == 8
    for trial in ran.state.trials.values():
        assert set(trial.rung_scores.values()) == {-trial.values["x"]}
    best = max(ran.state.trials.values(), key=lambda trial: trial.values["x"])
    assert 4 in best.rung_scores, "it was promoted by the new objective"
    placed = [e["trial"] for e in ran.events("placed")]
    assert all(placed.count(name) <= 2 for name in kept), "one attempt for each rung"
    assert load_config(ran.run.campaign, CampaignConfig).search.objective == "speed"
    folded = fold(ran.events())
    assert [t.score for t in folded.ranked()] == [t.score for t in ran.state.ranked()]


def test_an_objective_that_some_result_lacks_is_no_correction(run, tmp_path):
    run(campaign(), StubBackend())
    with pytest.raises(RunError, match=r"search\.objective = 'weighted', asked was 'speed'"):
        open_run(campaign(objective="speed"), tmp_path / "run")


def test_of_a_long_list_that_differs_the_two_ends_are_shown(run, tmp_path):
    points = [{"x": 0.001 * place} for place in range(200)]
    run(campaign(initial_points=points), StubBackend())
    with pytest.raises(RunError, match=r"initial_points = .*'x': 0\.0.* asked was \[\]") as error:
        open_run(campaign(), tmp_path / "run")
    assert len(str(error.value).removeprefix(str(tmp_path))) < 300


def test_an_end_without_results_never_says_that_nothing_was_proposed():
    state = State()
    assert explain_no_result(state) == "none was proposed"
    state.add(Trial("t0000", {}, until=2, status="stopped"))
    assert explain_no_result(state).startswith("t0000 and all others ended without a finite number")
    state.add(Trial("t0001", {}, until=2, status="failed", reason="bug", message="Known: none."))
    assert explain_no_result(state) == "t0001 ended as bug: Known: none"


def absent(backend, of, **reasons):
    backend._tell("hosts_absent", None, hosts=reasons, of=of, waiting=0)
    return backend


def with_fewest(hosts):
    config = campaign()
    launch = config.launch.model_copy(update={"min_hosts": hosts})
    return config.model_copy(update={"launch": launch})


def test_hosts_without_an_agent_are_named_and_half_of_them_suffice(run, caplog):
    ran = run(campaign(), absent(StubBackend(), 2, h1="has no agent, python3: not found"))
    assert "host h1 has no agent, python3: not found." in caplog.text
    assert ran.state.hosts.absent == {"h1": "has no agent, python3: not found"}
    assert len(ran.state.ranked()) == 6


@pytest.mark.parametrize(
    ("fewest", "of", "needed"), [(0, 3, 2), (0, 4, 2), (2, 2, 2), (3, 3, 3), (1, 9, None)]
)
def test_a_campaign_does_not_go_on_alone_in_silence(run, fewest, of, needed):
    reasons = {f"h{number}": "has no agent, python3: not found" for number in range(1, of)}
    backend = absent(StubBackend(), of, **reasons)
    if needed is None:
        assert len(run(with_fewest(fewest), backend).state.ranked()) == 6
        return
    sentence = (
        f"1 of {of} hosts started, fewer than the {needed} of launch.min_hosts: host h1 has no "
        "agent, python3: not found. Correct that"
    )
    with pytest.raises(JobError, match=sentence):
        run(with_fewest(fewest), backend)


def test_a_host_that_comes_late_counts(run):
    backend = absent(StubBackend(hosts=2), 3, h1="is slow", h2="is slow")
    backend._tell("host_joined", None, host="h1", slots=["h1:0"])
    ran = run(campaign(), backend)
    assert ran.state.hosts.absent == {"h2": "is slow"}


def test_hosts_that_may_still_come_are_waited_for(run):
    backend = StubBackend()
    backend._tell("hosts_absent", None, hosts={"h1": "is slow", "h2": "is slow"}, of=3, waiting=2)
    assert len(run(campaign(), backend).state.ranked()) == 6


def test_hosts_that_may_still_come_are_not_waited_for_forever(run, monkeypatch):
    monkeypatch.setattr("hydragnn_hpo.campaign.dispatch.ABSENT_SECONDS", -1.0)
    backend = StubBackend()
    backend._tell("hosts_absent", None, hosts={"h1": "is slow", "h2": "is slow"}, of=3, waiting=2)
    with pytest.raises(JobError, match="1 of 3 hosts started"):
        run(campaign(), backend)
