"""One suite for every backend: jobs run, tell, end and die as ``launching.job`` promises."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import find_orphans, is_alive, open_lease, tagged, until

from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.job import Backend, Event, Job
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports import ray
from hydragnn_hpo.launching.transports.local import LocalBackend
from hydragnn_hpo.launching.transports.mpiexec import mpiexec_transport
from hydragnn_hpo.launching.transports.ray import RayTransport
from hydragnn_hpo.launching.transports.slurm import slurm_transport

HERE = Path(__file__).parent
SECONDS = 150.0
"""For what comes at once on a quiet machine; ranks that nobody ends stay for an hour."""

LONG_LEASE = 300.0
"""Outlives whatever keeps an agent from its turn."""

FENCED_LEASE = 40.0
"""Also outlives that, but a test may wait for its end."""

TARGETS = (
    *("obey", "report", "misbehave", "nothing", "emit", "sleep", "polite", "stubborn", "parent"),
    "all_reduce",
)
JOBS = {name: f"rank_targets:{name}" for name in TARGETS} | {
    "no_function": "rank_targets:nowhere",
    "no_module": "no_such_module:main",
}
TORCH = ("torch", "torch.distributed", "torch._dynamo")


def make_local(
    run_dir: Path, preload: tuple[str, ...], environment: dict[str, str], **options: float
) -> Backend:
    return LocalBackend(slots=2, run_dir=run_dir, jobs=JOBS, preload=preload, **options)


def make_fleet(
    name: str,
    run_dir: Path,
    preload: tuple[str, ...],
    environment: dict[str, str],
    **options: float,
) -> Backend:
    machine = MachineConfig(backend=name, slots=2, **options)
    transport = TRANSPORTS[name](machine, run_dir, environment)
    return fleet_on(transport, machine, run_dir, preload, jobs=JOBS)


def make_ray(
    run_dir: Path, preload: tuple[str, ...], environment: dict[str, str], **options: float
) -> Backend:
    machine = MachineConfig(
        backend="ray", address=environment["ADDRESS"], hosts=1, slots=2, **options
    )
    transport = RayTransport(machine, run_dir=run_dir, environment=environment)
    return fleet_on(transport, machine, run_dir, preload, jobs=JOBS)


TRANSPORTS = {"slurm": slurm_transport, "mpiexec": mpiexec_transport}
BACKENDS = {
    "local": make_local,
    **{name: functools.partial(make_fleet, name) for name in TRANSPORTS},
    "ray": make_ray,
}


class Stage:
    """A backend, the folder of its jobs, and all events it told."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.name, self.folder = name, folder
        self.events: list[Event] = []
        self.backend: Backend | None = None
        self._environment = environment

    @property
    def outlives(self) -> bool:
        """Whether agents outlive their controller, so that ranks hang on its beats."""
        return self.name != "local"

    def open(
        self,
        lease_seconds: float | None = None,
        preload: tuple[str, ...] = (),
        sample_seconds: float = 0.0,
    ) -> Backend:
        """Have a backend of one host with two slots, which can be used at once."""
        usual = FENCED_LEASE if self.outlives else LONG_LEASE
        self.lease_seconds = lease_seconds or usual
        self.backend = BACKENDS[self.name](
            self.folder,
            preload,
            environment=self._environment,
            lease_seconds=self.lease_seconds,
            sample_seconds=sample_seconds,
        )
        until(lambda: self.receive() or self.backend.slots, "slots")
        self.events = [event for event in self.events if event.kind != "host_joined"]
        return self.backend

    def receive(self) -> None:
        """Keep the backend alive, on whose beats ranks may hang."""
        if self.outlives:
            self.events += self.backend.poll(0.0)

    def lease(self) -> float:
        """Read until when the agent lets its ranks run, from its memory."""
        (agent,) = tagged(self.folder, "hpo-agent")
        lease = open_lease(agent)
        until = lease.read()
        os.close(lease.descriptor)
        return until

    def start(self, kind: str, *, name: str = "job", width: int = 1, **spec) -> Job:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        slots = until(lambda: self.receive() or self.backend.slots, "slots")[:width]
        watch = folder / "metrics.jsonl"
        spec |= {"folder": str(folder), "metrics": str(watch)}
        job = Job(name, kind, width, spec, folder / "log", watch, slots)
        self.backend.start(job)
        return job

    def renewed(self) -> None:
        """Wait until the lease was renewed twice, without listening."""
        for _ in range(2):
            before = self.lease()
            until(lambda before=before: self.lease() > before, "renewal")

    def go(self, job: Job) -> None:
        """End ranks that stay, and well."""
        (self.folder / job.id / "go").touch()

    def events_of(self, kind: str, job: str | None = None) -> list[Event]:
        return [event for event in self.events if (event.kind, event.job) == (kind, job)]

    def wait(
        self, kind: str, job: str | None = None, seconds: float = SECONDS, count: int = 1
    ) -> Event:
        """Poll until so many of such events were told; gives the last of them."""
        deadline = time.monotonic() + seconds
        while len(self.events_of(kind, job)) < count:
            assert time.monotonic() < deadline, f"no {kind} of {job} in {self.events}"
            self.events += self.backend.poll(0.2)
        return self.events_of(kind, job)[-1]

    def wait_for_output(self, job: Job, name: str, rank: int = 0):
        """Wait for what a rank has shown."""
        path = self.folder / job.id / f"{name}.{rank}"
        until(lambda: self.receive() or path.exists(), str(path))
        return json.loads(path.read_text())

    def works(self, name: str) -> None:
        """Check that a new job runs well."""
        self.start("nothing", name=name)
        assert self.wait("ended", name).data["codes"] == [0]


