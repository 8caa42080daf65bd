"""Graphs of a store as PyG's ``Data``: entries against ASE, and against what was put in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list
from torch_geometric.nn import SchNet

from hydragnn_hpo.config.data_config import SPLITS, TargetConfig
from hydragnn_hpo.data import GraphStore
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError

CUTOFF = 4.0
TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV", optional=True),
    "refractive_index": TargetConfig(level="node", unit="1"),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom", optional=True),
}


def structures() -> list[Atoms]:
    random = np.random.default_rng(0)
    made = [bulk("Cu"), molecule("H2O"), bulk("NaCl", "rocksalt", a=5.6, cubic=True), Atoms("Ar")]
    for number, atoms in enumerate(made):
        atoms.rattle(0.05, seed=number)
        atoms.info["energy"] = float(random.normal())
        atoms.arrays["refractive_index"] = random.normal(size=len(atoms))
        atoms.arrays["push"] = random.normal(size=(len(atoms), 3))
    del made[1].info["energy"]
    return made


@pytest.fixture(scope="module")
def store() -> GraphStore:
    rules = Rules(CUTOFF, 0.5, TARGETS)
    graphs = [
        graph_of(atoms, Place(Path("x"), k, f"s{k}"), rules) for k, atoms in enumerate(structures())
    ]
    columns = columns_of(graphs, TARGETS)
    columns.split[:] = [0, 0, 4, -1]
    units = {name: {"unit": target.unit} for name, target in TARGETS.items()}
    columns.stats.update(targets=units)
    return GraphStore(Path("x.bp"), columns)


def test_atoms_and_cells_are_those_that_were_put_in(store):
    assert len(store) == len(store.to_pyg()) == 4
    for atoms, data in zip(structures(), store.to_pyg(dtype=torch.float64), strict=True):
        assert data.z.tolist() == atoms.numbers.tolist()
        np.testing.assert_allclose(data.pos, atoms.positions, rtol=0, atol=1e-12)
        np.testing.assert_allclose(data.cell[0], np.asarray(atoms.cell), rtol=0, atol=1e-12)
        assert data.pbc[0].tolist() == atoms.pbc.tolist()
        assert data.num_nodes == len(atoms)


def test_edges_are_the_neighbours_that_ase_finds_with_their_images(store):
    for atoms, data in zip(structures(), store.to_pyg(dtype=torch.float64), strict=True):
        sender, receiver = data.edge_index.numpy()
        vectors = data.pos[receiver] + data.edge_shift - data.pos[sender]
        first, second, shifts, expected = neighbor_list("ijSD", atoms, CUTOFF)
        ours = np.column_stack([sender, receiver, data.edge_cell_shift, vectors])
        theirs = np.column_stack([first, second, shifts, expected])
        order = [np.lexsort(np.round(rows[:, :5].T)) for rows in (ours, theirs)]
        np.testing.assert_allclose(ours[order[0]], theirs[order[1]], rtol=0, atol=1e-9)


def test_targets_are_those_that_were_put_in_and_missing_ones_are_masked(store):
    every = store.to_pyg(dtype=torch.float64)
    for number, (atoms, data) in enumerate(zip(structures(), every, strict=True)):
        assert data.mask_energy.tolist() == [number != 1]
        assert data.y_energy.item() == (0.0 if number == 1 else atoms.info["energy"])
        np.testing.assert_array_equal(data.y_push, atoms.arrays["push"])
        assert data.y_refractive_index.shape == (len(atoms), 1)
        assert data.mask_refractive_index.all()
    assert [data.name for data in every] == ["s0", "s1", "s2", "s3"]
    assert [data.split for data in every] == ["train", "train", "test", "none"]
    assert SPLITS[4] == "test"


def test_a_batch_concatenates_properties_and_counts_on_nodes_only_in_edges(store):
    """PyG adds the number of nodes to every entry with 'index' in its name."""
    (batch,) = store.to_loader(batch_size=4, dtype=torch.float64)
    whole = list(store.to_pyg(dtype=torch.float64))
    values = [atoms.arrays["refractive_index"] for atoms in structures()]
    np.testing.assert_array_equal(batch.y_refractive_index[:, 0], np.concatenate(values))
    assert batch.num_graphs == 4
    assert batch.cell.shape == (4, 3, 3)
    assert batch.y_energy.shape == (4, 1)
    assert batch.name == ["s0", "s1", "s2", "s3"]
    starts = np.cumsum([0, *(data.num_nodes for data in whole)])
    shifted = [data.edge_index + int(s) for data, s in zip(whole, starts, strict=False)]
    assert torch.equal(batch.edge_index, torch.cat(shifted, dim=1))


def test_splits_and_slices(store):
    assert store.splits == {"train": 2, "val": 0, "sel": 0, "cal": 0, "test": 1}
    assert [data.name for data in store.to_pyg("test")] == ["s2"]
    assert [data.name for data in store.to_pyg()[1:3]] == ["s1", "s2"]
    assert store.to_pyg()[-1].name == "s3"
    with pytest.raises(IndexError):
        store.to_pyg()[4]
    with pytest.raises(DataError, match="unknown split 'tests'. Did you mean 'test'?"):
        store.to_pyg("tests")


def test_the_training_split_is_shuffled_and_no_other(store):
    from torch.utils.data import RandomSampler

    assert isinstance(store.to_loader("train").sampler, RandomSampler)
    assert not isinstance(store.to_loader("test").sampler, RandomSampler)
    assert not isinstance(store.to_loader("train", shuffle=False).sampler, RandomSampler)


def test_a_model_of_pyg_reads_a_batch(store):
    batch = next(iter(store.to_loader(batch_size=2)))
    assert batch.pos.dtype == batch.y_energy.dtype == torch.float32

    def edges_of_the_store(pos, graph_of_node):
        sender, receiver = batch.edge_index
        return batch.edge_index, (pos[receiver] + batch.edge_shift - pos[sender]).norm(dim=1)

    net = SchNet(8, 8, num_interactions=1, interaction_graph=edges_of_the_store)
    assert net(batch.z, batch.pos, batch.batch).shape == (2, 1)


def test_a_store_says_what_it_is(store):
    assert repr(store) == (
        "x.bp: 4 graphs (train 2, val 0, sel 0, cal 0, test 1); energy [eV], refractive_index "
        "[1], push [eV/angstrom]"
    )
    assert store._repr_html_() == f"<p>{store!r}</p>"
    assert repr(store.to_pyg("train")) == "PygDataset(2 graphs)"
