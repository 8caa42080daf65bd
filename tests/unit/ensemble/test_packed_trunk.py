"""Ensembles whose members begin from features of a foundation model."""

import json
import zipfile

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from safetensors.torch import load, save
from scipy.spatial.distance import cdist
from sealed_zip import check_refused, sealed

from hydragnn_hpo.data import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.pick import PickRequest, pick_structures, pick_unlike
from hydragnn_hpo.ensemble.prune import prune_members
from hydragnn_hpo.ensemble.structure_batches import Structures, columns_of_atoms, rules_for
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.model.trunks import find_trunk
from hydragnn_hpo.model.trunks.embed import feature_cache

ABOUT, WEIGHTS = "trunks/chgnet.json", "trunks/chgnet.safetensors"


@pytest.fixture(scope="module")
def ensemble(frozen_run):
    return Ensemble.load(frozen_run / "ensemble.zip")


@pytest.fixture(scope="module")
def graphs(frozen_run):
    return open_store(frozen_run / "data/toy.bp")


def as_atoms(columns, row):
    nodes = slice(*columns.node_offset[row : row + 2])
    return Atoms(
        columns.numbers[nodes],
        columns.positions[nodes],
        cell=columns.cell[row],
        pbc=columns.pbc[row],
    )


def test_structures_are_predicted_as_the_stored_graphs_with_stored_features(
    ensemble, graphs, frozen_run
):
    """Stored features are in half precision, which is why the two differ at all."""
    rows = np.arange(12)
    stored = feature_cache(frozen_run / "data/toy.bp", "chgnet").attach(graphs)
    with_stored = ensemble.predict(stored, rows)
    fresh = ensemble.predict([as_atoms(graphs, row) for row in rows])
    for name, head in with_stored.heads.items():
        spread = head.mean.std()
        np.testing.assert_allclose(fresh.heads[name].mean, head.mean, atol=2e-3 * spread)
    assert not np.allclose(fresh.heads["energy"].mean, fresh.heads["energy"].mean[0])


def test_distances_to_the_training_set_are_those_of_the_models_last_features(ensemble, graphs):
    """The reference describes each structure alone and looks at every pair."""
    assert ensemble.features.source == "chgnet"
    trunk = find_trunk("chgnet")
    train, test = (graphs.indices_of(split) for split in ("train", "test"))
    known, new = (
        np.array([trunk.features(graphs, [row])[:, -1].mean(axis=0) for row in rows])
        for rows in (train, test)
    )
    spread = known.std(axis=0) * np.sqrt(known.shape[1])
    apart = cdist(known / spread, known / spread) + np.diag(np.full(len(known), np.inf))
    expected = cdist(new / spread, known / spread).min(axis=1) / np.median(apart.min(axis=1))
    measured = ensemble.training_distances(graphs, test)["graph"]
    np.testing.assert_allclose(measured, expected, rtol=0.02, atol=0.01)  # half precision


def test_a_prediction_does_not_depend_on_the_batch(ensemble, graphs):
    together = ensemble.predict(graphs, np.arange(9)).heads["charge"].mean
    alone = [ensemble.predict(graphs, np.array([row])).heads["charge"].mean for row in range(9)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-5)


def test_members_read_what_the_file_holds_and_not_the_package(frozen_run, ensemble, graphs):
    ensemble = Ensemble.load(frozen_run / "ensemble.zip")
    before = ensemble.predict(graphs, np.arange(3)).heads["energy"].mean
    trunk = ensemble.trunks["chgnet"]
    trunk.network.atom_convs[0].out.weight.mul_(1.5)
    ensemble = Ensemble(ensemble.manifest, ensemble.members, configs=ensemble.configs)
    ensemble.trunks["chgnet"] = trunk
    after = ensemble.predict(graphs, np.arange(3)).heads["energy"].mean
    assert not np.allclose(before, after)


