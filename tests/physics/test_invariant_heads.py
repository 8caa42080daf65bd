"""Heads of several numbers that do not turn: rotated, reordered, batched, and counted."""

import numpy as np
import pytest
import torch

from hydragnn_hpo.config import HeadConfig, ModelConfig, count_parameters
from hydragnn_hpo.model import MultiHeadGNN, variance_key
from hydragnn_hpo.testing.sample_structures import batch_structures, random_structure

SIZE = 5
MEANS = [0.5, -1.0, 2.0, 0.0, 3.0]


def described(level, shape="spectrum"):
    return {
        "level": level, "shape": shape, "size": SIZE, "mean": 0.9, "means": MEANS, "std": 2.0,
    }  # fmt: skip


def named(level):
    return {
        "level": level, "shape": "class", "classes": ["a", "b", "c"], "mean": 1 / 3,
        "means": [0.2, 0.5, 0.3], "std": 1.0,
    }  # fmt: skip


TARGETS = {
    "dos": described("graph"), "local": described("node"), "summed": described("graph"),
    "phase": named("graph"), "site": named("node"),
}  # fmt: skip
HEADS = {
    "dos": HeadConfig(loss="nll"),
    "local": HeadConfig(kind="conv"),
    "summed": HeadConfig(pool="contributions"),
    "phase": HeadConfig(),
    "site": HeadConfig(),
}


def trunk(conv):
    return ModelConfig(conv=conv, features=16, layers=2, shared_layers=1)


@pytest.fixture(scope="module", params=["schnet", "painn", "gat"])
def net(request):
    torch.manual_seed(3)
    return MultiHeadGNN(trunk(request.param), HEADS, TARGETS).double().eval()


@pytest.fixture(scope="module")
def structures():
    return [random_structure(seed, 4 + seed, periodic=seed == 1) for seed in range(3)]


def predict(net, structures):
    with torch.no_grad():
        return net(batch_structures(structures))


def test_all_values_of_a_spectrum_are_predicted_with_one_variance(net, structures):
    out = predict(net, structures)
    nodes = sum(4 + seed for seed in range(3))
    assert {name: tuple(values.shape) for name, values in out.items()} == {
        "dos": (3, SIZE), variance_key("dos"): (3, 1), "local": (nodes, SIZE), "summed": (3, SIZE),
        "phase": (3, 3), "site": (nodes, 3),
    }  # fmt: skip
    assert not torch.allclose(out["dos"][:, 0], out["dos"][:, 1])


def test_a_spectrum_starts_from_the_mean_of_each_value(net, structures):
    """A head that says 0 everywhere gives the means of train."""
    with torch.no_grad():
        baseline = net.baselines["dos"](torch.zeros(3, SIZE), batch_structures(structures))
    torch.testing.assert_close(baseline, torch.tensor([MEANS] * 3, dtype=torch.float64))


def test_probabilities_of_classes_sum_to_one_and_start_from_the_frequencies(net, structures):
    for name in ("phase", "site"):
        values = predict(net, structures)[name]
        assert float(values.min()) > 0.0
        ones = torch.ones(len(values), dtype=torch.float64)
        torch.testing.assert_close(values.sum(dim=1), ones, rtol=0, atol=1e-12)
        assert not torch.allclose(values[0], values[1])
        silent = net.baselines[name](torch.zeros(len(values), 3), batch_structures(structures))
        expected = torch.tensor([[0.2, 0.5, 0.3]] * len(values), dtype=torch.float64)
        torch.testing.assert_close(silent, expected)


def test_rotations_and_the_order_of_atoms_change_nothing(net, structures):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    rotation *= np.linalg.det(rotation)
    turned = [each.rotate(rotation) for each in structures]
    order = [np.random.default_rng(k).permutation(len(s.numbers)) for k, s in enumerate(structures)]
    moved = [each.reorder(p) for each, p in zip(structures, order, strict=True)]
    plain, after, mixed = (predict(net, some) for some in (structures, turned, moved))
    starts = np.cumsum([0, *(len(p) for p in order)])
    rows = np.concatenate([first + p for first, p in zip(starts, order, strict=False)])
    for name, values in plain.items():
        torch.testing.assert_close(after[name], values, rtol=1e-9, atol=1e-9)
        expected = values[rows] if name in ("local", "site") else values
        torch.testing.assert_close(mixed[name], expected, rtol=1e-9, atol=1e-9)


def test_a_batch_is_its_structures_one_by_one(net, structures):
    together = predict(net, structures)
    alone = [predict(net, [each]) for each in structures]
    for name, values in together.items():
        single = torch.cat([one[name] for one in alone])
        torch.testing.assert_close(single, values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("conv", ["schnet", "painn"])
def test_the_formula_counts_the_weights_of_wide_heads(conv):
    net = MultiHeadGNN(trunk(conv), HEADS, TARGETS)
    counted = sum(parameter.numel() for parameter in net.parameters())
    assert count_parameters(trunk(conv), HEADS, TARGETS) == counted
