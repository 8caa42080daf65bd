"""``--json`` of every command that has it: JSON or nothing on standard output, whatever happens."""

import json
from typing import Any

import pytest
from command_lines import JSON, VALID

ELSEWHERE = (
    "doctor",
    "run",
    "submit",
    "pack",
    "check-layer",
    "ensemble export",
)
"""Commands whose answers take long: their own tests read their JSON."""


@pytest.mark.parametrize("name", [name for name in JSON if name not in ELSEWHERE])
def test_an_answer_is_json(place: Any, name: str) -> None:
    line = VALID[name].replace(" --dry-run", "").replace(" --help", "").replace("{}/", "")
    done = place.here(*line.split(), "--json")
    assert done.code in (0, 1, 2), done.err
    assert json.loads(done.out or "{}") is not None


DRY = [name for name in JSON if "--dry-run" in VALID[name]]


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_is_json_too(place: Any, name: str) -> None:
    done = place.here(*VALID[name].replace("{}/", "").split(), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize("command", ["predict", "ensemble evaluate", "ensemble pick"])
def test_an_error_leaves_no_half_of_an_answer(place: Any, command: str) -> None:
    """After a file that is sound; errors of the other commands: ``test_exit_codes.py``."""
    (place.folder / "broken.bp").mkdir()
    (place.folder / "broken.bp" / "index.json").write_text("{")
    files = ("structures.extxyz", "broken.bp", "--ensemble", "ensemble.zip")
    done = place.here(*command.split(), *files, "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err
