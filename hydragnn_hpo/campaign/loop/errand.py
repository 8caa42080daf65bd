"""A job that is not a trial: it runs in a warm rank and answers in a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.trial import INTERRUPTED, STALE
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.launching.fleet.local import LocalBackend
from hydragnn_hpo.launching.job import Job, Slot

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


def run_here(errand: Errand, spec: dict[str, Any]) -> Mapping[str, Any]:
    """Run an errand on this computer, as other hosts would not see its files; say how it ended."""
    run = errand.file.parent / "errands"
    with storage(run):
        run.mkdir(mode=0o700, exist_ok=True)
    with LocalBackend(slots=1, run_dir=run) as backend:
        backend.start(errand.job(spec, backend.slots[0]))
        while True:
            for event in backend.poll(1.0):
                if event.kind == "ended":
                    return event.data
