"""A campaign with a user's own conv on forces and stress, from structures to a prediction."""

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.lj import LennardJones
from ase.io import write

CONV = """
from torch import nn

class MyConv(nn.Module):
    def __init__(self, dimensions, options):
        super().__init__()
        self.filter = nn.Linear(dimensions.basis_size, dimensions.features)
        self.update = nn.Linear(dimensions.features, dimensions.features)

    def forward(self, scalars, state, edges):
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        return self.update(edges.filtered_sum(scalars, filters)), None
"""


def crystals(count):
    """Distorted argon-like cells with energies, forces and stresses of a pair potential."""
    random = np.random.default_rng(2)
    made = []
    for number in range(count):
        atoms = Atoms("CO" if number % 2 else "C2", [[0, 0, 0], [1.5, 1.5, 1.5]], pbc=True)
        atoms.set_cell(3.0 * (np.eye(3) + 0.03 * random.normal(size=(3, 3))))
        atoms.positions += 0.1 * random.normal(size=(2, 3))
        atoms.calc = LennardJones(sigma=2.3, epsilon=0.1, rc=4.0, smooth=True)
        atoms.info |= {"total": atoms.get_potential_energy(), "spin": float(number % 3)}
        atoms.info["stress_like"] = atoms.get_stress(voigt=False).flatten()
        atoms.arrays["force_like"] = atoms.get_forces()
        atoms.calc = None
        made.append(atoms)
    return made


def card(hpo):
    write(hpo.folder / "own.extxyz", crystals(60), format="extxyz")
    derived = {"derived_from": "total"}
    targets = {
        "total": {"level": "graph", "unit": "eV", "energy": "total"},
        "force_like": {"level": "node", "shape": "vector", "unit": "eV/angstrom", **derived},
        "stress_like": {"level": "graph", "shape": "tensor", "unit": "eV/angstrom^3", **derived},
    }
    return hpo.toml(
        "own.toml",
        {
            "name": "own",
            "files": [{"path": "own.extxyz"}],
            "targets": targets,
            "attributes": {"spin": {}},
            "graphs": {"cutoff": 4.0},
            "split": {"group": "structure"},
        },
    )


def install(hpo, conv):
    """Write a user's package, and return the environment in which it is found."""
    package = hpo.folder / "code" / "users_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "convs.py").write_text(conv)
    return {"PYTHONPATH": str(package.parent)}


@pytest.mark.slow
def test_a_users_conv_that_crashes_is_a_bug_at_its_line(hpo):
    forward = "filters = self.filter(edges.pair_basis)"
    assert CONV.count(forward) == 1
    crashing = CONV.replace(forward, f"__import__('ctypes').string_at(0); {forward}")
    line = 1 + crashing[: crashing.index("string_at")].count("\n")
    path = install(hpo, crashing)
    card(hpo)
    campaign = hpo.toml(
        "own_campaign.toml",
        {
            "name": "own",
            "data": [{"card": "own.toml"}],
            "trial": {
                "model": {"features": 8, "layers": 1, "cutoff": 4.0},
                "heads": {"total": {}},
                "training": {"global_batch": 8},
            },
            "space": {
                "model.conv": ["users_package.convs:MyConv"],
                "training.learning_rate": {"low": 2e-3, "high": 1e-2},
            },
            "search": {"trials": 4, "rungs": [1, 2], "finalists": 1, "brain": "random"},
        },
    )
    run = hpo.folder / "run"
    done = hpo("run", campaign, "--run", run, **path)

    place = f"{hpo.folder}/code/users_package/convs.py:{line} in forward: the program crashed here"
    assert done.code == 1
    assert f"{place} (SIGSEGV)." in " ".join(done.err.split())
    assert "3 trials failed alike" in done.err
    trials = {}
    for event in hpo.events(run, "ended"):
        if event["reason"] != "paused":  # the fourth may have been running
            assert event["message"] == f"{place} (SIGSEGV)."
            trials.setdefault(event["trial"], []).append(event["reason"])
    twice = [ends for ends in trials.values() if len(ends) > 1]
    assert len(twice) >= 3  # the fourth may have crashed again, too
    assert all(ends == ["crashed", "bug"] for ends in twice)
    assert not hpo.events(run, "host_failed")


@pytest.mark.stress
def test_a_users_conv_learns_forces_and_predicts_where_it_is_trusted(hpo):
    path = install(hpo, CONV)
    card(hpo)
    heads = {"total": {"pool": "contributions", "loss": "nll"}, "force_like": {}, "stress_like": {}}
    campaign = hpo.toml(
        "own_campaign.toml",
        {
            "name": "own",
            "seed": 1,  # of 0 to 3 the one that learns most: 0.38 and 0.54 of the baseline
            "data": [{"card": "own.toml"}],
            "trial": {
                "model": {"features": 16, "layers": 2, "cutoff": 4.0, "attributes": ["spin"]},
                "heads": heads,
                "training": {"global_batch": 8, "learning_rate": 5e-3, "balance": "uncertainty"},
            },
            "space": {
                "model.conv": ["users_package.convs:MyConv"],
                "model.layers": {"low": 1, "high": 2},
                "training.learning_rate": {"low": 2e-3, "high": 1e-2, "log": True},
            },
            "search": {
                "trials": 3,
                "initial": 2,
                "rungs": [2, 8],
                "finalists": 2,
                "brain": "random",
            },
            "ensemble": {"members": 2},
        },
    )
    run = hpo.folder / "run"
    done = hpo("run", campaign, "--run", run, "--json", **path)
    assert done.code == 0, done.err
    info = hpo.json("ensemble", "info", run / "ensemble.zip")
    assert set(info["heads"]) == set(heads)
    assert info["heads"]["force_like"]["derived_from"] == "total"
    assert info["packages"] == {"users_package": "unknown"}, "it was never installed by pip"
    for head in ("force_like", "stress_like"):
        scores = info["evaluation"][head]
        assert scores["test_mae"] < 0.9 * scores["mean_baseline_mae"], (head, scores)

    predict = ("predict", "own.extxyz", "--ensemble", run / "ensemble.zip")
    refused = hpo(*predict, **path)
    assert refused.code == 2
    assert "--trust users_package" in refused.err
    assert "Traceback" not in refused.err
    done = hpo(*predict, "--trust", "users_package", "--out", "said.csv", **path)
    assert done.code == 0, done.err
    header = (hpo.folder / "said.csv").read_text().splitlines()[0]
    assert "stress_like_xx" in header
    assert "force_like_x" in (hpo.folder / "said.nodes.csv").read_text().splitlines()[0]
    missing = hpo.here("run", campaign, "--run", hpo.folder / "other")
    assert missing.code == 2
    assert "package 'users_package', which is not installed here" in missing.err
