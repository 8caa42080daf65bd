"""Flux: agents by ``flux run``, jobs by ``flux batch``, against a fake ``flux``.

The fake does what the manual of flux-core says (flux-batch(1), flux-run(1), flux-jobs(1),
flux-resource(1), flux-environment(7)); all hosts are this machine. Nobody has run this on a real
Flux.
"""

import functools
import inspect
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contracts import test_backends
from processes import find_orphans, until

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.host_checks.doctor import find_job_hosts
from hydragnn_hpo.host_checks.host_probe import ProbeRequest
from hydragnn_hpo.launching.batch_jobs import (
    BatchJob,
    BatchRequest,
    JobRecords,
    cancel_own_batch_job,
    cancel_queued_jobs,
    check_batch_request,
    find_own_job,
    in_batch_job,
    query_jobs,
    submit_jobs,
)
from hydragnn_hpo.launching.batch_script import ScriptContent, render_batch_script
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.rank_environment import OF_A_RANK, torchrun_environment
from hydragnn_hpo.launching.transports import find_batch_doubts
from hydragnn_hpo.launching.transports.flux import flux_transport
from hydragnn_hpo.launching.transports.flux_batch import Flux, decode_id
from hydragnn_hpo.launching.transports.transport import AgentCall

FAKE = r"""#!PYTHON -IS
import json, os, re, subprocess, sys

FOLDER, argv = "HERE", sys.argv[1:]
OUTER, INNER = "local:///run/flux/local", "local:///tmp/job/local"
LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def read(name, default):
    path = f"{FOLDER}/{name}"
    return json.load(open(path)) if os.path.exists(path) else default


def write(name, value):
    own = f"{FOLDER}/{name}.{os.getpid()}"
    with open(own, "w") as file:
        json.dump(value, file)
    os.replace(own, f"{FOLDER}/{name}")


def f58(number):
    text = ""
    while number:
        number, rest = divmod(number, 58)
        text = LETTERS[rest] + text
    return "f" + (text or "1")


def number_of(text):
    if text.isdigit():
        return text
    return str(sum(LETTERS.index(c) * 58**k for k, c in enumerate(reversed(text[1:]))))


def expand(names):
    before, _, numbers = names.removesuffix("]").partition("[")
    hosts = []
    for part in numbers.split(",") if numbers else []:
        first, _, last = part.partition("-")
        hosts += [f"{before}{k}" for k in range(int(first), int(last or first) + 1)]
    return hosts or names.split(",")


write("calls", [*read("calls", []), argv])
command, rest = argv[0], argv[1:]
options = dict((word + "=").split("=", 1) for word in rest if word.startswith("-"))
options = {name: value.removesuffix("=") for name, value in options.items()}
inner = os.environ.get("FLUX_URI") == INNER
jobs = read("jobs", {})
if command == "getattr":
    known = {"jobid": f58(6731191091817518), "parent-uri": OUTER} if inner else {}
    sys.exit(print(known[rest[0]]) if rest[0] in known else "flux-getattr: No such attribute")
elif command == "job" and rest[0] == "id":
    print(number_of(rest[1]))
elif command == "resource":
    print(read("nodes", {"up": "h1"})[options["--states"]])
elif command == "batch":
    lines = open(rest[-1]).read().split("\n")
    head = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    if any(line.startswith("#FLUX:") for line in lines[head:]):
        sys.exit("flux-batch: ERROR: orphan 'flux:' detected: directives must be grouped")
    found = [line.removeprefix("#FLUX: ") for line in lines if line.startswith("#FLUX: ")]
    given = dict((word + "=").split("=", 1) for word in found)
    if os.path.exists(f"{FOLDER}/refuse"):
        sys.exit(open(f"{FOLDER}/refuse").read())
    number = str(6731191091817518 + len(jobs))
    state = "DEPEND" if "--dependency" in options else "SCHED"
    name = given["--job-name"].removesuffix("=")
    jobs[number] = {"id.dec": number, "state": state, "name": name, "cwd": os.getcwd()}
    jobs[number] |= {"result": "", "returncode": "", "urgency": "16"}
    write("jobs", jobs)
    print(f58(int(number)))
elif command == "jobs":
    named = [word for word in rest if not word.startswith("-")]
    fields = re.findall(r"\{([\w.]+)\}", options.get("--format", ""))
    unknown = [job for job in map(number_of, named) if job not in jobs]
    for job in map(number_of, named or jobs):
        active = job in jobs and jobs[job]["state"] != "INACTIVE"
        if job in jobs and (named or active and jobs[job]["name"] == options["--name"]):
            print("|".join(jobs[job][field] for field in fields))
    if unknown:
        sys.exit(f"flux-jobs: ERROR: JobID {f58(int(unknown[0]))} unknown")
elif command == "cancel":
    for job in map(number_of, rest):
        jobs[job] |= {"state": "INACTIVE", "result": "CANCELED", "returncode": "-128"}
    write("jobs", jobs)
elif command == "run":
    if not inner:
        sys.exit("flux-run: ERROR: this is the instance of the whole machine")
    words = rest[next(k for k, word in enumerate(rest) if not word.startswith("-")) :]
    hosts = expand(options["--requires"].removeprefix("hosts:"))
    assert options["--nodes"] == options["--ntasks"] == str(len(hosts)), rest
    tasks = []
    for rank, host in enumerate(hosts):
        own = {"FLUX_JOB_ID": f58(99), "FLUX_JOB_SIZE": str(len(hosts))}
        own |= {"FLUX_JOB_NNODES": str(len(hosts)), "FLUX_TASK_RANK": str(rank)}
        argv = [word.replace("{{node.name}}", host) for word in words]
        environment = os.environ | own | {"FLUX_TASK_LOCAL_ID": "0"}
        tasks.append(subprocess.Popen(argv, env=environment, start_new_session=True))
    sys.exit(max(abs(task.wait()) for task in tasks))
else:
    sys.exit(f"flux: {argv} is not faked")
"""