everywhere = pytest.mark.parametrize(
    "stage",
    [
        "local",
        pytest.param("mpiexec", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.stress) for name in ("slurm", "ray")),
    ],
    indirect=True,
)
"""Marks what depends on how agents are started and reached; the rest is the core's own."""


@pytest.fixture
def stage(request, tmp_path, monkeypatch) -> Iterator[Stage]:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    name = getattr(request, "param", "local")
    environment = {}
    if name == "slurm":
        environment = request.getfixturevalue("slurm").allocate(1)
        monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    elif name == "mpiexec":
        if not (Path(sys.executable).parent / "mpiexec").exists():
            pytest.skip("mpiexec is not here: install the extra [mpi].")
        nodes = tmp_path.with_name(f"{tmp_path.name}.nodes")
        nodes.write_text("h1\n")
        environment = {"PBS_NODEFILE": str(nodes)}
        monkeypatch.setenv("HYDRA_LAUNCHER", "fork")  # hosts by any name, all of them this one
    elif name == "ray":
        cluster = request.getfixturevalue("ray_cluster")
        monkeypatch.setattr(ray, "_RESERVE_SECONDS", 3 * SECONDS)
        environment = cluster.environment | {"ADDRESS": cluster.address, "PYTHONPATH": path}
    stage = Stage(name, tmp_path, environment)
    yield stage
    if stage.backend:
        stage.backend.close()
    assert find_orphans(run_tag(tmp_path)) == []


@everywhere
def test_a_job_runs_in_ranks_that_know_their_place(stage):
    slots = stage.open().slots

    job = stage.start("report", width=2, codes=[0, 3])

    assert stage.wait("ended", "job").data["codes"] == [0, 3]
    reports = [stage.wait_for_output(job, "report", rank) for rank in range(2)]
    for rank, seen in enumerate(reports):
        environment = seen["environment"]
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == reports[0]["environment"]["MASTER_PORT"]
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
        assert environment["HYDRAGNN_HPO_JOB"] == f"{run_tag(stage.folder)}/job"
        assert environment["HYDRAGNN_HPO_DEVICE"] == slots[rank].device
        assert environment["OMP_NUM_THREADS"] == str(len(slots[rank].cores))
        assert seen["cores"] == list(slots[rank].cores)
        assert (seen["stdin"], seen["leader"], seen["signals"]) == ("", True, [True] * 3)
    expected = {f"{stream} of rank {rank}" for stream in ("out", "err") for rank in (0, 1)}
    assert set(job.log.read_text().splitlines()) == expected
    umask = os.umask(0)
    os.umask(umask)
    assert job.log.stat().st_mode & 0o777 == 0o666 & ~(umask | 0o022)


@everywhere
def test_events_of_a_job_come_in_order_and_once(stage):
    stage.open()

    stage.start("nothing", width=2, lines=3)

    stage.wait("ended", "job")
    stage.events += stage.backend.poll(0.3)
    kinds = [event.kind for event in stage.events]
    assert kinds == ["ready", "started", "record", "record", "record", "ended"]
    assert stage.events[0].data["import_seconds"] >= 0
    assert len(stage.events[1].data["pids"]) == 2
    assert stage.events[-1].data["signal_sent"] is False
    assert stage.events[-1].data["error"] is None
    assert tagged(stage.folder, "hpo-counters") == [], "nobody asked for them"


