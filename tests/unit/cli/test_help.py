"""What ``--help`` shows: groups, and examples that the parser takes; completion; ``info``."""

import getpass
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import COMMANDS
from typer.main import get_command

from hydragnn_hpo.cli.arguments import complete_campaign, complete_ensemble, complete_run
from hydragnn_hpo.cli.command_line import app, main
from hydragnn_hpo.cli.info_command import info
from hydragnn_hpo.optional_packages import OPTIONAL

SCRIPTED = {"batch begin", "batch end"}
"""Commands that only batch scripts call."""


def examples_in(text: str) -> list[str]:
    """Return the examples at the end of a command's help."""
    _, _, after = text.partition("Examples:")
    return [line for line in after.splitlines() if line.strip()]


EXAMPLES = [(name, line) for name in COMMANDS for line in examples_in(COMMANDS[name].epilog or "")]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SCRIPTED))
def test_every_command_ends_with_a_few_examples(name: str) -> None:
    lines = examples_in(COMMANDS[name].epilog or "")
    assert 1 <= len(lines) <= 3
    assert all(line.startswith(f"hydragnn-hpo {name}") for line in lines)


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_is_parsed(name: str, line: str) -> None:
    words = shlex.split(line)[1 + len(name.split()) :]
    context = COMMANDS[name].make_context(name, words)
    given = [value for value in context.params.values() if value not in (None, False, ())]
    assert bool(given) or not words


def test_every_command_stands_in_a_group() -> None:
    visible_commands = {
        name: each for name, each in get_command(app).commands.items() if not each.hidden
    }
    assert len(visible_commands) > 25
    assert [name for name, each in visible_commands.items() if not each.rich_help_panel] == []


def test_help_is_read_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        (["--help"], ("Start", "Use the result", "Look at a", "Steer a", "Machines", "Data")),
        (["run", "--help"], ("--run", "Changes of the campaign", "--set", "Machine", "Examples:")),
    ):
        monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        printed_output = capsys.readouterr().out
        places = [printed_output.index(text) for text in expected]
        assert places == sorted(places)


def test_help_imports_nothing_slow() -> None:
    code = (
        "import contextlib, sys\n"
        "from hydragnn_hpo.cli import main\n"
        "sys.argv = ['hydragnn-hpo', 'run', '--help']\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "slow = ('torch', 'pandas', 'plotly', 'ase', 'scipy', 'deephyper')\n"
        "sys.exit(','.join(name for name in slow if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("runs/first", "runs/second"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "campaign.toml").touch()
    (tmp_path / "runs/first/ensemble.zip").touch()
    (tmp_path / "rows").mkdir()
    (tmp_path / "quick.toml").touch()
    (tmp_path / "some.zip").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_campaigns_and_ensembles_are_completed(folder: Path) -> None:
    assert complete_run("r") == ["runs/first", "runs/second"]
    assert complete_run("runs/s") == ["runs/second"]
    assert complete_run("[") == []
    assert complete_campaign("quick") == ["quick.toml", "quickstart"]
    assert complete_ensemble("") == ["runs/first", "some.zip"]


def test_a_shell_is_offered_what_fits(folder: Path) -> None:
    requests = {
        "_HYDRAGNN_HPO_COMPLETE": "complete_bash",
        "COMP_WORDS": "hydragnn-hpo status runs/f",
        "COMP_CWORD": "2",
    }
    code = "import sys; sys.argv = ['hydragnn-hpo']; from hydragnn_hpo.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **requests}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["runs/first"], done.stderr


def test_info_says_what_is_there_and_what_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    info(as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert "plotly" in facts["extras"]["report"]
    assert "plotly" not in facts["optional"]
    assert set(facts["extras"]) == {each.extra for each in OPTIONAL.values()} - {""}
    assert facts["python"].endswith(platform.python_version())
    assert facts["core"]["torch"]
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert all(facts["optional"].values()), "a version of each package that is there"


@pytest.mark.parametrize("as_json", [False, True])
def test_info_names_no_user_host_or_folder(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    info(as_json=as_json)
    printed_output = capsys.readouterr().out
    private = [str(Path.home()), sys.prefix, platform.node(), os.getcwd(), getpass.getuser() + "@"]
    assert not [text for text in private if len(text) > 1 and text in printed_output]
    assert "/" not in printed_output.replace("+cpu", "").replace("n/a", "")
