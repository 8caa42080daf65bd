"""Several allocations of a real Slurm on one campaign: who serves whom, and who takes over."""

import datetime
import itertools
import json
import os
import signal
from collections import Counter, defaultdict

import pytest
from processes import freeze, named_so

from hydragnn_hpo.launching.process_control import HOST, find_tagged, host_tag, run_tag

pytestmark = [pytest.mark.stress, pytest.mark.timeout(2400)]

TRIALS = 8
LEASE = 30.0
"""Seconds that agents wait for a controller to take over, which starts on a busy machine."""

SECONDS = 300.0

WORK = """
import json, os, signal, sys, time
from pathlib import Path
folder, checkpoints, epochs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def note(what):
    with (checkpoints / "diary").open("a") as file:
        file.write(f"{what} {os.getpid()} {time.monotonic()}\\n")
def leave(*_):
    note("end")
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
kept = checkpoints / "epoch"
(checkpoints / "ends").write_text(os.environ["HYDRAGNN_HPO_END"])
note("begin")
first = int(kept.read_text()) if kept.exists() else 0
last = time.monotonic() + 1500.0
for epoch in range(first + 1, epochs + 1):
    time.sleep(0.1)
    while epoch == 3 and not Path(GO).exists() and time.monotonic() < last:
        time.sleep(0.05)
    kept.write_text(str(epoch))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"record": "epoch", "epoch": epoch, "objective": 1 / epoch}) + "\\n")
    note("live")
note("end")
part = folder / "part"
part.write_text(json.dumps({"status": "completed", "objective": 1 / epochs, "epochs": epochs}))
part.rename(folder / "result.json")
"""


def campaign(hpo, name="campaign.toml", lease=LEASE, **changes):
    """Write a campaign over a command without torch, which stops after two epochs until ``go``."""
    (hpo.folder / "work.py").write_text(f"GO = {str(hpo.folder / 'go')!r}\n{WORK}")
    values = {
        "name": "joined",
        "seed": 3,
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {"brain": "random", "trials": TRIALS, "initial": TRIALS, "rungs": [5]},
        "command": {
            "argv": ["{python}", "{here}/work.py", "{folder}", "{checkpoints}", "{epochs}"]
        },
        "machine": {"backend": "slurm", "slots": 1, "lease_seconds": lease},
    }
    values["search"]["finalists"] = 1
    if lease is None:
        del values["machine"]["lease_seconds"]
    return hpo.toml(name, hpo.merged(values, changes))


def hosts_of(hpo, run, kind="placed"):
    """Count the events of a kind on each host."""
    results = [{slot.rpartition(":")[0] for slot in e["slots"]} for e in hpo.events(run, kind)]
    return Counter(itertools.chain(*results))


def busy(hpo, run):
    """Return the hosts on which something has trained for an epoch."""
    first = {e["trial"]: e["slots"] for e in hpo.events(run, "placed")}
    trained = {e["trial"] for e in hpo.events(run, "epoch")}
    return {slot.rpartition(":")[0] for trial in trained for slot in first[trial]}


def agents(run, host):
    """Return the agent of a host."""
    return named_so(find_tagged(HOST, host_tag(run_tag(run), host)), "hpo-agent")


def names(environment, *numbers):
    return {f"node{number}@{environment['SLURM_JOB_ID']}" for number in numbers}


def judge(hpo, run):
    """See that every trial came to its end once, and no two processes ever worked at one."""
    ended = [e for e in hpo.events(run, "ended") if e["outcome"] != "interrupted"]
    assert sorted(e["trial"] for e in ended) == [f"t{n:04d}" for n in range(TRIALS)], ended
    assert not [e for e in ended if e["outcome"] != "completed"]
    for diary in (run / "trials").glob("*/checkpoints/diary"):
        spans = defaultdict(list)
        for line in diary.read_text().splitlines():
            _, pid, when = line.split()
            spans[pid].append(float(when))
        order = sorted((min(times), max(times)) for times in spans.values())
        for (_, end), (begin, _) in itertools.pairwise(order):
            assert end <= begin, f"{diary}: two at a time"


@pytest.fixture
def pair(hpo, slurm):
    """Two allocations of two hosts each, and the run directory."""
    a = slurm.allocate(2)
    b = slurm.allocate(2, minutes=90, skip=2)
    yield a, b, hpo.folder / "run"
    hpo.end()


@pytest.fixture
def start_both(hpo, pair):
    """Start a controller, then somebody who joins it; wait until all hosts have work."""

    def start(path, *options):
        a, b, run = pair
        first = hpo.start("run", path, "--run", run, "--join", *options, **a)
        hpo.wait_for(lambda: (run / "controller" / "address.json").exists(), "address", SECONDS)
        second = hpo.start("run", path, "--run", run, "--join", *options, **b)
        everybody = names(a, 1, 2) | names(b, 3, 4)
        hpo.wait_for(lambda: busy(hpo, run) == everybody, f"work on {everybody}", SECONDS)
        return first, second

    return start


def end_of(slurm, environment):
    """Return the end of an allocation as Slurm writes it."""
    end_time = slurm.ask("squeue", "-h", "-j", environment["SLURM_JOB_ID"], "-o", "%e").strip()
    return datetime.datetime.fromisoformat(end_time).timestamp()