OUTER = "local:///run/flux/local"
INNER = "local:///tmp/job/local"
JOB = {"FLUX_URI": INNER}
"""What ``flux alloc`` leaves in a shell's environment."""

NUMBER = "6731191091817518"
"""``fuZZybuNNy`` in decimal: the example of Flux RFC 19."""


class FakeFlux:
    """The command ``flux``, first on PATH, and its memory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        program = folder / "flux"
        text = FAKE.replace("PYTHON", sys.executable, 1).replace("HERE", str(folder), 1)
        program.write_text(text)
        program.chmod(0o755)
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in ("FLUX_URI", "SLURM_JOB_ID", "PBS_JOBID"):
            patch.delenv(name, raising=False)

    @property
    def calls(self) -> list[list[str]]:
        return json.loads((self.folder / "calls").read_text())

    def calls_of_agents(self) -> list[list[str]]:
        return [call for call in self.calls if "hydragnn_hpo.launching.agent" in call]

    def stands(self, job: str, **facts: str) -> None:
        """Set how a job stands."""
        jobs = json.loads((self.folder / "jobs").read_text())
        jobs[job] |= facts
        (self.folder / "jobs").write_text(json.dumps(jobs))

    def has(self, hosts: str) -> None:
        """Set the hosts of the instance that are up."""
        (self.folder / "nodes").write_text(json.dumps({"up": hosts}))


@pytest.fixture
def flux(tmp_path_factory, monkeypatch) -> FakeFlux:
    return FakeFlux(tmp_path_factory.mktemp("flux") / "bin", monkeypatch)


# -- batch jobs --------------------------------------------------------------------------------


def test_an_id_is_read_as_flux_writes_it():
    """The example of Flux RFC 19, and by hand: 2 stands for 1, so 21 is 58."""
    assert decode_id("fuZZybuNNy") == decode_id("\u0192uZZybuNNy\n") == NUMBER
    assert decode_id("f21") == "58"
    for other in ("", "f", "f0", "123", "flux-batch: ERROR", "fuZZybuNNy; rm"):
        with pytest.raises(JobError, match="is no id of a Flux job: see what 'flux jobs' says"):
            decode_id(other)
    greeted = "Welcome!\nfuZZybuNNy\nBye.\n"
    assert Flux().parse_submitted(greeted, ()) == [NUMBER]


REQUEST = BatchRequest(name="alloys", hosts=2, seconds=5400, account="mat123", queue="debug")

HEAD = """\
#FLUX: --job-name=hpo-alloys
#FLUX: --nodes=2
#FLUX: --exclusive
#FLUX: --time-limit=5400s
#FLUX: --bank=mat123
#FLUX: --queue=debug
#FLUX: --output={{id.dec}}.out
"""
"""Option by option from flux-batch(1); the tag of a job's number is from "Mustache templates"."""


