"""Law 1: placement never changes the mathematics."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hydragnn_hpo.config.convs import CONV_SPECS

# 50 graphs in steps of 16, the last with 2: at 4 ranks some shares are empty.
BATCH, EPOCHS = 16, 5


WAYS = [
    pytest.param((conv, way), id=f"{conv}-{way}", marks=[] if quick else [pytest.mark.slow])
    for conv, way, quick in (
        *((conv, "graphs", conv == "painn") for conv in CONV_SPECS),
        ("schnet", "mixture", False),
        ("schnet", "budget", False),
        ("painn", "whole", False),
    )
]
"""Convs with batches of graphs; with one of them two data sets in a ratio, a budget of atoms, and
everything a net can be told: attention, forces, variances, learned weights."""


LIMITS = {"whole": 1e-10, "mace": 1e-11}
"""Biases of attention keys have no true gradient, of which AdamW makes steps of rounding; products
of products grow it."""


@pytest.fixture(scope="module", params=WAYS)
def found(request):
    script, (conv, way) = Path(__file__).parent / "ranks.py", request.param
    command = [sys.executable, str(script), conv, str(BATCH), str(EPOCHS), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {"conv": conv, "way": way, **json.loads(done.stdout)}


@pytest.mark.parametrize("world", ["2", "4"])
def test_same_parameters_after_20_steps_at_any_width(found, world):
    assert found["1"]["steps"] == found[world]["steps"] >= 15
    one, many = (np.array(found[w]["parameters"]) for w in ("1", world))
    assert np.abs(one - many).max() < LIMITS.get(found["way"], LIMITS.get(found["conv"], 1e-12))


@pytest.mark.parametrize("world", ["2", "4"])
def test_same_metrics_and_predictions_at_any_width(found, world):
    assert found[world]["objective"] == pytest.approx(found["1"]["objective"], rel=1e-12)
    assert found[world]["val_mae"] == pytest.approx(found["1"]["val_mae"], rel=1e-12)
    for name, values in found["1"]["predictions"].items():
        np.testing.assert_allclose(found[world]["predictions"][name], values, rtol=0, atol=1e-11)
