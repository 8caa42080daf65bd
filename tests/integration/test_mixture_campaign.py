"""A campaign on two data sets: one trunk, heads of both, one ensemble."""

import json
import sys
from pathlib import Path

import pytest
from ase.io import read, write

MPIEXEC = Path(sys.executable).parent / "mpiexec"
by_mpiexec = pytest.mark.skipif(
    not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi]."
)


def second_card(hpo):
    """Write a card of other molecules, whose energy means something else."""
    atoms = hpo.molecules(50, seed=8)
    for one in atoms:
        one.info["energy_like"] = 5.0 + 3.0 * len(one)
    write(hpo.folder / "other.extxyz", atoms, format="extxyz")
    targets = {"energy_like": {"level": "graph", "unit": "eV", "energy": "total"}}
    card = {
        "name": "other",
        "files": [{"path": "other.extxyz"}],
        "targets": targets,
        "graphs": {"cutoff": 5.0},
        "split": {"group": "structure"},
    }
    return hpo.toml("other.toml", card)


@pytest.mark.slow
def test_two_data_sets_make_one_ensemble(hpo):
    hpo.card(hpo.molecules(60))
    second_card(hpo)
    data = [
        {"card": "tiny.toml", "ratio": 2.0},
        {"card": "other.toml", "ratio": 1.0, "prefix": "other_"},
    ]
    search = {"trials": 3, "initial": 2, "finalists": 2}
    heads = {"heads": {"other_energy_like": {}}}
    campaign = hpo.campaign(data=data, trial=heads, search=search, ensemble={"members": 2})
    run = hpo.folder / "run"
    done = hpo("run", campaign, "--run", run, "--json")
    assert done.code == 0, done.err
    board = hpo.json("leaderboard", run)
    assert {"energy_like", "charge_like", "other_energy_like"} <= board["units"].keys()
    ensemble = hpo.json("ensemble", "info", run / "ensemble.zip")
    assert set(ensemble["heads"]) == {"energy_like", "charge_like", "other_energy_like"}
    assert ensemble["data"]["name"] == "tiny; other"
    # Both were learned: each is nearer to its own than the mean would be.
    predicted = hpo.json("predict", hpo.folder / "other.extxyz", "--ensemble", run / "ensemble.zip")
    truth = [atoms.info["energy_like"] for atoms in read(hpo.folder / "other.extxyz", ":")]
    means = [one["heads"]["other_energy_like"]["mean"] for one in predicted["structures"]]
    error = sum(abs(a - b) for a, b in zip(truth, means, strict=True)) / len(truth)
    mean = sum(truth) / len(truth)
    assert error < 0.5 * sum(abs(value - mean) for value in truth) / len(truth)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([{}, {}], ("data sets 1 and 2 both have a target 'energy_like'", "prefix", "shared")),
        ([{"ratio": 1.0}, {"prefix": "b_"}], ("some data sets have a ratio", "all or none")),
        ([{}, {"card": "tiny.toml"}], ("two cards of the campaign are named 'tiny'",)),
    ],
)
def test_data_sets_that_do_not_go_together_are_refused(hpo, changes, says):
    hpo.card(hpo.molecules(5))
    second_card(hpo)
    cards = [{"card": "tiny.toml"}, {"card": "other.toml"}]
    data = [{**card, **change} for card, change in zip(cards, changes, strict=True)]
    hpo.refused("run", hpo.campaign(data=data), "--run", hpo.folder / "run", says=says)
    assert not (hpo.folder / "run").exists()


SLOW = """
extends = "workstation"
name = "slow"
slots_per_host = 1
flops_per_second = 1e5
bytes_per_second = 1e5
"""
"""A machine on which even a tiny training is worth two ranks."""


def losses(hpo, *access):
    """Train one trial of two data sets on two hosts of a slot each; return its epochs' losses."""
    (hpo.folder / "nodes").write_text("h1\nh2\n")
    (hpo.folder / "slow.toml").write_text(SLOW)
    first, second = [{"access": one} for one in access]
    campaign = hpo.campaign(
        data=[{"card": "tiny.toml"} | first, {"card": "other.toml", "prefix": "other_"} | second],
        trial={"heads": {"other_energy_like": {}}},
        search={"brain": "random", "trials": 1, "initial": 1, "finalists": 1, "rungs": [2]},
        ensemble={"members": 1, "learning_curve": 0.0},
        machine={"backend": "mpiexec", "slots": 1, "interface": "lo", "profile": "slow.toml"},
    )
    run = hpo.folder / "-".join(access)
    hosts = {"PBS_NODEFILE": str(hpo.folder / "nodes"), "HYDRA_LAUNCHER": "fork"}
    hosts["HYDRAGNN_HPO_RANKS_PER_HOST"] = "1"
    done = hpo("run", campaign, "--run", run, **hosts, seconds=500)
    assert done.code == 0, done.err
    trial = run / "trials" / "t0000" / "attempts" / "001"
    result = json.loads((trial / "result.json").read_text())
    assert (result["status"], result["width"]) == ("completed", 2)
    records = map(json.loads, (trial / "metrics.jsonl").read_text().splitlines())
    epochs = [one for one in records if one["record"] == "epoch"]
    assert len(epochs) == 2
    return [(one["loss"], one["val_mae"], one["objective"]) for one in epochs]


@pytest.mark.stress
@by_mpiexec
def test_each_access_gives_the_same_losses_on_two_hosts(hpo):
    hpo.card(hpo.molecules(60))
    second_card(hpo)
    forked = losses(hpo, "stage", "windows")
    assert losses(hpo, "windows", "distributed") == forked
    assert losses(hpo, "distributed", "stage") == forked