def render(folder: Path, program: tuple[str, ...] = ("hpo",)) -> str:
    content = ScriptContent(
        program=program,
        run=str(folder / "run"),
        script="001.sh",
        folder=str(folder),
        command=("run", "campaign.toml"),
        environment={},
    )
    return render_batch_script(REQUEST, find_profile("generic-flux"), content)


def test_a_script_asks_for_what_was_requested(tmp_path):
    profile = find_profile("generic-flux")
    check_batch_request(REQUEST, profile, "flux")
    lines = render(tmp_path).splitlines()
    assert "".join(f"{line}\n" for line in lines if line.startswith("#FLUX:")) == HEAD
    assert list(find_batch_doubts(profile)) == []
    with pytest.raises(ConfigError, match="by the backend 'slurm' alone, this is 'flux'"):
        check_batch_request(replace(REQUEST, allocations=2), profile, "flux")


@pytest.fixture
def submitted(flux, tmp_path) -> tuple[JobRecords, str]:
    """Submit the job of a run; return its records and its id."""
    records = JobRecords(tmp_path / "run")
    (tmp_path / "run").mkdir()
    records.write_script("001.sh", render(tmp_path), "")
    job = BatchJob("", "flux", "001.sh", hosts=2, link=1, jobs=4, submitted=0.0)
    (number,) = submit_jobs(records, job)
    return records, number


def test_a_job_is_submitted_queried_and_cancelled(flux, submitted):
    records, number = submitted
    assert number == NUMBER
    assert ["batch", "001.sh"] in flux.calls
    following = replace(records.find(number), link=2, after=number)
    (later,) = submit_jobs(records, following)
    assert ["batch", f"--dependency=afterany:{number}", "001.sh"] in flux.calls
    flux.stands(number, state="RUN")
    entries = query_jobs("flux", [number, later, "17"])
    assert {job: entry.state for job, entry in entries.items()} == {
        number: "running",
        later: "queued",
    }

    assert cancel_queued_jobs(records, records.jobs()) == [later]

    assert flux.calls[-1] == ["cancel", later]
    assert query_jobs("flux", [later])[later].reason == "cancelled"
    assert query_jobs("flux", ["17"]) == {}


def test_a_job_whose_id_was_not_printed_is_found_by_its_folder(flux, submitted, monkeypatch):
    records, number = submitted
    monkeypatch.setattr(Flux, "parse_submitted", lambda *_: decode_id("no number"))
    (later,) = submit_jobs(records, replace(records.find(number), link=2, after=number))
    assert later == str(int(NUMBER) + 1)
    (flux.folder / "refuse").write_text("flux-batch: ERROR: no such bank")
    with pytest.raises(JobError, match="'flux' refuses .*no such bank.*: correct what it names"):
        submit_jobs(records, replace(records.find(number), link=3, after=later))


@pytest.mark.parametrize(
    ("facts", "state", "reason"),
    [
        ("DEPEND|||16", "queued", ""),
        ("SCHED|||0", "held", "its urgency is 0: flux job urgency starts it"),
        ("CLEANUP|||16", "running", ""),
        ("INACTIVE|COMPLETED|0|16", "ended", "its script ended"),
        ("INACTIVE|FAILED|75|16", "ended", "failed with exit code 75"),
        ("INACTIVE|CANCELED|-128|16", "ended", "cancelled"),
        ("INACTIVE|TIMEOUT|142|16", "ended", "timed out"),
    ],
)
def test_states_of_flux_are_understood(facts, state, reason):
    """flux-jobs(1), "Job status"."""
    output = f"hello\n7|{facts}|/runs/x/jobs\n"
    (entry,) = Flux().parse_states(output).values()
    assert (entry.state, entry.reason, entry.mark) == (state, reason, "/runs/x/jobs")