def on(environment, monkeypatch):
    """Let commands of this process run in an allocation."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_two_allocations_work_for_one_campaign(hpo, pair, slurm, start_both, monkeypatch):
    """An agent is lost meanwhile; who cannot join is told why, and costs nobody anything."""
    a, b, run = pair
    path = campaign(hpo)

    both = start_both(path, "--json")
    assert hpo.json("status", run)["standing"]["hosts"]["here"] == 4, "of both allocations"
    end_times = {float(p.read_text()) for p in run.glob("trials/*/checkpoints/ends")}
    assert end_times == {end_of(slurm, a), end_of(slurm, b)}, (
        "ranks know the end of their own hosts"
    )
    are_refused(hpo, path, run, pair, monkeypatch)
    (host,) = names(b, 3)
    (agent,) = agents(run, host)
    os.kill(agent, signal.SIGKILL)
    hpo.wait_for(lambda: hosts_of(hpo, run, "host_joined")[host] == 2, "a new agent", SECONDS)
    hpo.wait_for(lambda: hosts_of(hpo, run)[host] == 2, "work for it", SECONDS)
    (hpo.folder / "go").touch()
    outputs = [process.communicate(timeout=SECONDS) for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    judge(hpo, run)
    rested = [e["reason"] for e in hpo.events(run, "ended") if e["outcome"] == "interrupted"]
    assert rested == ["host_lost"]
    assert set(hosts_of(hpo, run)) == names(a, 1, 2) | names(b, 3, 4)
    boards = [json.loads(out)["leaderboard"] for out, _ in outputs]
    assert boards[0] == boards[1]
    assert len({e["epoch"] for e in hpo.events(run)}) == 1, "one controller from begin to end"
    hpo.wait_for(lambda: not hpo.strays(run), "end of all processes")
    late = hpo("run", path, "--run", run, "--join", **b)
    assert late.code == 0, late.err
    assert "has finished" in late.err


def are_refused(hpo, path, run, pair, monkeypatch):
    """See that who cannot join is told why."""
    at = ("--run", run, "--join")
    for environment in pair[:2]:
        on(environment, monkeypatch)
        hpo.refused("run", path, *at, says=("works for it already",))
    other = campaign(hpo, "other.toml", seed=4)
    hpo.refused("run", other, *at, says=("seed = 3", "asked was 4"))
    hpo.refused("run", path, *at, "--backend", "local", says=("--join needs",))
    monkeypatch.delenv("SLURM_JOB_ID")
    hpo.refused("run", path, *at, says=("no Slurm allocation",))


def test_whoever_is_left_takes_over_from_a_controller_that_is_lost_with_its_host(
    hpo, pair, slurm, start_both
):
    """Only the age of its lease tells: ranks must wait longer than that, or all of them die."""
    a, b, run = pair
    first, second = start_both(campaign(hpo, lease=None))
    (lease,) = (run / "controller").glob("*.lease")

    freeze([first.pid])  # nobody may see that its process is gone before the lease says another
    lease.write_text(json.dumps({"pid": 1, "host": "another"}))
    first.kill()
    first.wait()
    slurm.ask("scancel", a["SLURM_JOB_ID"])
    hpo.wait_for(lambda: hpo.events(run)[-1]["epoch"] == 2, "another controller", SECONDS)
    (hpo.folder / "go").touch()

    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, err
    judge(hpo, run)
    adopted = [e for e in hpo.events(run, "ended") if e["epoch"] == 2 and e["attempt"] == 1]
    assert {e["outcome"] for e in adopted} >= {"completed"}, "what ran on hosts that live goes on"
    gone = {e["trial"] for e in adopted if e["outcome"] == "interrupted"}
    placed = [e for e in hpo.events(run, "placed") if e["epoch"] == 1]
    lost = {e["trial"] for e in placed if e["slots"][0][:5] in ("node1", "node2")}
    assert gone == lost, "what ran in the other allocation starts again from its checkpoint"
    assert len(gone) == 2
    hpo.wait_for(lambda: not hpo.strays(run), "end of all processes")


def test_who_is_drained_leaves_or_hands_over_what_runs_elsewhere(hpo, pair, slurm, start_both):
    """First an allocation that had joined, which another one follows, then the controller's."""
    a, b, run = pair
    path = campaign(hpo)
    first, second = start_both(path)

    second.send_signal(signal.SIGUSR1)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 75, err
    assert rested(hpo, run) == {"node3": {"walltime"}, "node4": {"walltime"}}
    slurm.ask("scancel", b["SLURM_JOB_ID"])
    c = slurm.allocate(2, skip=2)
    third = hpo.start("run", path, "--run", run, "--join", **c)
    hpo.wait_for(lambda: names(c, 3, 4) <= set(hosts_of(hpo, run)), "work for it", SECONDS)
    hpo.wait_for(lambda: begun(run) == 6, "its beginning", SECONDS)
    first.send_signal(signal.SIGUSR1)

    _, err = first.communicate(timeout=SECONDS)
    assert first.returncode == 75, err
    (hpo.folder / "go").touch()
    _, err = third.communicate(timeout=SECONDS)
    assert third.returncode == 0, err
    judge(hpo, run)
    everybody = {f"node{number}": {"walltime"} for number in range(1, 5)}
    assert rested(hpo, run) == everybody, "the others went on, whoever looked after them"
    interrupted = [e for e in hpo.events(run, "ended") if e["outcome"] == "interrupted"]
    assert [e["epoch"] for e in interrupted] == [1] * 4


def begun(run):
    """Count the attempts that have begun."""
    diaries = (run / "trials").glob("*/checkpoints/diary")
    return sum(path.read_text().count("begin") for path in diaries)


def rested(hpo, run):
    """Return why attempts on each host were interrupted."""
    slots = {(e["trial"], e["attempt"]): e["slots"][0][:5] for e in hpo.events(run, "placed")}
    result = defaultdict(set)
    for e in hpo.events(run, "ended"):
        if e["outcome"] == "interrupted":
            result[slots[e["trial"], e["attempt"]]].add(e["reason"])
    return result
