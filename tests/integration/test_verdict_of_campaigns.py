"""What the verdict of a campaign rests on: a learning curve, killed midway; labels of noise."""

import json
import tomllib

import numpy as np
import pytest

from hydragnn_hpo.ensemble_build.candidates import find_candidates, find_curve_fits
from hydragnn_hpo.layout import RunDir


@pytest.mark.slow
def test_a_campaign_ends_with_its_learning_curve_though_it_was_killed_meanwhile(hpo):
    hpo.card(hpo.molecules(60))
    search = {"trials": 2, "initial": 2, "rungs": [20], "finalists": 2}
    space = {"model.conv": ["schnet"]}
    ensemble = {"members": 2, "learning_curve": 1.0}
    file = hpo.campaign(search=search, space=space, ensemble=ensemble)
    run = hpo.folder / "run"
    killed = hpo.start("run", file, "--run", run)
    hpo.wait_for(lambda: curve_of(hpo, run, "placed") or killed.poll() is not None, "a fit")
    hpo.kill(killed, run)
    done = hpo("run", file, "--run", run, "--json")
    assert done.code == 0, done.err

    proposed = curve_of(hpo, run, "proposed")
    shares = [e["values"]["training.train_share"] for e in proposed]
    assert sorted(shares) == [0.25, 0.5, 1.0], "each once, though a controller died"
    parents = {e["parent"] for e in proposed}
    epochs = {e["until"] for e in proposed}
    assert (len(parents), len(epochs)) == (1, 1)
    names = {e["trial"] for e in proposed}
    ended = {e["trial"]: e for e in hpo.events(run, "ended") if e["trial"] in names}
    assert {e["outcome"] for e in ended.values()} == {"completed"}
    rows = {row["trial"]: row for row in hpo.json("leaderboard", run)["trials"]}
    assert {rows[name]["rank"] for name in names} == {None}
    fits = find_curve_fits(RunDir(run))
    assert [fit.config.training.train_share for fit in fits] == [0.25, 0.5, 1.0]
    assert not names & {candidate.trial for candidate in find_candidates(RunDir(run))}
    steps = {
        name: max(e["step"] for e in hpo.events(run, "checkpoint") if e["trial"] == name)
        for name in names
    }
    assert len(set(steps.values())) == 1, "of equally many optimizer steps"
    config = tomllib.loads((run / "trials" / parents.pop() / "trial.toml").read_text())
    assert "train_share" not in config["training"]
    verdict = hpo.json("ensemble", "build", run)["verdict"]
    learned = {
        each["head"] for each in verdict if (each["rule"], each["level"]) == ("mean", "good")
    }
    assert learned
    assert learned <= {each["head"] for each in verdict if each["rule"] == "data"}
    assert hpo.json("status", run)["standing"]["phase"] == "finished"
    before = len(hpo.events(run))
    assert hpo("run", file, "--run", run).code == 0
    assert not [e for e in hpo.events(run)[before:] if e["event"] == "proposed"]


def curve_of(hpo, run, kind):
    """Return the events of a kind of the fits of the learning curve."""
    if not (run / "events.jsonl").exists():
        return []
    proposed = [e for e in hpo.events(run, "proposed") if e.get("parent")]
    names = {e["trial"] for e in proposed if "training.train_share" in e["values"]}
    return [e for e in hpo.events(run, kind) if e["trial"] in names]


@pytest.mark.stress
def test_the_verdict_on_noise_is_that_nothing_was_learned(hpo):
    structures = hpo.molecules(200)
    random = np.random.default_rng(5)
    for atoms in structures:
        atoms.info["energy_like"] = float(random.normal())
    hpo.card(structures)
    done = hpo("run", hpo.campaign(), "--run", hpo.folder / "run", "--json")
    assert done.code == 0, done.err
    verdict = json.loads(done.out)["verdict"]
    of_noise = {each["rule"]: each for each in verdict if each["head"] == "energy_like"}
    assert "learned" in of_noise["mean"]["sentence"]
    assert of_noise["mean"]["level"] == "warning"
    assert not {"elements", "single", "data"} & of_noise.keys()