def test_a_campaign_is_submitted_once_and_looked_at(flux, hpo):
    hpo.card(hpo.molecules(20))
    hpo.campaign()
    run = hpo.folder / "run"
    options = ("--machine", "generic-flux", "--run", run, "--hosts", "2", "--time", "1:00")

    done = hpo.here("submit", "campaign.toml", *options)

    assert done.code == 0, done.err
    assert f"submitted {NUMBER} with flux batch 001.sh" in done.out
    assert flux.calls[0] == ["batch", "001.sh"]
    assert f"job {NUMBER}: queued, 1 of at most 16, 2 hosts" in hpo.here("status", run).out
    again = hpo.here("submit", "campaign.toml", *options)
    hpo.judge(again, (f"batch job {NUMBER}", "queued", "--again"))
    elsewhere = hpo.here("run", "campaign.toml", "--run", run, "--backend", "fluks")
    hpo.judge(elsewhere, ("campaign.toml: machine.backend: unknown backend 'fluks'", "'flux'"))


SHOWS = """\
import json, os, sys
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
"""


def run_script(tmp_path: Path, program: tuple[str, ...]) -> tuple[int, list]:
    """Run a batch script as Flux does: as the first program of an instance of its own."""
    (tmp_path / "run" / "jobs").mkdir(parents=True)
    (tmp_path / "job.sh").write_text(render(tmp_path, program))
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=os.environ | JOB, timeout=100)
    calls = tmp_path / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return done.returncode, [json.loads(line) for line in lines]


def test_a_script_knows_its_number_its_end_and_both_instances(flux, tmp_path):
    (tmp_path / "show.py").write_text(SHOWS.format(calls=str(tmp_path / "calls")))
    began = time.time()

    code, calls = run_script(tmp_path, (sys.executable, str(tmp_path / "show.py")))

    assert code == 0
    assert [argv[:2] for argv, _ in calls] == [
        ["batch", "begin"], ["run", "campaign.toml"], ["batch", "end"]
    ]  # fmt: skip
    environment = calls[1][1]
    assert began + 5390 <= float(environment["HYDRAGNN_HPO_END"]) <= time.time() + 5410
    assert environment["HYDRAGNN_HPO_END_MARGIN"] == "300"
    assert environment["FLUX_URI"] == OUTER, "where the next job is queued"
    assert find_own_job(environment)[:2] == ("flux", NUMBER)
    assert in_batch_job(environment)
    nested = environment | {"FLUX_URI": "local:///tmp/another/local"}
    assert not in_batch_job(nested)
    with pytest.raises(ConfigError, match="this is no batch job"):
        find_own_job(nested)
    held = Flux().find_hosts(environment, 0)
    assert (held.hosts, held.job) == (("h1",), NUMBER)


def test_a_script_whose_program_is_missing_leaves_a_record(flux, tmp_path):
    code, _ = run_script(tmp_path, ("/no/python",))
    assert code == 127
    ended = json.loads((tmp_path / "run" / "jobs" / f"{NUMBER}.ended.json").read_text())
    assert ended["code"] == 127


def test_a_job_cancels_itself_and_no_other(flux, submitted):
    _, number = submitted
    ours = {"HYDRAGNN_HPO_BATCH_JOB": OUTER, "FLUX_URI": OUTER, "HYDRAGNN_HPO_FLUX_JOB": number}
    assert cancel_own_batch_job(ours | {"FLUX_URI": INNER}) is None
    assert cancel_own_batch_job(ours | {"PATH": os.environ["PATH"]}) == number
    assert flux.calls[-1] == ["cancel", number]


# -- ranks and hosts ---------------------------------------------------------------------------


