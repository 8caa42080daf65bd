"""Wishes arrive whole, in order and once; nonsense is refused, hostile files are removed."""

import json
import logging
import os
import tomllib

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Killed, Ran, asking, campaign

from hydragnn_hpo.campaign import user_requests
from hydragnn_hpo.campaign.proposals import SearchWorker
from hydragnn_hpo.campaign.state import fold
from hydragnn_hpo.campaign.user_requests import (
    RequestHandler,
    UserRequest,
    check_request,
    read_requests,
    remove_request,
    write_request,
)
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.resources import resource_path


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def test_wishes_are_read_in_the_order_in_which_they_were_written(run):
    write_request(run, "cancel", trial="t0007")
    write_request(run, "add-trials", count=3)
    write_request(run, "add-trials", values=[{"model.conv": "egnn", "model.layers": 2}])
    write_request(run, "stop")
    requests = [request for _, request in read_requests(run)]
    assert requests == [
        UserRequest(request="cancel", trial="t0007"),
        UserRequest(request="add-trials", count=3),
        UserRequest(request="add-trials", values=({"model.conv": "egnn", "model.layers": 2},)),
        UserRequest(request="stop"),
    ]
    (first, _), *_ = read_requests(run)
    for _ in range(2):  # its file may be gone already
        remove_request(first)
    assert len(read_requests(run)) == 3


def test_only_the_owner_may_wish(run):
    path = write_request(run, "stop")
    assert run.requests.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("cancel", {}),
        ("retry", {"trial": "../t0001"}),
        ("retry", {"trial": ""}),
        ("stop", {"trial": "t0001"}),
        ("pause", {"count": 2}),
        ("add-trials", {}),
        ("add-trials", {"count": 0}),
        ("add-trials", {"count": 2, "values": [{"a": 1}]}),
        ("add-trials", {"count": 10**9}),
        ("resize", {}),
    ],
)
def test_a_wish_that_makes_no_sense_is_not_written(run, kind, values):
    with pytest.raises(ConfigError, match=r"^request: .*\.$"):
        write_request(run, kind, **values)
    assert not run.requests.exists()


HOSTILE = {
    "empty": b"",
    "unknown": b'{"request": "format"}',
    "torn": b'{"request": "sto',
    "list": b'["stop"]',
    "extra": b'{"request": "stop", "shell": "rm"}',
    "path": b'{"request": "cancel", "trial": "../../etc"}',
    "number": b'{"request": "add-trials", "count": 1e400}',
    "text": b"\xff\xfe\x00",
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_wish_is_named_and_removed(run, name, caplog):
    write_request(run, "stop")
    bad = run.requests / "00000000000000000000-x.json"
    bad.write_bytes(HOSTILE[name])
    with caplog.at_level(logging.WARNING):
        assert [request.request for _, request in read_requests(run)] == ["stop"]
    assert bad.name in caplog.text
    assert not bad.exists()


def test_links_pipes_folders_and_large_files_are_not_opened(run, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(user_requests, "LARGEST", 100)
    run.requests.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"request": "stop"}))
    (run.requests / "1.json").symlink_to(secret)
    os.mkfifo(run.requests / "2.json")
    (run.requests / "3.json").mkdir()
    (run.requests / "3.json" / "inside").touch()
    (run.requests / "4.json").write_text(json.dumps({"request": "stop"}) + " " * 100)
    part = run.requests / ".00000000000000000001-x.json.abc.part"
    part.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert read_requests(run) == []
    assert read_requests(run) == []
    assert len(caplog.records) == 4, "each is named once"
    assert secret.exists()
    assert part.exists(), "half-written: it is not looked at"


@pytest.fixture
def config():
    values = tomllib.loads(resource_path("workflows/quickstart.toml").read_text())
    values["space"]["model.layers"] = {"low": 2, "high": 4}
    values["search"]["constraints"] = ["model.features * model.layers <= 192"]
    return CampaignConfig.model_validate(values)


def at(kind, **values):
    return {"event": kind, "time": 0.0, "epoch": 1, **values}


def ended(name, outcome, **values):
    return at("ended", trial=name, outcome=outcome, **values)


@pytest.fixture
def state():
    """Six trials: queued, running, stopped, failed, cancelled, and one that could never run."""
    names = [f"t{number:04d}" for number in range(6)]
    place = {"attempt": 1, "width": 1, "slots": ["a:0"]}
    return fold(
        [
            *[at("proposed", trial=name, values={}, until=4) for name in names],
            *[at("placed", trial=name, **place) for name in names[1:5]],
            ended(names[2], "stopped", score=[0.5]),
            ended(names[3], "failed", reason="diverged"),
            ended(names[4], "cancelled", reason="cancelled"),
            ended(names[5], "failed", reason="bad_config", message="9 heads do not divide 32."),
        ]
    )


