"""Filler brings batches to sizes that recur, and no result of a real graph depends on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.data.batch import lay_out_pairs
from hydragnn_hpo.data.batch_layout import choose_filler, cut_filler, pad_batch, round_up
from hydragnn_hpo.model.edges import pair_vectors
from hydragnn_hpo.testing.sample_structures import (
    add_isolated_atom,
    batch_structures,
    empty_batch,
    molecule_and_crystal,
    random_structure,
)


def some_batch(count=3):
    structures = [*molecule_and_crystal(), add_isolated_atom(2)]
    structures += [random_structure(seed, 5, periodic=True) for seed in range(count)]
    return batch_structures(structures)


@pytest.mark.parametrize(
    ("size", "rounded"), [(0, 0), (1, 1), (15, 15), (17, 18), (33, 36), (1000, 1024), (1025, 1152)]
)
def test_sizes_are_rounded_up_to_four_bits(size, rounded):
    assert round_up(size) == rounded


@pytest.mark.parametrize("graphs", [1, 7, 32, 33])
@pytest.mark.parametrize("nodes", [34, 650])
@pytest.mark.parametrize("pairs", [0, 1, 5000])
def test_filler_has_a_node_for_each_graph_and_no_crowded_ones(graphs, nodes, pairs):
    filler = choose_filler(graphs, nodes, pairs)
    assert filler.nodes >= filler.graphs > 0
    assert nodes + filler.nodes > graphs + filler.graphs
    assert filler.pairs * nodes <= pairs * filler.nodes
    assert pairs <= pairs + filler.pairs <= 1.125 * pairs
    assert nodes + filler.nodes <= 1.125 * (nodes + max(filler.graphs, 0.125 * nodes)) + 1


def test_filler_lies_behind_and_touches_nothing():
    batch = some_batch()
    nodes = len(batch.numbers)
    pairs = batch.num_pairs
    padded = pad_batch(batch)
    filler, (sender, receiver) = padded.filler, padded.edge_index
    more = pairs + filler.pairs
    for rows, first in ((slice(0, pairs), 0), (slice(more, more + pairs), pairs)):
        assert torch.equal(padded.edge_index[:, rows], batch.edge_index[:, first : first + pairs])
        assert torch.equal(padded.edge_shift[rows], batch.edge_shift[first : first + pairs])
    assert torch.equal((sender >= nodes), (receiver >= nodes))
    assert int((sender >= nodes).sum()) == 2 * filler.pairs > 0
    assert torch.equal(sender[:more], receiver[more:])
    assert torch.equal(padded.edge_shift[:more], -padded.edge_shift[more:])
    given = {(*edge, *shift) for edge, shift in zip(
        padded.edge_index.T.tolist(), padded.edge_shift.tolist(), strict=True)}  # fmt: skip
    assert len(given) == 2 * more
    counts = padded.graph_of_node.bincount()
    assert len(counts) == padded.num_graphs == batch.num_graphs + filler.graphs
    assert counts.min() > 0
    assert torch.equal(padded.node_counts, counts.float().unsqueeze(1))
    assert (padded.graph_of_node.diff() >= 0).all()


def test_edges_of_padded_batches_are_sorted_by_either_end():
    padded = pad_batch(some_batch())
    for number, order, starts in (
        (0, padded.by_sender, padded.sender_starts),
        (1, padded.by_receiver, padded.receiver_starts),
    ):
        ends = padded.edge_index[number, order]
        assert (ends.diff() >= 0).all()
        assert sorted(order.tolist()) == list(range(2 * padded.num_pairs))
        assert starts.diff().tolist() == ends.bincount(minlength=len(padded.numbers)).tolist()
    assert float(pair_vectors(padded)[1].norm(dim=1).min()) > 0.5


def results_of(net, batch, targets):
    """Predictions of the real rows, and gradients of a loss over these."""
    net.zero_grad(set_to_none=True)
    rows = {name: cut_filler(values, batch) for name, values in net.train()(batch).items()}
    sum((rows[name] - target).square().sum() for name, target in targets.items()).backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return [*(values.detach() for values in rows.values()), *grads]


@pytest.mark.parametrize("conv", CONV_SPECS)
def test_results_are_those_without_filler(make, fp64, conv):
    heads = {"energy": {}, "charge": {}}
    heads |= {"forces": {}, "stress": {}} if CONV_SPECS[conv].forces else {}
    net = make.net(heads, conv=conv, features=16)
    batch = some_batch()
    generator = torch.Generator().manual_seed(1)
    targets = {
        name: torch.randn(values.shape, generator=generator, dtype=torch.float64)
        for name, values in net(batch).items()
    }
    padded = pad_batch(batch)
    assert padded.num_real_graphs == batch.num_graphs < padded.num_graphs
    wanted = results_of(net, batch, targets)
    for value, expected in zip(results_of(net, padded, targets), wanted, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12 * max(scale, 1.0))


@pytest.mark.parametrize("batch", [
    empty_batch(), batch_structures([random_structure(0)], paired=False), some_batch(),
    batch_structures([random_structure(seed, 1) for seed in range(4)]),
], ids=["no graphs", "not in pairs", "lone edges", "single atoms"])  # fmt: skip
def test_what_cannot_be_padded_stays(batch, request):
    if request.node.callspec.id == "lone edges":
        batch = replace(batch, num_lone=1)
    assert pad_batch(batch) is batch
    assert cut_filler(batch.positions, batch) is batch.positions


class Waits(TorchDispatchMode):
    """Notes the operations whose shapes depend on values, for which a GPU makes its host wait."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        name, options = str(operation), options or {}
        if any(part in name for part in ("scalar_dense", "nonzero", "bincount", "masked_select")):
            self.seen.add(name)
        if "repeat_interleave" in name and options.get("output_size") is None:
            self.seen.add(name)
        if "aten.index" in name and any(
            isinstance(each, torch.Tensor) and each.dtype is torch.bool
            for each in (arguments[1] if isinstance(arguments[1], (list, tuple)) else ())
        ):
            self.seen.add(name)
        return operation(*arguments, **options)