def test_ranks_of_flux_run_know_their_place():
    """flux-environment(7): PMI_RANK is set, too, but the rank on the host is not in it."""
    ranks = {
        "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "1", "FLUX_TASK_RANK": "3",
        "FLUX_TASK_LOCAL_ID": "3", "PMI_RANK": "3", "PMI_SIZE": "4",
    }  # fmt: skip
    result = torchrun_environment(ranks, parent=9)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert [result[name] for name in names] == ["3", "4", "3", "4", "127.0.0.1"]
    with pytest.raises(ConfigError, match="flux run started 4 ranks on several hosts"):
        torchrun_environment(ranks | {"FLUX_JOB_NNODES": "2"}, parent=9)
    assert {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"} <= set(OF_A_RANK)


def test_doctor_reaches_all_hosts_of_a_job_that_are_up(flux):
    flux.has("n1,n3")
    hosts = find_job_hosts(JOB)
    assert (hosts.kind, hosts.job, hosts.able) == ("flux", NUMBER, ("n1", "n3"))
    argv = hosts.argv(ProbeRequest(folder="/f"), ("--setattr=x=y",))
    assert argv[:5] == ["flux", "run", "--nodes=2", "--ntasks=2", "--requires=hosts:n[1,3]"]
    assert "--setattr=x=y" in argv
    assert shlex.split(shlex.join(argv)) == argv
    assert find_job_hosts(JOB, 1).hosts == ("n1",)
    assert find_job_hosts({"FLUX_URI": OUTER}).kind == "here", "that is the whole machine"


# -- the transport -----------------------------------------------------------------------------


def test_outside_of_a_job_there_are_no_hosts(flux, tmp_path):
    for environment in ({}, {"FLUX_URI": OUTER}):
        with pytest.raises(ConfigError, match="this is none .*: run inside flux alloc or flux b"):
            flux_transport(MachineConfig(backend="flux"), tmp_path, environment)


def test_hosts_that_are_excluded_get_no_agent(flux, tmp_path, monkeypatch):
    flux.has("h[1,3-4]")
    monkeypatch.setenv("FLUX_URI", INNER)
    (tmp_path / "exclude.hosts").write_text("h3\n")
    machine = MachineConfig(backend="flux", interface="lo")
    transport = flux_transport(machine, tmp_path, JOB)
    assert transport.hosts == ("h1", "h4")


def test_each_host_has_an_agent_that_knows_its_name(flux, tmp_path, monkeypatch):
    flux.has("h[1-2]")
    monkeypatch.setenv("FLUX_URI", INNER)
    transport = flux_transport(MachineConfig(backend="flux", interface="lo"), tmp_path, JOB)
    transport.start(transport.hosts, AgentCall(tmp_path, run_tag(tmp_path), 1))
    try:
        (run,) = until(flux.calls_of_agents, "flux run")
        assert run[-2:] == ["--host", "{{node.name}}"]
        news = until(transport.poll, "both agents miss the controller's address", 60.0)
    finally:
        transport.close()
    assert {report.host for report in news} == {"h1", "h2"}
    assert all(report.kind == "failed" for report in news)


CONTRACT = {
    name: test
    for name, test in vars(test_backends).items()
    if test_backends.everywhere.mark in getattr(test, "pytestmark", ())
    and list(inspect.signature(test).parameters) == ["stage"]
}
"""What every backend promises, see ``test_backends``."""

QUICK = (
    "test_a_job_runs_in_ranks_that_know_their_place",
    "test_a_killed_agent_loses_no_record_and_is_replaced",
)


@pytest.fixture
def stage(flux, tmp_path, monkeypatch) -> Iterator[test_backends.Stage]:
    path = os.pathsep.join(filter(None, [str(test_backends.HERE), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FLUX_URI", INNER)
    monkeypatch.setitem(test_backends.TRANSPORTS, "flux", flux_transport)
    maker = functools.partial(test_backends.make_fleet, "flux")
    monkeypatch.setitem(test_backends.BACKENDS, "flux", maker)
    stage = test_backends.Stage("flux", tmp_path, JOB)
    yield stage
    if stage.backend:
        stage.backend.close()
    assert find_orphans(run_tag(tmp_path)) == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.stress) for name in CONTRACT],
)
def test_agents_of_flux_keep_what_every_backend_promises(stage, name):
    CONTRACT[name](stage)