@pytest.mark.parametrize(
    ("kind", "how", "code", "message"),
    [
        ("misbehave", "raise", 1, "RuntimeError: a very particular sentence"),
        ("misbehave", "none", 1, "gave None, not an exit code"),
        ("misbehave", "large", 1, "gave 256, not an exit code"),
        ("misbehave", "exit", 7, ""),
        ("no_function", "", 1, "Error: "),
        ("no_module", "", 1, "Error: "),
    ],
)
def test_a_target_that_misbehaves_or_is_missing_has_a_code_and_a_log(
    stage, kind, how, code, message
):
    stage.open()

    job = stage.start(kind, how=how)

    assert stage.wait("ended", "job").data["codes"] == [code]
    assert message in job.log.read_text()
    stage.works("next")


@everywhere
def test_records_come_completely_and_in_order_while_the_job_runs(stage):
    stage.open()

    job = stage.start("emit", lines=1000, stay=True)

    stage.wait("record", "job", count=1000)
    assert not stage.events_of("ended", "job")
    stage.go(job)
    stage.wait("ended", "job")
    numbers = [event.data["number"] for event in stage.events_of("record", "job")]
    assert numbers == list(range(1000))


@pytest.mark.slow
@everywhere
def test_a_controller_that_does_not_listen_stops_no_rank(stage):
    """An agent that cannot outlive it renews the lease although its messages are not read."""
    stage.open(lease_seconds=None if stage.outlives else 30.0)

    job = stage.start("emit", lines=2000, padding=4000, stay=True)
    stage.wait("started", "job")
    until((stage.folder / job.id / "emitted.0").exists, "lines")
    if not stage.outlives:
        stage.renewed()
    stage.go(job)

    assert stage.wait("ended", "job").data["codes"] == [0]
    assert len(stage.events_of("record", "job")) == 2000
    assert not stage.events_of("agent_lost")


def test_a_large_spec_arrives(stage):
    stage.open()

    stage.start("nothing", width=2, payload="x" * 3_000_000)

    assert stage.wait("ended", "job").data["codes"] == [0, 0]


@everywhere
def test_a_hundred_short_jobs_all_end_well(stage):
    stage.open()
    stage.wait("ready")

    for number in range(100):
        stage.start("nothing", name=f"j{number}", width=1 + number % 2, lines=3)

    for number in range(100):
        ended = stage.wait("ended", f"j{number}")
        assert ended.data["codes"] == [0] * (1 + number % 2)
        assert [e.data["number"] for e in stage.events_of("record", f"j{number}")] == [0, 1, 2]
    assert sum(event.kind == "ended" for event in stage.events) == 100


@everywhere
def test_stop_lets_a_job_end_by_itself(stage):
    stage.open()
    job = stage.start("polite", width=2)
    [stage.wait_for_output(job, "pid", rank) for rank in range(2)]

    stage.backend.stop("job", grace=100.0)

    ended = stage.wait("ended", "job")
    assert ended.data["codes"] == [0, 0]
    assert ended.data["signal_sent"] is True


def test_stop_forces_a_job_after_its_grace(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    [stage.wait_for_output(job, "pid", rank) for rank in range(2)]
    began = time.monotonic()

    stage.backend.stop("job", grace=0.5)

    assert stage.wait("ended", "job").data["codes"] == [-9, -9]
    assert time.monotonic() - began > 0.4


def test_stop_of_a_job_that_waits_for_its_zygote_ends_it_at_once(stage):
    stage.open(preload=("slow_import",))
    job = stage.start("sleep", width=2)

    stage.backend.stop("job")

    assert stage.wait("ended", "job").data["codes"] == [-15, -15]
    assert not stage.events_of("ready")
    assert job.log.read_bytes() == b"", "no rank has run"


def test_an_unknown_kind_is_refused_and_stop_of_what_does_not_run_is_nothing(stage):
    stage.open()
    with pytest.raises(JobError, match="unknown kind of job 'slep'. Did you mean 'sleep'"):
        stage.start("slep")
    stage.works("job")

    stage.backend.stop("job")
    stage.backend.stop("never")

    stage.works("next")


def test_a_killed_rank_ends_its_peers(stage):
    stage.open()
    job = stage.start("sleep", width=2)
    pids = [stage.wait_for_output(job, "pid", rank) for rank in range(2)]

    os.kill(pids[1], signal.SIGKILL)

    ended = stage.wait("ended", "job")
    assert ended.data["codes"] in ([-15, -9], [-9, -9]), "forced where the agent came late"
    assert (ended.data["signal_sent"], ended.data["first"]) == (True, 1)


@everywhere
def test_the_lease_is_renewed_while_the_controller_listens(stage):
    stage.open(lease_seconds=30.0)
    job = stage.start("sleep")
    stage.wait_for_output(job, "pid")
    first = stage.lease()

    until(lambda: stage.receive() or stage.lease() > first, "renewal")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("", "place: cannot be used (No such file"),
        ("place/log", "place/log: cannot be used (Is a directory)."),
    ],
)
def test_a_job_without_place_for_its_log_ends_with_a_sentence(stage, made, message):
    stage.open()
    (stage.folder / made).mkdir(parents=True, exist_ok=True)
    log = stage.folder / "place" / "log"

    stage.backend.start(Job("job", "nothing", 1, {}, log, None, stage.backend.slots[:1]))

    ended = stage.wait("ended", "job")
    assert ended.data["codes"] == [73]
    assert message in ended.data["error"]


