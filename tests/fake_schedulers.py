"""Executables that behave as Slurm's and PBS Professional's do, as far as our commands ask them.

Nothing runs: jobs are names and states in one file. Those of PBS were made after the manual of PBS
Professional 2022 (qsub, qstat, qdel), since no PBS can be had.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

PROGRAM = """\
#!{python} -IS
import json, os, sys
sys.path.insert(0, {tests!r})
from fake_schedulers import {name}
{name}({folder!r}, sys.argv[1:])
"""


class FakeScheduler:
    """One scheduler's commands, first on PATH."""

    def __init__(self, folder: Path, patch: Any, *names: str) -> None:
        """Put commands where they are found first."""
        folder.mkdir()
        self.folder = folder
        for name in names:
            path = folder / name
            tests = str(Path(__file__).parent)
            text = PROGRAM.format(python=sys.executable, tests=tests, name=name, folder=str(folder))
            path.write_text(text)
            path.chmod(0o755)
        patch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    @property
    def calls(self) -> list[list[str]]:
        """Return the commands that were run, without the questions."""
        lines = (self.folder / "calls").read_text().splitlines() if self.was_called else []
        return [json.loads(line)["argv"] for line in lines]

    @property
    def was_called(self) -> bool:
        """Return whether any command was run."""
        return (self.folder / "calls").exists()

    @property
    def last(self) -> dict:
        """Return where and in which environment the last command was run."""
        return json.loads((self.folder / "calls").read_text().splitlines()[-1])

    def stands(self, **jobs: str) -> None:
        """Set how jobs stand; names are their numbers after a letter."""
        write(self.folder, {name[1:]: state for name, state in jobs.items()})


def read(folder: str | Path) -> dict[str, str]:
    path = Path(folder) / "jobs"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: str | Path, jobs: dict[str, str]) -> None:
    (Path(folder) / "jobs").write_text(json.dumps(jobs))


def note(folder: str, *argv: str) -> None:
    call = {"argv": argv, "cwd": os.getcwd(), "environment": dict(os.environ)}
    with (Path(folder) / "calls").open("a") as file:
        file.write(json.dumps(call) + "\n")


def refuse_if_requested(folder: str) -> None:
    path = Path(folder) / "refuse"
    if path.exists():
        sys.exit(path.read_text())


def sbatch(folder: str, argv: list[str]) -> None:
    note(folder, "sbatch", *argv)
    refuse_if_requested(folder)
    jobs = read(folder)
    number = 101 + len(jobs)
    write(folder, jobs | {str(number): "PENDING"})
    print(number)


def squeue(folder: str, argv: list[str]) -> None:
    (wanted,) = [word[7:].split(",") for word in argv if word.startswith("--jobs=")]
    jobs = read(folder)
    if len(wanted) == 1 and wanted[0] not in jobs:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    for job, state in jobs.items():
        if job in wanted:
            print(f"{job}|{state}|{'Priority' if state == 'PENDING' else 'None'}")


def scancel(folder: str, argv: list[str]) -> None:
    note(folder, "scancel", *argv)
    pending = "--state=PENDING" in argv
    jobs = read(folder)
    kept = {j: s for j, s in jobs.items() if j not in argv or (pending and s != "PENDING")}
    write(folder, kept)


def qsub(folder: str, argv: list[str]) -> None:
    note(folder, "qsub", *argv)
    refuse_if_requested(folder)
    jobs = read(folder)
    number = f"{101 + len(jobs)}.pbs-0001"
    waits = any(word.startswith("depend=") for word in argv)
    write(folder, jobs | {number: "H" if waits else "Q"})
    print(number)


def qstat(folder: str, argv: list[str]) -> None:
    jobs = read(folder)
    ids = [word for word in argv if not word.startswith("-")]
    unknown = [job for job in ids if job not in jobs]
    for job in ids:
        if job in jobs:
            print(f"Job Id: {job}\n    Job_Name = hpo\n    job_state = {jobs[job]}\n")
    if unknown:
        sys.exit("".join(f"qstat: Unknown Job Id {job}\n" for job in unknown))


def qdel(folder: str, argv: list[str]) -> None:
    note(folder, "qdel", *argv)
    write(folder, {j: "F" if j in argv else s for j, s in read(folder).items()})
