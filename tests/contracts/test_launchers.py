"""What ``launching.job`` promises, for backends with one launcher per job: mpiexec and srun.

``srun`` is a fake that starts every rank here; a real one follows in the slow tests.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_alive, until

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.job import Event, Job
from hydragnn_hpo.launching.launchers import launched
from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec
from hydragnn_hpo.launching.launchers.processes import ProcessBackend
from hydragnn_hpo.launching.launchers.steps import HostSize, Steps
from hydragnn_hpo.launching.process_control import find_orphans, run_tag

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"
SECONDS = 150.0
"""For what comes at once on a quiet machine; ranks that nobody ends stay for an hour."""

LONG_LEASE = 300.0
"""Outlives whatever keeps a controller from its turn."""

SHORT_LEASE = 8.0
"""A test may wait for its end, and a busy machine does not reach it."""

NAMES = ("report", "misbehave", "nothing", "emit", "sleep", "polite", "stubborn", "parent")
TARGETS = {name: f"rank_targets:{name}" for name in NAMES}

FAKE_SRUN = """\
#!{python}
# Starts a rank per line of the host file; notes its command; ends like srun, with 0.
import json, os, signal, subprocess, sys, time
home = os.path.dirname(os.path.abspath(__file__))
with open(home + "/called", "a") as file:
    file.write(json.dumps([time.monotonic(), sys.argv[1:]]) + "\\n")
refuse = home + "/refuse"
if os.path.exists(refuse) and int(open(refuse).read()) > 0:
    left = int(open(refuse).read()) - 1
    open(refuse, "w").write(str(left))
    sys.exit("srun: error: Unable to create step for job 1: Requested nodes are busy")
program = next(n for n, word in enumerate(sys.argv) if n and not word.startswith("--"))
ranks = []
for rank, host in enumerate(open(os.environ["SLURM_HOSTFILE"]).read().split()):
    more = dict(SLURM_PROCID=str(rank), SLURMD_NODENAME=host)
    ranks.append(subprocess.Popen(sys.argv[program:], env=os.environ | more))
def end(*_):
    for rank in ranks:
        rank.kill()
signal.signal(signal.SIGTERM, end)
for rank in ranks:
    rank.wait()
with open(home + "/called", "a") as file:
    file.write(json.dumps([time.monotonic(), None]) + "\\n")
