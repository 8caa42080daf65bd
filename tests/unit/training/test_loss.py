"""Losses by hand: masks, components, variances, weights, global counts."""

import math
from types import SimpleNamespace

import pytest
import torch

from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.training.stepper import combine_losses, head_sums


class Stub:
    def __init__(self, directed=(), classes=(), of_nodes=(), **std):
        self.spread, self.directed, self.classes = std, directed, classes
        self.of_nodes = of_nodes

    def std(self, name):
        return torch.tensor(self.spread[name])


def sums_of(loss, predicted, wanted, mask, balance="scale"):
    batch = SimpleNamespace(targets={"x": torch.tensor(wanted)}, masks={"x": torch.tensor(mask)})
    heads = {"x": HeadConfig(loss=loss)}
    result = head_sums(Stub(x=2.0), {"x": torch.tensor(predicted)}, batch, heads, balance)
    return result["x"].item()


# In units of the standard deviation 2 the errors are 0.5, -3 and (masked) 50; then 1, -2 and 3.
NUMBERS = [[2.0], [-6.0], [100.0]], [[1.0], [0.0], [0.0]], [True, True, False]
VECTORS = [[2.0, -4.0, 6.0], [7.0, 7.0, 7.0]], [[0.0] * 3] * 2, [True, False]


@pytest.mark.parametrize(
    ("loss", "given", "expected"),
    [
        ("mae", NUMBERS, 0.5 + 3.0),
        ("mse", NUMBERS, 0.25 + 9.0),
        ("huber", NUMBERS, 0.125 + (3.0 - 0.5)),
        ("mae", VECTORS, 6.0),
        ("mse", VECTORS, 14.0),
        ("huber", VECTORS, 4.5),
    ],
)
def test_losses_by_hand(loss, given, expected):
    assert sums_of(loss, *given) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("of_nodes", "expected"),
    [((), 3.0 * 0.5 + 0.25 * 3.0), (("x",), 3.0 * (0.5 + 3.0))],
    ids=["of structures", "of atoms"],
)
def test_weights_of_structures_by_hand(of_nodes, expected):
    """Errors are 0.5 and 3; structure 0 has weight 3, and as a structure of atoms both of them."""
    batch = SimpleNamespace(
        targets={"x": torch.tensor([[1.0], [0.0]])},
        masks={"x": torch.tensor([True, True])},
        graph_of_node=torch.tensor([0, 0]),
    )
    given = {"x": torch.tensor([[2.0], [-6.0]])}
    model = Stub(of_nodes=of_nodes, x=2.0)
    weights = torch.tensor([3.0, 0.25])
    sums = head_sums(model, given, batch, {"x": HeadConfig(loss="mae")}, weights=weights)
    assert sums["x"].item() == pytest.approx(expected)


@pytest.mark.parametrize(("loss", "expected"), [("mae", 5.0), ("mse", 25.0), ("huber", 4.5)])
def test_the_loss_of_vectors_that_are_no_derivatives_does_not_depend_on_the_axes(loss, expected):
    """In standard deviations the vector is 5 * sqrt(3) long: 5 for each of 3 components."""
    length = 10.0 * math.sqrt(3.0)
    for vector in ([length, 0.0, 0.0], [0.0, 0.6 * length, -0.8 * length]):
        batch = SimpleNamespace(
            targets={"x": torch.tensor([[0.0] * 3])}, masks={"x": torch.tensor([True])}
        )
        heads = {"x": HeadConfig(loss=loss)}
        model = Stub(directed={"x"}, x=2.0)
        sums = head_sums(model, {"x": torch.tensor([vector])}, batch, heads)
        assert sums["x"].item() == pytest.approx(3 * expected)


def test_a_displaced_peak_costs_its_distance():
    """A unit peak that is two of four places away: two running sums of 1, over four values."""
    peak, displaced = [[0.0, 1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 1.0]]
    batch = SimpleNamespace(targets={"x": torch.tensor(peak)}, masks={"x": torch.tensor([True])})
    costs = {
        cumulative: head_sums(
            Stub(x=2.0),
            {"x": torch.tensor(displaced)},
            batch,
            {"x": HeadConfig(loss="mae", cumulative=cumulative)},
            "unit",
        )["x"].item()
        for cumulative in (False, True)
    }
    assert costs == {False: 2.0, True: pytest.approx(2 / 4)}


def test_classes_have_the_cross_entropy_of_labelled_rows():
    probabilities = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)
    batch = SimpleNamespace(
        targets={"x": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])},
        masks={"x": torch.tensor([True, True, False])},
    )
    sums = head_sums(Stub(classes=("x",), x=2.0), {"x": probabilities}, batch, {"x": HeadConfig()})
    assert sums["x"].item() == pytest.approx(math.log(2.0) - math.log(0.8))


def test_errors_in_the_targets_own_unit():
    assert sums_of("mae", *NUMBERS, balance="unit") == pytest.approx(1.0 + 6.0)


@pytest.mark.parametrize(
    ("shares", "counts", "expected"),
    [
        ([{"a": 8.0, "b": 10.0}], {"a": 4.0, "b": 5.0}, 2 / 3 * 8 / 4 + 1 / 3 * 10 / 5),
        ([{"a": 3.0, "b": 0.0}], {"a": 2.0, "b": 0.0}, 2 / 3 * 3 / 2),  # no graph has b
        (
            [{"a": 5.0, "b": 0.5}, {"a": 1.0, "b": 7.0}, {"a": 0.0, "b": 0.0}],
            {"a": 6.0, "b": 9.0},
            2 / 3 * 6.0 / 6 + 1 / 3 * 7.5 / 9,
        ),
    ],
)
def test_shares_of_ranks_add_up_to_the_whole_step(shares, counts, expected):
    """DDP averages gradients: the mean over ranks of their losses is the loss of the step."""
    heads = {"a": HeadConfig(weight=2.0), "b": HeadConfig(weight=1.0)}
    parts = [
        combine_losses(
            {name: torch.tensor(value) for name, value in share.items()},
            counts,
            heads,
            len(shares),
        ).item()
        for share in shares
    ]
    assert sum(parts) / len(shares) == pytest.approx(expected)


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
    result, predictions = nll("beta_nll", 8.0, beta=1.0)
    result.backward()
    # d/dv of 0.5 (log v + e^2 / v) at v = 2, times v = 2, times 1/4 from the unit of the variance.
    expected = 0.5 * (1 / 2.0 - 2.25 / 4.0) * 2.0 / 4.0
    assert predictions["x:variance"].grad[0].item() == pytest.approx(expected)


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
