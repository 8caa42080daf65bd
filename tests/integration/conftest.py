"""Real commands on a small data set: how to start, watch, kill and judge them."""

import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from ase import Atoms
from ase.io import write
from command_lines import make_place
from processes import find_orphans, freeze, send, tagged, thaw
from tutorials import PageRunner

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.cli.command_line import main
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.launching.process_control import end_orphans, run_tag

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hydragnn_hpo"]
DEADLINE = 300.0
"""Seconds to wait for anything; a quiet machine takes a twentieth of it."""

Values = dict[str, Any]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Return the first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
    return result


def merged(into: Values, changes: Values) -> Values:
    """Change nested values; None drops a key."""
    result = dict(into)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inner else value
    return {key: value for key, value in result.items() if value is not None}


def ci_campaign(**changes: Any) -> Values:
    """Return the shipped test campaign with some values changed."""
    return merged(tomllib.loads((ROOT / "workflows" / "ci.toml").read_text()), changes)


def events(run: Path, *kinds: str) -> list[Values]:
    """Return the journal's events of some kinds, or all."""
    return [e for e in read_journal(run / "events.jsonl") if not kinds or e["event"] in kinds]


def strays(run: Path) -> list[int]:
    return find_orphans(run_tag(run))


def training(rank: int) -> SimpleNamespace | None:
    """Say what a frozen rank trains, as its files have it: trial, epochs, checkpoint; else None."""
    try:
        place = Path(os.readlink(f"/proc/{rank}/fd/1")).parent
        placement = tomllib.loads((place / "placement.toml").read_text())
        lines = (place / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError:  # it is no rank of a trial, or has not begun
        return None
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    epochs, saved = 0, -1
    for record in records:
        match record["record"]:
            case "ready" if record["resumed"]:
                epochs = saved = record["reached"]
            case "epoch":
                epochs = record["epoch"]
            case "checkpoint":
                saved = record["epoch"]
    left = 0 if (place / "result.json").exists() else placement["epochs"] - epochs
    return SimpleNamespace(rank=rank, trial=place.parents[1].name, saved=saved, left=left)


@contextlib.contextmanager
def held(
    run: Path, *, ended: int = 0, reached: int = 2, left: int = 6, seconds: float = DEADLINE
) -> Iterator[SimpleNamespace]:
    """Freeze all ranks of a campaign while a trial has a checkpoint and epochs to go.

    Whatever is killed meanwhile is killed in the middle of its work, on the fastest machine and on
    the slowest. Gives a rank of the trial, its name, and all ranks; they are thawed at the end.

    Args:
        run: the campaign.
        ended: how many attempts must have ended before.
        reached: epochs of which the trial must have a checkpoint.
        left: epochs that it must still have to go, at least.
        seconds: how long to wait.
    """
    deadline = time.monotonic() + seconds
    wait_for(lambda: len(events(run, "ended")) >= ended, f"{ended} attempts that ended", seconds)
    while True:
        ranks = freeze(tagged(run, "hpo-rank"))
        results = [one for rank in ranks if (one := training(rank))]
        if now := next((f for f in results if f.saved >= reached and f.left >= left), None):
            break
        thaw(ranks)
        assert time.monotonic() < deadline, f"waited {seconds:g} s for a trial in training"
        time.sleep(0.03)
    try:
        yield SimpleNamespace(trial=now.trial, rank=now.rank, ranks=ranks)
    finally:
        thaw(ranks)


def molecules(count: int, seed: int = 3) -> list[Atoms]:
    """Make small chains whose targets are a sum over pairs: enough to train a little on."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(random.integers(2, 8))
        atoms = Atoms(random.choice([1, 6, 8], size), positions=np.zeros((size, 3)))
        atoms.positions[:, 0] = np.cumsum(random.uniform(0.9, 1.4, size))
        atoms.positions[:, 1] = random.uniform(-0.3, 0.3, size)
        charges = atoms.numbers - atoms.numbers.mean()
        atoms.info["energy_like"] = float(np.diff(atoms.positions[:, 0]).mean() - 0.01 * size)
        atoms.arrays["charge_like"] = 0.1 * charges
        atoms.arrays["force_like"] = random.normal(size=(size, 3))
        made.append(atoms)
    return made


CARD: Values = {
    "name": "tiny",
    "files": [{"path": "tiny.extxyz"}],
    "targets": {
        "energy_like": {"level": "graph", "unit": "eV"},
        "charge_like": {"level": "node", "unit": "e"},
        "force_like": {"level": "node", "shape": "vector", "unit": "eV/angstrom"},
    },
    "graphs": {"cutoff": 4.0},
    "split": {"group": "structure"},
}

TRIAL: Values = {
    "trial": "tiny",
    "seed": 5,
    "data": {"store": "../tiny.bp"},
    "model": {"conv": "painn", "features": 16, "layers": 2, "cutoff": 4.0},
    "heads": {"energy_like": {}, "charge_like": {}},
    "training": {"epochs": 4, "global_batch": 8, "checkpoint_seconds": 0.0},
}


def tiny_campaign(**changes: Any) -> Values:
    """Give a campaign on the made molecules."""
    return merged(
        ci_campaign(
            data=[{"card": "tiny.toml"}],
            trial={
                "heads": {"atomization_energy_per_atom": None, "partial_charge": None},
                "training": {"global_batch": 8},
            },
            space={"model.conv": ["schnet", "painn"]},
            search={"brain": "random"},
        ),
        merged({"trial": {"heads": {"energy_like": {}, "charge_like": {}}}}, changes),
    )


def files_of(folder: Path) -> set[str]:
    """Name all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Commands:
    """Starts commands in a folder, and holds what every test of commands needs.

    It is a fixture because test modules cannot import from each other.
    """

    wait_for, events, strays = map(staticmethod, (wait_for, events, strays))
    named, held = staticmethod(tagged), staticmethod(held)
    merged, ci_campaign = staticmethod(merged), staticmethod(ci_campaign)
    root = ROOT

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = list[subprocess.Popen[str]]()

    def start(
        self, *arguments: str | Path, preexec_fn: Callable[[], None] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "200"} | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec_fn,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: str | Path, seconds: float = 800.0, **options: Any) -> Any:
        """Run a command to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=seconds)
        return SimpleNamespace(code=process.returncode, out=out, err=err)

    def kill(self, process: subprocess.Popen[str], run: Path) -> None:
        """Kill the controller of a run, and wait until all its processes are gone."""
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.kill()
        process.wait()
        self.wait_for(lambda: not self.strays(run), "the last process to go")

    def json(self, *arguments: str | Path) -> Any:
        """Give what a command that only reads prints as JSON."""
        done = self.here(*arguments, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    def here(self, *arguments: str | Path) -> Any:
        """Run a command inside the test's own process, which saves a second of imports."""
        out = io.StringIO()
        err = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["hydragnn-hpo", *map(str, arguments)])
            if {"init", "--minutes"} & set(arguments):  # measuring takes seconds
                speed = "hydragnn_hpo.pipeline.machine_speed.measure_slowdown"
                patch.setattr(speed, lambda profile: 1.0)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main()
                    code = 0
                except SystemExit as leaving:
                    code = leaving.code
        return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())

    def refused(
        self, *arguments: str | Path, says: tuple[str, ...], alone: bool = False, **options: Any
    ) -> str:
        """Run a command that must end with one sentence that holds some words.

        Args:
            arguments: the command.
            says: words of the sentence.
            alone: run it in a process of its own.
            options: environment and the like of that process.
        """
        done = self(*arguments, **options) if alone else self.here(*arguments)
        return self.judge(done, says)

    def judge(self, done: Any, says: tuple[str, ...], code: int = 2) -> str:
        """See that a command ended with a code and one sentence that holds some words."""
        assert done.code == code, f"exit code {done.code}: {done.out} {done.err}"
        assert "Traceback" not in done.err
        lines = done.err.strip().splitlines()
        assert len(lines) == 1, f"one sentence was wanted: {done.err}"
        assert lines[0].startswith("error: ")
        missing = [word for word in says if word not in lines[0]]
        assert not missing, f"{missing} not in: {lines[0]}"
        return lines[0]

    def card(self, atoms: list[Atoms] | None = None, **changes: Any) -> Path:
        """Write a card and, unless there are none, its structures."""
        if atoms is not None:
            write(self.folder / "tiny.extxyz", atoms, format="extxyz")
        return self.toml("tiny.toml", merged(CARD, changes))

    def store(self) -> Path:
        """Build a store of small molecules."""
        done = self.here("dataset", "build", self.card(molecules(60)))
        assert done.code == 0, done.err
        return self.folder / "tiny.bp"

    def trial(self, name: str = "trial", **changes: Any) -> Path:
        """Write a trial directory on that store."""
        return self.toml(f"{name}/trial.toml", merged(TRIAL, changes)).parent

    def campaign(self, **changes: Any) -> Path:
        """Write a campaign on the card of small molecules."""
        return self.toml("campaign.toml", tiny_campaign(**changes))

    def fake_campaign(self, **changes: Any) -> Path:
        """Write a campaign over ``fake_trial.py``, which takes hundredths of a second."""
        fake = Path(__file__).with_name("fake_trial.py")
        argv = ["{python}", str(fake), "{trial}", "{folder}", "{checkpoints}", "{epochs}"]
        values = {
            "name": "fake",
            "seed": 1,
            "trial": {"seconds": 0.05},
            "space": {"x": {"low": 0.0, "high": 1.0}},
            "command": {"argv": [*argv, str(self.folder)]},
            "machine": {"slots": 2},
            "search": {"brain": "random", "finalists": 2},
        }
        return self.toml("campaign.toml", merged(values, changes))

    def toml(self, name: str, values: Values) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(values))
        return path

    def end(self) -> None:
        """Kill what still runs, with its children: a frozen one would hold its pipes for ever."""
        for process in self.started:
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                send((child.pid for child in family), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=60.0)
        for run in self.folder.glob("run*"):
            end_orphans(run_tag(run))

    molecules = staticmethod(molecules)
    files_of = staticmethod(files_of)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever looks at a finished campaign waits until it has run; items of all rooms come here."""
    for item in items:
        ours = item.path.is_relative_to(Path(__file__).parent)
        if ours and "finished" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def hpo(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.end()


@pytest.fixture
def place(hpo: Commands) -> Commands:
    """A folder with what ``make_place`` puts there."""
    make_place(hpo.folder)
    return hpo


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build one store of small molecules, for all tests that only train on it."""
    return Commands(tmp_path_factory.mktemp("tiny")).store()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One whole campaign, ``workflows/ci.toml``, for all tests that only look at it.

    The first worker that asks runs it, the others wait; each has a copy.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    made = common / "ci"
    folder = tmp_path_factory.mktemp("finished")
    made.mkdir(exist_ok=True)
    with (made / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "printed.json").exists():
            maker = Commands(made)
            done = maker("run", ROOT / "workflows" / "ci.toml", "--run", made / "run", "--json")
            maker.end()
            assert done.code == 0, done.err
            (made / "printed.json").write_text(done.out)
    shutil.copytree(made / "run", folder / "run")
    printed = json.loads((made / "printed.json").read_text())
    commands = Commands(folder)
    yield SimpleNamespace(run=folder / "run", printed=printed, hpo=commands)
    commands.end()


@pytest.fixture(scope="module")
def page_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageRunner]:
    """One folder for all pages of a file: some go on where others ended."""
    made = PageRunner(tmp_path_factory.mktemp("desk"))
    yield made
    for run in made.folder.glob("runs/*"):
        end_orphans(run_tag(run))
