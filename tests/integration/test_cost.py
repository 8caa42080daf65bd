"""Prices against trials that really ran: unlike convs on one core."""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.placement.cost import CostModel

pytestmark = pytest.mark.slow

CONVS = ("schnet", "egnn", "painn", "gat", "pna", "mace")


@pytest.fixture(scope="module")
def ran():
    """Statistics, and (trial, CPU seconds per epoch, peak bytes): each conv small and large."""
    script = Path(__file__).parent / "cost_ranks.py"
    done = subprocess.run(
        [sys.executable, str(script), *CONVS],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    trials = [
        (TrialConfig.model_validate(each["config"]), min(each["seconds"]), each["peak_bytes"])
        for each in found["trials"]
    ]
    return found["stats"], trials


def off(said, was):
    return abs(math.log(said / was))


def test_seconds_of_trials_that_were_not_seen(ran):
    """Small ones of three convs and large ones of the others are seen, the rest is predicted.

    The speed of this machine is not that of the profile: what counts is the spread after one
    common factor, before and after the correction.
    """
    stats, trials = ran
    costs, half = CostModel(stats), len(CONVS)
    seen = [trials[n] if n % 2 else trials[half + n] for n in range(half)]
    rest = [trial for trial in trials if trial not in seen]
    ratios = [seconds / costs.price(t).epoch_seconds(1) for t, seconds, _ in seen]
    scale = statistics.median(ratios)
    plain = [off(scale * costs.price(t).epoch_seconds(1), seconds) for t, seconds, _ in rest]
    for trial, seconds, _ in seen:
        costs.observe(trial, 1, seconds)
    corrected = [off(costs.price(t).epoch_seconds(1), seconds) for t, seconds, _ in rest]
    medians = [statistics.median(errors) for errors in (plain, corrected)]
    print(f"median error of log t: formula {medians[0]:.2f}, corrected {medians[1]:.2f}")
    assert statistics.median(plain) < 0.5
    assert statistics.median(corrected) < 0.4
    assert max(corrected) < 1.0
    for (trial, *_), error in zip(rest, corrected, strict=True):
        assert error < 4 * costs.price(trial).sigma, f"{trial.trial}: was surer than it may be"


def test_memory_of_ranks(ran):
    """Within 30 % before anything ran, within 10 % after half of them."""
    stats, trials = ran
    costs = CostModel(stats)
    assert max(off(costs.price(t).memory(1), size) for t, _, size in trials) < 0.3
    for trial, _, size in trials[::2]:
        costs.observe_memory(trial, 1, size)
    assert max(off(costs.price(t).memory(1), size) for t, _, size in trials[1::2]) < 0.1
