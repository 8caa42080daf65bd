"""Batches by index arithmetic against a slow, obvious loop over graphs."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.data.batch import Prefetcher, cap_neighbors, make_batch
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.structure import edge_vectors, find_edges
from hydragnn_hpo.model.edges import pair_vectors

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
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed"])
def test_a_batch_is_its_graphs_end_to_end(
    columns: Columns, cutoff: float | None, dtype: torch.dtype, kept: bool
) -> None:
    rows = [4, 0, 2, 17, 5, 3, 3]
    slow = slow_batch(columns, rows, cutoff)
    if kept:
        every = slow_batch(columns, list(range(columns.num_graphs)), None)["shift"]
        columns = replace(columns, edge_translation=every.numpy().astype(np.float32))
    batch = make_batch(columns, rows, cutoff=cutoff, dtype=dtype, targets=NAMES)

    assert torch.equal(batch.numbers, slow["z"])
    assert torch.equal(batch.positions, slow["pos"].to(dtype))
    assert torch.equal(batch.edge_index.T, slow["edges"].long())
    atol = 1e-14 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(batch.edge_shift, slow["shift"].to(dtype), rtol=0, atol=atol)
    assert torch.equal(batch.graph_of_node, slow["owner"])
    assert batch.node_counts is not None
    assert batch.node_counts.flatten().tolist() == slow["owner"].bincount().tolist()
    assert batch.graph_index.tolist() == rows
    assert batch.num_graphs == len(rows)


@pytest.mark.parametrize("cutoff", [None, 4.0], ids=["all", "cut"])
def test_a_cap_holds_within_the_cutoff(columns: Columns, cutoff: float | None) -> None:
    rows = [3, 0, 5, 2, 4]
    cap = 3
    slow = {key: value.numpy() for key, value in slow_batch(columns, rows, cutoff).items()}
    sender, receiver = slow["edges"].astype(int).T
    vectors = slow["pos"][receiver] - slow["pos"][sender] + slow["shift"]
    lengths = np.linalg.norm(vectors, axis=1)
    # How far the third neighbour of each node is; those with fewer keep them all.
    near = [sorted(lengths[receiver == node]) for node in range(len(slow["z"]))]
    reach = [lengths[cap - 1] + 1e-3 if len(lengths) >= cap else np.inf for lengths in near]
    wide = [max(reach[a], reach[b]) for a, b in slow["edges"].astype(int)]
    kept = np.flatnonzero(lengths <= wide)
    assert 0 < len(kept) < len(lengths)
    for dtype in (torch.float64, torch.float32):
        batch = make_batch(columns, rows, cutoff=cutoff, dtype=dtype, max_neighbors=cap)
        assert torch.equal(batch.edge_index.T, torch.from_numpy(slow["edges"][kept]).long())
        shift = torch.from_numpy(slow["shift"][kept]).to(dtype)
        torch.testing.assert_close(batch.edge_shift, shift, rtol=0, atol=1e-6)
        both = make_batch(columns, rows, cutoff=cutoff, dtype=dtype, max_neighbors=cap, pairs=True)
        assert both.num_lone == 0, "both edges of a pair are kept, or none"


def test_models_see_the_vectors_of_the_store(columns: Columns) -> None:
    rows = [3, 5, 0]
    graphs = [columns.take(np.array([row])) for row in rows]
    expected = [edge_vectors(g.positions, g.cell[0], g.edges, g.edge_shift) for g in graphs]
    batch = make_batch(columns, rows, cutoff=None, dtype=torch.float64)
    links, vectors = pair_vectors(batch)
    np.testing.assert_allclose(vectors, np.concatenate(expected), rtol=0, atol=1e-13)
    assert torch.equal(torch.stack((links.sender, links.receiver)), batch.edge_index)


def test_an_own_cutoff_of_the_store_drops_nothing(columns: Columns) -> None:
    whole = make_batch(columns, [0, 3], cutoff=None)
    columns.stats["cutoff"] = 4.5
    assert make_batch(columns, [0, 3], cutoff=4.5).edge_index.shape == whole.edge_index.shape
    assert make_batch(columns, [0, 3], cutoff=4.4).edge_index.shape < whole.edge_index.shape


def test_attributes_and_encodings_come_along(columns: Columns) -> None:
    charges = np.arange(columns.num_graphs, dtype=np.float64)
    codes = np.arange(2.0 * len(columns.numbers), dtype=np.float32).reshape(-1, 2)
    given = replace(columns, attributes={"charge": charges}, laplacian=codes)
    batch = make_batch(given, [4, 0], cutoff=None, dtype=torch.float64, targets=NAMES)
    assert batch.attributes["charge"].tolist() == [4.0, 0.0]
    assert batch.laplacian is not None
    first = columns.node_offset[4]
    expected = np.concatenate((codes[first : first + 12], codes[:1]))
    assert batch.laplacian.tolist() == expected.tolist()
    moved = batch.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    tensors += [*moved.attributes.values(), *moved.targets.values(), *moved.masks.values()]
    assert len(tensors) >= 10
    assert {tensor.device.type for tensor in tensors} == {"meta"}


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


def graph(atoms: Atoms, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    edges, shift = find_edges(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    vectors = edge_vectors(atoms.positions, atoms.cell.array, edges, shift)
    return edges.astype(np.int64), shift, np.linalg.norm(vectors, axis=1)


def degrees(atoms: Atoms, cutoff: float, cap: int) -> list[int]:
    edges, _, lengths = graph(atoms, cutoff)
    kept = cap_neighbors(edges.T, lengths, len(atoms), cap)
    return np.bincount(edges[kept, 1], minlength=len(atoms)).tolist()


COPPER = bulk("Cu", a=3.6, cubic=True)
SALT = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
SLAB = fcc111("Cu", (3, 3, 3), a=3.6, vacuum=8.0)


@pytest.mark.parametrize(
    ("atoms", "cutoff", "cap", "left"),
    [
        # Shells of fcc: 12, 6, 24 (Kittel).
        *[(COPPER, 4.5, cap, [12] * 4) for cap in (1, 12)],
        *[(COPPER, 4.5, cap, [18] * 4) for cap in (13, 18)],
        *[(COPPER, 4.5, cap, [42] * 4) for cap in (19, 42, 99)],
        # Shells of rock salt around either ion: 6, 12.
        *[(SALT, 4.2, 6, [6] * 8), (SALT, 4.2, 7, [18] * 8)],
        # 9 neighbours at a surface (6 in the plane, 3 below), 12 inside.
        (SLAB, 2.7, 9, [9] * 9 + [12] * 9 + [9] * 9),
    ],
)
def test_whole_shells_stay(atoms: Atoms, cutoff: float, cap: int, left: list[int]) -> None:
    assert degrees(atoms, cutoff, cap) == left


def test_one_end_is_enough() -> None:
    # On a line at 0, 1, 3, 6: the nearest neighbours are 1, 0, 1, 2, so every pair of
    # neighbours stays, and none of the others.
    line = Atoms("H4", [[0, 0, 0], [1, 0, 0], [3, 0, 0], [6, 0, 0]])
    assert degrees(line, 9.0, 1) == [1, 2, 2, 1]


def test_atoms_without_neighbours_are_no_trouble() -> None:
    assert degrees(Atoms("ArHe", [[0, 0, 0], [9, 0, 0]]), 3.0, 2) == [0, 0]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), cap=st.integers(1, 20))
def test_symmetric_and_blind_to_order_and_rotation(seed: int, cap: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    atoms = Atoms(f"C{count}", random.uniform(0, 5, (count, 3)), cell=4 * np.eye(3), pbc=True)
    edges, shift, lengths = graph(atoms, 5.0)
    kept = cap_neighbors(edges.T, lengths, count, cap)
    chosen = {(*e, *s) for e, s in zip(edges[kept].tolist(), shift[kept].tolist(), strict=True)}
    assert chosen == {(r, s, -x, -y, -z) for s, r, x, y, z in chosen}
    assert (np.bincount(edges[kept, 1], minlength=count) >= min(cap, len(edges) // count)).all()

    order = random.permutation(count)
    turned = atoms[order.tolist()]
    turned.rotate(37, (1, 2, 3), rotate_cell=True)
    edges2, _, lengths2 = graph(turned, 5.0)
    kept2 = cap_neighbors(edges2.T, lengths2, count, cap)
    before = np.bincount(edges[kept, 1], minlength=count)[order]
    assert before.tolist() == np.bincount(edges2[kept2, 1], minlength=count).tolist()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not [t for t in set(threading.enumerate()) - before if t.name == "look-ahead"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order(depth: int) -> None:
    with Prefetcher(lambda n: n * n, range(20), depth) as items:
        assert list(items) == [n * n for n in range(20)]


@pytest.mark.parametrize("depth", [1, 3])
def test_it_looks_no_further_than_it_may(depth: int) -> None:
    made: list[int] = []
    with Prefetcher(made.append, range(100), depth) as items:
        next(iter(items))
        deadline = time.monotonic() + 60
        while len(made) < depth + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        # One was taken, ``depth`` wait in the queue, one more waits for room.
        assert len(made) == depth + 2


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_met_at_its_item(depth: int) -> None:
    def make(n: int) -> int:
        if n == 3:
            raise ValueError("three")
        return n

    with Prefetcher(make, range(9), depth) as items:
        given = iter(items)
        assert [next(given) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(given)


def test_errors_of_the_source_are_met_too() -> None:
    def broken():
        yield 1
        raise OSError("gone")

    with Prefetcher(str, broken(), 2) as items, pytest.raises(OSError, match="gone"):
        list(items)
