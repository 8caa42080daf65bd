"""Law 1: placement never changes the mathematics."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# 50 graphs in steps of 16, the last with 2: at 3 ranks and at 4 some shares are empty.
BATCH, EPOCHS = 16, 2


pytestmark = pytest.mark.slow  # ranks that share the model, too, are in test_parallel.py

WAYS = [
    ("schnet", "graphs"),
    ("dimenetpp", "graphs"),
    ("gat", "graphs"),
    ("schnet", "mixture"),
    ("schnet", "budget"),
    ("painn", "whole"),
    ("painn", "features"),
    ("schnet", "random pieces"),
    ("schnet", "single random pieces"),
    ("painn", "replayed random pieces"),
]
"""Batches of graphs, also with triplets and with attention; with one conv two data sets in a ratio,
a budget of atoms, and everything a net can be told: attention, forces, variances, learned weights;
features of a foundation model. Then shares cut at random in steps taken in four pieces, also in
fp32 and with replayed passes. In all of them some graphs lack the energy. That a conv neither mixes
graphs nor fails on an empty share is in the physics suite, for each."""


LIMITS = {"whole": 1e-10, "single random pieces": 1e-5}
"""Biases of attention keys have no true gradient, of which AdamW makes steps of rounding. In fp32
a rounding is 6e-8, and a few of them add up."""


@pytest.fixture(scope="module")
def server():
    """One process that imports, for all: importing takes longer than most trainings."""
    script = Path(__file__).parent / "ranks.py"
    command = [sys.executable, str(script), str(BATCH), str(EPOCHS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started
        started.stdin.close()
        assert started.wait(300.0) == 0


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def result(server, request):
    conv, way = request.param
    server.stdin.write(f"{conv} {way}\n")
    server.stdin.flush()
    line = server.stdout.readline()
    assert line, "it has ended: see its standard error"
    return {"conv": conv, "way": way, **json.loads(line)}


def widths(result):
    return [width for width in result if width.isdigit() and width != "1"]


def test_same_parameters_after_8_steps_at_any_width(result):
    limit = LIMITS.get(result["way"], 1e-12)
    for world in widths(result):
        assert result["1"]["steps"] == result[world]["steps"] >= 6
        one, many = (np.array(result[w]["parameters"]) for w in ("1", world))
        assert np.abs(one - many).max() < limit, f"{world} ranks"


def test_same_metrics_and_predictions_at_any_width(result):
    rounding = 1e-6 if "single" in result["way"] else 1e-12
    for world in widths(result):
        for metric in ("objective", "val_mae"):
            same = pytest.approx(result["1"][metric], rel=rounding)
            assert result[world][metric] == same, f"{world} ranks"
        for name, values in result["1"]["predictions"].items():
            many = result[world]["predictions"][name]
            np.testing.assert_allclose(many, values, rtol=0, atol=10 * rounding)
