"""The best of a finished campaign once more with new seeds, killed on the way, and built from."""

import json
import shutil
import tomllib

import pytest


@pytest.mark.stress
def test_a_finished_campaign_trains_its_best_again_and_builds_from_all(finished, hpo):
    run = hpo.folder / "run"
    shutil.copytree(finished.run, run)
    before = hpo.json("leaderboard", run)["trials"]
    completed = [row["trial"] for row in before if row["status"] == "completed"]
    best = completed[:2]
    output = hpo.here("ensemble", "build", run, "--reseed", "2", "--dry-run").out
    assert f"would train {', '.join(best)} with new seeds, then would write" in output

    killed = hpo.start("ensemble", "build", run, "--reseed", "2")
    hpo.wait_for(lambda: placed_again(hpo, run), "a trial with a new seed to start")
    hpo.kill(killed, run)
    done = hpo("ensemble", "build", run, "--reseed", "2", "--json")

    assert done.code == 0, done.err
    table = json.loads(done.out)
    rows = {row["trial"]: row for row in hpo.json("leaderboard", run)["trials"]}
    again = {row["parent"]: row for row in rows.values() if row["parent"]}
    assert sorted(again) == sorted(best), "each of the best once, though a controller died"
    assert {row["trial"] for row in table["leaderboard"]} >= {r["trial"] for r in again.values()}
    for parent, row in again.items():
        assert (row["status"], row["epochs"]) == ("completed", 6)
        assert row["values"] == rows[parent]["values"]
        assert row["objective"] != rows[parent]["objective"]
        old, new = (config_of(run, name) for name in (parent, row["trial"]))
        assert old.pop("seed") != new.pop("seed")
        assert old.pop("trial") != new.pop("trial")
        assert old == new
    everyone = {*completed, *(row["trial"] for row in again.values())}
    assert {member["trial"] for member in table["members"]} <= everyone
    assert all(rows[row["trial"]]["objective"] == row["objective"] for row in before)
    assert "reseed of" in hpo.here("leaderboard", run).out
    assert hpo.json("status", run)["standing"]["phase"] == "finished"


def placed_again(hpo, run):
    """Say whether a trial with a new seed holds slots."""
    born = {e["trial"] for e in hpo.events(run, "proposed") if e.get("parent")}
    return born & {e["trial"] for e in hpo.events(run, "placed")}


def config_of(run, trial):
    """Give all that decides a trial's result."""
    return tomllib.loads((run / "trials" / trial / "trial.toml").read_text())


def test_the_search_must_be_over_before_its_best_are_known(hpo):
    run = hpo.folder / "run"
    hpo.toml("run/campaign.toml", tomllib.loads(hpo.campaign().read_text()))
    result = hpo.here("ensemble", "build", run, "--reseed", "1", "--dry-run")
    assert result.code == 0
    assert "would train" not in result.out