def test_forces_are_refused_and_energies_given(frozen_run, graphs):
    atoms = as_atoms(graphs, 0)
    atoms.calc = EnsembleCalculator(frozen_run / "ensemble.zip")
    direct = Ensemble.load(frozen_run / "ensemble.zip", precision="fp64").predict(atoms)
    expected = direct.heads["energy"].mean[0, 0] * len(atoms)
    assert atoms.get_potential_energy() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="no forces and .* begins from features of CHGNet 0.3.0"):
        atoms.get_forces()


def test_structures_are_picked_and_forces_of_features_rank_none(ensemble, graphs):
    several = [as_atoms(graphs, row) for row in range(8)]
    columns = columns_of_atoms(several, ensemble.rules)
    pool = [Structures(columns, tuple("abcdefgh"), {})]
    assert len(pick_structures(ensemble, pool, PickRequest(3)).candidates) == 3
    with pytest.raises(ConfigError, match="no forces and no stress"):
        pick_structures(ensemble, pool, PickRequest(3, by="forces"))


def test_without_labels_unlike_structures_are_picked_first():
    """Two groups of near copies and a stranger: three picks take one of each."""
    trunk = find_trunk("chgnet")
    several = [bulk("Cu", a=3.6 + 0.001 * n) for n in range(4)]
    several += [bulk("NaCl", "rocksalt", a=5.6 + 0.001 * n) for n in range(4)]
    several += [bulk("Si"), bulk("Si") * (2, 1, 1)]
    pool = [
        Structures(columns_of_atoms(some, rules_for(6.0)), tuple(map(str, range(5))), {})
        for some in (several[:5], several[5:])
    ]
    picked = pick_unlike(trunk, pool, 3)
    kinds = {candidate.structure.numbers[0] for candidate in picked.candidates}
    assert kinds == {29, 11, 14}
    every = pick_unlike(trunk, pool, 10)
    assert every.counts["same"] >= 1, "a supercell is the same crystal"
    assert every.distances[0] is None
    np.testing.assert_array_less(every.distances[2:], every.distances[1:-1])


def test_the_model_card_names_what_the_model_has_seen(frozen_run):
    with zipfile.ZipFile(frozen_run / "ensemble.zip") as file:
        card = file.read("MODEL_CARD.md").decode()
    assert "Features of CHGNet 0.3.0, trained on relaxations of inorganic crystals" in card
    assert "gives forces" not in card


def test_elements_that_the_model_has_not_seen_are_refused(ensemble):
    with pytest.raises(DataError, match="has Po, on which CHGNet 0.3.0 was not trained"):
        ensemble.predict(bulk("Po", "sc", a=3.35))


def test_a_smaller_ensemble_keeps_the_model_while_members_read_it(frozen_run):
    content = read_artefact(frozen_run / "ensemble.zip")
    assert content.manifest.trunks == ("chgnet",)
    with_it, _ = prune_members(content, ["t0001"], where="x")
    without, _ = prune_members(content, ["t0002"], where="x")
    assert (set(with_it.trunks), set(without.trunks)) == ({"chgnet"}, set())
    assert with_it.features is content.features
    assert without.features is None
    assert without.manifest.trunks == ()


@pytest.fixture(scope="module")
def entries(frozen_run):
    with zipfile.ZipFile(frozen_run / "ensemble.zip") as file:
        return {name: file.read(name) for name in file.namelist()}


def with_record(entries, **changes):
    return {**entries, ABOUT: json.dumps({**json.loads(entries[ABOUT]), **changes}).encode()}


def with_config(entries, **changes):
    config = {**json.loads(entries[ABOUT])["config"], **changes}
    return with_record(entries, config=config)


def with_tensors(entries, change):
    tensors = load(entries[WEIGHTS])
    change(tensors)
    return {**entries, WEIGHTS: save(tensors)}


def without_model(entries):
    manifest = {**json.loads(entries["ensemble.json"]), "trunks": []}
    kept = {name: data for name, data in entries.items() if name not in (ABOUT, WEIGHTS)}
    return {**kept, "ensemble.json": json.dumps(manifest).encode()}


