"""LAMB against the paper's algorithm, number by number."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.training.optim import make_optimizer, orthogonalize

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


OPTIMIZERS = ("adamw", "adam", "sgd", "lamb", "muon")
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
            parameter.grad = torch.from_numpy(grads[name].copy())
        for group in optimizer.param_groups:
            group["lr"] = RATE / (step + 1)
        optimizer.step()
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def adam(x, grads, config, *, decay, decoupled):
    """Kingma and Ba, algorithm 1; the decay as L2, or beside the step (Loshchilov, algorithm 2)."""
    m = v = np.zeros_like(x)
    for t, g in enumerate(grads, 1):
        rate = RATE / t
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
    model, config = net(), config_of(name, **settings)
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    gradients = gradients_of(model)
    found = walk(model, make_optimizer(model, config), gradients)
    for key, x in start.items():
        grads, decay = [each[key] for each in gradients], DECAY * (key in DECAYED)
        if name == "sgd":
            expected = sgd(x, grads, config, decay=decay)
        elif name == "muon" and key in ("linear.weight", "deep.0.weight"):
            expected = muon(x, grads, config)
        else:
            expected = adam(x, grads, config, decay=decay, decoupled=name != "adam")
        np.testing.assert_allclose(found[key], expected, rtol=1e-10, atol=1e-12, err_msg=key)


def test_only_weights_of_linear_maps_decay():
    model = net()
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.3, learning_rate=0.01))
    decayed, free = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert decayed == DECAYED
    assert free == set(names.values()) - decayed
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.01 * 0.3 if name in decayed else 1.0
        torch.testing.assert_close(parameter, before[name] * factor)


def test_muon_takes_matrices_and_adamw_the_rest():
    model = net()
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, config_of("muon"))
    matrices, outputs, free = (
        {names[id(p)] for p in group["params"]} for group in optimizer.param_groups
    )
    assert matrices == {"linear.weight", "deep.0.weight"}
    assert outputs == {"out.weight"}
    assert free == set(names.values()) - matrices - outputs
    walk(model, optimizer, gradients_of(model, 1))
    kept = {names[id(p)]: set(state) for p, state in optimizer.state.items()}
    assert {n for n, state in kept.items() if "momentum_buffer" in state} == matrices
    assert {n for n, state in kept.items() if "exp_avg_sq" in state} == outputs | free


def test_muon_goes_where_torchs_goes():
    """torch's own rounds to bf16 in between: 8 bits in each of ten products."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(24, 16, bias=False), nn.Linear(24, 16, bias=False)
    theirs.load_state_dict(ours.state_dict())
    start = ours.weight.detach().clone()
    config = config_of("muon", momentum=0.9)
    pair = make_optimizer(ours, config), torch.optim.Muon(
        theirs.parameters(), lr=RATE, weight_decay=DECAY, momentum=0.9,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    for _ in range(3):
        grad = torch.randn(16, 24)
        for layer, optimizer in zip((ours, theirs), pair, strict=True):
            layer.weight.grad = grad.clone()
            optimizer.step()
    moved = (theirs.weight - start).norm()
    assert (ours.weight - theirs.weight).norm() < 0.02 * moved


def test_orthogonal_keeps_directions_and_levels_lengths():
    torch.manual_seed(1)
    matrices = torch.randn(3, 12, 7, dtype=torch.float64)
    matrices[2] = 0.0
    found = orthogonalize(matrices)
    left, sizes, right = torch.linalg.svd(matrices[:2], full_matrices=False)
    turned = left.mT @ found[:2] @ right.mT
    assert torch.allclose(turned, torch.diag_embed(turned.diagonal(dim1=1, dim2=2)), atol=1e-10)
    levelled = turned.diagonal(dim1=1, dim2=2)
    assert ((levelled > 0.65) & (levelled < 1.25)).all()
    assert (sizes[:, 0] / sizes[:, -1] > 2).all(), "they were not level before"
    assert not found[2].any()


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
    }  # fmt: skip
    unbroken = train(**settings)
    unbroken.run(6, lambda: "go")
    first = train(**settings)
    first.run(3, lambda: "go", tmp_path)
    second = train(**settings)
    assert second.resume(tmp_path)
    second.run(6, lambda: "go")
    for one, other in zip(unbroken.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    rates = [r["learning_rate"] for r in unbroken.records if r["record"] == "epoch"]
    again = [r["learning_rate"] for r in second.records if r["record"] == "epoch"]
    assert rates[3:] == again
    if schedule == "plateau":
        assert len(set(rates)) > 2, "it was lowered on both sides of the break"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_at_one_learning_rate(train, name):
    """Targets are random numbers, so that only what is learned by heart lowers the loss."""
    settings = {"learning_rate": 0.05, "weight_decay": 0.0, "epochs": 12, "global_batch": 12}
    trainer = train(optimizer=name, **settings)
    trainer.run(12, lambda: "go")
    losses = [sum(r["loss"].values()) for r in trainer.records if r["record"] == "epoch"]
    assert losses[-1] < 0.95 * losses[0]
