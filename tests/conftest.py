"""What every test may use."""

import os
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` where torch finds none; torch loads only if there are any."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("this machine has no GPU.")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the public data sets, which are not part of the repository."""
    root = os.environ.get("HYDRAGNN_HPO_DATA")
    if not root:
        pytest.skip("HYDRAGNN_HPO_DATA is unset: point it at the folder of public data sets.")
    return Path(root)
