"""A campaign whose best configurations train on folds: killed on the way, and built from them."""

import json

import pytest

from hydragnn_hpo.ensemble.artefact import read_artefact

FOLDS = 2


@pytest.mark.slow
def test_every_fold_is_left_out_once_though_the_campaign_was_killed_meanwhile(hpo):
    hpo.card(hpo.molecules(60))
    search = {"trials": 2, "initial": 2, "rungs": [2], "finalists": 2}
    space = {"model.conv": ["schnet"]}
    ensemble = {"learning_curve": 0.0, "fit": "cross", "folds": FOLDS, "configurations": 2}
    file = hpo.campaign(search=search, space=space, ensemble=ensemble)
    run = hpo.folder / "run"
    killed = hpo.start("run", file, "--run", run)
    hpo.wait_for(lambda: fits_of(hpo, run, "placed") or killed.poll() is not None, "a fit")
    hpo.kill(killed, run)
    done = hpo("run", file, "--run", run, "--json")
    assert done.code == 0, done.err

    proposed = fits_of(hpo, run, "proposed")
    left_out = sorted((e["parent"], e["values"]["training.fold"]) for e in proposed)
    parents = sorted({e["parent"] for e in proposed})
    assert left_out == [(parent, fold) for parent in parents for fold in range(FOLDS)]
    assert len(parents) == 2
    names = {e["trial"] for e in proposed}
    ended = {e["trial"]: e["outcome"] for e in hpo.events(run, "ended") if e["trial"] in names}
    assert set(ended.values()) == {"completed"}
    rows = {row["trial"]: row for row in hpo.json("leaderboard", run)["trials"]}
    assert {rows[name]["rank"] for name in names} == {None}
    table = json.loads((run / "report/ensemble.json").read_text())
    assert {member["trial"] for member in table["members"]} <= names
    assert not {row["trial"] for row in table["leaderboard"]} & names
    manifest = read_artefact(run / "ensemble.zip").manifest
    assert manifest.created_by.folds == FOLDS
    splits = manifest.data.splits
    for head in manifest.heads.values():
        assert head.calibration.groups > splits.get("cal", 0), "more than a calibration split"
    assert hpo.json("status", run)["standing"]["phase"] == "finished"
    before = len(hpo.events(run))
    assert hpo("run", file, "--run", run).code == 0
    assert not [e for e in hpo.events(run)[before:] if e["event"] == "proposed"]
    pruned = hpo.here("ensemble", "prune", run, "--keep", "2", "--out", hpo.folder / "small.zip")
    assert pruned.code == 2
    assert "ensemble build RUN --nets 4 if it is cross-fitted" in " ".join(pruned.err.split())


def fits_of(hpo, run, kind):
    """Return the events of a kind of the fits on folds."""
    if not (run / "events.jsonl").exists():
        return []
    proposed = [e for e in hpo.events(run, "proposed") if "training.fold" in e["values"]]
    names = {e["trial"] for e in proposed}
    return (
        proposed
        if kind == "proposed"
        else [e for e in hpo.events(run, kind) if e["trial"] in names]
    )
