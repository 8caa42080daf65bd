"""Stages of an acceptance: which slots, what an end says, what staging says, what is kept."""

import json

import pytest

from hydragnn_hpo.campaign.acceptance import stages, stores
from hydragnn_hpo.campaign.acceptance.bench import Ended
from hydragnn_hpo.campaign.acceptance.interruptions import judge_end
from hydragnn_hpo.campaign.acceptance.report import Report, Stage
from hydragnn_hpo.campaign.acceptance.widths import layouts
from hydragnn_hpo.errors import JobError, RunError, StorageError
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.job import Slot


def host(name, count, shared=False):
    devices = ["0"] * count if shared else [str(n) for n in range(count)]
    return tuple(Slot(name, n, (n,), "cuda:0", devices[n]) for n in range(count))


def chosen(*hosts):
    found = layouts({slots[0].host: slots for slots in hosts})
    return {name: [slot.name for slot in slots] for name, slots in found.items()}


def test_a_trial_runs_on_one_rank_one_host_and_two():
    assert chosen(host("a", 2), host("b", 2)) == {
        "one rank": ["a:0"],
        "one host": ["a:0", "a:1"],
        "two hosts": ["a:0", "b:0"],
    }


def test_what_is_not_there_is_left_out():
    assert chosen(host("a", 1)) == {"one rank": ["a:0"]}
    assert chosen(host("a", 1), host("b", 1)) == {"one rank": ["a:0"], "two hosts": ["a:0", "b:0"]}
    assert chosen(host("a", 1), host("b", 3))["one host"] == ["b:0", "b:1"]


def test_two_ranks_never_share_a_device():
    assert chosen(host("a", 2, shared=True)) == {"one rank": ["a:0"]}


@pytest.mark.parametrize(
    ("codes", "asked", "state"),
    [
        ((4, -9), False, "ok"),
        ((3, 3), True, "ok"),
        ((3, 0), True, "wrong"),
        ((-15, -15), True, "wrong"),  # nobody left a checkpoint
        ((), True, "wrong"),
        ((0, 0), False, "unknown"),  # it was over before
        ((0, 0), True, "unknown"),
    ],
)
def test_an_interrupted_attempt_ends_as_it_should(codes, asked, state):
    assert judge_end("x", Ended(codes), asked=asked, acted=True, hosts=()).state == state


def test_an_attempt_that_hangs_is_wrong():
    ended = Ended((-9, -9), "was ended: its time was up")
    for acted in (True, False):
        assert judge_end("x", ended, asked=False, acted=acted, hosts=()).state == "wrong"


def staged(**changes):
    told = {"place": "/scratch", "free_bytes": 10**9, "bytes": 10**6, "seconds": 1.0}
    return told | {"digest": "same"} | changes


def test_hosts_that_stage_the_same_are_ok():
    assert {f.state for f in stores.judge({h: staged() for h in "abc"})} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "check", "state"),
    [
        ({"digest": "other"}, "store staged", "wrong"),
        ({"seconds": 5.1}, "time to stage", "slow"),
        ({"free_bytes": 19 * 10**6}, "room to stage", "wrong"),
        ({"error": "no place would do"}, "store staged", "wrong"),
    ],
)
def test_the_host_that_stages_otherwise_is_named(changes, check, state):
    told = staged(**changes) if "error" not in changes else changes
    found = [f for f in stores.judge({"a": staged(), "b": staged(), "c": told}) if f.bad]
    assert [(f.check, f.state, f.hosts) for f in found] == [(check, state, ("c",))]
    assert found[0].cure


def test_a_host_that_imports_from_the_shared_files_is_named():
    told = {"a": {"python": "/local/env"}, "b": {"python": "/shared/env"}, "c": {"error": "x"}}
    found = stores.judge_python(told, "/shared/env")
    assert [(f.hosts, f.state) for f in found] == [(("a",), "ok"), (("b",), "wrong")]


NAMES = ("first", "second")


