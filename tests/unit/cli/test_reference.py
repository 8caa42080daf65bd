"""``hydragnn-hpo reference`` finds a setting by a part of its name."""

import sys

import pytest

from hydragnn_hpo.cli.command_line import main


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str, int | str | None]:
    sys.argv = ["hydragnn-hpo", "reference", *words]
    with pytest.raises(SystemExit) as leaving:
        main()
    done = capsys.readouterr()
    return done.out, done.err, leaving.value.code


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])


def test_the_last_part_of_a_name_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    out, _, code = said(["learning_rate"], capsys)
    assert code == 0
    first, second = out.splitlines()
    assert first == "training.learning_rate  (a trial: number > 0; default 0.001)"
    assert second == "    Peak step size."


def test_a_name_in_several_files_is_said_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    out, _, _ = said(["cutoff"], capsys)
    heads = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert heads == ["model.cutoff", "graphs.cutoff"]


def test_what_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out, err, code = said(["learnign_rate"], capsys)
    assert (out, code) == ("", 2)
    assert "Did you mean 'training.learning_rate'?" in err
    assert len(err.strip().splitlines()) == 1