WAYS = [
    *({"conv": conv} for conv in CONV_SPECS),
    *({"conv": "painn", "attention": kind} for kind in ("none", "gps")),
    *({"conv": "painn", "encoding": kind} for kind in ("none", "random_walk")),
    *({"conv": "schnet", "norm": kind} for kind in ("none", "layer", "graph", "rms")),
    {"conv": "schnet", "attributes": ("spin",), "conditioning": "film"},
    *({"conv": "gin", "pool": kind} for kind in ("mean", "sum", "max", "attention")),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_nets_of_fixed_shapes_never_wait_and_others_do(make, fp64, way):
    options = dict(way)
    heads = {"energy": {"pool": options.pop("pool", "contributions")}, "charge": {}}
    heads |= {"forces": {}, "stress": {}} if CONV_SPECS[way["conv"]].forces else {}
    net = make.net(heads, features=16, kernels="eager", **options)
    batch = pad_batch(some_batch())
    if "attributes" in way:
        spin = torch.linspace(0, 1, batch.num_graphs, dtype=torch.float64)
        batch = replace(batch, attributes={"spin": spin})
    with Waits() as waits:
        sum(values.square().sum() for values in net.train()(batch).values()).backward()
    assert net.fixed_shapes == (not waits.seen), waits.seen


def test_arranged_edges_are_the_same_edges():
    plain = batch_structures(list(molecule_and_crystal()), paired=False)
    both = [
        np.column_stack((*batch.edge_index.numpy(), batch.edge_shift.numpy().round(6)))
        for batch in (plain, lay_out_pairs(plain))
    ]
    order = [np.lexsort(rows.T) for rows in both]
    assert np.array_equal(both[0][order[0]], both[1][order[1]])
