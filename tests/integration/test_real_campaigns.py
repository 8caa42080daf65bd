"""Whole campaigns on a real Slurm and a real Ray cluster: the same numbers, whatever dies."""

import os
import random
import signal
import sys
from pathlib import Path

import psutil
import pytest
from processes import creep

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1500)]

MPIEXEC = Path(sys.executable).parent / "mpiexec"
SECONDS = 700.0
TRIALS = 5
EPOCHS = 14
LEASE = 12.0


def fixed_campaign(hpo, **machine):
    """Write a campaign whose trials depend on its seed alone: a list of configurations."""
    hpo.card(hpo.molecules(80))
    return hpo.campaign(
        trial={
            "training": {"checkpoint_seconds": 0.0, "global_batch": 8, "precision": "fp64"},
        },
        machine={"slots": 2, "max_width": 2, "lease_seconds": LEASE, **machine},
        search={"trials": TRIALS, "initial": TRIALS, "rungs": [EPOCHS], "finalists": 3},
        ensemble={"members": 2},
    )


def errors(hpo, run):
    """Return the validation MAE of every trial by head.

    They hang on the number of ranks by the order of sums: by far less than this in fp64, and by
    more, after so many steps, in fp32 on another processor.
    """
    board = hpo.json("leaderboard", run)["trials"]
    return {row["trial"]: pytest.approx(row["val_mae"], abs=1e-6) for row in board}


@pytest.fixture(scope="session")
def at_home(tmp_path_factory):
    """The same campaign on this computer alone, once."""
    from tests.integration.conftest import Commands

    hpo = Commands(tmp_path_factory.mktemp("home"))
    run = hpo.folder / "run"
    done = hpo("run", fixed_campaign(hpo), "--run", run)
    assert done.code == 0, done.err
    results = errors(hpo, run)
    assert len(results) == TRIALS
    yield results
    hpo.end()


def judge(hpo, run, at_home):
    """See that all is there, once, with the numbers that it has at home."""
    board = hpo.json("leaderboard", run)["trials"]
    assert not [e for e in hpo.events(run, "ended") if e["outcome"] == "failed"]
    actual = {row["trial"]: row["val_mae"] for row in board}
    assert actual == at_home
    ended = [e for e in hpo.events(run, "ended") if e["outcome"] != "interrupted"]
    assert sorted(e["trial"] for e in ended) == sorted(actual), "each trial is reported once"
    assert (run / "ensemble.zip").exists()


def hosts_of(hpo, run):
    return {s.rpartition(":")[0] for e in hpo.events(run, "placed") for s in e["slots"]}


@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_mpiexec_gives_every_trial_the_error_that_it_has_at_home(hpo, at_home):
    campaign = fixed_campaign(hpo, backend="mpiexec", interface="lo")
    run, nodes = hpo.folder / "run", hpo.folder / "nodes"
    nodes.write_text("h1\nh2\n")
    hosts = {"PBS_NODEFILE": str(nodes), "HYDRA_LAUNCHER": "fork"}
    done = hpo("run", campaign, "--run", run, **hosts, seconds=SECONDS)
    assert done.code == 0, done.err
    judge(hpo, run, at_home)
    assert hosts_of(hpo, run) == {"h1", "h2"}


def kill_some(hpo, run, now, chance):
    """Kill a rank in training, a zygote and an agent, of one host or of several."""
    zygotes, agents = (hpo.named(run, part) for part in ("hpo-zygote", "hpo-agent"))
    for victim in (now.rank, chance.choice(zygotes), chance.choice(agents)):
        os.kill(victim, signal.SIGKILL)


def test_ray_outlives_whatever_is_killed(hpo, ray_cluster, at_home):
    """A rank, a zygote, an agent and a raylet; nothing is lost, nothing counts twice."""
    campaign = fixed_campaign(hpo, backend="ray", address=ray_cluster.address, hosts=2)
    token = str(ray_cluster.folder / "token")
    run, token = hpo.folder / "run", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}
    controller = hpo.start("run", campaign, "--run", run, **token)
    with hpo.held(run, seconds=SECONDS) as now:
        kill_some(hpo, run, now, random.Random(3))
        ray_cluster.kill(min(hosts_of(hpo, run)))
    try:
        _, err = controller.communicate(timeout=SECONDS)
        assert controller.returncode == 0, err
        judge(hpo, run, at_home)
        assert len(hosts_of(hpo, run)) >= 2
    finally:
        ray_cluster.add()


def test_slurm_outlives_whatever_is_killed_or_frozen(hpo, slurm, at_home):
    """Rank, zygote, agent and host; nothing is lost, nothing counts twice."""
    campaign = fixed_campaign(hpo, backend="slurm")
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run, **slurm.allocate(2))
    with hpo.held(run, seconds=SECONDS) as now:
        kill_some(hpo, run, now, random.Random(7))
    slurm.signal_host("node2", signal.SIGSTOP)
    out, err = controller.communicate(timeout=SECONDS)
    assert controller.returncode == 0, err
    judge(hpo, run, at_home)
    assert hosts_of(hpo, run) == {"node1", "node2"}


def test_a_new_controller_takes_over_and_builds_the_ensemble_though_its_host_is_lost(
    hpo, slurm, at_home
):
    """The ensemble is the last job of all: without it a campaign has trained for nothing."""
    campaign = fixed_campaign(hpo, backend="slurm", lease_seconds=60.0)
    run = hpo.folder / "run"
    environment = slurm.allocate(2)
    first = hpo.start("run", campaign, "--run", run, **environment)
    with hpo.held(run, seconds=SECONDS):
        first.kill()
        first.wait()
    second = hpo.start("run", campaign, "--run", run, **environment)

    def ranks():
        return hpo.named(run, "hpo-rank")

    def its_rank():
        return (run / "ensemble.log").exists() and ranks()

    def ended():
        return [e for e in hpo.events(run, "ended") if e["outcome"] != "interrupted"]

    hpo.wait_for(lambda: len(ended()) >= TRIALS, "the end of all trials", SECONDS)
    [rank] = creep(ranks, its_rank, "rank that builds the ensemble")
    [agent] = [
        p.pid for p in psutil.Process(rank).parents() if p.pid in hpo.named(run, "hpo-agent")
    ]
    os.kill(agent, signal.SIGKILL)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, err
    assert "it is sent again" in err
    judge(hpo, run, at_home)
    began = {e["trial"] for e in hpo.events(run, "placed") if e["epoch"] == 1}
    adopted = {e["trial"] for e in ended() if e["epoch"] == 2 and e["attempt"] == 1}
    assert adopted & began, "nothing was taken over"
