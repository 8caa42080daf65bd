"""The hosts of a job, what is started there, and hosts that answer late, half, or with nonsense."""

import itertools
import json
import os
import shlex
import sys
import time
from types import SimpleNamespace

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_checks import doctor as module
from hydragnn_hpo.host_checks.doctor import (
    JobHosts,
    choose_sample,
    collect_answers,
    find_job_hosts,
    is_on_site,
    make_request,
    scheduler_finding,
)
from hydragnn_hpo.host_checks.doctor_checks import plugin_names
from hydragnn_hpo.host_checks.host_probe import (
    MARK,
    PATIENCE,
    WIDTH,
    ProbeRequest,
    join_answers,
    probe_host,
    split_answer,
)
from hydragnn_hpo.launching.transports.slurm_batch import parse_allocated_devices

SLURM_JOB = """JobId=1 JobName=j0
   NodeList=node[1-4] NumNodes=4
   JOB_GRES=gpu:30
     Nodes=node[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:8(IDX:0-7)
     Nodes=node3 CPU_IDs=0-7 Mem=0 GRES=gpu:mi250x:7(IDX:0-6),nic:2(CNT:2)
     Nodes=node4 CPU_IDs=0-7 Mem=0 GRES=
"""


def test_what_slurm_gave_is_read_host_by_host():
    assert parse_allocated_devices(SLURM_JOB) == {"node1": 8, "node2": 8, "node3": 7, "node4": 0}
    assert parse_allocated_devices("Nodes=node[1-2] CPU_IDs=0-7 Mem=0 GRES=") == {}
    assert parse_allocated_devices("what is this") == {}


def test_a_step_has_one_task_per_host_and_one_argument_for_the_order():
    hosts = ("n1", "n2", "n3")
    order = ProbeRequest(folder="/a b/$(c)'\n", sample=("0",))
    argv = JobHosts("slurm", hosts, "17", {"n2": "down"}).argv(order, ("--gpus-per-node=8",))
    assert "--gpus-per-node=8" in argv
    assert argv[0] == "srun"
    assert "--jobid=17" in argv
    assert "--nodelist=n[1,3]" in argv
    assert "--ntasks=2" in argv
    assert json.loads(argv[-1])["folder"] == "/a b/$(c)'\n"
    assert shlex.split(shlex.join(argv)) == argv