def test_a_report_goes_on_where_it_was(tmp_path):
    report = Report(tmp_path / "site", "made", NAMES)
    assert report.accepted is None
    slow = Finding("rate", "slow", "1", cure="try", hosts=("a", "b"), figure=1.0)
    report.add(Stage("first", (slow,), 2.0, {"rate": 1.0}))

    again = Report(tmp_path / "site", "made", NAMES)

    assert again.holds("first")
    assert not again.holds("second")
    assert again.stages["first"].findings == (slow,)
    again.add(Stage("second", (Finding("sum", "wrong", "2"),), 1.0))
    assert again.accepted is False
    assert not again.holds("second"), "what was wrong is done again"
    again.add(Stage("second", (Finding("sum", "ok", "3"),), 1.0))
    assert again.accepted is True
    told = json.loads((tmp_path / "site" / "acceptance.json").read_text())
    assert told["accepted"] is True
    assert [stage["name"] for stage in told["stages"]] == list(NAMES)
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700


def test_other_versions_begin_anew(tmp_path):
    report = Report(tmp_path, "made", NAMES)
    report.about["versions"] = {"torch": "1.0"}
    report.add(Stage("first", (), 1.0))
    assert not Report(tmp_path, "made", NAMES).stages


def test_a_folder_of_something_else_is_refused(tmp_path):
    Report(tmp_path / "a", "made", NAMES)
    with pytest.raises(RunError, match="acceptance of 'made', asked was 'other'"):
        Report(tmp_path / "a", "other", NAMES)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    with pytest.raises(RunError, match="holds no acceptance"):
        Report(tmp_path / "b", "made", NAMES)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"machine": "made", "versions": {}, "stages": 1}']
)
def test_a_report_of_somebody_else_is_refused(tmp_path, content):
    (tmp_path / "acceptance.json").write_text(content)
    with pytest.raises(RunError, match="is no report of ours"):
        Report(tmp_path, "made", NAMES)


def fail(error):
    raise error


@pytest.mark.parametrize("error", [JobError("no host joined."), KeyError("x")])
def test_a_stage_that_fails_is_a_finding(error):
    stage = stages._tried("sums", lambda: fail(error))
    assert stage.state == "wrong"
    assert str(error) in stage.findings[0].found


@pytest.mark.parametrize("error", [StorageError("full"), KeyboardInterrupt()])
def test_a_full_disk_and_a_person_end_all(error):
    with pytest.raises(type(error)):
        stages._tried("sums", lambda: fail(error))


class Hosts:
    """A backend of some hosts that runs nothing."""

    def __init__(self, count):
        self.slots = tuple(slot for n in range(count) for slot in host(f"h{n}", 1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def poll(self, timeout):
        return []


def test_hosts_that_were_missing_are_looked_for_again(tmp_path, monkeypatch):
    """All else was right on the hosts that had come: only this stage is done again."""
    monkeypatch.setattr(stages.short_campaign, "campaign_of", lambda site: None)
    monkeypatch.setattr(stages, "make_backend", lambda config, folder: Hosts(2))
    site = stages.Site(None, None, tmp_path / "site", 1.0)
    report = Report(site.folder, "made", stages.STAGES)
    report.about["hosts"] = "h[0-1]"
    for name in stages.STAGES:
        state = "wrong" if name == stages.HOSTS else "ok"
        report.add(Stage(name, (Finding(name, state, "1"),), 1.0))
    told = []
    stages.accept(site, report, check=list, expected=2, tell=told.append)
    assert [stage.name for stage in told] == [stages.HOSTS]
    assert report.accepted is True


def test_a_host_that_comes_later_has_to_do_all_that_the_others_did(tmp_path):
    report = Report(tmp_path, "made", NAMES)
    report.see({f"h{n}": host(f"h{n}", 1) for n in range(2)}, NAMES)
    for name in NAMES:
        report.add(Stage(name, (), 1.0))
    again = Report(tmp_path, "made", NAMES)
    again.see({"h1": host("h1", 1)}, ["second"])
    assert again.holds("first")
    assert again.holds("second")
    again.see({f"h{n}": host(f"h{n}", 1) for n in range(3)}, ["second"])
    assert again.holds("first")
    assert not again.holds("second")


def test_a_killed_campaign_goes_on_and_a_wrong_one_is_done_again(tmp_path):
    first = stages.campaign_folder(tmp_path, again=False)
    assert first.name == "campaign.001"
    first.mkdir()
    assert stages.campaign_folder(tmp_path, again=False) == first
    assert stages.campaign_folder(tmp_path, again=True).name == "campaign.002"