"""


class Stage:
    """A backend over some launcher, the folder of its jobs, and all events it told."""

    def __init__(self, folder: Path, make_launcher: Callable[[], Any], bin: Path) -> None:
        self.folder, self.make_launcher, self.bin = folder, make_launcher, bin
        self.events: list[Event] = []
        self.backend: ProcessBackend | None = None

    def open(self, lease_seconds: float = LONG_LEASE, **more: Any) -> ProcessBackend:
        self.backend = ProcessBackend(
            self.make_launcher(),
            lease_seconds=lease_seconds,
            run_dir=self.folder,
            jobs=TARGETS,
            **more,
        )
        return self.backend

    def start(self, kind: str, *, name: str = "job", width: int = 1, **spec: Any) -> Job:
        folder = self.folder / name
        folder.mkdir()
        watch = folder / "metrics.jsonl"
        spec |= {"folder": str(folder), "metrics": str(watch)}
        slots = self.backend.slots[:width]
        job = Job(name, kind, width, spec, folder / "log", folder / "lease", watch, slots)
        self.backend.start(job)
        return job

    def told(self, kind: str, job: str | None = None) -> list[Event]:
        return [event for event in self.events if (event.kind, event.job) == (kind, job)]

    def wait(self, kind: str, job: str | None = None, seconds: float = SECONDS) -> Event:
        deadline = time.monotonic() + seconds
        while not self.told(kind, job):
            assert time.monotonic() < deadline, f"no {kind} of {job} in {self.events}"
            self.events += self.backend.poll(0.2)
        return self.told(kind, job)[0]

    def shown(self, job: Job, name: str, rank: int = 0) -> Any:
        path = self.folder / job.id / f"{name}.{rank}"

        def look() -> bool:
            self.events += self.backend.poll(0.0)
            return path.exists()

        until(look, str(path))
        return json.loads(path.read_text())

    def named(self, name: str) -> list[int]:
        found = []
        for pid in find_orphans(run_tag(self.folder)):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
        return found

    def launchers(self) -> list[int]:
        """Find the fake srun, or the mpiexec itself."""
        found = []
        for pid in find_orphans(run_tag(self.folder)):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                words = [os.path.basename(word) for word in command[:2]]
                if b"srun" in words or b"mpiexec" in words:
                    found.append(pid)
        return found

    def calls(self) -> list[Any]:
        return [json.loads(line) for line in (self.bin / "called").read_text().splitlines()]


def make_srun() -> Steps:
    return Steps(("h1", "h2"), HostSize(cpus=2, gpus=0), slots=1)


def make_mpiexec() -> Mpiexec:
    return Mpiexec(slots=2, environment={})


no_mpiexec = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: install the extra [mpi].")
LAUNCHERS = [
    pytest.param(make_srun, id="srun"),
    pytest.param(make_mpiexec, id="mpiexec", marks=no_mpiexec),
]


@pytest.fixture(params=LAUNCHERS)
def stage(request, tmp_path, monkeypatch) -> Iterator[Stage]:
    bin, run = tmp_path / "bin", tmp_path / "run"
    bin.mkdir(), run.mkdir()
    fake = bin / "srun"
    fake.write_text(FAKE_SRUN.format(python=sys.executable))
    fake.chmod(0o700)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the user")
    stage = Stage(run, request.param, bin)
    yield stage
    if stage.backend:
        stage.backend.close()
    until(lambda: find_orphans(run_tag(run)) == [], "end of all")


only_srun = pytest.mark.parametrize("stage", LAUNCHERS[:1], indirect=True)


@pytest.mark.parametrize("width", [1, 2])
def test_a_job_runs_in_ranks_that_know_their_place(stage, width):
    stage.open()

    job = stage.start("report", width=width)

    assert stage.wait("ended", "job").data["codes"] == [0] * width
    hosts = [slot.host for slot in job.slots]
    reports = [stage.shown(job, "report", rank) for rank in range(width)]
    for rank, seen in enumerate(reports):
        environment = seen["environment"]
        assert environment["RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == str(width)
        assert environment["LOCAL_RANK"] == str(hosts[:rank].count(hosts[rank]))
        assert environment["LOCAL_WORLD_SIZE"] == str(hosts.count(hosts[rank]))
        assert environment["MASTER_PORT"] == reports[0]["environment"]["MASTER_PORT"]
        assert 20000 <= int(environment["MASTER_PORT"]) < 30000
        assert environment["HYDRAGNN_HPO_JOB"] == f"{run_tag(stage.folder)}/job"
        assert environment["HYDRAGNN_HPO_DEVICE"] == job.slots[rank].device
        one_host = len(set(hosts)) == 1
        assert environment["GLOO_SOCKET_IFNAME"] == ("lo" if one_host else "of the user")
        assert (seen["stdin"], seen["leader"], seen["signals"]) == ("", True, [True] * 3)


def test_events_of_a_job_come_in_order_and_once(stage):
    stage.open()

    job = stage.start("nothing", width=2, lines=3)

    stage.wait("ended", "job")
    stage.events += stage.backend.poll(0.3)
    kinds = [event.kind for event in stage.events]
    assert kinds == ["ready", "started", "record", "record", "record", "ended"]
    assert [event.data["number"] for event in stage.told("record", "job")] == [0, 1, 2]
    assert len(stage.events[1].data["pids"]) == 2
    assert stage.events[-1].data["signal_sent"] is False
    assert stage.events[-1].data["error"] is None
    assert {path.name for path in job.log.parent.iterdir()} == {"log", "metrics.jsonl"}


def test_every_rank_has_its_own_exit_code_and_the_log_what_all_said(stage):
    stage.open()

    job = stage.start("report", width=2, codes=[0, 3])

    assert stage.wait("ended", "job").data["codes"] == [0, 3]
    expected = {f"{stream} of rank {rank}" for stream in ("out", "err") for rank in (0, 1)}
    assert set(job.log.read_text().splitlines()) == expected
    assert job.log.stat().st_mode & 0o777 == 0o600


def test_records_come_completely_and_while_the_job_runs(stage):
    stage.open()

    job = stage.start("emit", lines=1000, stay=True)

    stage.wait("record", "job")
    stage.shown(job, "emitted")
    assert not stage.told("ended", "job")
    stage.backend.stop("job")
    stage.wait("ended", "job")
    numbers = [event.data["number"] for event in stage.told("record", "job")]
    assert numbers == list(range(1000))


@pytest.mark.slow
def test_a_controller_that_does_not_listen_stops_nobody(stage):
    """A thread goes on renewing leases."""
    stage.open(lease_seconds=20.0)
    job = stage.start("emit", lines=1, stay=True)
    stage.shown(job, "emitted")

    for _ in range(2):
        before = job.lease.stat().st_mtime_ns
        until(lambda before=before: job.lease.stat().st_mtime_ns != before, "renewal")
    (job.log.parent / "go").touch()

    assert stage.wait("ended", "job").data["codes"] == [0]


def test_an_unknown_kind_is_said(stage):
    stage.open()
    with pytest.raises(JobError, match="unknown kind of job 'slep'. Did you mean 'sleep'"):
        stage.start("slep")


def test_stop_lets_a_job_end_by_itself(stage):
    stage.open()
    job = stage.start("polite", width=2)
    [stage.shown(job, "pid", rank) for rank in range(2)]

    stage.backend.stop("job", grace=100.0)

    ended = stage.wait("ended", "job")
    assert (ended.data["codes"], ended.data["signal_sent"]) == ([0, 0], True)


def test_stop_forces_a_job_after_its_grace(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    pids = [stage.shown(job, "pid", rank) for rank in range(2)]

    stage.backend.stop("job", grace=0.5)

    assert stage.wait("ended", "job").data["codes"] == [-9, -9]
    assert not any(map(is_alive, pids))


@pytest.mark.slow
def test_a_killed_rank_ends_its_peers_and_is_named_as_the_first(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    pids = [stage.shown(job, "pid", rank) for rank in range(2)]

    os.kill(pids[1], signal.SIGKILL)

    ended = stage.wait("ended", "job").data
    assert (ended["codes"], ended["first"]) == ([-9, -9], 1)
    assert not is_alive(pids[0])


def test_what_a_rank_started_ends_with_it(stage):
    stage.open()
    job = stage.start("parent")
    children = stage.shown(job, "children")
    pid = stage.shown(job, "pid")

    os.kill(pid, signal.SIGKILL)

    stage.wait("ended", "job")
    until(lambda: not any(map(is_alive, children)), "end of the children")


@pytest.mark.slow
def test_a_killed_launcher_ends_its_job_and_no_other(stage):
    """Its end is told only when no rank can be alive."""
    stage.open()
    job = stage.start("stubborn", width=2)
    pids = [stage.shown(job, "pid", rank) for rank in range(2)]
    (launcher,) = stage.launchers()
    other = stage.start("polite", name="other")
    stage.shown(other, "pid")

    os.kill(launcher, signal.SIGKILL)

    ended = stage.wait("ended", "job").data
    assert all(code != 0 for code in ended["codes"])
    assert not any(map(is_alive, pids))
    stage.events += stage.backend.poll(0.5)
    assert not stage.told("ended", "other")


def test_a_lease_that_is_taken_away_ends_the_ranks(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    [stage.shown(job, "pid", rank) for rank in range(2)]

    job.lease.unlink()

    assert stage.wait("ended", "job").data["codes"] == [75, 75]
    assert "lease" in job.log.read_text()


@pytest.mark.slow
def test_ranks_of_frozen_keepers_end_themselves(stage):
    stage.open(lease_seconds=SHORT_LEASE)
    job = stage.start("stubborn", width=2)
    pids = [stage.shown(job, "pid", rank) for rank in range(2)]
    keepers = stage.named("hpo-keeper")
    assert len(keepers) == 2

    for keeper in keepers:
        os.kill(keeper, signal.SIGSTOP)

    until(lambda: not any(map(is_alive, pids)), "end of the ranks")
    for keeper in keepers:
        os.kill(keeper, signal.SIGCONT)
    codes = stage.wait("ended", "job").data["codes"]
    assert set(codes) <= {75, -signal.SIGALRM}, "the kernel ends whoever comes too late for it"


def test_close_ends_everything(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    stage.shown(job, "pid", 1)
    stage.start("stubborn", name="late")

    stage.backend.close()
    stage.backend.close()

    assert find_orphans(run_tag(stage.folder)) == []


CONTROLLER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec
from hydragnn_hpo.launching.launchers.processes import ProcessBackend
from hydragnn_hpo.launching.launchers.steps import HostSize, Steps
folder = Path(sys.argv[2])
steps = Steps(("h1", "h2"), HostSize(cpus=2, gpus=0), slots=1)
launcher = steps if sys.argv[3] == "srun" else Mpiexec(slots=2, environment={})
jobs = {"stubborn": "rank_targets:stubborn"}
backend = ProcessBackend(launcher, run_dir=folder, jobs=jobs, lease_seconds=8.0)
spec = {"folder": str(folder)}
backend.start(Job("j", "stubborn", 2, spec, folder / "log", folder / "lease", None, backend.slots))
while True:
    backend.poll(1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_controller_that_is_gone_or_frozen_leaves_no_rank(stage, number):
    kind = "srun" if stage.make_launcher is make_srun else "mpiexec"
    command = [sys.executable, "-c", CONTROLLER, str(HERE.parents[1]), str(stage.folder), kind]
    with subprocess.Popen(command) as controller:
        files = [stage.folder / f"pid.{rank}" for rank in range(2)]
        until(lambda: all(file.exists() for file in files), "ranks")
        pids = [json.loads(file.read_text()) for file in files]
        os.kill(controller.pid, number)
        until(lambda: not any(map(is_alive, pids)), "end of the ranks")
        controller.kill()


@only_srun
def test_few_launchers_are_alive_and_the_others_wait_in_order(stage, monkeypatch):
    begin, began = launched.Launched.begin, []

    def noted(self):
        began.append((self.job.id, len(stage.backend._alive)))
        begin(self)

    monkeypatch.setattr(launched.Launched, "begin", noted)
    stage.open(most_alive=2)
    for number in range(5):
        stage.start("sleep", name=f"j{number}", seconds=0.3)
    stage.backend.stop("j4")

    for number in range(5):
        codes = stage.wait("ended", f"j{number}").data["codes"]
        assert codes == ([-signal.SIGTERM] if number == 4 else [0])
    calls = stage.calls()
    names = [word for _, argv in calls for word in argv or () if word.startswith("--job-name=")]
    started = [int(name[-1]) for name in names]
    assert sorted(started) == [0, 1, 2, 3]
    assert [name for name, _ in began] == ["j0", "j1", "j2", "j3"]
    assert max(alive for _, alive in began) == 2
    alive = most = 0
    for _, argv in sorted(calls, key=lambda call: call[0]):
        alive += 1 if argv else -1
        most = max(most, alive)
    assert most <= 2


@pytest.mark.slow
@only_srun
def test_a_step_that_cannot_be_created_is_tried_again_after_growing_pauses(stage, monkeypatch):
    back_off = (0.1, 0.5, 4.0)
    monkeypatch.setattr(launched, "_BACK_OFF", back_off)
    (stage.bin / "refuse").write_text("3")
    stage.open()

    job = stage.start("nothing")

    assert stage.wait("ended", "job").data["codes"] == [0]
    times = [when for when, argv in stage.calls() if argv]
    pauses = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert len(pauses) == 3
    assert all(pause >= least for pause, least in zip(pauses, back_off, strict=True)), pauses
    assert job.log.read_text().count("Requested nodes are busy") == 3


@only_srun
def test_a_step_that_can_never_be_created_is_told_with_the_reason(stage, monkeypatch):
    monkeypatch.setattr(launched, "_BACK_OFF", (0.05, 0.05))
    (stage.bin / "refuse").write_text("100")
    stage.open()

    stage.start("nothing", width=2)

    ended = stage.wait("ended", "job").data
    assert ended["codes"] == [-9, -9]
    said = "srun: error: Unable to create step for job 1: Requested nodes are busy (tried 3 times)."
    assert ended["error"] == said


@only_srun
def test_stop_also_ends_the_tries(stage, monkeypatch):
    monkeypatch.setattr(launched, "_BACK_OFF", (0.2,) * 1000)
    (stage.bin / "refuse").write_text("1000")
    stage.open()
    stage.start("nothing")
    until(lambda: stage.backend.poll(0.0) or (stage.bin / "called").exists(), "first try")

    stage.backend.stop("job")

    assert stage.wait("ended", "job").data["codes"] == [-9]


def test_what_cannot_be_rendered_or_written_ends_its_job_alone(stage, monkeypatch):
    def refuse(*_: Any) -> None:
        raise ConfigError("there is no way.")

    stage.open()
    with monkeypatch.context() as patch:
        patch.setattr(type(stage.backend._launcher), "render", refuse)
        stage.start("nothing", name="first")
        assert stage.wait("ended", "first").data["error"] == "there is no way."
    nowhere = stage.folder / "nowhere"
    slots = stage.backend.slots[:1]
    stage.backend.start(Job("second", "nothing", 1, {}, nowhere / "l", nowhere / "e", None, slots))
    assert "nowhere" in stage.wait("ended", "second").data["error"]
    stage.start("nothing", name="third")
    assert stage.wait("ended", "third").data["codes"] == [0]


@pytest.mark.slow
def test_nobody_starts_where_ranks_of_a_lost_controller_may_live_on(stage):
    """Their leases are taken away, and hold for one lease time at most."""
    old = ProcessBackend(
        stage.make_launcher(), lease_seconds=SHORT_LEASE, run_dir=stage.folder, jobs=TARGETS
    )
    stage.backend = old
    job = stage.start("stubborn", name="old")
    pid = stage.shown(job, "pid")
    old._closing.set()  # it renews no lease any more, as if it were gone
    began = time.monotonic()

    stage.open(lease_seconds=SHORT_LEASE)
    stage.start("nothing", name="new")

    stage.wait("started", "new")
    assert time.monotonic() - began >= SHORT_LEASE
    assert not is_alive(pid)
    old._alive["old"].end()
