"""Orders, profiles and contents of batch scripts to begin from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hydragnn_hpo.config.machine import ProfileConfig, find_profile
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.launching.submit.order import Order
from hydragnn_hpo.launching.submit.script import Content

ORDER = Order(name="alloys", hosts=1, seconds=7200, account="mat123")
CONTENT = Content(
    program=("/sw/env/bin/python", "-m", "hydragnn_hpo"),
    run="/lustre/me/runs/alloys",
    script="001.sh",
    folder="/home/me",
    command=("run", "/lustre/me/runs/alloys/jobs/001.toml", "--run", "/lustre/me/runs/alloys"),
    environment={},
)


@pytest.fixture
def order() -> Callable[..., Order]:
    return lambda **changes: replace(ORDER, **changes)


@pytest.fixture
def content() -> Callable[..., Content]:
    return lambda **changes: replace(CONTENT, **changes)


@pytest.fixture
def profile() -> Callable[..., ProfileConfig]:
    """Give a machine profile with some values of ``[batch]``, and others, changed."""

    def make(batch: dict[str, Any] | None = None, **changes: Any) -> ProfileConfig:
        values = find_profile("generic-slurm").model_dump()
        values |= changes
        values["batch"] = values["batch"] | (batch or {})
        return parse_config(values, ProfileConfig, "test")

    return make
