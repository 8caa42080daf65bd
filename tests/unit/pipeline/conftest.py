"""Prices are those of the profile in all tests of this room."""

import pytest


@pytest.fixture(autouse=True)
def _usual_speed(usual_speed):
    pass
