"""What ``run`` tells people to do next."""

import json
import sys
from types import SimpleNamespace

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import State, Trial, fold
from hydragnn_hpo.campaign.status import rank_trials
from hydragnn_hpo.cli import run_command
from hydragnn_hpo.cli.tables import console, leaderboard_table, print_verdict
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.pipeline.campaign_runs import finish_run


@pytest.mark.parametrize(
    ("on_path", "called", "message"),
    [
        ("/usr/bin/hydragnn-hpo", "x", "hydragnn-hpo"),
        (None, ".venv/bin/hydragnn-hpo", ".venv/bin/hydragnn-hpo"),
        (None, "/x/hydragnn_hpo/__main__.py", f"{sys.executable} -m hydragnn_hpo"),
    ],
)
def test_the_next_command_can_be_typed_as_it_stands(monkeypatch, on_path, called, message):
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    monkeypatch.setattr("sys.argv", [called, "run"])
    assert run_command._program() == message


def test_a_verdict_is_one_sentence_a_line_with_its_sign_warnings_first(capsys):
    print_verdict(
        [
            {"rule": "mean", "head": "gap", "level": level, "sentence": messages, "because": "x"}
            for level, messages in (("good", "a [b] c"), ("note", "d"), ("warning", "e"))
        ]
    )
    lines = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(sign, text.strip()) for sign, text in lines] == [
        ("!", "e"),
        ("-", "d"),
        ("+", "a [b] c"),
    ]
    print_verdict([])
    assert not capsys.readouterr().out


def test_brackets_in_a_value_of_the_leaderboard_are_no_markup(capsys):
    state = State()
    state.add(Trial("[red]a", {"x": "[fast]"}, until=4, status="stopped", score=(0.5, 7.0)))
    console().print(leaderboard_table(rank_trials(state, CampaignConfig.model_construct())))
    printed_output = capsys.readouterr().out
    assert "[fast]" in printed_output
    assert "[red]a" in printed_output
    assert "goal 2" in printed_output
    assert "7.0000" in printed_output


def test_brackets_in_the_name_of_a_run_are_no_markup(tmp_path, capsys):
    opened = make_campaign(tmp_path / "my [red] run[/b]", trials=6)
    opened.report.mkdir(parents=True, exist_ok=True)
    (opened.report / "report.html").write_text("a page")
    figures = {"utilization": 0.5, "trials": 3, "attempts": 3, "wide_attempts": 0}
    figures |= {"first_step_seconds": None, "cold_start_seconds": None}
    run_command._print(opened, {"ensemble": None, "figures": figures})
    assert f"Report: {opened.report / 'report.html'} (open it" in capsys.readouterr().out


class Finished:
    """The controller of a finished campaign, which builds ensembles by writing a file."""

    def __init__(self, opened, command=None):
        self.config = SimpleNamespace(command=command, trial={})
        self.state = fold(read_journal(opened.journal))
        self.opened = opened
        self.jobs = []
        self.closed_as = None

    def job(self, kind, spec):
        self.jobs.append(kind)
        self.opened.ensemble.write_text("built again")
        return {"members": []}

    def finish(self):
        self.closed_as = "finished"


@pytest.mark.parametrize(
    ("gone", "jobs", "reports"),
    [
        ((), [], 0),
        (("report/report.html",), [], 1),
        (("ensemble.zip",), ["ensemble"], 1),
        (("summary.json",), ["ensemble"], 1),
        (("ensemble.zip", "report/report.html"), ["ensemble"], 1),
    ],
)
def test_what_is_gone_of_a_finished_campaign_is_made_by_the_next_run(
    tmp_path, monkeypatch, gone, jobs, reports
):
    """Killed behind ``finished`` there is no report; and an ensemble may be deleted."""
    opened = make_campaign(tmp_path / "run", trials=6)
    (opened.report / "report.html").write_text("a page")
    opened.ensemble.write_text("built")
    for name in gone:
        (opened.path / name).unlink()
    written = []
    monkeypatch.setattr("hydragnn_hpo.report.draw_parity", lambda run, out: None)
    monkeypatch.setattr("hydragnn_hpo.report.write_report", written.append)
    controller = Finished(opened)
    result = finish_run(controller, opened, run_command._warn_of_report)
    assert controller.jobs == jobs
    assert len(written) == reports
    assert controller.closed_as == "finished", "the lease says how it was left"
    assert opened.ensemble.exists()
    assert json.loads(opened.summary.read_text()) == result
