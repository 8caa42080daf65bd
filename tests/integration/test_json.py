"""``--json`` of every command that has it: JSON or nothing on standard output, whatever happens."""

import json
from typing import Any

import pytest
from command_lines import JSON, VALID

ELSEWHERE = (
    "doctor",
    "run",
    "submit",
    "rehearse",
    "trial",
    "pack",
    "check-layer",
    "ensemble export",
)
"""Commands whose answers take long: their own tests read their JSON."""

WRONG = {
    "doctor": "doctor --machine nowhere",
    "plan": "plan nothing.toml",
    "rehearse": "rehearse nothing.toml",
    "run": "run campaign.toml --run run --machine nowhere",
    "submit": "submit campaign.toml --machine workstation --hosts 2 --time 1:00",
    "pack": "pack --out /nowhere/env.tar",
    "trial": "trial nothing --io synthetic",
    "check-layer": "check-layer schent",
    "predict": "predict structures.extxyz broken.bp --ensemble ensemble.zip",
    "export": "export run --to stone --out trials.stone",
    "reference": "reference lerning_rate",
    "retry": "retry run t9999",
    "cancel": "cancel run t9999",
    "pause": "pause run",
    "compare": "compare run nothing",
    "machine list": "machine list --sideways",
    "info": "info --sideways",
    "machine show": "machine show nowhere",
    "add-trials": "add-trials nothing 1",
    "ensemble evaluate": "ensemble evaluate structures.extxyz broken.bp --ensemble ensemble.zip",
    "ensemble pick": "ensemble pick structures.extxyz broken.bp --ensemble ensemble.zip",
    "ensemble prune": "ensemble prune ensemble.zip --keep 9 --out one.zip",
    "ensemble export": "ensemble export ensemble.zip --target nothing --out x.pt2",
}
"""A wrong use of each command; the others are given a name of nothing."""


@pytest.mark.parametrize("name", [name for name in JSON if name not in ELSEWHERE])
def test_an_answer_is_json(place: Any, name: str) -> None:
    line = VALID[name].replace(" --dry-run", "").replace(" --help", "").replace("{}/", "")
    done = place.here(*line.split(), "--json")
    assert done.code in (0, 1, 2), done.err
    assert json.loads(done.out or "{}") is not None


DRY = [name for name in JSON if "--dry-run" in VALID[name] and name != "trial"]
"""But ``trial``, whose ``--json`` goes with ``--io``: its dry run prints a file."""


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_is_json_too(place: Any, name: str) -> None:
    done = place.here(*VALID[name].replace("{}/", "").split(), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize("name", JSON)
def test_an_error_leaves_no_half_of_an_answer(place: Any, name: str) -> None:
    (place.folder / "broken.bp").mkdir()
    (place.folder / "broken.bp" / "index.json").write_text("{")
    done = place.here(*WRONG.get(name, f"{name} nothing").split(), "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err
