"""Pooling, units and what a head starts from, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.trial_config import KEPT_BY_TORCH
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.gnn import (
    GraphHead,
    HeadPlan,
    MultiHeadGNN,
    SumConstraint,
    TargetBaseline,
    TrunkFeatures,
)
from hydragnn_hpo.model.layers import pool_mean, pool_sum

BY_NUMBER = [0.0] * 119
BY_NUMBER[1], BY_NUMBER[8] = 0.5, -2.0


def batch_of(*graphs):
    numbers = torch.tensor([z for graph in graphs for z in graph])
    owner = [g for g, graph in enumerate(graphs) for _ in graph]
    return Batch(
        numbers=numbers,
        positions=torch.randn(len(numbers), 3, generator=torch.Generator().manual_seed(1)),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        edge_shift=torch.zeros(0, 3),
        graph_of_node=torch.tensor(owner, dtype=torch.long),
        num_graphs=len(graphs),
        targets={},
        masks={},
        graph_index=torch.arange(len(graphs)),
    )


def target(level="graph", shape="scalar", energy=None, fitted=True):
    is_sum = energy == "total"
    elements = {"by_number": BY_NUMBER, "mean": 0.0 if is_sum else 9.0, "std": 3.0}
    described = {
        "level": level, "shape": shape, "energy": energy, "mean": 10.0, "std": 4.0,
        "elements": elements if fitted else None,
    }  # fmt: skip
    return described | ({"atom_mean": {"mean": -2.5, "std": 6.0, "atoms": 9}} if is_sum else {})


def test_pooling_by_hand():
    values = torch.tensor([[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]])
    batch = batch_of([1, 1], [1])
    assert pool_sum(values, batch).tolist() == [[3.0, 30.0], [6.0, 60.0]]
    assert pool_mean(values, batch).tolist() == [[1.5, 15.0], [6.0, 60.0]]
    counted = replace(batch, node_counts=torch.tensor([[2.0], [1.0]]))
    assert torch.equal(pool_mean(values, counted), pool_mean(values, batch))
    owner = torch.tensor([1, 1, 1])
    empty = SimpleNamespace(num_graphs=2, graph_of_node=owner, node_counts=None)
    assert pool_mean(values, empty)[0].tolist() == [0.0, 0.0], "a graph without nodes is finite"


@pytest.mark.parametrize(
    ("energy", "baseline", "expected"),
    [
        (None, "elements", [9.0 - 1.0 / 3, 9.0 - 2.0 + 2.0 * 3.0]),
        ("total", "elements", [-1.0, -2.0 + 2.0 * 3.0]),
        ("total", "mean", [3 * -2.5, -2.5 + 2.0 * 6.0]),
    ],
)
def test_baseline_counts_elements_in_a_graph(energy, baseline, expected):
    net = TargetBaseline(target(energy=energy), HeadConfig(baseline=baseline))
    actual = net(torch.tensor([[0.0], [2.0]]), batch_of([1, 8, 1], [8]))
    torch.testing.assert_close(actual.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_baseline_of_nodes_is_their_own_element():
    result = TargetBaseline(target("node"), HeadConfig())(torch.ones(3, 1), batch_of([1, 8], [26]))
    assert result.flatten().tolist() == [9.0 + 0.5 + 3.0, 9.0 - 2.0 + 3.0, 9.0 + 3.0]


@pytest.mark.parametrize(
    ("head", "described", "expected"),
    [
        (HeadConfig(baseline="mean"), target(), 10.0 + 0.5 * 4.0),
        (HeadConfig(), target(fitted=False), 10.0 + 0.5 * 4.0),
        (HeadConfig(), target(fitted=False) | {"std": 0.0}, 10.0 + 0.5),  # divides by one
        # Steps of fp32 at 3e5 eV are 1/32 eV.
        (HeadConfig(), target(fitted=False) | {"mean": -3e5, "std": 2e-3}, -3e5 + 1e-3),
    ],
)
def test_the_mean_alone(head, described, expected):
    result = TargetBaseline(described, head)(torch.tensor([[0.5]]), batch_of([1, 8]))
    assert result.item() == pytest.approx(expected, rel=0, abs=1e-8)


def graph_head(features, total=False, atom_layers=0, **settings):
    model = ModelConfig(conv="schnet", features=features, atom_layers=atom_layers)
    described = target(energy="total" if total else None)
    head = GraphHead(HeadPlan(model, HeadConfig(**settings), described, 12.0))
    return head, lambda scalars, batch: head(of(scalars), batch, torch.nn.Identity()).mean


def of(scalars, vectors=None, known=None):
    return TrunkFeatures(scalars, vectors, None, None, known)


def test_graph_head_pools():
    batch = batch_of([1, 1], [8])
    scalars = torch.randn(3, 4)
    for pool, gather in (("mean", pool_mean), ("sum", pool_sum)):
        head, predict = graph_head(4, pool=pool)
        torch.testing.assert_close(predict(scalars, batch), head.mlp(gather(scalars, batch)))
    total, predict_total = graph_head(4, total=True)
    head, predict = graph_head(4, pool="contributions")
    total.load_state_dict(head.state_dict())
    each = head.mlp(scalars).flatten()
    expected = torch.stack(((each[0] + each[1]) / 2, each[2])).unsqueeze(-1)
    torch.testing.assert_close(predict(scalars, batch), expected)
    summed = torch.stack((each[0] + each[1], each[2])).unsqueeze(-1)
    torch.testing.assert_close(predict_total(scalars, batch), summed)


def test_atoms_pass_their_layers_before_they_are_pooled():
    batch = batch_of([1, 1], [8])
    scalars = torch.randn(3, 4)
    head, predict = graph_head(4, atom_layers=2, pool="mean")
    first, second = (m for m in head.atom_mlp if isinstance(m, nn.Linear))
    silu = nn.functional.silu
    atoms = silu(second(silu(first(scalars))))
    pooled = torch.stack((atoms[:2].mean(dim=0), atoms[2]))
    torch.testing.assert_close(predict(scalars, batch), head.mlp(pooled))
    assert len(graph_head(4, atom_layers=2, pool="contributions")[0].atom_mlp) == 0


@pytest.mark.parametrize("number", [1, 57, 118])
def test_an_element_never_seen_is_finite_and_gets_no_number(number):
    torch.manual_seed(0)
    targets = {"energy": target(), "charge": target("node")}
    net = MultiHeadGNN(ModelConfig(conv="schnet", features=8, layers=1), {
        name: HeadConfig() for name in targets
    }, targets)  # fmt: skip
    result = net(batch_of([number], [number, 8]))
    assert all(torch.isfinite(values).all() for values in result.values())
    assert net.baselines["charge"].elements[57].item() == 0.0


def test_every_element_is_distinguished():
    torch.manual_seed(0)
    described = {"charge": target("node", fitted=False)}
    net = MultiHeadGNN(ModelConfig(conv="schnet", features=8), {"charge": HeadConfig()}, described)
    result = net(batch_of(list(range(1, 119))))["charge"].flatten().sort().values
    assert result.diff().min() > 1e-5


def test_what_a_head_adds_is_in_the_unit_of_its_target_and_kept_with_the_weights():
    results = []
    for factor in (1.0, 1000.0):
        described = target(fitted=False) | {"mean": 10.0 * factor, "std": 4.0 * factor}
        torch.manual_seed(0)
        net = MultiHeadGNN(ModelConfig(conv="egnn"), {"e": HeadConfig()}, {"e": described})
        results.append(net(batch_of([1, 8], [6]))["e"])
        assert net.std("e").item() == described["std"]
    torch.testing.assert_close(results[1], results[0] * 1000.0)
    assert (results[0] - 10.0).abs().min() > 1e-3
    net = MultiHeadGNN(ModelConfig(conv="egnn"), {"e": HeadConfig()}, {"e": target()})
    kept = net.state_dict()
    assert (kept["baselines.e.mean"], kept["baselines.e.std"]) == (9.0, 3.0)
    assert kept["baselines.e.elements"].tolist() == BY_NUMBER


@pytest.mark.parametrize("name", ["type", "values", "half", "training"])
def test_a_name_that_torch_keeps_is_reported(name):
    with pytest.raises(ConfigError, match=f"head '{name}': torch keeps this name for itself"):
        MultiHeadGNN(ModelConfig(conv="egnn", features=8), {name: HeadConfig()}, {name: target()})


def test_the_controller_knows_all_names_that_torch_keeps():
    """It never imports torch, so the names stand in a list."""
    kept = {name for name in dir(nn.ModuleDict()) if not name.startswith("_")}
    assert kept <= KEPT_BY_TORCH


def test_values_are_shifted_equally_to_their_sum():
    values = torch.tensor([[1.0], [2.0], [6.0], [4.0]], dtype=torch.float64)
    batch = batch_of([1, 8, 1], [6])
    assert SumConstraint(0.0)(values, batch).flatten().tolist() == [-2.0, -1.0, 3.0, 0.0]
    known = replace(batch, attributes={"total": torch.tensor([12.0, -1.0])})
    assert SumConstraint("total")(values, known).flatten().tolist() == [2.0, 3.0, 7.0, -1.0]
    tensors = values * torch.ones(1, 9, dtype=torch.float64)
    sums = pool_sum(SumConstraint("total")(tensors, known), batch).view(2, 3, 3)
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(sums, torch.stack((12.0 * eye, -1.0 * eye)))


def constrained_net(total):
    torch.manual_seed(0)
    described = {"charge": target("node") | {"sum": total}}
    model = ModelConfig(conv="schnet", features=8, layers=1)
    return MultiHeadGNN(model, {"charge": HeadConfig()}, described).double()


def slopes(net, batch):
    net.zero_grad()
    (net(batch)["charge"] ** 2).sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_gradients_pass_through_a_sum_and_add_up_over_ranks():
    net = constrained_net(1.0)
    free = constrained_net(None)
    graphs = ([1, 8, 1], [6], [7, 7], [26, 8])
    whole = slopes(net, double_batch(*graphs))
    shares = [slopes(net, double_batch(*graphs[:1])), slopes(net, double_batch(*graphs[1:]))]
    for got, *parts in zip(whole, *shares, strict=True):
        torch.testing.assert_close(got, sum(parts), rtol=1e-12, atol=1e-12)
    pairs = zip(whole, slopes(free, double_batch(*graphs)), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) > 1e-3


def double_batch(*graphs):
    batch = batch_of(*graphs)
    shift = batch.edge_shift.double()
    return replace(batch, positions=batch.positions.double(), edge_shift=shift)
