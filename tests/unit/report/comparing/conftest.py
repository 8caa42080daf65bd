"""Campaigns to compare, small enough to be counted by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn_hpo.campaign.journal import encode

CAMPAIGN = """
name = "{name}"
seed = 3
data = [{{card = "none"}}]
trial = {{heads = {{gap = {{weight = {weight}}}}}}}
search = {{trials = 4, finalists = 1, rungs = [2]}}

[space]
"model.layers" = {space}
"""

COMMAND = """
name = "{name}"
command = {{argv = ["tune"]}}
space = {{"tile" = [1, 2, 3, 4]}}
search = {{trials = 4, finalists = 1, rungs = [2], objective = "train_seconds"}}
"""

MakeRun = Callable[..., Path]


def trial(name: str, begin: float, end: float, **result: Any) -> list[dict[str, Any]]:
    told = {"outcome": "completed", "attempt": 1, **result}
    values = {"model.layers": 1 + int(name[-1])}
    where = {"attempt": 1, "until": 2, "width": 1, "slots": ["a:0"]}
    return [
        {"time": begin, "event": "proposed", "trial": name, "values": values, "until": 2},
        {"time": begin, "event": "placed", "trial": name, **where},
        {"time": end, "event": "ended", "trial": name, **told},
    ]


@pytest.fixture
def run(tmp_path: Path) -> MakeRun:
    """Make a run on two hosts of two slots: four slot-seconds, two host-seconds a second.

    Its trials end after 10, 30, 35 and 50 s: objectives 0.5, 0.3, failed, 0.4; MAEs 0.2, 0.3, -,
    0.1 eV.
    """

    def make(
        folder: str,
        name: str = "hand",
        *,
        data: str | None = "d" * 64,
        unit: str = "eV",
        weight: float = 1.0,
        space: str = "{low = 1, high = 4}",
        text: str = CAMPAIGN,
        events: list[dict[str, Any]] | None = None,
        finished: bool = True,
    ) -> Path:
        slots = ["a:0", "a:1", "b:0", "b:1"]
        opened = {"event": "opened", "units": {"gap": unit}, "slots": slots, "data": data}
        trials = events or [
            *trial("t0", 1000.0, 1010.0, objective=0.5, val_mae={"gap": 0.2}),
            *trial("t1", 1012.0, 1030.0, objective=0.3, val_mae={"gap": 0.3}),
            *trial(
                "t2", 1030.0, 1035.0, outcome="failed", reason="bug", message="x", objective=0.1
            ),
            *trial("t3", 1035.0, 1050.0, objective=0.4, val_mae={"gap": 0.1}),
        ]
        done = [{"time": 1050.0, "event": "finished"}] if finished else []
        path = tmp_path / folder
        path.mkdir(parents=True)
        campaign = text.format(name=name, weight=weight, space=space)
        (path / "campaign.toml").write_text(campaign)
        journal = [{"time": 990.0, **opened}, *trials, *done]
        (path / "events.jsonl").write_bytes(
            b"".join(encode({"epoch": 1, **event}) for event in journal)
        )
        return path

    return make


@pytest.fixture
def faster() -> list[dict[str, Any]]:
    """One trial that is as good as any after 20 s, and nothing else."""
    return trial("t0", 1000.0, 1020.0, objective=0.25, val_mae={"gap": 0.15})


@pytest.fixture
def command_text() -> str:
    return COMMAND


@pytest.fixture
def commanded() -> Callable[[float], list[dict[str, Any]]]:
    """Trials of a command that minimize seconds."""

    def make(seconds: float) -> list[dict[str, Any]]:
        return trial("t0", 1000.0, 1010.0, objective=None, score=seconds)

    return make
