"""Exit codes of every command: 0 done, 1 failed, 2 misused (and 75 of ``run``: drained).

All runs in this process, on the files in ``goldens``. What commands say: the tests of each.
"""

from typing import Any

import pytest
from command_lines import COMMANDS, JSON

DONE = (
    "init structures.extxyz --out mine",
    "info",
    "plan campaign.toml",
    "run campaign.toml --dry-run",
    "submit campaign.toml --machine frontier --hosts 2 --time 1:00 --account a --dry-run",
    "status run",
    "stop run",
    "cancel run t0002",
    "add-trials run 2",
    "leaderboard run",
    "report run",
    "importance run",
    "compare run run2",
    "export run --to csv --out trials.csv",
    "predict structures.extxyz --ensemble ensemble.zip --out some.csv",
    "trial trial --dry-run",
    "reference learning_rate",
    "dataset build structures.toml --dry-run",
    "dataset info run/data/structures.bp",
    "dataset check run/data/structures.bp",
    "dataset embed run/data/structures.bp --processes 1",
    "dataset unstage",
    "ensemble info ensemble.zip",
    "ensemble prune ensemble.zip --keep 1 --out one.zip",
    "ensemble evaluate structures.extxyz --ensemble ensemble.zip --card structures.toml",
    "ensemble pick structures.extxyz --ensemble ensemble.zip --n 2 --out some.extxyz",
    "machine show frontier",
    "machine list",
    "trunk convert tuned.pth.tar --name mine --out trunks",
)
FAILED = (
    "predict overlapping.extxyz --ensemble ensemble.zip",
    "dataset check run2/data/structures.bp",
)
MISUSED = (
    "init nothing.extxyz",
    "doctor --machine nowhere",
    "plan nothing.toml",
    "run nothing.toml",
    "run campaign.toml --run run --machine nowhere",
    "submit campaign.toml --machine workstation --hosts 2 --time 1:00",
    "status nothing",
    "dashboard nothing",
    "stop nothing",
    "pause run",
    "retry run t0000",
    "cancel run t9999",
    "add-trials nothing 1",
    "leaderboard nothing",
    "report nothing",
    "importance nothing",
    "compare run nothing",
    "export run --to stone --out trials.stone",
    "predict nothing.xyz --ensemble ensemble.zip",
    "predict structures.extxyz --ensemble run",
    "predict structures.extxyz --ensemble ensemble.zip --out some.doc",
    "serve nothing.zip",
    "trial nothing",
    "pack --out /nowhere/env.tar",
    "check-layer schent",
    "reference lerning_rate",
    "dataset build nothing.toml",
    "dataset info nothing.bp",
    "dataset check nothing.bp",
    "dataset embed nothing.bp",
    "batch begin nothing --script 001.sh",
    "batch end nothing --code 0",
    "ensemble build nothing",
    "ensemble evaluate structures.extxyz --ensemble nothing.zip",
    "ensemble info structures.extxyz",
    "ensemble prune ensemble.zip --keep 9 --out one.zip",
    "ensemble pick structures.extxyz --ensemble nothing.zip",
    "ensemble export ensemble.zip --target nothing --out x.pt2",
    "machine show nowhere",
    "trunk convert nothing.model",
    "trunk convert ensemble.zip",
)


def ended(place: Any, line: str) -> int:
    done = place.here(*line.split())
    assert "Traceback" not in done.err
    return done.code


@pytest.mark.parametrize("line", DONE)
def test_what_is_done_ends_with_0(place: Any, line: str) -> None:
    assert ended(place, line) == 0


@pytest.mark.stress
def test_an_export_ends_with_0(place: Any) -> None:
    assert ended(place, "ensemble prune ensemble.zip --keep 1 --out one.zip") == 0
    assert ended(place, "ensemble export one.zip --target energy_like --out x.pt2") == 0


@pytest.mark.parametrize("line", FAILED)
def test_what_fails_ends_with_1(place: Any, line: str) -> None:
    (place.folder / "overlapping.extxyz").write_text("2\n\nH 0 0 0\nH 0 0 0\n")
    data = place.folder / "run2" / "data" / "structures.bp" / "part-00000.bp" / "data.0"
    data.write_bytes(data.read_bytes()[:-1])
    assert ended(place, line) == 1


@pytest.mark.parametrize("line", MISUSED)
def test_what_is_misused_ends_with_2_and_a_sentence(place: Any, line: str) -> None:
    answers_in_json = any(f"{line} ".startswith(f"{name} ") for name in JSON)
    for more in [(), ("--json",)] if answers_in_json else [()]:
        done = place.here(*line.split(), *more)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("line", ["run", "run campaign.toml --no-such-option"])
def test_what_the_command_line_does_not_know_ends_with_2(hpo: Any, line: str) -> None:
    assert hpo.here(*line.split()).code == 2


def test_every_command_is_tried() -> None:
    """``trial`` ends its process, ``serve`` and ``dashboard`` end with Ctrl-C."""
    tried = {
        name for name in COMMANDS for line in DONE + MISUSED if f"{line} ".startswith(f"{name} ")
    }
    assert tried == set(COMMANDS)
