"""Losses by hand: masks, components, variances, weights, global counts."""

import math
from types import SimpleNamespace

import pytest
import torch

from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.training.stepper import combine_losses, head_sums


class Stub:
    def __init__(self, **std):
        self.spread = std

    def std(self, name):
        return torch.tensor(self.spread[name])


def sums_of(loss, predicted, wanted, mask, std=2.0):
    batch = SimpleNamespace(targets={"x": torch.tensor(wanted)}, masks={"x": torch.tensor(mask)})
    heads = {"x": HeadConfig(loss=loss)}
    found = head_sums(Stub(x=std), {"x": torch.tensor(predicted)}, batch, heads)
    return found["x"].item()


# In units of the standard deviation 2 the errors are 0.5, -3 and (masked) 50.
@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mae", 0.5 + 3.0), ("mse", 0.25 + 9.0), ("huber", 0.125 + (3.0 - 0.5))],
)
def test_losses_by_hand(loss, expected):
    found = sums_of(loss, [[2.0], [-6.0], [100.0]], [[1.0], [0.0], [0.0]], [True, True, False])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("loss", "expected"), [("mae", 6.0), ("mse", 14.0), ("huber", 4.5)])
def test_components_of_a_vector_count_each(loss, expected):
    predicted = [[2.0, -4.0, 6.0], [7.0, 7.0, 7.0]]
    assert sums_of(loss, predicted, [[0.0] * 3] * 2, [True, False]) == pytest.approx(expected)


def test_combine_normalises_by_global_counts_and_weights():
    heads = {"a": HeadConfig(weight=3.0), "b": HeadConfig(weight=1.0)}
    sums = {"a": torch.tensor(8.0), "b": torch.tensor(10.0)}
    total = combine_losses(sums, {"a": 4.0, "b": 5.0}, heads, 1)
    assert total.item() == pytest.approx(0.75 * 8 / 4 + 0.25 * 10 / 5)


def test_shares_of_ranks_add_up_to_the_whole_step():
    """DDP averages gradients: the mean over ranks of their losses is the loss of the step."""
    heads = {"a": HeadConfig(weight=2.0), "b": HeadConfig(weight=1.0)}
    counts = {"a": 6.0, "b": 9.0}
    shares = [{"a": 5.0, "b": 0.5}, {"a": 1.0, "b": 7.0}, {"a": 0.0, "b": 0.0}]
    parts = [
        combine_losses({n: torch.tensor(v) for n, v in share.items()}, counts, heads, 3).item()
        for share in shares
    ]
    assert sum(parts) / 3 == pytest.approx(2 / 3 * 6.0 / 6 + 1 / 3 * 7.5 / 9)


def test_a_head_that_nobody_has_in_a_step_costs_nothing():
    heads = {"a": HeadConfig(), "b": HeadConfig()}
    total = combine_losses(
        {"a": torch.tensor(3.0), "b": torch.tensor(0.0)}, {"a": 2.0, "b": 0.0}, heads, 1
    )
    assert total.item() == pytest.approx(0.75)


def nll(loss, variance, balance="scale", **head):
    batch = SimpleNamespace(
        targets={"x": torch.tensor([[1.0], [0.0]])}, masks={"x": torch.tensor([True, False])}
    )
    predictions = {
        "x": torch.tensor([[4.0], [9.0]]),
        "x:variance": torch.tensor([[variance], [1.0]], requires_grad=True),
    }
    heads = {"x": HeadConfig(loss=loss, **head)}
    return head_sums(Stub(x=2.0), predictions, batch, heads, balance)["x"], predictions


# An error of 3 with a spread of 2 is 1.5; a variance of 8 is 2 in squared units of the spread.
def test_the_likelihood_by_hand():
    expected = 0.5 * (math.log(2.0) + 1.5**2 / 2.0)
    assert nll("nll", 8.0)[0].item() == pytest.approx(expected)
    assert nll("beta_nll", 8.0, beta=0.5)[0].item() == pytest.approx(expected * math.sqrt(2.0))
    own = 0.5 * (math.log(8.0) + 9.0 / 8.0)
    assert nll("nll", 8.0, balance="unit")[0].item() == pytest.approx(own)


def test_the_weight_of_beta_is_not_learned_through():
    found, predictions = nll("beta_nll", 8.0, beta=1.0)
    found.backward()
    # d/dv of 0.5 (log v + e^2 / v) at v = 2, times v = 2, times 1/4 from the unit of the variance.
    expected = 0.5 * (1 / 2.0 - 2.25 / 4.0) * 2.0 / 4.0
    assert predictions["x:variance"].grad[0].item() == pytest.approx(expected)


def test_errors_in_the_targets_own_unit():
    batch = SimpleNamespace(targets={"x": torch.tensor([[1.0]])}, masks={"x": torch.tensor([True])})
    predictions = {"x": torch.tensor([[5.0]])}
    found = head_sums(Stub(x=2.0), predictions, batch, {"x": HeadConfig(loss="mae")}, "unit")
    assert found["x"].item() == 4.0


def test_learned_weights_by_hand():
    heads = {"a": HeadConfig(weight=3.0), "b": HeadConfig(weight=1.0)}
    sums = {"a": torch.tensor(8.0), "b": torch.tensor(0.0)}
    learned = torch.tensor([0.5, 2.0], requires_grad=True)
    total = combine_losses(sums, {"a": 4.0, "b": 0.0}, heads, 1, learned)
    assert total.item() == pytest.approx(0.75 * (2.0 * math.exp(-0.5) + 0.5 * 0.5))
    total.backward()
    assert learned.grad[1].item() == 0.0, "a head that nobody has learns nothing"
    many = [
        combine_losses({n: v / 2 for n, v in sums.items()}, {"a": 4.0, "b": 0.0}, heads, 2, learned)
    ] * 2
    assert (sum(many) / 2).item() == pytest.approx(total.item()), "ranks add up to the step"
