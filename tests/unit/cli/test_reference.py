"""``hydragnn-hpo reference`` finds a setting by a part of its name."""

import sys

import pytest

from hydragnn_hpo.cli.command_line import main


@pytest.fixture
def run_reference(monkeypatch, capsys):
    def run(word):
        monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "reference", word])
        with pytest.raises(SystemExit) as leaving:
            main()
        done = capsys.readouterr()
        return done.out, done.err, leaving.value.code

    return run


def test_the_last_part_of_a_name_is_enough(run_reference):
    out, _, code = run_reference("learning_rate")
    assert code == 0
    assert out.splitlines() == [
        "training.learning_rate  (a trial: number > 0; default 0.001)",
        "    Peak learning rate.",
    ]
    out, _, _ = run_reference("cutoff")
    heads = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert heads == ["model.cutoff", "graphs.cutoff"]


def test_what_is_not_there_is_one_sentence(run_reference):
    out, err, code = run_reference("learnign_rate")
    assert (out, code) == ("", 2)
    assert "Did you mean 'training.learning_rate'?" in err
    assert len(err.strip().splitlines()) == 1
