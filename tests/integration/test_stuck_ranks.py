"""A rank that stops or is slow is named by the others; ``trial`` shows where its time goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.config.trial_config import STALE

SLOWER = 0.4
"""As ``stuck_ranks.py`` has it."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """How the ranks of each way ended: all are forked by one process that has imported."""
    folder = tmp_path_factory.mktemp("stuck")
    script = Path(__file__).parent / "stuck_ranks.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), "file 0", "port 1", "port 0", "slow"],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file 0", "port 1"])
def test_a_stopped_rank_is_named(way, results):
    result = results[way]
    stopped = int(way[-1])
    assert result["code"] == STALE, result["log"]
    assert f"rank {stopped} is at step 3 (data) for " in result["log"]
    assert f"; rank {1 - stopped} waits at step 3 (backward); ending with code 7." in result["log"]


@pytest.mark.slow
def test_where_the_stopped_rank_keeps_the_marks_it_is_named_too(results):
    result = results["port 0"]
    assert result["code"] == STALE, result["log"]
    assert "rank 0, which keeps the marks of all, does not answer" in result["log"]


@pytest.mark.slow
def test_epochs_say_which_rank_was_slow(results):
    assert results["slow"]["codes"] == [0, 0]
    epochs = results["slow"]["epochs"]
    four_steps = 4 * SLOWER / 2  # of rank 1, as a mean of two ranks
    assert min(epoch["data_seconds"] for epoch in epochs) >= four_steps
    # The tests' own host may hold rank 0 up in one epoch.
    assert sorted(epoch["slowest_rank"] for epoch in epochs)[1:] == [1, 1, 1]
    assert sorted(epoch["imbalance"] for epoch in epochs)[1] > 1.1
    assert sum(epoch["exposed_seconds"] for epoch in epochs) > four_steps, "rank 0 waits"


def test_misused_options_of_a_trial_by_hand_are_refused(hpo):
    hpo.store()
    hpo.trial(training={"epochs": 2})
    for words, message in (
        (["--profile-ranks", "1"], "--profile-ranks: 1 is not among the ranks 0 to 0"),
        (["--profile-epochs", "x"], "--profile-epochs: 'x' is no list of numbers"),
    ):
        hpo.refused("trial", "trial", *words, says=(message,))
    assert not (hpo.folder / "trial" / "attempts").exists()


@pytest.mark.stress
def test_a_trial_by_hand_is_profiled(hpo):
    hpo.store()
    hpo.trial(training={"epochs": 2})
    done = hpo("trial", "trial", "--profile")
    assert done.code == 0, done.err
    assert "operation " in done.err
    traces = hpo.folder / "trial" / "attempts" / "001" / "profile"
    assert [path.name for path in traces.iterdir()] == ["rank-0-epoch-2.json"]
