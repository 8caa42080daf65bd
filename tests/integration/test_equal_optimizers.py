"""Law 1 for every optimizer, also where ranks hold parts of the weights; and for bf16."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]

LIMITS = {"bf16": 1e-4}
"""A sum over ranks is in fp32 there, and its last digit moves some of the weights' bf16 copies."""


@pytest.fixture(scope="module")
def found():
    script, made = Path(__file__).parent / "optimizer_ranks.py", {}
    for world in ("1", "2"):
        command = [sys.executable, str(script), world]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        made |= json.loads(done.stdout)
    return made


@pytest.mark.parametrize("way", ["ddp", "full", "tensor"])
@pytest.mark.parametrize("name", ["adam", "sgd", "lamb", "muon", "bf16"])
def test_same_parameters_and_same_best_epoch_on_two_ranks(found, name, way):
    for alone, shared in zip(found[f"{name}, one"], found[f"{name}, {way}"], strict=True):
        assert len(alone) > 1000
        assert np.abs(np.subtract(alone, shared)).max() < LIMITS.get(name, 1e-12)