def test_hosts_of_a_pbs_job_are_reached_by_mpiexec(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx1\nx2\nx3\n")
    hosts = find_job_hosts({"PBS_NODEFILE": str(nodes), "PBS_JOBID": "9.pbs"}, 2)
    assert (hosts.kind, hosts.hosts, hosts.job) == ("pbs", ("x1", "x2"), "9.pbs")
    argv = hosts.argv(ProbeRequest(folder="/f"))
    assert argv[1:7] == ["-n", "2", "-ppn", "1", "-hosts", "x1,x2"]
    with pytest.raises(ConfigError, match="cannot be read"):
        find_job_hosts({"PBS_NODEFILE": str(tmp_path / "gone")})


@pytest.mark.parametrize(
    ("kind", "present", "machine", "state", "message"),
    [
        ("here", [], None, "ok", "nothing is lost"),
        ("here", ["Slurm"], None, "ok", "not asked for"),
        ("here", [], "frontier", "wrong", "none"),
        ("here", ["Slurm"], "frontier", "ok", "outside of any job"),
        ("slurm", ["Slurm"], "frontier", "ok", "job 17"),
    ],
)
def test_what_a_scheduler_means_is_reported(tmp_path, kind, present, machine, state, message):
    """Hosts that the profile does not describe are not asked for what it names."""
    hosts = JobHosts(kind, ("a",), "17")
    profile = find_profile(machine)
    finding = scheduler_finding(hosts, present, profile)
    assert finding.state == state
    assert message in finding.observed
    on_site = machine is None or kind == "slurm"
    assert is_on_site(profile, hosts) == on_site
    request = make_request(profile, hosts, tmp_path, {})
    assert request.interfaces == (profile.interfaces if on_site else ())
    assert request.libraries == (plugin_names(profile, {}) if on_site else ())
    assert request.scratch == ((profile.scratch or "") if on_site else "")


def test_the_plugin_has_the_names_that_nccl_tries():
    """docs.nvidia.com/deeplearning/nccl, NCCL_NET_PLUGIN."""
    frontier = find_profile("frontier")
    laptop = find_profile()
    assert plugin_names(laptop, {}) == ()
    assert plugin_names(laptop, {"NCCL_NET_PLUGIN": "foo"})[:2] == ("foo", "libnccl-net-foo.so")
    assert (
        plugin_names(frontier, {"NCCL_NET_PLUGIN": "/a/librccl-net.so"})[0] == "/a/librccl-net.so"
    )


def test_a_sample_is_spread_over_all_hosts():
    hosts = [f"n{k}" for k in range(8192)]
    chosen = choose_sample(hosts)
    assert chosen == tuple(hosts[512 * k] for k in range(16))
    assert choose_sample(hosts[:3]) == ("n0", "n1", "n2")


def answer(host, **more):
    return json.dumps({"host": host, "clock": 1.0, **more})


def run(code, hosts=("n1", "n2"), seconds=120.0):
    argv = [sys.executable, "-c", "import sys, time\n" + code]
    return collect_answers(argv, hosts, environment=os.environ, seconds=seconds)


def printing(*lines):
    """Write each line by one call, also where nothing is buffered."""
    return "".join(f"sys.stdout.write({line + chr(10)!r})\nsys.stdout.flush()\n" for line in lines)


def test_long_answers_come_in_short_lines_and_are_put_together():
    text = answer("n1", errors={"devices": "x" * 5000})
    other = answer("n2", errors={"devices": "y" * 3000})
    lines = split_answer(text)
    others = split_answer(other)
    assert max(map(len, lines)) <= WIDTH + 60
    mixed = [line for pair in zip(lines, others, strict=False) for line in pair]
    mixed += lines[len(others) :]
    assert list(join_answers(f"3: {line}" for line in mixed)) == [other, text]


@pytest.mark.parametrize(
    "line",
    ["", "hello", f"{MARK} ", f"{MARK} a b c d", f"{MARK} a 1", "0: ", f"{MARK} a \u00b2 1 x"],
)
def test_what_is_no_piece_is_passed_over(line):
    assert list(join_answers([line])) == []


def test_all_answers_are_taken_and_noise_is_not():
    code = printing("a banner", f"0: {split_answer(answer('n1'))[0]}", "{'host': 'n2'}", "\x1b[2J")
    result = run(
        code + printing(*split_answer(answer("n2.site.gov")), *split_answer(answer("stranger")))
    )
    assert list(result.facts) == ["n1", "n2"]
    assert result.missing == {}


@pytest.fixture
def over_after_one_look(monkeypatch):
    """Make time stand until the command has said something, and be over then."""
    looks = itertools.chain([0.0, 0.0], itertools.repeat(1e9))
    clock = SimpleNamespace(monotonic=lambda: next(looks), time=time.time)
    monkeypatch.setattr(module, "time", clock)


@pytest.mark.usefixtures("over_after_one_look")
def test_a_host_that_is_late_is_left_behind_and_its_command_killed(monkeypatch):
    monkeypatch.setattr(module, "_ENDING_SECONDS", 0.5)
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    result = run(code + printing(*split_answer(answer("n1"))) + "time.sleep(600)", seconds=300.0)
    assert list(result.facts) == ["n1"]
    assert result.missing == {"n2": "no answer within 300 s"}


def test_a_command_that_never_falls_silent_is_ended():
    result = run("while True:\n    print('x' * 1000, flush=True)", seconds=0.5)
    assert set(result.missing) == {"n1", "n2"}


def test_a_command_that_fails_says_why():
    result = run("sys.exit('srun: error: no such\\x1b host')")
    assert result.missing["n1"].startswith("ended with code 1 before it answered: srun: error")


DEEP = '{"more": ' + "[" * 50_000
HUGE = answer("n1", devices={"count": 10**400, "memory_mb": 1})


@pytest.mark.parametrize(
    "text", ["{}", '{"host": ""}', answer(""), answer("n1", system="x"), "[1]", DEEP, HUGE]
)
def test_what_is_no_answer_counts_as_none(text):
    assert run(printing(*split_answer(text)), hosts=("n1",)).facts == {}


def test_a_part_that_hangs_costs_itself_only(monkeypatch):
    for part in "bcd":  # a busy machine may need a while to fork
        monkeypatch.setitem(PATIENCE, part, 100.0)

    def hang(order):
        time.sleep(600)

    def crash(order):
        os._exit(9)

    def fail(order):
        raise KeyError("x")

    much = "x" * 1_000_000
    parts = {"a": hang, "b": crash, "c": fail, "d": lambda order: {"fine": much}}
    result = json.loads(probe_host(ProbeRequest(folder="/tmp", seconds=0.5), parts))
    assert result["d"] == {"fine": much}
    assert result["errors"] == {"a": "no answer in time", "b": "it crashed", "c": "KeyError: 'x'"}