def test_rank_0_reads_its_requests(stage):
    stage.open()
    job = stage.start("obey", width=2)
    stage.wait_for_output(job, "pid", 1)

    stage.backend.ask("job", "yield")

    assert stage.wait("ended", "job").data["codes"] == [0, 0]
    assert [stage.wait_for_output(job, "asked", rank) for rank in range(2)] == ["yield", None]


@everywhere
def test_a_killed_zygote_is_reported_and_replaced(stage):
    stage.open()
    job = stage.start("sleep", width=2)
    pids = [stage.wait_for_output(job, "pid", rank) for rank in range(2)]
    (zygote,) = tagged(stage.folder, "hpo-zygote")

    os.kill(zygote, signal.SIGKILL)

    assert stage.wait("zygote_lost").data["error"] is None
    assert stage.wait("ended", "job").data["codes"] == [-9, -9]
    # Their signals were sent with the zygote's end; on a busy host they die a moment later.
    until(lambda: not any(map(is_alive, pids)), "end of the ranks")
    stage.works("next")
    assert len(stage.events_of("ready")) == 2


@pytest.mark.parametrize("killed", ["rank", "zygote"])
def test_what_a_rank_started_does_not_outlive_it(stage, killed):
    stage.open()
    job = stage.start("parent", escape=killed == "zygote")
    children = stage.wait_for_output(job, "children")
    pid = stage.wait_for_output(job, "pid")
    if killed == "zygote":
        (pid,) = tagged(stage.folder, "hpo-zygote")

    os.kill(pid, signal.SIGKILL)

    stage.wait("ended", "job")
    until(lambda: not any(map(is_alive, children)), "end of the children")


@pytest.mark.slow
def test_a_hung_zygote_is_replaced(stage):
    stage.open(lease_seconds=10.0)  # three of them without an answer are too many
    job = stage.start("sleep")
    stage.wait_for_output(job, "pid")
    (zygote,) = tagged(stage.folder, "hpo-zygote")

    os.kill(zygote, signal.SIGSTOP)

    assert stage.wait("ended", "job").data["codes"] == [-9]
    stage.works("next")


@everywhere
def test_a_killed_agent_loses_no_record_and_is_replaced(stage):
    stage.open()
    job = stage.start("emit", lines=300, stay=True)
    stage.wait_for_output(job, "emitted")
    (agent,) = tagged(stage.folder, "hpo-agent")
    ranks = tagged(stage.folder, "hpo-rank")

    os.kill(agent, signal.SIGKILL)

    assert stage.wait("agent_lost").data["error"] is None
    assert stage.wait("ended", "job").data["codes"] == [-9]
    assert ranks
    assert not any(map(is_alive, ranks))
    assert [e.data["number"] for e in stage.events_of("record", "job")] == list(range(300))
    stage.works("next")


@pytest.mark.slow
@everywhere
def test_ranks_of_a_frozen_agent_end_themselves(stage):
    stage.open(lease_seconds=6.0)
    job = stage.start("sleep", width=2)
    pids = [stage.wait_for_output(job, "pid", rank) for rank in range(2)]
    (agent,) = tagged(stage.folder, "hpo-agent")

    os.kill(agent, signal.SIGSTOP)

    until(lambda: not any(map(is_alive, pids)), "end of ranks")  # nobody listens, nor ends them
    assert "its lease of 6 s was not renewed; ending." in job.log.read_text()
    stage.wait("agent_lost")
    assert stage.wait("ended", "job").data["codes"] == [-9, -9]
    stage.works("next")


