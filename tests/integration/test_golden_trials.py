"""A ``trial.toml`` trains to the weights that it trained to before, on one rank and on two.

What is equal where: two runs on one machine at one width are bit-equal, in single precision too.
One rank and two ranks round sums differently, and torch draws initial weights in single precision,
whose last digits depend on the vector instructions of the CPU (AVX2 or AVX512): in double precision
the weights of this trial then agree within 1e-5. Single precision is not compared with a golden:
optimizer steps turn its last digits into visible ones.
Names and shapes of tensors are compared exactly: checkpoints and artefacts are read by them.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_alike
from golden_trials import (
    REACHED,
    TRIAL,
    TRIALS,
    WEIGHTS,
    build_stores,
    cases,
    merged,
    reached,
    train,
)
from safetensors.numpy import load_file

from hydragnn_hpo.config.schema import to_toml

CASES = dict(cases())
GOLDEN = json.loads(REACHED.read_text())


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("golden")
    build_stores(folder)
    return folder


def assert_golden(weights: dict[str, Any]) -> None:
    golden = load_file(WEIGHTS)
    assert list(weights) == list(golden)
    for name, wanted in golden.items():
        assert weights[name].dtype == wanted.dtype == np.float64
        np.testing.assert_allclose(weights[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_trial_trains_to_the_golden_weights_and_twice_to_the_same_bits(stores: Path) -> None:
    values = tomllib.loads((TRIALS / "trial.toml").read_text())
    first, second = (train(stores, name, values) for name in ("first", "second"))
    assert_golden(first)
    for name, tensor in first.items():
        assert tensor.tobytes() == second[name].tobytes(), name


def test_single_precision_trains_twice_to_the_same_bits(stores: Path) -> None:
    values = merged(TRIAL, {"training": {"precision": "fp32", "ema": 0.9}})
    first, second = (train(stores, name, values) for name in ("one32", "two32"))
    for name, tensor in first.items():
        assert tensor.dtype == np.float32
        assert tensor.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("name", CASES)
def test_each_conv_and_option_trains_to_golden_figures(stores: Path, name: str) -> None:
    assert_alike(reached(stores, name, CASES[name]), GOLDEN[name], rel=1e-5, absolute=1e-6, at=name)


def test_no_golden_is_left_over() -> None:
    assert set(GOLDEN) == set(CASES)


@pytest.mark.stress
def test_two_ranks_train_to_the_golden_weights(stores: Path) -> None:
    trial = stores / "two-ranks"
    trial.mkdir()
    (trial / "trial.toml").write_text(to_toml(TRIAL))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *ranks, "-m", "hydragnn_hpo", "trial", str(trial)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
    assert (result["status"], result["width"]) == ("completed", 2)
    assert_golden(load_file(trial / "checkpoints" / "best.safetensors"))
