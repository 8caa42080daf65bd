"""``hydragnn-hpo report``, and the report that ``run`` leaves at its end."""

import json
from pathlib import Path

import pytest
from made_campaign import make_campaign
from typer.testing import CliRunner

from hydragnn_hpo import report
from hydragnn_hpo.cli import run_command
from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline.campaign_runs import write_run_report


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A campaign that is still at work, with a torn line at the end of its journal."""
    run = make_campaign(tmp_path_factory.mktemp("made") / "run", trials=12, finished=False)
    with run.journal.open("ab") as file:
        file.write(b'{"c":"00')
    return run


def test_the_file_is_where_it_says_and_the_journal_is_left_alone(made, tmp_path):
    before = made.journal.read_bytes()
    done = CliRunner().invoke(app, ["report", str(made.path)])
    assert done.exit_code == 0, done.output
    path = made.report / "report.html"
    assert done.output.strip() == f"wrote {path}"
    assert "not finished" in path.read_text()
    out = tmp_path / "else" / "where.html"
    result = CliRunner().invoke(app, ["report", str(made.path), "--out", str(out), "--json"])
    assert json.loads(result.output) == {"report": str(out)}
    assert out.read_bytes() == path.read_bytes()
    assert made.journal.read_bytes() == before


@pytest.mark.parametrize("error", [RunError("the disk is full."), KeyError("a fault of ours")])
@pytest.mark.parametrize("name", ["write_report", "draw_parity"])
def test_a_finished_campaign_does_not_fail_for_want_of_a_page(error, name, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(report, "draw_parity", lambda run, out: None)
    monkeypatch.setattr(report, name, fail)
    write_run_report(RunDir(Path("runs/x")), run_command._warn_of_report, drawn=True)
    output = capsys.readouterr().err
    assert output.startswith(f"warning: no report was written ({str(error).rstrip('.')})")
    assert "report runs/x" in output
    assert len(output.splitlines()) == 1
