"""Batches by index arithmetic against a slow, obvious loop over graphs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.neighbors import edge_vectors
from hydragnn_hpo.model import edges as model_edges

NAMES = ("energy", "charge", "push")


def slow_batch(columns: Columns, rows: list[int], cutoff: float | None) -> dict[str, torch.Tensor]:
    """Gather graph by graph and edge by edge."""
    out: dict[str, list[np.ndarray]] = {key: [] for key in ("z", "pos", "edges", "shift", "owner")}
    start = 0
    for number, row in enumerate(rows):
        nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
        position = columns.positions[nodes]
        out["z"].append(columns.numbers[nodes].astype(np.int64))
        out["pos"].append(position)
        out["owner"].append(np.full(len(position), number))
        for edge in range(columns.edge_offset[row], columns.edge_offset[row + 1]):
            sender, receiver = columns.edges[edge]
            shift = columns.edge_shift[edge] @ columns.cell[row]
            length = np.linalg.norm(position[receiver] + shift - position[sender])
            if cutoff is None or length <= cutoff:
                out["edges"].append(np.array([[sender + start, receiver + start]]))
                out["shift"].append(shift[None])
        start += len(position)
    return {key: torch.from_numpy(np.concatenate(value)) for key, value in out.items()}


@pytest.mark.parametrize("cutoff", [None, 3.0], ids=["all", "cut"])
def test_a_batch_is_its_graphs_end_to_end(columns: Columns, cutoff: float | None) -> None:
    rows = [4, 0, 2, 17, 5, 3, 3]
    batch = make_batch(columns, rows, cutoff=cutoff, dtype=torch.float64, targets=NAMES)
    slow = slow_batch(columns, rows, cutoff)

    assert torch.equal(batch.numbers, slow["z"])
    assert torch.equal(batch.positions, slow["pos"])
    assert torch.equal(batch.edge_index.T, slow["edges"].long())
    torch.testing.assert_close(batch.edge_shift, slow["shift"], rtol=0, atol=1e-14)
    assert torch.equal(batch.graph_of_node, slow["owner"])
    assert batch.graph_index.tolist() == rows
    assert batch.num_graphs == len(rows)


@pytest.mark.parametrize("cutoff", [None, 4.0], ids=["all", "cut"])
def test_a_cap_holds_within_the_cutoff(columns: Columns, cutoff: float | None) -> None:
    rows, cap = [3, 0, 5, 2, 4], 3
    slow = {key: value.numpy() for key, value in slow_batch(columns, rows, cutoff).items()}
    sender, receiver = slow["edges"].astype(int).T
    vectors = slow["pos"][receiver] - slow["pos"][sender] + slow["shift"]
    lengths = np.linalg.norm(vectors, axis=1)
    # How far the third neighbour of each node is; those with fewer keep them all.
    near = [sorted(lengths[receiver == node]) for node in range(len(slow["z"]))]
    reach = [found[cap - 1] + 1e-3 if len(found) >= cap else np.inf for found in near]
    wide = [max(reach[a], reach[b]) for a, b in slow["edges"].astype(int)]
    kept = np.flatnonzero(lengths <= wide)
    assert 0 < len(kept) < len(lengths)
    for dtype in (torch.float64, torch.float32):
        batch = make_batch(columns, rows, cutoff=cutoff, dtype=dtype, max_neighbors=cap)
        assert torch.equal(batch.edge_index.T, torch.from_numpy(slow["edges"][kept]).long())
        shift = torch.from_numpy(slow["shift"][kept]).to(dtype)
        torch.testing.assert_close(batch.edge_shift, shift, rtol=0, atol=1e-6)


def test_models_see_the_vectors_of_the_store(columns: Columns) -> None:
    rows = [3, 5, 0]
    expected = []
    for row in rows:
        one = columns.take(np.array([row]))
        expected.append(edge_vectors(one.positions, one.cell[0], one.edges, one.edge_shift))
    batch = make_batch(columns, rows, cutoff=None, dtype=torch.float64)
    links, vectors = model_edges.pair_vectors(batch)
    np.testing.assert_allclose(vectors, np.concatenate(expected), rtol=0, atol=1e-13)
    assert torch.equal(torch.stack((links.sender, links.receiver)), batch.edge_index)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed"])
def test_single_precision_holds_the_same_edges(columns: Columns, kept: bool) -> None:
    rows = [4, 0, 2, 17, 5, 3, 3]
    moved = np.vstack(
        [
            columns.edge_shift[columns.edge_offset[g] : columns.edge_offset[g + 1]]
            @ columns.cell[g]
            for g in range(columns.num_graphs)
        ]
    ).astype(np.float32)
    given = replace(columns, edge_translation=moved if kept else None)
    for cutoff in (None, 3.0):
        batch, slow = make_batch(given, rows, cutoff=cutoff), slow_batch(columns, rows, cutoff)
        assert torch.equal(batch.edge_index.T, slow["edges"].long())
        torch.testing.assert_close(batch.edge_shift, slow["shift"].float(), rtol=0, atol=1e-6)


def test_an_own_cutoff_of_the_store_drops_nothing(columns: Columns) -> None:
    whole = make_batch(columns, [0, 3], cutoff=None)
    columns.stats["cutoff"] = 4.5
    assert make_batch(columns, [0, 3], cutoff=4.5).edge_index.shape == whole.edge_index.shape
    assert make_batch(columns, [0, 3], cutoff=4.4).edge_index.shape < whole.edge_index.shape


class Elsewhere:
    """Graphs that are not in memory: all they can is to give some."""

    def __init__(self, columns: Columns) -> None:
        self.take = columns.take


def test_graphs_from_elsewhere_give_the_same_batch(columns: Columns) -> None:
    rows = [5, 5, 1, 12]
    ours = make_batch(columns, rows, cutoff=3.5, targets=NAMES)
    other = make_batch(Elsewhere(columns), rows, cutoff=3.5, targets=NAMES)
    for name, value in vars(ours).items():
        same = [(value, getattr(other, name))]
        if isinstance(value, dict):
            same = [(tensor, getattr(other, name)[key]) for key, tensor in value.items()]
        for left, right in same:
            assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def test_attributes_and_encodings_come_along(columns: Columns) -> None:
    charges = np.arange(columns.num_graphs, dtype=np.float64)
    codes = np.arange(2.0 * len(columns.numbers), dtype=np.float32).reshape(-1, 2)
    given = replace(columns, attributes={"charge": charges}, laplacian=codes)
    batch = make_batch(given, [4, 0], cutoff=None, dtype=torch.float64)
    assert batch.attributes["charge"].tolist() == [4.0, 0.0]
    assert batch.laplacian is not None
    first = columns.node_offset[4]
    expected = np.concatenate((codes[first : first + 12], codes[:1]))
    assert batch.laplacian.tolist() == expected.tolist()
    assert batch.to("meta").attributes["charge"].device.type == "meta"


def test_large_energies_keep_their_digits(columns: Columns) -> None:
    # fp32 has 24 bits: at 1e5 eV its steps are 1/128 eV.
    columns.targets["energy"][0, 0] = -123456.001
    batch = make_batch(columns, [0], cutoff=None, targets=["energy"])
    assert batch.targets["energy"].item() == -123456.001


def test_missing_targets_are_zero_and_masked(columns: Columns) -> None:
    batch = make_batch(columns, [1, 3, 4, 0], cutoff=None, targets=NAMES)
    assert batch.masks["energy"].tolist() == [False, True, True, True]
    assert batch.targets["energy"][0].item() == 0.0
    assert batch.targets["energy"][3].item() == pytest.approx(columns.targets["energy"][0, 0])
    benzene = batch.graph_of_node == 2
    assert batch.masks["charge"][benzene].tolist() == [n != 2 for n in range(12)]
    assert not batch.masks["push"][batch.graph_of_node == 1].any()
    assert batch.targets["push"].shape == (len(batch.numbers), 3)
    assert all(torch.isfinite(value).all() for value in batch.targets.values())


def test_no_graphs_are_a_valid_batch(columns: Columns) -> None:
    batch = make_batch(columns, [], cutoff=3.0, dtype=torch.float64, targets=NAMES)
    assert batch.num_graphs == 0
    assert batch.edge_index.shape == (2, 0)
    assert batch.targets["push"].shape == (0, 3)
    assert batch.masks["energy"].shape == (0,)
    assert batch.positions.dtype == batch.targets["energy"].dtype == torch.float64


def test_a_batch_moves_whole(columns: Columns) -> None:
    batch = make_batch(columns, [0, 1], cutoff=None, targets=NAMES).to("meta")
    assert isinstance(batch, Batch)
    tensors = [batch.numbers, batch.positions, batch.edge_index, batch.edge_shift]
    tensors += [batch.graph_of_node, batch.graph_index]
    tensors += [*batch.targets.values(), *batch.masks.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_single_atoms_carry_graph_targets_too(columns: Columns) -> None:
    # As many nodes as graphs: the two levels cannot be told apart, and need not be.
    batch = make_batch(columns, [2, 8, 14], cutoff=None, targets=NAMES)
    assert len(batch.numbers) == batch.num_graphs == 3
    expected = columns.targets["energy"][[2, 8, 14]]
    np.testing.assert_allclose(batch.targets["energy"].numpy(), expected, rtol=1e-6)
