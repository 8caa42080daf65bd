"""Batch requests, machine profiles and script contents to begin from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hydragnn_hpo.config.machine import ProfileConfig, find_profile
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.launching.batch_jobs import BatchRequest
from hydragnn_hpo.launching.batch_script import ScriptContent

REQUEST = BatchRequest(name="alloys", hosts=1, seconds=7200, account="mat123")
CONTENT = ScriptContent(
    program=("/sw/env/bin/python", "-m", "hydragnn_hpo"),
    run="/lustre/me/runs/alloys",
    script="001.sh",
    folder="/home/me",
    command=("run", "/lustre/me/runs/alloys/jobs/001.toml", "--run", "/lustre/me/runs/alloys"),
    environment={},
)


@pytest.fixture
def batch_request() -> Callable[..., BatchRequest]:
    return lambda **changes: replace(REQUEST, **changes)


@pytest.fixture
def content() -> Callable[..., ScriptContent]:
    return lambda **changes: replace(CONTENT, **changes)


@pytest.fixture
def profile() -> Callable[..., ProfileConfig]:
    """Return a machine profile with some values of ``[batch]``, and others, changed."""

    def make(batch: dict[str, Any] | None = None, **changes: Any) -> ProfileConfig:
        values = find_profile("generic-slurm").model_dump()
        values |= changes
        values["batch"] = values["batch"] | (batch or {})
        return parse_config(values, ProfileConfig, "test")

    return make
