"""Let prices be those of the profile: to measure this computer takes seconds, and varies."""

import pytest


@pytest.fixture(autouse=True)
def _usual_speed(monkeypatch):
    speed = "hydragnn_hpo.pipeline.machine_speed.measure_slowdown"
    monkeypatch.setattr(speed, lambda profile: 1.0)
