"""What attempts tell, whatever it is, and what becomes of it."""

import math

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.test_controller import Ran, campaign

from hydragnn_hpo.campaign.journal import read
from hydragnn_hpo.campaign.state import fold

HUGE = 10**400


class Scribbling(StubBackend):
    """One trial is a command that writes what it likes into its records."""

    def scribble(self, record, words):
        self.record, self.words = record, words
        return self

    def _tell(self, kind, job, **data):
        if kind == "record" and data["record"] == self.record and job.startswith("t0001."):
            data |= self.words
        super()._tell(kind, job, **data)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("epoch", {"energy": 5.0}),
        ("epoch", {"energy": {"cpu": 3}}),
        ("epoch", {"energy": {"cpu": {"train": math.inf}}}),
        ("epoch", {"train_seconds": math.inf}),
        ("epoch", {"train_seconds": math.nan}),
        ("epoch", {"train_seconds": 1e308, "val_seconds": 1e308}),
        ("epoch", {"epoch": math.inf}),
        ("epoch", {"epoch": HUGE}),
        ("epoch", {"objective": [1.0], "best_objective": "good"}),
        ("first_step", {"time": math.inf}),
        ("checkpoint", {"epoch": math.inf}),
        ("checkpoint", {"epoch": HUGE}),
        ("checkpoint", {"step": math.inf}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_whatever_a_command_writes_its_campaign_ends_and_can_be_read_again(tmp_path, record, words):
    killed = iter([True])

    def fate(trial, attempt, epoch):
        return "killed" if trial == "t0001" and epoch == 2 and next(killed, None) else None

    backend = Scribbling(fate=fate).scribble(record, words)
    ran = Ran(tmp_path, campaign(trials=8, rungs=[3], stop_rule="median", grace=1), backend)
    assert len(ran.state.ranked()) == 8
    again = fold(read(ran.run.journal)).trials["t0001"]
    assert (again.rests, again.seconds, again.joules, again.objective) == (
        ran.state.trials["t0001"].rests,
        ran.state.trials["t0001"].seconds,
        0.0,
        ran.state.trials["t0001"].objective,
    )
    assert Ran(tmp_path, ran.config, StubBackend()).backend.started == []


@pytest.mark.parametrize("words", [{"objective": HUGE}, {"val_mae": {"energy": HUGE}}])
def test_a_number_without_end_in_a_result_is_none(tmp_path, words):
    class Boasting(StubBackend):
        def _write(self, faked, result):
            super()._write(faked, result | (words if faked.job.id == "t0001.1" else {}))

    trial = Ran(tmp_path, campaign(), Boasting()).state.trials["t0001"]
    if "objective" in words:
        assert (trial.status, trial.reason) == ("failed", "bug")
    else:
        assert (trial.status, trial.val_mae) == ("stopped", {})