ALLOWED = [
    ("cancel", "t0000"),
    ("cancel", "t0001"),
    ("retry", "t0003"),
    ("retry", "t0004"),
    ("stop", None),
    ("pause", None),
]
REFUSED = {
    ("cancel", "t0002"): "ended already (stopped)",
    ("cancel", "t0003"): "ended already (diverged)",
    ("retry", "t0001"): "is running: only a failed or cancelled trial is retried; let it end",
    ("retry", "t0002"): "leave it with its result",
    ("retry", "t0005"): "9 heads do not divide 32",
    ("cancel", "t0099"): "no trial 't0099': name one of the 6 from t0000 to t0005",
}


@pytest.mark.parametrize(("kind", "trial"), ALLOWED)
def test_what_can_come_true_is_allowed(kind, trial, config, state):
    check_request(UserRequest(request=kind, trial=trial), config, state)


@pytest.mark.parametrize(("wish", "says"), REFUSED.items(), ids=lambda value: str(value)[:40])
def test_what_cannot_come_true_is_refused(wish, says, config, state):
    kind, trial = wish
    with pytest.raises((ConfigError, RunError)) as error:
        check_request(UserRequest(request=kind, trial=trial), config, state)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("kind", "says"), [("finished", "is finished"), ("ending", "was asked to stop")]
)
def test_a_campaign_that_ends_takes_no_more_trials(kind, says, config, state):
    state.apply(at(kind))
    for request in (UserRequest(request="stop"), UserRequest(request="add-trials", count=3)):
        with pytest.raises(RunError, match=says):
            check_request(request, config, state)
    if kind == "ending":
        check_request(UserRequest(request="cancel", trial="t0001"), config, state)


def test_before_the_first_proposal_there_is_no_trial(config):
    with pytest.raises(ConfigError, match="wait until one is proposed"):
        check_request(UserRequest(request="cancel", trial="t0000"), config, fold([]))


def test_a_wish_that_makes_sense_is_obeyed_once_and_others_are_refused(tmp_path, caplog):
    def fate(trial, attempt, epoch):
        if trial == "t0009":  # the first ones of a campaign that cannot train would end it
            return "bad_config"
        return "diverged" if trial == "t0000" and attempt == 1 else None

    def failed(state):
        return state.count("failed") == 2

    wishes = [(failed, "retry", {"trial": trial}) for trial in ("t0009", "t0099", "t0000")]
    backend = StubBackend(fate=fate)
    with caplog.at_level(logging.WARNING):
        ran = Ran(tmp_path, campaign(trials=40), backend, watch=asking(*wishes))
    assert "refused: t0009 cannot run" in caplog.text
    assert "refused: there is no trial" in caplog.text
    assert [event["trial"] for event in ran.events("retried")] == ["t0000"]
    assert ran.state.trials["t0000"].status == "stopped"
    assert list(ran.run.requests.iterdir()) == []


def test_what_the_brain_proposes_later_is_left(tmp_path, monkeypatch):
    """It was asked before the stop and answers after it, while a trial still runs."""
    holding = []
    stopped = []
    answer = SearchWorker.take_proposals

    def held(self):
        return answer(self) if stopped or not holding else None

    def watch(state, controller):
        if state.count("stopped") > 2 and controller.proposals.search_worker.asking:
            holding.append(True)
        if state.ending:
            stopped.append(len(state.trials))
        wish(state, controller)

    def fate(trial, attempt, epoch):
        return "frozen" if trial == "t0000" and len(stopped) < 5 else None

    monkeypatch.setattr(SearchWorker, "take_proposals", held)
    wish = asking((lambda state: holding and not state.count("queued"), "stop", {}))
    ran = Ran(tmp_path, campaign(trials=50), StubBackend(fate=fate), watch=watch)
    assert len(ran.state.trials) == stopped[0]


def test_a_stop_that_a_crash_interrupts_is_obeyed_by_the_next_controller(tmp_path, monkeypatch):
    def drop(self, trial, why, **more):
        if self.event_store.state.count("cancelled"):
            raise Killed
        dropped(self, trial, why, **more)

    dropped = RequestHandler._drop
    config = campaign(trials=60)
    enough = asking((lambda state: state.count("queued") > 8, "stop", {}))
    monkeypatch.setattr(RequestHandler, "_drop", drop)
    with pytest.raises(Killed):
        Ran(tmp_path, config, StubBackend(slots_per_host=12), watch=enough)
    monkeypatch.setattr(RequestHandler, "_drop", dropped)
    ran = Ran(tmp_path, config, StubBackend(hosts=1, slots_per_host=1))
    assert ran.state.ending
    assert ran.state.count("cancelled") > 5, "those that waited are cancelled"
