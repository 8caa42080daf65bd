"""Optimizers against their papers' algorithms, written for one array at a time."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.training.optim import make_optimizer, orthogonalize

from .conftest import epochs, go, weights

OPTIMIZERS = ("adamw", "adam", "sgd", "muon")
RATE, DECAY = 0.05, 0.3


def net():
    """Linear maps to many and to one, a norm, an embedding: all that is told apart."""
    torch.manual_seed(4)
    made = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 5),
            "norm": nn.LayerNorm(3),
            "embedding": nn.Embedding(5, 3),
            "deep": nn.Sequential(nn.Linear(4, 4, bias=False), nn.SiLU()),
            "out": nn.Linear(5, 1),
        }
    )
    return made.double()


DECAYED = {"linear.weight", "deep.0.weight", "out.weight"}


def config_of(name, **settings):
    return TrainConfig(optimizer=name, learning_rate=RATE, weight_decay=DECAY, **settings)


def gradients_of(model, steps=5):
    """Return the same gradients for every step and optimizer, by parameter."""
    random = np.random.default_rng(8)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return [
        {name: random.normal(size=shape) * 10.0 ** (step - 2) for name, shape in shapes.items()}
        for step in range(steps)
    ]


def walk(model, optimizer, gradients):
    for step, grads in enumerate(gradients):
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(grads[name].copy()) if name in grads else None
        for group in optimizer.param_groups:
            group["lr"] = RATE / (step + 1)
        optimizer.step()
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def adam(x, grads, config, *, decay, decoupled, late=0):
    """Kingma and Ba, algorithm 1; the decay as L2, or beside the step (Loshchilov, algorithm 2)."""
    m = v = np.zeros_like(x)
    for t, g in enumerate(grads, 1):
        rate = RATE / (t + late)
        if decoupled:
            x = x - rate * decay * x
        else:
            g = g + decay * x
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g * g
        mean, spread = m / (1 - config.beta1**t), v / (1 - config.beta2**t)
        x = x - rate * mean / (np.sqrt(spread) + config.epsilon)
    return x


def sgd(x, grads, config, *, decay):
    """Sutskever et al. (2013) as torch has it: velocity, and the gradient ahead of it."""
    velocity = np.zeros_like(x)
    for t, g in enumerate(grads, 1):
        g = g + decay * x
        velocity = g if t == 1 else config.momentum * velocity + g
        x = x - RATE / t * (g + config.momentum * velocity if config.nesterov else velocity)
    return x


def muon(x, grads, config):
    """The post's own code, matrix by matrix, with the length of arXiv:2502.16982."""
    mean = np.zeros_like(x)
    for t, g in enumerate(grads, 1):
        mean = config.momentum * mean + (1 - config.momentum) * g
        way = (1 - config.momentum) * g + config.momentum * mean if config.nesterov else mean
        y = way / np.sqrt((way**2).sum())
        for _ in range(5):
            a = y @ y.T
            y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
        x = x - RATE / t * DECAY * x - RATE / t * 0.2 * math.sqrt(max(x.shape)) * y
    return x


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adamw", {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}),
        ("adam", {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}),
        ("sgd", {"momentum": 0.7}),
        ("sgd", {"momentum": 0.7, "nesterov": False}),
        ("sgd", {"momentum": 0.0}),
        ("muon", {"momentum": 0.8, "beta2": 0.9}),
        ("muon", {"momentum": 0.8, "nesterov": False}),
    ],
)
def test_steps_of_a_slow_loop(name, settings):
    model = net()
    config = config_of(name, **settings)
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    gradients = gradients_of(model)
    result = walk(model, make_optimizer(model, config), gradients)
    for key, x in start.items():
        grads = [each[key] for each in gradients]
        decay = DECAY * (key in DECAYED)
        if name == "sgd":
            expected = sgd(x, grads, config, decay=decay)
        elif name == "muon" and key in ("linear.weight", "deep.0.weight"):
            expected = muon(x, grads, config)
        else:
            expected = adam(x, grads, config, decay=decay, decoupled=name != "adam")
        np.testing.assert_allclose(result[key], expected, rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", ["adamw", "adam", "muon"])
def test_a_parameter_without_a_gradient_waits(name):
    model = net()
    config = config_of(name)
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    gradients = gradients_of(model)
    for step, grads in enumerate(gradients):
        del grads["norm.weight" if step < 2 else "embedding.weight"]
    result = walk(model, make_optimizer(model, config), gradients)
    for key, late in (("norm.weight", 2), ("embedding.weight", 0), ("norm.bias", 0)):
        grads = [each[key] for each in gradients if key in each]
        expected = adam(start[key], grads, config, decay=0.0, decoupled=True, late=late)
        np.testing.assert_allclose(result[key], expected, rtol=1e-10, atol=1e-12, err_msg=key)


def test_orthogonal_keeps_directions_and_levels_lengths():
    torch.manual_seed(1)
    matrices = torch.randn(3, 12, 7, dtype=torch.float64)
    matrices[2] = 0.0
    result = orthogonalize(matrices)
    left, sizes, right = torch.linalg.svd(matrices[:2], full_matrices=False)
    turned = left.mT @ result[:2] @ right.mT
    assert torch.allclose(turned, torch.diag_embed(turned.diagonal(dim1=1, dim2=2)), atol=1e-10)
    levelled = turned.diagonal(dim1=1, dim2=2)
    assert ((levelled > 0.65) & (levelled < 1.25)).all()
    assert (sizes[:, 0] / sizes[:, -1] > 2).all(), "they were not level before"
    assert not result[2].any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_stands_still_has_no_state(name):
    model = net()
    model["linear"].requires_grad_(False)
    optimizer = make_optimizer(model, config_of(name))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*((name, "cosine") for name in OPTIMIZERS), ("adamw", "plateau"), ("muon", "one_cycle"),
     ("sgd", "constant")],
)  # fmt: skip
def test_a_break_changes_no_bit(train, tmp_path, name, schedule):
    settings = {
        "optimizer": name, "schedule": schedule, "plateau_epochs": 1, "plateau_factor": 0.7,
        "weight_decay": 0.1, "ema": 0.5, "epochs": 6, "momentum": 0.5,
        "learning_rate": 0.2 if schedule == "plateau" else 0.003,
    }  # fmt: skip
    unbroken = train(**settings)
    unbroken.run(6, go)
    first = train(**settings)
    first.run(3, go, tmp_path)
    second = train(**settings)
    assert second.resume(tmp_path)
    second.run(6, go)
    assert torch.equal(weights(unbroken), weights(second))
    rates, again = ([r["learning_rate"] for r in epochs(each)] for each in (unbroken, second))
    assert rates[3:] == again
    if schedule == "plateau":
        assert len(set(rates)) > 2, "it was lowered on both sides of the break"
