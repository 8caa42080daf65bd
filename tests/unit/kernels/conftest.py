"""Small structures as batches, and nets on them; names of the loops that run."""

import pytest
from small_nets import make  # noqa: F401

from hydragnn_hpo.kernels import numba_passes


@pytest.fixture
def loops(monkeypatch):
    """Names of the loops that run."""
    names = []
    run_loop = numba_passes.run_loop

    def noted(name, *inputs):
        names.append(name)
        run_loop(name, *inputs)

    monkeypatch.setattr(numba_passes, "run_loop", noted)
    return names
