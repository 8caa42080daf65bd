"""Sixty variables of Slurm with hostile values: no command of ours does otherwise than without."""

import os
import re
from collections.abc import Iterator

import pytest
from slurm_environment import ALL, TABLE, Probe, probed_cluster
from virtual_slurm import VirtualSlurm

from hydragnn_hpo.campaign.status import read_leaderboard
from hydragnn_hpo.launching import batch_jobs
from hydragnn_hpo.launching.process_control import end_orphans, run_tag
from hydragnn_hpo.layout import RunDir


def test_the_table_holds_what_is_tried():
    rows = re.findall(r"^\| `(\w+)=(.*?)` \|.*\| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    assert {name: value for name, value, _ in rows} == ALL
    assert len(rows) == 60
    assert {now for *_, now in rows} == {"as without it"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[tuple[VirtualSlurm, str]]:
    with probed_cluster(tmp_path_factory.mktemp("slurm3")) as made:
        yield made


@pytest.fixture(scope="module")
def expected(cluster, tmp_path_factory) -> dict[str, str]:
    """Give what Slurm says of a job where no variable is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", cluster[0].environment["SLURM_CONF"])
        probe = Probe(tmp_path_factory.mktemp("plain"), cluster[1], seconds=600.0)
        assert probe.run() == []
        return probe.fields


@pytest.fixture
def slurm(cluster, monkeypatch) -> tuple[VirtualSlurm, str]:
    monkeypatch.setenv("SLURM_CONF", cluster[0].environment["SLURM_CONF"])
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", 600.0)
    return cluster


@pytest.mark.stress
@pytest.mark.parametrize(("name", "value"), ALL.items(), ids=ALL)
def test_a_variable_changes_nothing(slurm, expected, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert Probe(tmp_path, slurm[1], expected, seconds=600.0).run() == []


@pytest.mark.stress
@pytest.mark.timeout(1500)
def test_a_campaign_under_all_of_them_gives_what_it_gives_without(hpo, slurm):
    """Submitted, and run in an allocation: the same models to the last bit (Law 5)."""
    cluster, job = slurm
    hpo.card(hpo.molecules(60))
    campaign = hpo.campaign(
        search={"trials": 2, "initial": 2, "rungs": [4], "finalists": 2},
        machine={"slots": 1, "max_width": 1, "lease_seconds": 60.0},
        ensemble={"members": 2},
    )
    plain, ours, submitted = (hpo.folder / f"run-{name}" for name in ("plain", "ours", "job"))
    assert hpo("run", campaign, "--run", plain).code == 0

    machine = ("--machine", "generic-slurm")
    done = hpo("run", campaign, "--run", ours, *machine, **ALL, SLURM_JOB_ID=job)
    assert done.code == 0, done.err
    order = (*machine, "--hosts", "1", "--time", "0:30", "--account", "mine", "--queue", "all")
    done = hpo("submit", campaign, "--run", submitted, *order, **ALL)
    assert done.code == 0, done.err
    assert " was requested" not in done.err
    hpo.wait_for(lambda: "hpo-" not in cluster.ask("squeue", "-h", "-o", "%j"), "jobs", 600.0)

    for run in (ours, submitted):
        assert (run / "ensemble.zip").exists(), sorted(os.listdir(run))
        assert maes(run) == maes(plain)
        end_orphans(run_tag(run))


def maes(run) -> dict[str, dict[str, float]]:
    return {row.trial: row.val_mae for row in read_leaderboard(RunDir(run)).rows}
