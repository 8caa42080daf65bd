"""Commands as jobs: real programs in warm ranks, and how they end."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from processes import find_orphans, freeze, is_alive, open_lease, tagged, thaw, until

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.command_config import CommandConfig
from hydragnn_hpo.launching.command_rank import spec_of
from hydragnn_hpo.launching.job import Event, Job
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports.local import LocalBackend
from hydragnn_hpo.layout import RunDir

SECONDS = 300.0
"""Agent, zygote and command import from a cold disk, perhaps on a busy machine."""

LEASE_SECONDS = 240.0
"""An agent that gets no turn for longer loses its ranks, rightly."""

MPIEXEC = Path(sys.executable).parent / "mpiexec"
by_mpiexec = pytest.mark.skipif(not MPIEXEC.exists(), reason="install the extra [mpi].")

SHOW = """
import json, os, sys
names = "RANK WORLD_SIZE MASTER_PORT MASTER_ADDR EXTRA HYDRAGNN_HPO_HOSTS OMP_NUM_THREADS".split()
seen = {name: os.environ.get(name) for name in names}
seen |= {"python": sys.executable, "argv": sys.argv[1:]}
seen |= {"cwd": os.getcwd(), "cores": sorted(os.sched_getaffinity(0))}
with open(f"seen.{os.environ.get('RANK')}", "w") as file:
    json.dump(seen, file)
sys.exit(int(os.environ.get("RANK", 0)) * 3)
"""
POLITE = """
import signal, sys, time
def leave(*_):
    open("asked", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
open("ready", "w").close()
time.sleep(1500)
"""
FAMILY = """
import os, subprocess, sys, time
code = "import time; time.sleep(1500)"
pids = [os.getpid(), subprocess.Popen([sys.executable, "-c", code]).pid]
open("pids.part", "w").write(" ".join(map(str, pids)))
os.rename("pids.part", "pids")
time.sleep(1500)
"""


class Stage:
    """A local backend, one trial's folder, and what was told."""

    def __init__(self, backend: LocalBackend, run: Path, number: int = 0) -> None:
        self.run = RunDir(run)
        self.backend = backend
        self.trial = self.run.trial(f"t{number:04d}")
        self.job = f"t{number:04d}.1"
        self.folder = self.trial.attempt(1)
        self.folder.mkdir(parents=True)
        self.events: list[Event] = []

    def start(
        self, code: str, *more: str, width: int = 1, lease: float = LEASE_SECONDS, **changes: Any
    ) -> None:
        argv = changes.pop("argv", ("{python}", "-c", code, *more))
        command = CommandConfig(argv=argv, width=width, **changes)
        slots = self.backend.slots[:width]
        machine = MachineConfig(lease_seconds=lease)
        given = {"attempt": 1, "epochs": 7, "slots": slots, "machine": machine}
        spec = spec_of(command, self.trial, **given)
        forked = command.per == "rank" and command.launcher is None
        ranks = slots if forked else slots[:1]
        files = (self.folder / "log", self.folder / "metrics.jsonl")
        self.backend.start(Job(self.job, "command", len(ranks), spec, *files, ranks))

    def wait(self, kind: str) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while not (results := [event for event in self.events if event.kind == kind]):
            assert time.monotonic() < deadline, f"no {kind} in {self.events}"
            self.events += self.backend.poll(0.2)
        return results[0].data

    def until(self, name: str) -> Path:
        """Wait for a file of the command, serving the agent all the while, as a controller does."""
        path = self.folder / name
        deadline = time.monotonic() + SECONDS
        while not path.exists():
            assert time.monotonic() < deadline, f"no {name}; {self.events}"
            self.events += self.backend.poll(0.05)
        return path

    def seen(self, rank: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / f"seen.{rank}").read_text())
        return result

    def family(self) -> list[int]:
        return [int(pid) for pid in self.until("pids").read_text().split()]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


def backend_in(folder: Path) -> LocalBackend:
    return LocalBackend(slots=2, lease_seconds=LEASE_SECONDS, run_dir=folder, preload=())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    """Stages of one backend, for commands that leave it as it was."""
    folder = tmp_path_factory.mktemp("run")
    numbers = count()
    with backend_in(folder) as backend:
        yield lambda: Stage(backend, folder, next(numbers))
    assert find_orphans(run_tag(folder)) == []


