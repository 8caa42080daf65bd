"""A job that is not a trial: it runs in a warm rank and answers in a file."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.trial import INTERRUPTED, STALE
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.launching.fleet.local import LocalBackend
from hydragnn_hpo.launching.job import Job, Slot

logger = logging.getLogger(__name__)

TRIES = 3
"""How often an errand is sent before its campaign gives up: hosts are lost now and then."""


class Errand:
    """One such job, from its order to its answer."""

    def __init__(self, run: Path, kind: str, name: str) -> None:
        """Name the files it uses: its own, as a host that thaws may still be at an earlier try."""
        self.kind, self.name = kind, name
        self.log, self.lease = run / f"{kind}.log", run / f".{name}.lease"
        self.file = run / f".{name}.json"
        for old in (self.file, self.lease, *run.glob(f".{kind}.*.*")):
            old.unlink(missing_ok=True)

    def job(self, spec: dict[str, Any], slot: Slot) -> Job:
        """Give the order for the backend."""
        return Job(
            id=self.name,
            kind=self.kind,
            width=1,
            spec={**spec, "answer": str(self.file.resolve())},
            log=self.log,
            lease=self.lease,
            watch=None,
            slots=(slot,),
        )

    def was_lost(self, ended: Mapping[str, Any]) -> bool:
        """Say whether the job found no end of its own: its host or its agent was lost.

        Args:
            ended: the data of its ``ended`` event.
        """
        codes: Sequence[int] = ended["codes"]
        own = any(code > 0 and code not in (INTERRUPTED, STALE) for code in codes)
        return not own and not self.file.exists()

    def answer(self) -> Any:
        """Read the answer once the job has ended.

        Raises:
            JobError: there is none.
            ConfigError: it is an error for the user.
        """
        self.lease.unlink(missing_ok=True)
        if not self.file.exists():
            raise JobError(f"the {self.kind} job ended without an answer; see {self.log}.")
        values = read_json(self.file)
        self.file.unlink()
        if "error" in values:
            raise ConfigError(values["error"])
        return values


Send = Callable[[Errand, dict[str, Any], list[str]], Mapping[str, Any]]
"""Runs an errand with its order on a host, not on one of earlier tries if there is another, adds
the host to those, and gives the data of the ``ended`` event."""


class Errands:
    """Has errands run one by one; one that is lost is sent again."""

    def __init__(self, run: Path, epoch: int, send: Send) -> None:
        """Take who sends them.

        Args:
            run: the run directory.
            epoch: number of the controller, which makes their names its own.
            send: runs an errand somewhere.
        """
        self._run, self._epoch, self._send, self._count = run, epoch, send, 0

    def answer(self, kind: str, spec: dict[str, Any]) -> Any:
        """Run one and give its answer.

        Raises:
            JobError: it ended without an answer.
            ConfigError: its answer is an error for the user.
        """
        hosts: list[str] = []
        for left in reversed(range(TRIES)):
            self._count += 1
            errand = Errand(self._run, kind, f"{kind}.{self._epoch}.{self._count}")
            ended = self._send(errand, spec, hosts)
            if not (left and errand.was_lost(ended)):
                break
            logger.warning("the %s job was lost; it is sent again.", kind)
        return errand.answer()


def run_here(errand: Errand, spec: dict[str, Any]) -> Mapping[str, Any]:
    """Run an errand on this computer, and give the data of its ``ended`` event."""
    run = errand.file.parent / "errands"
    with storage(run):
        run.mkdir(mode=0o700, exist_ok=True)
    with LocalBackend(slots=1, run_dir=run) as backend:
        backend.start(errand.job(spec, backend.slots[0]))
        while True:
            for event in backend.poll(1.0):
                if event.kind == "ended":
                    return event.data
