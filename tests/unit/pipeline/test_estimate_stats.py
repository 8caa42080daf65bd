"""What a data set will look like, from a few of its structures, an old store, or nothing."""

import json
import math

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.io import write
from structure_files import bound_by_springs

from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config, to_toml
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.pipeline.campaign_changes import load_campaign
from hydragnn_hpo.pipeline.estimate_stats import (
    ATOMS,
    DENSITY,
    check_campaign_file,
    check_forces,
    estimate_stats,
    scale_stats,
)
from hydragnn_hpo.pipeline.init_files import InitRequest, init_from_files


@pytest.fixture
def card(tmp_path):
    """Ten pairs of atoms at 1 angstrom and ten chains of four, 1 angstrom apart."""
    pair = Atoms("H2", positions=[[0, 0, 0], [1, 0, 0]])
    chain = Atoms("C4", positions=[[k, 0, 0] for k in range(4)])
    frames = []
    for number in range(20):
        atoms = (pair if number % 2 else chain).copy()
        atoms.info["e"] = float(number)
        frames.append(atoms)
    write(tmp_path / "tiny.extxyz", frames, format="extxyz")
    path = tmp_path / "tiny.toml"
    path.write_text(
        to_toml(
            {
                "name": "tiny",
                "files": [{"path": "tiny.extxyz"}],
                "targets": {"e": {"level": "graph", "unit": "eV"}},
                "graphs": {"cutoff": 4.0},
            }
        )
    )
    return path


def test_structures_are_read_and_counted(card):
    guess = estimate_stats(card, [], None)
    stats = guess.stats
    assert not guess.built
    assert guess.origin == "20 structures, sizes by 20 structures of it"
    assert stats["nodes"]["mean"] == 3.0
    # All atoms of a structure see each other within 4 angstrom: 2 and 12 edges.
    assert stats["edges"]["mean"] == 7.0
    assert stats["degree"] == {"3.0": pytest.approx(140 / 60), "4.0": pytest.approx(140 / 60)}
    assert stats["splits"] == {"train": 12, "val": 2, "sel": 2, "cal": 2, "test": 2}
    assert (stats["train_nodes"], stats["train_edges"]) == (36, 84)
    assert stats["targets"]["e"]["unit"] == "eV"
    large = estimate_stats(card, [], 1_000_000).stats
    assert (large["splits"]["train"], large["train_nodes"]) == (600_000, 1_800_000)
    assert (large["nodes"]["total"], large["edges"]["total"]) == (3e6, 7e6)


def test_without_its_files_structures_are_middling_crystals(card):
    (card.parent / "tiny.extxyz").unlink()
    with pytest.raises(DataError, match="tiny.extxyz"):
        estimate_stats(card, [], None)
    guess = estimate_stats(card, [], 1000)
    assert guess.origin == "1,000 structures, sizes by a guess"
    assert guess.stats["train_nodes"] == 600 * ATOMS
    sphere = 4.0 / 3.0 * math.pi * 4.0**3 * DENSITY
    assert guess.stats["degree"]["4.0"] == pytest.approx(sphere)


def test_a_store_goes_before_a_guess(card, tmp_path):
    store = tmp_path / "tiny.bp"
    store.mkdir()
    (store / "stats.json").write_text(json.dumps({"splits": {"train": 7}}))
    assert not estimate_stats(card, [store], None).built, "it is not whole"
    (store / "index.json").touch()
    guess = estimate_stats(card, [tmp_path / "none.bp", store], None)
    assert guess.built
    assert guess.stats == {"splits": {"train": 7}}
    assert not estimate_stats(card, [store], 500).built, "the data is to grow"


@pytest.fixture
def springs(tmp_path):
    """Atoms bound by springs of 8 eV/angstrom^2, with plus the gradient as forces."""
    frames = []
    for atoms, energy, gradient in bound_by_springs():
        atoms.info["e"] = energy
        atoms.arrays["f"] = gradient
        frames.append(atoms)
    write(tmp_path / "springs.extxyz", frames, format="extxyz")
    forces = {"level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "e"}
    card = {
        "name": "springs",
        "files": [{"path": "springs.extxyz"}],
        "targets": {"e": {"level": "graph", "unit": "eV", "energy": "total"}, "f": forces},
        "split": {"group": "structure"},
    }
    campaign = {
        "name": "c",
        "data": [{"card": "springs.toml"}],
        "trial": {
            "heads": {"e": {"pool": "contributions"}, "f": {}},
            "model": {"conv": "schnet", "features": 8},
            "training": {"learning_rate": 0.01, "global_batch": 4},
        },
        "space": {"model.layers": [1, 2]},
        "search": {"trials": 2, "rungs": [2], "finalists": 1},
    }
    (tmp_path / "springs.toml").write_text(to_toml(card))
    (tmp_path / "c.toml").write_text(to_toml(campaign))
    return tmp_path


def test_a_campaign_on_forces_that_contradict_is_refused_until_they_are_trusted(springs):
    config = load_campaign(springs / "c.toml")
    with pytest.raises(DataError, match="the sign of one is wrong; .* 'trust_forces = true'"):
        check_campaign_file(config, springs / "c.toml", springs / "run")
    card = springs / "springs.toml"
    card.write_text("trust_forces = true\n" + card.read_text())
    assert check_campaign_file(config, springs / "c.toml", springs / "run")


def test_forces_that_are_not_learned_are_not_compared(springs):
    card = load_config(springs / "springs.toml", CardConfig)
    check_forces(card, springs / "springs.toml", ["e"])
    with pytest.raises(DataError, match="f contradict the energies"):
        check_forces(card, springs / "springs.toml", ["e", "f"])
    overlap = [Atoms("Cu2", info={"e": 1.0}) for _ in range(3)]
    for atoms in overlap:
        atoms.arrays["f"] = np.zeros((2, 3))
    write(springs / "springs.extxyz", overlap, format="extxyz")
    check_forces(card, springs / "springs.toml", ["e", "f"])  # none can be used: the build tells


def test_a_published_test_split_leaves_the_others_what_is_not_test(tmp_path):
    """Of 30 structures 20 are test: 10 are dealt by the shares of train, val, sel and cal."""
    frames = [bulk("Cu") for _ in range(30)]
    random = np.random.default_rng(0)
    for number, frame in enumerate(frames):
        frame.rattle(0.1, rng=random)
        frame.info |= {"gap": float(random.random()), "part": "train" if number < 10 else "test"}
    write(tmp_path / "some.extxyz", frames)
    request = InitRequest(targets=("gap",), minutes=1.0, trunks=False)
    made = init_from_files([tmp_path / "some.extxyz"], request, {"gap": "eV"}, tmp_path)
    assert made.inspection.split.test_share == pytest.approx(2 / 3)
    card = CardConfig(
        name="it", files=({"path": "x"},), targets={"gap": {"level": "graph", "unit": "eV"}}
    )
    scaled = scale_stats(made.inspection.geometry.stats, 30, card, 2 / 3)
    assert scaled["splits"] == {"train": 7, "val": 1, "sel": 1, "cal": 1, "test": 20}
