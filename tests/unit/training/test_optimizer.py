"""Step size, averaged weights and decay, by hand."""

import math

import pytest
import torch
from torch import nn

from hydragnn_hpo.config.training import TrainConfig
from hydragnn_hpo.training.optimizer import AveragedWeights, learning_rate, make_optimizer


def test_cosine_by_hand():
    config = TrainConfig(learning_rate=0.2, warmup=0.1)
    course = [learning_rate(config, step, 100) for step in range(100)]
    assert course[:10] == pytest.approx([0.02 * k for k in range(1, 11)])
    assert course[10] == pytest.approx(0.2)
    assert course[55] == pytest.approx(0.2 * (0.01 + 0.99 / 2)), "half-way down"
    assert course[25] == pytest.approx(0.2 * (0.01 + 0.99 * (1 + math.cos(math.pi / 6)) / 2))
    assert learning_rate(config, 100, 100) == pytest.approx(0.002), "ends at 1 %"
    assert learning_rate(config, 250, 100) == pytest.approx(0.002), "and stays there"
    assert course[10:] == sorted(course[10:], reverse=True)


def test_constant_stays_at_its_peak():
    config = TrainConfig(learning_rate=0.2, warmup=0.25, schedule="constant")
    assert [learning_rate(config, step, 8) for step in range(8)] == pytest.approx([0.1, *[0.2] * 7])


@pytest.mark.parametrize("total", [1, 2, 3])
def test_no_warm_up_and_hardly_any_step(total):
    config = TrainConfig(learning_rate=0.2, warmup=0.0)
    assert learning_rate(config, 0, total) == pytest.approx(0.2)
    assert all(0.002 <= learning_rate(config, step, total) <= 0.2 for step in range(total))


def test_only_weights_of_linear_maps_decay():
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 2),
            "norm": nn.LayerNorm(3),
            "embedding": nn.Embedding(5, 3),
            "deep": nn.Sequential(nn.Linear(2, 2, bias=False), nn.SiLU()),
        }
    )
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.3, learning_rate=0.01))
    decayed, free = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert decayed == {"linear.weight", "deep.0.weight"}
    assert free == set(names.values()) - decayed
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.01 * 0.3 if name in decayed else 1.0
        torch.testing.assert_close(parameter, before[name] * factor)


def test_average_against_a_slow_loop():
    model = nn.Linear(2, 1).double()
    average = AveragedWeights(model, 0.5)
    expected = [p.tolist() for p in model.weight[0]]
    for step in range(20):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[step + 1.0, -step]]))
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        live = [step + 1.0, -float(step)]
        expected = [keep * e + (1 - keep) * v for e, v in zip(expected, live, strict=True)]
    assert average.mean["weight"][0].tolist() == pytest.approx(expected, rel=1e-14)


def test_swap_shows_the_average_and_a_second_swap_undoes_it():
    model = nn.Linear(3, 2)
    average = AveragedWeights(model, 0.9)
    with torch.no_grad():
        model.bias.add_(1.0)
    average.update(5)
    live, mean = model.bias.detach().clone(), average.mean["bias"].clone()
    assert not torch.equal(live, mean)
    average.swap()
    assert torch.equal(model.bias, mean)
    assert torch.equal(average.mean["bias"], live)
    average.swap()
    assert torch.equal(model.bias, live)
    assert torch.equal(average.mean["bias"], mean)