@pytest.fixture
def calm(shared: Callable[[], Stage]) -> Stage:
    return shared()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A backend of its own, whose processes may be killed."""
    with backend_in(tmp_path) as backend:
        yield Stage(backend, tmp_path)
    assert find_orphans(run_tag(tmp_path)) == []


def test_each_rank_runs_the_command_where_its_files_belong(calm):
    fields = [
        f"{name}={{{name}}}" for name in ("trial", "folder", "checkpoints", "epochs", "width")
    ]
    calm.start(SHOW, *fields, "$HOME; {x y}", width=2, env={"EXTRA": "1 2"})

    assert calm.wait("ended")["codes"] == [0, 3]
    first = calm.seen("0")
    second = calm.seen("1")
    home = calm.trial.path.resolve()
    expected = [f"trial={home}/trial.toml", f"folder={home}/attempts/001"]
    expected += [f"checkpoints={home}/checkpoints", "epochs=7", "width=2", "$HOME; {x y}"]
    assert first["argv"] == second["argv"] == expected
    assert first["cwd"] == str(calm.folder.resolve())
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["EXTRA"] == "1 2"
    assert first["python"] == sys.executable, "the interpreter that runs us"


def test_one_process_for_all_ranks_gets_all_their_cores_and_no_rank(calm):
    calm.start(SHOW, "{width}", width=2, per="trial")

    assert calm.wait("ended")["codes"] == [0]
    seen = calm.seen("None")
    assert seen["argv"] == ["2"]
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["HYDRAGNN_HPO_HOSTS"]) == (None, None, "local")
    both = {core for slot in calm.backend.slots for core in slot.cores}
    assert set(seen["cores"]) == both


@pytest.mark.parametrize("launched", [False, pytest.param(True, marks=by_mpiexec)])
def test_a_request_to_end_reaches_the_command(calm, launched):
    more = {"width": 2, "launcher": "mpiexec"} if launched else {}
    calm.start(POLITE, **more)
    calm.until("ready")

    calm.backend.stop(calm.job, grace=SECONDS)

    codes = calm.wait("ended")["codes"]
    assert launched or codes == [0]
    assert (calm.folder / "asked").exists()


SLEEP = "import time; time.sleep(1500)"


@pytest.mark.parametrize(
    ("code", "changes", "ends", "says"),
    [
        (SLEEP, {"timeout": 0.3}, 124, "longer than 0.3 s and was ended."),
        ("", {"argv": ("no-such-program",)}, 127, "(No such file or directory)"),
        ("import os; os.kill(os.getpid(), 11)", {}, 128 + signal.SIGSEGV, ""),
        pytest.param(
            SLEEP,
            {"timeout": 1.0, "launcher": "mpiexec"},
            124,
            "the command took longer than 1 s",
            marks=by_mpiexec,
        ),
    ],
    ids=["too long", "not there", "signal", "launched"],
)
def test_how_a_command_ends_is_known_by_its_code(calm, code, changes, ends, says):
    calm.start(code, **changes)

    assert calm.wait("ended")["codes"] == [ends]
    assert says in calm.log


@pytest.mark.parametrize("victim", ["hpo-rank", "hpo-zygote", "hpo-agent"])
def test_nothing_that_a_command_started_outlives_its_rank(stage, victim):
    stage.start(FAMILY)
    family = stage.family()

    os.kill(tagged(stage.run.path, victim)[0], signal.SIGKILL)

    assert stage.wait("ended")["codes"] == [-9]
    until(lambda: not any(map(is_alive, family)), "end of the family")


def test_nothing_that_a_command_started_outlives_its_lease(stage):
    """Agent and zygote are frozen, so that only the rank itself can see to it."""
    stage.start(FAMILY)
    family = stage.family()
    frozen = [pid for name in ("hpo-agent", "hpo-zygote") for pid in tagged(stage.run.path, name)]

    assert freeze(frozen) == frozen
    assert all(map(is_alive, family))
    (agent,) = tagged(stage.run.path, "hpo-agent")
    lease = open_lease(agent)
    lease.grant(time.monotonic())  # as if it had not been renewed for long
    os.close(lease.descriptor)

    try:
        until(lambda: not any(map(is_alive, family)), "end of the family")
        assert all(map(is_alive, frozen)), "the controller had not yet done anything"
    finally:
        thaw(frozen)


def test_a_command_dies_with_its_rank_though_nobody_acts(stage):
    stage.start(FAMILY)
    command, _ = stage.family()
    frozen = [pid for name in ("hpo-agent", "hpo-zygote") for pid in tagged(stage.run.path, name)]
    (rank,) = tagged(stage.run.path, "hpo-rank")
    freeze(frozen)

    os.kill(rank, signal.SIGKILL)

    try:
        until(lambda: not is_alive(command), "end of the command", seconds=LEASE_SECONDS / 2)
        assert all(map(is_alive, frozen))
    finally:
        thaw(frozen)


@by_mpiexec
def test_ranks_of_a_launcher_take_the_slots_of_their_trial(calm):
    calm.start(SHOW, width=2, launcher="mpiexec", env={"EXTRA": "x"})

    codes = calm.wait("ended")["codes"]
    assert len(codes) == 1, "one warm rank holds all slots"
    for rank, slot in enumerate(calm.backend.slots):
        seen = calm.seen(str(rank))
        assert (seen["WORLD_SIZE"], seen["EXTRA"], seen["cwd"]) == ("2", "x", str(calm.folder))
        assert seen["cores"] == list(slot.cores)
        assert seen["OMP_NUM_THREADS"] == str(len(slot.cores))


OBEDIENT = """
import pathlib, sys, time
from hydragnn_hpo.rank_requests import RequestReader
reader = RequestReader()
pathlib.Path("ready").touch()
while (request := reader.read()) is None:
    time.sleep(0.05)
pathlib.Path("request").write_text(request)
sys.exit(6)
"""


@by_mpiexec
def test_a_request_reaches_the_first_rank_of_a_launcher_and_its_code_comes_back(calm):
    calm.start(OBEDIENT, launcher="mpiexec")
    calm.until("ready")

    calm.backend.ask(calm.job, "stop")

    assert calm.wait("ended")["codes"] == [6]
    assert (calm.folder / "request").read_text() == "stop"


@by_mpiexec
def test_ranks_of_a_launcher_end_once_nobody_renews_their_lease(stage):
    """The warm rank is killed and can end no process; mpiexec leaves its ranks behind."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stage.start(deaf + FAMILY, launcher="mpiexec", lease=3.0)
    family = stage.family()
    (warm,) = stage.wait("started")["pids"]

    os.kill(warm, signal.SIGKILL)

    assert stage.wait("ended")["codes"] == [-9]
    until(lambda: not any(map(is_alive, family)), "end of the command and what it started")
