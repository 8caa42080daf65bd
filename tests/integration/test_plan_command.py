"""``plan``: what a campaign takes, from its file."""

import json

import pytest
from PIL import Image

from hydragnn_hpo.config.machine import known_profiles
from hydragnn_hpo.config.schema import to_toml

CAUSES = {"training", "start-up", "tail", "held", "failures", "brain"}


@pytest.fixture
def campaign(hpo):
    hpo.card(hpo.molecules(40))
    return hpo.campaign()


def test_a_campaign_is_planned_before_anything_is_built(hpo, campaign):
    done = hpo.here("plan", campaign, "--machine", "frontier", "--hosts", "4", "--figure", "a.png")
    assert done.code == 0, done.err
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines["machine"] == "frontier: 4 hosts of 8 slots"
    assert lines["data"] == "not built yet, estimated: 40 structures, sizes by 40 structures of it"
    assert "host-hours" in lines["takes"]
    assert lines["trust"].startswith("prices are first guesses")
    with Image.open(hpo.folder / "a.png") as image:
        assert image.width == 1650
    assert hpo.files_of(hpo.folder) == {"a.png", "campaign.toml", "tiny.extxyz", "tiny.toml"}


@pytest.mark.parametrize("machine", known_profiles())
def test_every_machine_that_ships_can_be_planned_for(hpo, campaign, machine):
    wish = ("--hosts", "2", "--slots", "4", "--trials", "4", "--structures", "3e3")
    forecast = hpo.json("plan", campaign, "--machine", machine, *wish)["forecast"]
    assert 0.0 < forecast["makespan"] < 1e6
    assert sum(forecast["shares"].values()) == pytest.approx(1.0)
    assert forecast["host_hours"] == pytest.approx(forecast["hosts"] * forecast["makespan"] / 3600)


def test_failures_cost_something(hpo, campaign):
    wish = ("--machine", "generic-slurm", "--hosts", "8", "--slots", "8", "--failures", "0.5")
    forecast = hpo.json("plan", campaign, *wish, "--structures", "3000000")["forecast"]
    assert forecast["failed_hosts"] > 0
    assert forecast["shares"]["failures"] > 0.0


def test_slots_of_a_machine_that_nobody_described_must_be_given(hpo, campaign):
    hpo.refused(
        *("plan", campaign, "--machine", "generic-slurm", "--hosts", "8", "--structures", "500"),
        says=("generic-slurm does not say how many slots", "--slots"),
    )


def test_a_plan_refuses_what_makes_no_sense(hpo, campaign):
    hpo.refused(
        *("plan", campaign, "--machine", "frontier", "--hosts", "4", "--trials", "5001"),
        says=("5,001 trials take too long to simulate: plan at most 5,000",),
    )
    assert hpo.here("plan", campaign, "--structures", "1e13").code == 2
    hpo.refused("plan", campaign, "--machine", "fronteer", says=("fronteer", "frontier"))
    hpo.refused(
        "plan", campaign, "--machine", "frontier", "--hosts", "20000", says=("9,408 hosts",)
    )
    hpo.refused("plan", "nowhere.toml", says=("nowhere.toml",))
    (hpo.folder / "tiny.extxyz").unlink()
    hpo.refused("plan", campaign, says=("tiny.extxyz",))
    assert hpo.here("plan", campaign, "--structures", "500").code == 0


def test_a_run_is_not_planned(hpo):
    run = hpo.folder / "run"
    run.mkdir()
    (run / "campaign.toml").write_text(to_toml(hpo.ci_campaign()))
    hpo.refused("plan", run, says=("is a run", "report", "campaign file"))


def test_a_command_is_planned_by_a_constant(hpo):
    command = {
        "name": "mine",
        "command": {"argv": ["true"], "width": 2},
        "space": {"a": {"low": 1, "high": 50}},
        "search": {"brain": "random", "trials": 6, "rungs": [1]},
    }
    (hpo.folder / "mine.toml").write_text(to_toml(command))
    plain = json.loads(hpo.here("plan", "mine.toml", "--slots", "4", "--json").out)
    assert plain["data"] == "none: trials are a command of yours"
    assert plain["forecast"]["widths"] == {"2": 6}
