"""Small structures as batches, and nets on them, in fp64."""

import pytest
import torch
from small_nets import make  # noqa: F401


@pytest.fixture
def fp64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