def scaled(tensors):
    tensors["atom_convs.0.out.weight"] *= 1.01


def renamed(tensors):
    tensors["other"] = tensors.pop("atom_convs.0.out.weight")


def widened(tensors):
    tensors["atom_convs.0.out.weight"] = torch.zeros(64, 65)


def with_nan(tensors):
    tensors["atom_convs.0.out.weight"][0, 0] = torch.nan


def with_many_atoms(tensors):
    tensors["probe.0.numbers"] = torch.ones(100_000, dtype=torch.int64)
    tensors["probe.0.positions"] = torch.rand(100_000, 3, dtype=torch.float64)


def with_huge_cell(tensors):
    tensors["probe.0.cell"] *= 1e-9


def with_unknown_element(tensors):
    tensors["probe.0.numbers"][:] = 5000


def without_probe(tensors):
    del tensors["probe.2.features"]


def with_flat_features(tensors):
    tensors["probe.1.features"] = torch.zeros(3)


FORGED = {
    "other weights": (lambda e: with_tensors(e, scaled), "come out differently here"),
    "nan": (lambda e: with_tensors(e, with_nan), "cannot be used"),
    "another name": (lambda e: with_tensors(e, renamed), "sizes are not those"),
    "another shape": (lambda e: with_tensors(e, widened), "sizes are not those"),
    "many atoms": (lambda e: with_tensors(e, with_many_atoms), "probe 0 is no structure"),
    "tiny cell": (lambda e: with_tensors(e, with_huge_cell), "cannot be used"),
    "no element": (lambda e: with_tensors(e, with_unknown_element), "cannot be used"),
    "no probe": (lambda e: with_tensors(e, without_probe), "cannot be used"),
    "flat features": (lambda e: with_tensors(e, with_flat_features), "come out differently"),
    "a pickle": (lambda e: {**e, WEIGHTS: b"\x80\x04cbuiltins\nexec\n."}, "cannot be used"),
    "cut weights": (lambda e: {**e, WEIGHTS: e[WEIGHTS][:-9]}, "cannot be used"),
    "no weights": (lambda e: {n: d for n, d in e.items() if n != WEIGHTS}, "lacks"),
    "a list": (lambda e: {**e, ABOUT: b"[1]"}, "is no record"),
    "half a record": (lambda e: {**e, ABOUT: b"{"}, "cannot be used"),
    "deep JSON": (lambda e: {**e, ABOUT: b"[" * 100_000}, "cannot be used"),
    "control characters": (lambda e: with_record(e, citation="\x1b[2J"), "is no record"),
    "huge sizes": (lambda e: with_config(e, features=10**9), "cannot be used"),
    "negative sizes": (lambda e: with_config(e, convolutions=-1), "cannot be used"),
    "a word as size": (lambda e: with_config(e, radial="many"), "cannot be used"),
    "unknown fields": (lambda e: with_record(e, run="exec()"), "cannot be used"),
    "another model": (lambda e: with_record(e, name="sevennet"), "cannot be used"),
    "no model": (without_model, "its members read others"),
    "a second model": (lambda e: {**e, "trunks/other.json": b"{}"}, "belongs to no member"),
    "code": (lambda e: {**e, "trunks/chgnet.py": b"1/0"}, "has no place in an ensemble"),
    "outside": (lambda e: {**e, "trunks/../x.json": b"{}"}, "has no place in an ensemble"),
}


@pytest.mark.parametrize(("forge", "sentence"), FORGED.values(), ids=FORGED)
def test_a_forged_model_is_one_sentence(entries, tmp_path, forge, sentence):
    check_refused(tmp_path / "hostile.zip", forge(dict(entries)), sentence)


def test_an_unchanged_repack_is_accepted(entries, tmp_path):
    (tmp_path / "good.zip").write_bytes(sealed(entries))
    assert len(Ensemble.load(tmp_path / "good.zip").members) == 3
