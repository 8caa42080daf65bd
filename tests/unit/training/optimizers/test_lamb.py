"""LAMB against the paper's algorithm, number by number."""

import math

import pytest
import torch
from torch import nn

from hydragnn_hpo.config.training import TrainConfig
from hydragnn_hpo.training.optimizers.optimizer import make_optimizer

CONFIG = TrainConfig(
    optimizer="lamb", learning_rate=0.03, weight_decay=0.2, beta1=0.7, beta2=0.8, epsilon=1e-4
)


def by_hand(x, gradients, *, decay, adapt):
    """Take the steps of algorithm 2 over lists of numbers; ``x`` is one layer."""
    m, v = [0.0] * len(x), [0.0] * len(x)
    for t, grads in enumerate(gradients, 1):
        for i, g in enumerate(grads):
            m[i] = 0.7 * m[i] + 0.3 * g
            v[i] = 0.8 * v[i] + 0.2 * g * g
        r = [
            (m[i] / (1 - 0.7**t)) / (math.sqrt(v[i] / (1 - 0.8**t)) + 1e-4) + decay * x[i]
            for i in range(len(x))
        ]
        size = math.sqrt(sum(value * value for value in x))
        length = math.sqrt(sum(value * value for value in r))
        trust = size / length if adapt and size > 0 and length > 0 else 1.0
        x = [value - 0.03 * trust * way for value, way in zip(x, r, strict=True)]
    return x


def test_steps_of_the_papers_algorithm():
    torch.manual_seed(2)
    layer = nn.Linear(4, 3).double()
    optimizer = make_optimizer(layer, CONFIG)
    start = {name: p.detach().flatten().tolist() for name, p in layer.named_parameters()}
    gradients = {name: [] for name in start}
    for step in range(5):
        for name, parameter in layer.named_parameters():
            parameter.grad = torch.randn_like(parameter) * 10.0 ** (step - 2)
            gradients[name].append(parameter.grad.flatten().tolist())
        optimizer.step()
    for name, parameter in layer.named_parameters():
        matrix = name == "weight"
        expected = by_hand(start[name], gradients[name], decay=0.2 * matrix, adapt=matrix)
        assert parameter.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_a_matrix_of_zeros_and_a_gradient_of_zeros_move_as_adam_does():
    layer = nn.Linear(2, 3, bias=False).double()
    nn.init.zeros_(layer.weight)
    optimizer = make_optimizer(layer, CONFIG)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert not layer.weight.any(), "nothing divided by nothing"
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    mean, spread = 0.3 / (1 - 0.7**2), 0.2 / (1 - 0.8**2)
    expected = -0.03 * mean / (math.sqrt(spread) + 1e-4)
    assert layer.weight.flatten().tolist() == pytest.approx([expected] * 6)


def test_a_step_is_as_long_as_its_matrix_asks_for():
    layer = nn.Linear(5, 6, bias=False).double()
    optimizer = make_optimizer(layer, CONFIG)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn_like(before) * 1e3
    optimizer.step()
    assert (layer.weight - before).norm().item() == pytest.approx(0.03 * before.norm().item())
