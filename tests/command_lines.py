"""Every command of the command line, found from typer itself, and one valid use of each."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from own_trunks import write_checkpoint

from hydragnn_hpo.cli.command_line import app

GOLDENS = Path(__file__).parent / "goldens"


def _commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield each command that there is, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


COMMANDS = dict(_commands(typer.main.get_command(app)))

JSON = [name for name, each in COMMANDS.items() if any("--json" in p.opts for p in each.params)]
"""Commands that have ``--json``."""

LASTING = ("dashboard", "serve")
"""Commands that end with Ctrl-C."""

VALID = {
    "init": "init {}/structures.extxyz --out {}/mine",
    "doctor": "doctor --dry-run",
    "plan": "plan {}/campaign.toml",
    "run": "run {}/campaign.toml --run {}/new --dry-run",
    "submit": "submit {}/campaign.toml --machine frontier --hosts 2 --time 1:00 --account a "
    "--run {}/new --dry-run",
    "status": "status {}/run",
    "dashboard": "dashboard {}/run",
    "stop": "stop {}/run",
    "pause": "pause {}/run",
    "retry": "retry {}/run t0000",
    "cancel": "cancel {}/run t0002",
    "add-trials": "add-trials {}/run 2",
    "leaderboard": "leaderboard {}/run",
    "report": "report {}/run",
    "importance": "importance {}/run",
    "compare": "compare {}/run {}/run2",
    "export": "export {}/run --to csv --out {}/trials.csv",
    "predict": "predict {}/structures.extxyz --ensemble {}/ensemble.zip --out {}/some.csv",
    "serve": "serve {}/ensemble.zip --port 0",
    "pack": "pack --help",
    "trial": "trial {}/trial --dry-run",
    "check-layer": "check-layer --help",
    "reference": "reference learning_rate",
    "info": "info",
    "dataset build": "dataset build {}/structures.toml --out {}/mine.bp",
    "dataset info": "dataset info {}/run/data/structures.bp",
    "dataset check": "dataset check {}/run/data/structures.bp",
    "dataset embed": "dataset embed {}/run/data/structures.bp --processes 1",
    "dataset unstage": "dataset unstage",
    "batch begin": "batch begin {}/run --script 001.sh",
    "batch end": "batch end {}/run --code 0",
    "ensemble build": "ensemble build {}/run --dry-run",
    "ensemble evaluate": "ensemble evaluate {}/structures.extxyz --ensemble {}/ensemble.zip "
    "--card {}/structures.toml",
    "ensemble info": "ensemble info {}/ensemble.zip",
    "ensemble prune": "ensemble prune {}/ensemble.zip --keep 1 --out {}/one.zip",
    "ensemble pick": "ensemble pick {}/structures.extxyz --ensemble {}/ensemble.zip --n 2 "
    "--out {}/some.extxyz",
    "ensemble export": "ensemble export --help",
    "machine show": "machine show frontier",
    "machine list": "machine list",
    "trunk convert": "trunk convert {}/tuned.pth.tar --name mine --licence MIT --out {}/trunks",
}
"""A cheap use of each command; ``{}`` is the folder of ``make_place``. Those that would pack an
environment, train or compile only show their help."""


def make_place(folder: Path) -> None:
    """Put two runs that were left, their data, an artefact, a trial and a campaign in a folder.

    And a checkpoint of a foundation model, to be converted.
    """
    for name in ("structures.toml", "structures.extxyz", "ensemble/ensemble.zip"):
        shutil.copy(GOLDENS / name, folder)
    for name in ("run", "run2"):
        shutil.copytree(GOLDENS / "run", folder / name)
    shutil.copytree(GOLDENS / "trials", folder / "trial")
    shutil.copy(GOLDENS / "run" / "campaign.toml", folder)
    write_checkpoint(folder / "tuned.pth.tar")
