"""Cases in which memory or disk ends under a command, which then runs again without limits."""

import dataclasses
import random
from pathlib import Path
from typing import Any

from generators import (
    CAMPAIGN,
    CARD,
    ENSEMBLE,
    STRUCTURES,
    WITH,
    XYZ,
    command_result,
    mutated,
    run_files,
    toml,
)
from generators import DATA as STRUCTURE_FILES
from sandbox import Case, Wants

Random = random.Random

DATA: dict[str, bytes | None] = {"structures.toml": toml(CARD), "structures.extxyz": STRUCTURES}

SMALL: dict[str, Any] = {
    **CAMPAIGN,
    "search": CAMPAIGN["search"] | {"trials": 2, "initial": 2, "rungs": [2], "finalists": 2},
    "machine": CAMPAIGN["machine"] | {"slots": 1, "max_width": 1},
}
"""Two short trials, and an ensemble of both."""

RUN = ("run", "c.toml", "--run", "run")
BUILD = ("dataset", "build", "structures.toml", "--out", "s.bp")


def training(**limits: Any) -> Case:
    """Run a small campaign to its ensemble."""
    files = {"c.toml": toml(SMALL), **DATA}
    return Case("training", RUN, files, again=True, cpu_seconds=120.0, **limits)


COMMANDS: dict[tuple[str, ...], tuple[int, int]] = {
    ("predict", "structures.extxyz", *WITH, "--out", "out.csv"): (2, 40),
    ("predict", "structures.extxyz", *WITH, "--out", "out.extxyz"): (2, 40),
    ("predict", "structures.extxyz", *WITH, "--out", "out.parquet"): (2, 40),
    ("predict", "d.xyz", *WITH, "--json"): (2, 40),
    BUILD: (2, 40),
    ("init", "structures.extxyz", "--out", "new"): (2, 40),
    ("report", "run", "--out", "out.html"): (2, 40),
    ("export", "run", "--to", "csv", "--out", "table"): (2, 40),
    ("ensemble", "prune", "e.zip", "--keep", "1", "--out", "p.zip"): (2, 40),
}
"""Commands, and the MiB between which they may or may not end well."""


def _command(argv: tuple[str, ...], **limits: Any) -> Case:
    files = {"e.zip": ENSEMBLE, "d.xyz": XYZ, **DATA, **(run_files() if "run" in argv else {})}
    return Case(argv[0], argv, files, again=True, cpu_seconds=40.0, **limits)


def memory(draw: Random) -> Case:
    """Run a command in so little memory that the kernel may kill it, or what it starts."""
    if draw.random() < 0.12:
        made = training(memory_mb=int(draw.triangular(100, 900, 400)))
    elif draw.random() < 0.1:
        made = command_result(b'{"status": "completed", "objective": 1.0}')
        made = dataclasses.replace(made, memory_mb=draw.randrange(20, 90), again=True)
    else:
        argv = draw.choice(list(COMMANDS))
        made = _command(argv, memory_mb=draw.randint(*COMMANDS[argv]))
    return dataclasses.replace(made, name=f"memory-{made.memory_mb}-{made.name}")


def disks(draw: Random) -> Case:
    """Run a command on a disk that is full before it is done."""
    kilobytes = int(2 ** draw.uniform(2.0, 10.5))
    if draw.random() < 0.1:
        made = training(disk_kb=2 * kilobytes)
    elif draw.random() < 0.1:
        made = command_result(b'{"status": "completed", "objective": 1.0}')
        made = dataclasses.replace(made, disk_kb=kilobytes // 4, again=True)
    else:
        made = _command(draw.choice(list(COMMANDS)), disk_kb=kilobytes)
    return dataclasses.replace(made, name=f"disk-{made.disk_kb}-{made.name}")


OPTIMIZED: tuple[tuple[str, ...], ...] = (
    ("init", "structures.extxyz", "--dry-run"),
    ("plan", "c.toml"),
    ("run", "c.toml", "--run", "r", "--dry-run"),
    ("status", "run"),
    ("leaderboard", "run", "--json"),
    ("predict", "d.csv", *WITH, "--json", "--structure-column", "smiles"),
    ("predict", "POSCAR", *WITH, "--json"),
    ("predict", "d.json", *WITH, "--json"),
    ("predict", "d.xyz", *WITH, "--json"),
    BUILD,
)

REFUSED = ("d.xyz", "structures.extxyz", "structures.toml", "c.toml")
"""ASE's reader of these, or of data that they name, counts on assertions; a sentence says so."""


def optimized(draw: Random) -> Case:
    """Run a command without assertions, or without docstrings as well, on good or bad input."""
    argv = draw.choice(OPTIMIZED)
    files = {name: data for name, data, _ in STRUCTURE_FILES.values()}
    files |= {"e.zip": ENSEMBLE, "c.toml": toml(CAMPAIGN), **DATA}
    if "run" in argv[1:]:
        files |= run_files()
    bad = draw.random() < 0.7
    if bad:
        names = [name for name in files if name in argv] or ["run/events.jsonl"]
        name = draw.choice(names)
        files[name] = mutated(draw, files[name] or b"")
    wants: Wants = "any" if bad or set(REFUSED) & set(argv) else "ok"
    level = draw.choice([1, 2])
    return Case(f"optimized-{argv[0]}", argv, files, wants, optimize=level, cpu_seconds=90.0)


KILLED = str(Path(__file__).with_name("killed_campaign.py"))


def kills(draw: Random) -> Case:
    """Kill what runs a campaign whose trials have two ranks, at some moment, and go on."""
    files = {"seed": str(draw.randrange(10**6)).encode()}
    return Case("kills", (KILLED,), files, "ok", cpu_seconds=200.0, wall_seconds=400.0)
