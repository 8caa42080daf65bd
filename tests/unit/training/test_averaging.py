"""Averaged weights, by hand."""

import pytest
import torch
from torch import nn

from hydragnn_hpo.training.averaging import AveragedWeights


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
