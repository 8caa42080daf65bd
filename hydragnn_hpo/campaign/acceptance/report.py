"""What an acceptance found, in one file that is written whole after each stage."""

import datetime
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import read_json, storage, write_json
from hydragnn_hpo.launching.doctor.finding import Finding, State, worst
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.slurm.hostlist import compress, expand

FILE = "acceptance.json"


@dataclass(frozen=True)
class Stage:
    """One part of an acceptance that has ended."""

    name: str
    findings: tuple[Finding, ...]
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What was measured beside the findings."""

    @property
    def state(self) -> State:
        """The worst of what was found."""
        return worst(self.findings)

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "name": self.name,
            "state": self.state,
            "seconds": self.seconds,
            "findings": [finding.to_plain() for finding in self.findings],
            "figures": dict(self.figures),
        }

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Stage":
        """Read what ``to_plain`` gave."""
        findings = tuple(
            Finding(**{**told, "hosts": tuple(told["hosts"])}) for told in values["findings"]
        )
        return cls(values["name"], findings, values["seconds"], values["figures"])


class Report:
    """An acceptance in its folder: what has ended so far, and on what."""

    def __init__(self, folder: Path, machine: str, names: Collection[str]) -> None:
        """Open the folder of an acceptance, new or begun before.

        Args:
            folder: for all its files, mode 0700.
            machine: name of the profile.
            names: of all stages, in their order.

        Raises:
            RunError: the folder holds something else, or the acceptance of another machine.
        """
        self.path, self.names = folder / FILE, tuple(names)
        self.stages: dict[str, Stage] = {}
        self.about: dict[str, Any] = {"machine": machine, "versions": versions()}
        if folder.exists() and any(folder.iterdir()):
            self._go_on(folder, machine)
            return
        with storage(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write()

    def _go_on(self, folder: Path, machine: str) -> None:
        if not self.path.exists():
            raise RunError(
                f"{folder}: is not empty and holds no acceptance; choose another with --run."
            )
        there = read_json(self.path)
        try:
            name, on = there["machine"], there["versions"]
            stages = {stage.name: stage for stage in map(Stage.from_plain, there["stages"])}
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.path}: is no report of ours ({error}); choose another with --run."
            ) from error
        if name != machine:
            raise RunError(
                f"{folder}: holds the acceptance of '{name}', asked was '{machine}'; "
                "choose another directory with --run."
            )
        if on == self.about["versions"]:
            self.stages = stages
            self.about["hosts"] = str(there.get("hosts", ""))

    @property
    def accepted(self) -> bool | None:
        """Whether nothing was wrong; None while stages are missing."""
        if any(name not in self.stages for name in self.names):
            return None
        return all(stage.state != "wrong" for stage in self.stages.values())

    def holds(self, name: str) -> bool:
        """Whether a stage has ended and needs no repetition."""
        return name in self.stages and self.stages[name].state != "wrong"

    def see(self, hosts: Mapping[str, tuple[Slot, ...]], of: Collection[str]) -> None:
        """Note the hosts that take part; forget stages ``of`` them that ran without some."""
        if not set(hosts) <= set(expand(self.about.get("hosts", ""))):
            self.stages = {name: told for name, told in self.stages.items() if name not in of}
        self.about["hosts"] = compress(list(hosts))
        self.about["slots"] = sum(map(len, hosts.values()))

    def add(self, stage: Stage) -> None:
        """Take in a stage, in place of an earlier run of it, and write everything down."""
        self.stages[stage.name] = stage
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_json(self.path, self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        stages = [self.stages[name] for name in self.names if name in self.stages]
        return {
            **self.about,
            "date": now,
            "accepted": self.accepted,
            "stages": [stage.to_plain() for stage in stages],
        }


def versions() -> dict[str, str]:
    """Give the versions on which results depend."""
    found = {"hydragnn-hpo": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
