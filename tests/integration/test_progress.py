"""Progress of commands that take long, as lines where there is no terminal."""

import re
from typing import Any

import pytest

from hydragnn_hpo.cli import progress
from hydragnn_hpo.ensemble import structure_batches


def counts(err: str, what: str) -> list[tuple[int, int]]:
    """Return done and total of each line about some work."""
    results = re.findall(rf"^{what}: (\d+) of (\d+)(?:, .+)?$", err, re.MULTILINE)
    return [(int(done), int(total)) for done, total in results]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)


def test_prediction_moves_within_a_chunk(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure_batches, "BATCH_SIZE", 1)
    predict = ("predict", "structures.extxyz", "--ensemble", "ensemble.zip", "--out", "some.csv")
    done = place.here(*predict)
    moves = counts(done.err, "predicting structures")
    total = moves[-1][0]
    assert (done.code, place.folder.joinpath("some.csv").read_text().count("\n")) == (0, total + 1)
    assert structure_batches.MAX_STRUCTURES > total > 10, "one chunk holds all"
    assert [number for number, _ in moves] == [*range(1, total + 1), total, total]


def test_prices_and_simulation_of_a_plan_move(place: Any) -> None:
    done = place.here("plan", "campaign.toml", "--trials", "30")
    assert done.code == 0
    assert counts(done.err, "pricing trials") == [(n, 30) for n in range(1, 31)]
    simulated = counts(done.err, "simulating trials")
    assert simulated == sorted(simulated)
    assert simulated[-1][0] == simulated[-1][1] > 30, "with those that went on to a later rung"


@pytest.mark.parametrize("line", ["plan campaign.toml", "dataset check run/data/structures.bp"])
def test_colours_do_not_animate_a_pipe(
    place: Any, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Jupyter sets ``FORCE_COLOR`` for the commands of its cells, and stores what they write."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = place.here(*line.split())
    assert done.code == 0
    assert "\x1b" not in done.err


def test_json_shows_no_progress(place: Any) -> None:
    done = place.here("plan", "campaign.toml", "--json")
    assert (done.code, done.err) == (0, "")
