"""What tests of this room begin with."""

import pytest

from hydragnn_hpo.campaign import user_requests


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Look for requests in every turn: campaigns here last milliseconds."""
    monkeypatch.setattr(user_requests, "LOOK_SECONDS", 0.0)
