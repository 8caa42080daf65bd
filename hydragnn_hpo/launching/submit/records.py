"""The batch jobs of a run: ``RUN/jobs`` holds scripts, logs, and one small file for each fact.

Files are only added, each written whole by a rename: jobs on several hosts can write at once, also
on file systems that know no appending.
"""

import contextlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json, storage, write_json, write_text
from hydragnn_hpo.launching.submit.schedulers import checked_id

_SUBMITTED = ("scheduler", "script", "hosts", "link", "jobs", "submitted", "after", "task")
_FACT = re.compile(r"(.+)\.(submitted|began|ended)\.json")


@dataclass(frozen=True)
class BatchJob:
    """One batch job, as far as the records tell."""

    id: str
    """The scheduler's."""
    scheduler: str
    script: str
    """File name in ``RUN/jobs``."""
    hosts: int
    link: int
    """Its place in its chain, from 1 on."""
    jobs: int
    """Most jobs of the chain."""
    submitted: float
    """Seconds since the epoch, as the others."""
    after: str | None = None
    task: int | None = None
    """Its number among jobs side by side."""
    began: float | None = None
    progress: int = 0
    """What the campaign had reached when it began, see ``campaign.status``."""
    ended: float | None = None
    code: int | None = None
    """Exit code of ``run``."""
    said: str = ""
    """How it ended, or why the chain ends with it."""


class JobRecords:
    """All batch jobs of a run directory."""

    def __init__(self, run: Path) -> None:
        """Look into a run directory; nothing is made."""
        self.folder = run / "jobs"

    def next_number(self) -> int:
        """Give the number of the next submission."""
        ours = (path for path in self.folder.glob("*.sh") if re.fullmatch("[0-9]+", path.stem))
        return 1 + max((int(path.stem) for path in ours), default=0)

    def prepare(self, number: int, script: str, campaign: str) -> Path:
        """Write a script, and the campaign that it runs, readable by nobody else.

        Raises:
            StorageError: the disk says no.
        """
        with storage(self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{number:03d}.sh"
        write_text(self.campaign(number), campaign)
        write_text(path, script)
        with storage(path):
            path.chmod(0o700)
        return path

    def campaign(self, number: int) -> Path:
        """Give the campaign as it was submitted."""
        return self.folder / f"{number:03d}.toml"

    def add(self, job: BatchJob) -> None:
        """Write down that a job was submitted."""
        facts = asdict(job)
        self.note(job.id, "submitted", **{key: facts[key] for key in _SUBMITTED})

    def note(self, job: str, fact: str, **values: Any) -> None:
        """Write down another fact of a job: ``began`` or ``ended``."""
        write_json(self.folder / f"{checked_id(job)}.{fact}.json", values)

    def jobs(self) -> list[BatchJob]:
        """Give all jobs, in the order they were submitted."""
        facts: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.folder.iterdir()):
                if match := _FACT.fullmatch(path.name):
                    facts.setdefault(match[1], {})[match[2]] = read_json(path)
        found = [self._job(name, said) for name, said in facts.items() if "submitted" in said]
        return sorted(found, key=lambda job: (job.submitted, job.link, job.task or 0))

    def find(self, job: str | None) -> BatchJob | None:
        """Give the job of a number."""
        return next((found for found in self.jobs() if found.id == job), None)

    def _job(self, name: str, said: dict[str, dict[str, Any]]) -> BatchJob:
        """Put the facts of a job together.

        Raises:
            StorageError: they are none of ours.
        """
        began, ended = said.get("began", {}), said.get("ended", {})
        try:
            return BatchJob(
                id=name,
                began=began.get("time"),
                progress=began.get("progress", 0),
                ended=ended.get("time"),
                code=ended.get("code"),
                said=ended.get("said", ""),
                **said["submitted"],
            )
        except (AttributeError, TypeError) as error:
            raise StorageError(
                f"{self.folder}/{name}.*.json: do not say what records of a batch job say "
                f"({error}); remove them."
            ) from None
