"""Each test begins alike: its draws come from its name, and torch has its defaults."""

import random

import numpy as np
import pytest
import torch
from alike import begin, seed


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(()).item()


@pytest.fixture
def drawn() -> tuple[float, float, float]:
    return draw()


def test_a_fixture_draws_by_its_name_and_a_test_by_its_own(
    drawn: tuple[float, float, float], request: pytest.FixtureRequest
) -> None:
    first = draw()
    seed("drawn")
    assert draw() == drawn
    seed(request.node.nodeid)
    assert draw() == first != drawn


def test_what_a_test_sets_in_torch_is_taken_back() -> None:
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    begin()
    assert torch.get_num_threads() == 1
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_float32_matmul_precision() == "highest", "it raises where tf32 was left"
    assert not torch.are_deterministic_algorithms_enabled()
    assert (torch.tensor(1e-310, dtype=torch.float64) * 1.0).item() > 0.0