@pytest.mark.parametrize("preload", ["broken_import", "no_such_module"])
def test_a_preload_that_fails_is_reported_and_ends_the_jobs(stage, preload):
    stage.open(preload=(preload,))
    stage.start("nothing", name="first")

    assert preload in stage.wait("zygote_lost").data["error"]
    ended = stage.wait("ended", "first")
    assert ended.data["codes"] == [-9]
    assert preload in ended.data["error"]
    stage.events += stage.backend.poll(0.5)
    assert len(stage.events_of("zygote_lost")) == 1, "failing imports must not loop"
    stage.start("nothing", name="second")
    assert preload in stage.wait("ended", "second").data["error"]


def test_a_zygote_killed_as_it_imports_is_replaced_until_it_is_hopeless(stage):
    stage.open(preload=("slow_import",))
    job = stage.start("nothing")

    for lost in range(1, 4):
        assert not stage.events_of("ended", job.id)
        (zygote,) = until(lambda: stage.receive() or tagged(stage.folder, "hpo-zygote"), "zygote")
        os.kill(zygote, signal.SIGKILL)
        stage.wait("zygote_lost", count=lost)
    ended = stage.wait("ended", job.id)

    errors = [event.data["error"] for event in stage.events_of("zygote_lost")]
    assert errors[:2] == [None, None]
    assert "ended (code -9) while importing slow_import" in errors[2]
    assert ended.data["error"] == errors[2]


@everywhere
def test_close_ends_everything(stage):
    stage.open()
    job = stage.start("stubborn", width=2)
    stage.wait_for_output(job, "pid", 1)

    stage.backend.close()

    assert find_orphans(run_tag(stage.folder)) == []
    stage.backend.close()


CONTROLLER = """
import sys, time
from pathlib import Path
from typing import Any
sys.path.insert(0, sys.argv[1])
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.transports.local import LocalBackend
folder, preload = Path(sys.argv[2]), tuple(filter(None, sys.argv[3:]))
jobs = {"stubborn": "rank_targets:stubborn"}
backend = LocalBackend(slots=2, run_dir=folder, jobs=jobs, preload=preload, lease_seconds=3600.0)
spec = {"folder": str(folder)}
backend.start(Job("j", "stubborn", 2, spec, folder / "log", None, backend.slots))
while True:
    backend.poll(1.0)
"""


@pytest.mark.parametrize("preload", ["", "slow_import"], ids=["running", "importing"])
def test_a_killed_controller_leaves_no_process(tmp_path, monkeypatch, preload):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    root = str(HERE.parents[1])
    command = [sys.executable, "-c", CONTROLLER, root, str(tmp_path), preload]
    expected = ["hpo-agent", "hpo-zygote"] + ([] if preload else ["hpo-rank"])

    with subprocess.Popen(command) as controller:
        until(lambda: all(tagged(tmp_path, name) for name in expected), "ranks")
        controller.kill()
        until(lambda: not find_orphans(run_tag(tmp_path)), "end of all")


@everywhere
def test_ranks_forked_from_a_warm_torch_train_together(stage):
    stage.open(preload=TORCH)
    ready = stage.wait("ready", seconds=200)  # torch is imported
    assert ready.data["threads"] == 1

    draws = []
    for number in range(3):
        job = stage.start("all_reduce", name=f"j{number}", width=2)
        assert stage.wait("ended", job.id).data["codes"] == [0, 0], job.log.read_text()
        seen = [stage.wait_for_output(job, "reduced", rank) for rank in range(2)]
        assert [rank["total"] for rank in seen] == [3.0, 3.0]
        draws += [tuple(rank["draw"]) for rank in seen]
        assert all(rank["warm"] for rank in seen), "a rank imported torch by itself"
    assert len(set(draws)) == len(draws), "ranks inherit the zygote's generator"


def test_draws_of_a_rank_depend_on_its_job_alone(stage):
    stage.open()
    job = stage.start("report", width=2)
    stage.wait("ended", "job")
    first = [stage.wait_for_output(job, "report", rank)["draw"] for rank in range(2)]
    for path in (stage.folder / "job").glob("report.*"):
        path.unlink()

    stage.events.clear()
    stage.backend.start(dataclasses.replace(job, log=stage.folder / "log"))
    stage.wait("ended", "job")

    second = [stage.wait_for_output(job, "report", rank)["draw"] for rank in range(2)]
    assert first == second
    assert first[0] != first[1]


@everywhere
def test_counters_are_reported_where_they_are_requested(stage):
    stage.open(sample_seconds=0.2)
    report = stage.wait("counters", count=2).data
    assert report["host"] == stage.backend.slots[0].host
    assert report["seconds"] > 0.0
    assert len(tagged(stage.folder, "hpo-counters")) == 1
    stage.works("job")
