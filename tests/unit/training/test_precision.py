"""bf16 around fp32 weights: near fp32 in every part of a net, and never where it must not be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.config.trial_config import TrialHeads
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.kernels.scatter import Links, apply_function
from hydragnn_hpo.model.derivatives import attach_strain, forces_and_stress
from hydragnn_hpo.model.layers import (
    apply_with_float32_output,
    apply_without_autocast,
    mlp,
    node_counts,
    pool_sum,
)
from hydragnn_hpo.model.triplets import SphericalBessel
from hydragnn_hpo.training.evaluate import error_sums, predict_split
from hydragnn_hpo.training.precision import compute_dtype, set_matmul_precision

CPU = torch.device("cpu")


def plain(**model):
    return {"model": {"features": 16, "layers": 2, **model}, "precision": "fp32"}


def both(trainer, columns, count=24):
    """Give predictions and the gradient of one loss, in fp32 and in bf16."""
    trainer.parts.model.train()
    batch = make_batch(
        columns, np.arange(count), cutoff=3.5, dtype=torch.float32, targets=(), pairs=True
    )
    results = []
    for precision in ("fp32", "bf16"):
        trainer.parts.model.zero_grad()
        with compute_dtype(precision, CPU):
            predicted = trainer.parts.model(batch)
        loss = torch.zeros((), dtype=torch.float64)
        for values in predicted.values():
            slope = torch.linspace(-1.0, 1.0, values.numel(), dtype=torch.float64)
            loss = loss + (values.flatten() * slope).sum() + 0.5 * values.square().sum()
        loss.backward()
        gradients = [p.grad for p in trainer.parts.model.parameters()]
        assert all(g is not None and g.dtype is torch.float32 for g in gradients)
        flat = torch.cat([g.flatten() for g in gradients]).double()
        results.append(({n: v.detach() for n, v in predicted.items()}, flat))
    return results


def check_near(trainer, columns, limit=0.03):
    (exact, slope), (rough, rough_slope) = both(trainer, columns)
    assert torch.isfinite(rough_slope).all()
    assert cosine_similarity(slope, rough_slope, dim=0) > 0.99
    for name, values in exact.items():
        error = (rough[name] - values).square().mean().sqrt() / values.std()
        assert error < limit, name
    assert any(not torch.equal(exact[name], rough[name]) for name in exact), "bf16 was used"


@pytest.mark.parametrize("conv", CONV_SPECS)
def test_every_conv_is_near_fp32(train, columns, conv):
    check_near(train(conv=conv, **plain()), columns)


@pytest.mark.parametrize(
    ("model", "heads"),
    [
        ({"attention": "gps", "norm": "rms"}, {}),
        ({"norm": "graph", "encoding": "random_walk"}, {}),
        ({"repulsion": "zbl", "shared_layers": 2, "norm": "none"}, {}),
        ({"attributes": ["spin"], "conditioning": "film"}, {}),
        ({"attributes": ["spin"], "conditioning": "concat"}, {}),
        ({"attributes": ["spin"], "conditioning": "fuse"}, {"energy": {"pool": "attention"}}),
        ({}, {"energy": {"loss": "beta_nll", "pool": "contributions"}}),
        ({}, {"energy": {"pool": "max"}, "charge": {"kind": "conv", "loss": "nll"}}),
        ({}, {"push": {"loss": "nll"}}),
    ],
    ids=str,
)  # fmt: skip
def test_everything_else_of_a_net_is_near_fp32(train, columns, model, heads):
    spin = np.arange(len(columns.num_nodes()), dtype=np.float64) % 3
    with_spin = replace(columns, attributes={"spin": spin})
    heads = {"energy": {}, "charge": {}} | heads
    check_near(train(columns=with_spin, conv="painn", heads=heads, **plain(**model)), with_spin)


def test_training_and_evaluation_compute_in_bf16(train, columns):
    """The same weights: what is trained is what is validated and predicted."""
    result = {}
    for precision in ("fp32", "bf16"):
        trainer = train(conv="painn", **plain() | {"precision": precision})
        made = trainer.parts.feed.batch_on_device(trainer.parts.order.steps(0)[0])
        counts = {
            name: float(c[trainer.parts.order.steps(0)[0]].sum())
            for name, c in trainer.parts.stepper.counts.items()
        }
        _, loss = trainer.parts.stepper.losses(made, counts, last=True)
        errors = error_sums(trainer.parts.model, trainer.parts.feed, trainer.parts.val)
        predictions = predict_split(trainer.parts.model, trainer.parts.feed, trainer.parts.val)
        with compute_dtype(precision, CPU):
            direct = trainer.parts.model(trainer.parts.feed.batch_on_device(trainer.parts.val))
        np.testing.assert_allclose(predictions["energy"], direct["energy"].detach(), rtol=1e-6)
        assert loss.dtype in (torch.float32, torch.float64)
        result[precision] = loss.item(), float(errors[0, 0]), float(predictions["charge"].sum())
    for exact, rough in zip(*result.values(), strict=True):
        assert exact != rough
        assert rough == pytest.approx(exact, rel=0.05)


def test_sums_over_a_graph_and_over_neighbours_do_not_stall():
    """In bf16 256 + 1 is 256; 1001 ones must be 1001, or 1000 where messages are rounded."""
    ones = torch.ones(1001, 3, dtype=torch.bfloat16)

    class Batch:
        num_graphs = 1
        graph_of_node = torch.zeros(1001, dtype=torch.long)
        node_counts = None

    assert pool_sum(ones, Batch()).tolist() == [[1001.0] * 3]
    assert node_counts(ones, Batch()).tolist() == [[1001.0]]
    sender = torch.arange(1001)
    receiver = torch.zeros(1001, dtype=torch.long)
    assert Links.of(sender, receiver, 1000).sum_messages(ones)[0].tolist() == [1000.0] * 3


def test_geometry_is_exact_under_autocast(columns):
    batch = make_batch(columns, np.arange(9), cutoff=3.5, dtype=torch.float32, targets=())
    batch = replace(batch, edge_shift=torch.full_like(batch.edge_shift, 1.001))
    with compute_dtype("bf16", CPU):
        moved, positions, strain = attach_strain(batch)
        energy = 1.001 * moved.positions.sum()
        forces, _ = forces_and_stress(energy, positions, strain, batch, train=False)
    assert torch.equal(moved.positions, batch.positions)
    assert torch.equal(moved.edge_shift, batch.edge_shift)
    assert torch.equal(forces, torch.full_like(forces, -1.001))
    bessel = SphericalBessel(4, 3, 5.0)
    lengths = torch.linspace(0.5, 4.9, 40)
    with compute_dtype("bf16", CPU):
        rough = bessel(lengths)
        product = apply_without_autocast(torch.mm, torch.full((2, 2), 1.001), torch.eye(2))
    assert torch.equal(rough, bessel(lengths))
    assert product.dtype is torch.float32
    assert product[0, 0] == torch.tensor(1.001)


def test_the_last_map_of_a_head_is_exact():
    torch.manual_seed(0)
    chain = mlp((5, 4, 2))
    values = torch.randn(9, 5)
    with compute_dtype("bf16", CPU):
        actual = apply_with_float32_output(chain, values)
        hidden = chain[1](chain[0](values))
    assert hidden.dtype is torch.bfloat16
    assert torch.equal(actual, chain[2](hidden.float()))
    assert actual.dtype is torch.float32
    assert torch.equal(apply_with_float32_output(chain, values), chain(values))


class Product(torch.autograd.Function):
    """A matrix product, which autocast would round."""

    @staticmethod
    def forward(ctx, left, right):
        return left @ right

    @staticmethod
    def backward(ctx, grad):
        return None, None


def test_functions_of_our_own_give_the_type_that_they_were_given():
    matrix = torch.full((2, 2), 1.001)
    with compute_dtype("bf16", CPU):
        assert (matrix @ matrix).dtype is torch.bfloat16
        assert torch.equal(
            apply_function(Product, matrix, matrix), torch.full((2, 2), 2 * 1.001**2)
        )
        assert apply_function(Product, matrix, matrix.bfloat16()).dtype is torch.bfloat16
        assert (matrix @ matrix).dtype is torch.bfloat16, "only inside"


def test_forces_are_refused_in_bf16_unless_they_are_wanted_or_direct():
    target = {"level": "node", "shape": "vector", "derived_from": "energy"}
    values = {
        "heads": {"energy": {}, "forces": {}},
        "targets": {"energy": {"level": "graph", "shape": "scalar"}, "forces": target},
        "model": {"conv": "painn"},
    }
    rough = values | {"training": {"precision": "bf16"}}
    with pytest.raises(
        ConfigError, match=r"head 'forces' predicts forces.*bf16_derivatives = true"
    ):
        parse_config(rough, TrialHeads, where="here")
    for given in (
        values | {"training": {"precision": "bf16", "bf16_derivatives": True}},
        values | {"training": {"precision": "tf32"}},
        rough | {"heads": {"energy": {}, "forces": {"gradient": False}}},
    ):
        parse_config(given, TrialHeads, where="here")


def test_products_are_rounded_with_tf32_alone():
    for precision, kind in (("tf32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee"), ("fp64", "ieee")):
        set_matmul_precision(precision)
        assert torch.backends.cuda.matmul.fp32_precision == kind
    for precision in ("fp32", "tf32", "fp64"):
        with compute_dtype(precision, CPU):
            assert not torch.is_autocast_enabled("cpu")
