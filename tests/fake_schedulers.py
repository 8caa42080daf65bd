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


OPTIONS = {
    **{"--account": "a", "--partition": "P", "--time": "l", "--nodes": "D", "--mem": "m"},
    **{"--comment": "k", "--job-name": "j", "--array": "array"},
}
"""Option of sbatch -> letter of squeue's format, where it has one."""

VARIABLES = {"SBATCH_ACCOUNT": "a", "SBATCH_PARTITION": "P", "SBATCH_TIMELIMIT": "l"}
"""What sbatch reads, above the script's own lines."""


def read_options(folder: str) -> dict[str, dict[str, str]]:
    path = Path(folder) / "options"
    return json.loads(path.read_text()) if path.exists() else {}


def sbatch(folder: str, argv: list[str]) -> None:
    note(folder, "sbatch", *argv)
    refuse_if_requested(folder)
    lines = Path(argv[-1]).read_text().splitlines() if Path(argv[-1]).exists() else []
    marked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    found = dict(word.split("=", 1) for word in [*marked, *argv] if "=" in word)
    options = {OPTIONS[name]: value for name, value in found.items() if name in OPTIONS}
    options |= {VARIABLES[name]: value for name, value in os.environ.items() if name in VARIABLES}
    jobs = read(folder)
    all_options = read_options(folder)
    number = 1 + max((int(job.split("_")[0]) for job in jobs), default=100)
    first, _, last = options.pop("array", "").partition("-")
    tasks = range(int(first), int(last or first) + 1) if first else ()
    ids = [f"{number}_{task}" for task in tasks] or [str(number)]
    write(folder, jobs | dict.fromkeys(ids, "PENDING"))
    (Path(folder) / "options").write_text(json.dumps(all_options | dict.fromkeys(ids, options)))
    greetings = Path(folder) / "greetings"
    print(greetings.read_text() if greetings.exists() else number)


def squeue(folder: str, argv: list[str]) -> None:
    """List jobs; those that ended only with ``--states=all``, and as SQUEUE_* say, like Slurm."""
    given = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    jobs = read(folder)
    options = read_options(folder)
    chosen = given["--jobs"].split(",") if "--jobs" in given else list(jobs)
    if len(chosen) == 1 and chosen[0] not in jobs:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    for job, state in jobs.items():
        values = {"P": "batch", "a": "(null)", "l": "1:00:00", "D": "1", "m": "0", "k": "(null)"}
        values |= options.get(job, {})
        state, _, reason = state.partition(":")
        reason = reason or ("Priority" if state == "PENDING" else "None")
        ended = state not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
        if job not in chosen or given.get("--name", values.get("j")) != values.get("j"):
            continue
        if ended and given.get("--states") != "all":
            continue
        if os.environ.get("SQUEUE_PARTITION", values["P"]) != values["P"]:
            continue
        values |= {"i": job, "T": state, "r": reason}
        print("|".join(values[field[1]] for field in given["--format"].split("|")))


def scancel(folder: str, argv: list[str]) -> None:
    note(folder, "scancel", *argv)
    pending = "--state=PENDING" in argv
    chosen = {j for j, s in read(folder).items() if j in argv and (not pending or s == "PENDING")}
    write(folder, {j: "CANCELLED" if j in chosen else s for j, s in read(folder).items()})


def qsub(folder: str, argv: list[str]) -> None:
    note(folder, "qsub", *argv)
    refuse_if_requested(folder)
    jobs = read(folder)
    number = f"{101 + len(jobs)}.pbs-0001"
    waits = any(word.startswith("depend=") for word in argv)
    write(folder, jobs | {number: "H" if waits else "Q"})
    lines = Path(argv[-1]).read_text().splitlines()
    (name,) = [line.removeprefix("#PBS -N ") for line in lines if line.startswith("#PBS -N ")]
    options = read_options(folder) | {number: {"name": name, "folder": os.getcwd()}}
    (Path(folder) / "options").write_text(json.dumps(options))
    greetings = Path(folder) / "greetings"
    print(greetings.read_text() if greetings.exists() else number)


def qselect(folder: str, argv: list[str]) -> None:
    for job, options in read_options(folder).items():
        if options["name"] == argv[argv.index("-N") + 1] and read(folder)[job] in "QHR":
            print(job)


def qstat(folder: str, argv: list[str]) -> None:
    jobs = read(folder)
    ids = [word for word in argv if not word.startswith("-")]
    unknown = [job for job in ids if job not in jobs]
    for job in ids:
        if job in jobs:
            place = read_options(folder).get(job, {}).get("folder", "/")
            variables = f"PBS_O_HOME=/home/me,\n\tPBS_O_WORKDIR={place[:5]}\n\t{place[5:]}"
            lines = ("Job_Name = hpo", f"job_state = {jobs[job]}", f"Variable_List = {variables}")
            print(f"Job Id: {job}", *(f"    {line}" for line in lines), "", sep="\n")
    if unknown:
        sys.exit("".join(f"qstat: Unknown Job Id {job}\n" for job in unknown))


def qdel(folder: str, argv: list[str]) -> None:
    note(folder, "qdel", *argv)
    write(folder, {j: "F" if j in argv else s for j, s in read(folder).items()})
