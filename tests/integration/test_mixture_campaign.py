"""A campaign on two data sets: one trunk, heads of both, one ensemble."""

import pytest
from ase.io import read, write


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
