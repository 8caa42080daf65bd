"""Losses by hand: masks, components, weights, global counts."""

from types import SimpleNamespace

import pytest
import torch

from hydragnn_hpo.config.model import HeadConfig
from hydragnn_hpo.training.loss import combine, head_sums


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
    total = combine(sums, {"a": 4.0, "b": 5.0}, heads, 1)
    assert total.item() == pytest.approx(0.75 * 8 / 4 + 0.25 * 10 / 5)


def test_shares_of_ranks_add_up_to_the_whole_step():
    """DDP averages gradients: the mean over ranks of their losses is the loss of the step."""
    heads = {"a": HeadConfig(weight=2.0), "b": HeadConfig(weight=1.0)}
    counts = {"a": 6.0, "b": 9.0}
    shares = [{"a": 5.0, "b": 0.5}, {"a": 1.0, "b": 7.0}, {"a": 0.0, "b": 0.0}]
    parts = [
        combine({n: torch.tensor(v) for n, v in share.items()}, counts, heads, 3).item()
        for share in shares
    ]
    assert sum(parts) / 3 == pytest.approx(2 / 3 * 6.0 / 6 + 1 / 3 * 7.5 / 9)


def test_a_head_that_nobody_has_in_a_step_costs_nothing():
    heads = {"a": HeadConfig(), "b": HeadConfig()}
    total = combine(
        {"a": torch.tensor(3.0), "b": torch.tensor(0.0)}, {"a": 2.0, "b": 0.0}, heads, 1
    )
    assert total.item() == pytest.approx(0.75)
