"""A job that is not a trial: it runs in a warm rank and answers in a file."""

from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.launching.fleet.local import LocalBackend
from hydragnn_hpo.launching.job import Job, Slot


class Errand:
    """One such job, from its order to its answer."""

    def __init__(self, run: Path, kind: str, name: str) -> None:
        """Name the files it uses; an answer that a lost controller left is removed."""
        self.kind, self.name = kind, name
        self.log, self.lease = run / f"{kind}.log", run / f".{kind}.lease"
        self.file = run / f".{kind}.json"
        self.file.unlink(missing_ok=True)

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


def run_here(errand: Errand, spec: dict[str, Any]) -> None:
    """Run an errand on this computer: its files would not be seen on other hosts."""
    run = errand.file.parent / "errands"
    with storage(run):
        run.mkdir(mode=0o700, exist_ok=True)
    with LocalBackend(slots=1, run_dir=run) as backend:
        backend.start(errand.job(spec, backend.slots[0]))
        while not any(event.kind == "ended" for event in backend.poll(1.0)):
            pass
