"""Linear maps with activations by one loop are those of torch, with derivatives."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, silu

from hydragnn_hpo.model import perceptrons
from hydragnn_hpo.model.activations import ShiftedSoftplus
from hydragnn_hpo.model.perceptrons import Perceptron, activate_sum
from hydragnn_hpo.model.row_products import RowLinear, use_kernels
from tests.unit.model.conftest import differentiate

pytest.importorskip("hydragnn_hpo.model.kernels.perceptron_loops")


def make_maps(inputs, outputs):
    torch.manual_seed(1)
    return RowLinear(inputs[0], outputs, bias=False), RowLinear(inputs[1], outputs)


def activate_exactly(one, weight, other, messages, bias):
    return silu(linear(one, weight) + linear(other, messages, bias))


@pytest.mark.stress
@pytest.mark.parametrize("rows", [1, 7, 96, 203])
@pytest.mark.parametrize(
    ("inputs", "outputs", "loops"),
    [
        ((32, 48), 64, {"activate_sum", "sum_slopes"}),
        ((20, 33), 16, {"activate_sum"}),
        ((32, 16), 20, set()),
    ],
    ids=["one loop", "slopes one by one", "by torch"],
)
def test_activated_sums_and_derivatives_are_those_of_torch(used, rows, inputs, outputs, loops):
    maps = make_maps(inputs, outputs)
    given = [torch.randn(rows, width, requires_grad=True) for width in inputs]
    leaves = [given[0], maps[0].weight, given[1], maps[1].weight, maps[1].bias]
    exact = [each.detach().double().requires_grad_() for each in leaves]

    def activate(*_):
        return activate_sum(maps, tuple(given))

    wanted = differentiate(activate_exactly, exact)
    pairs = list(zip(differentiate(activate, leaves), wanted, strict=True))
    first = torch.autograd.grad((activate() ** 3).sum(), leaves)
    pairs += zip(first, wanted[1:6], strict=True)
    with torch.no_grad():
        pairs.append((activate(), wanted[0]))
    for number, (own, value) in enumerate(pairs):
        scale = max(float(value.detach().abs().max()), 1e-3)
        torch.testing.assert_close(
            own.double(), value, rtol=0, atol=1e-5 * scale, msg=str((number, used))
        )
    ours = {loop for loop, *_ in used} & {"activate_sum", "sum_slopes"}
    assert ours == loops


@pytest.mark.parametrize("still", ["one", "other", "bias", "weight"])
def test_what_needs_no_slope_gets_none(used, still):
    maps = make_maps((32, 48), 16)
    given = tuple(torch.randn(7, width, requires_grad=True) for width in (32, 48))
    leaves = {
        **{"one": given[0], "weight": maps[0].weight},
        **{"other": given[1], "messages": maps[1].weight, "bias": maps[1].bias},
    }
    leaves[still].requires_grad_(False)
    activate_sum(maps, given).sum().backward()
    result = {name: each.grad for name, each in leaves.items()}
    exact = {name: each.detach().clone().requires_grad_(True) for name, each in leaves.items()}
    activate_exactly(*exact.values()).sum().backward()
    for name, slope in result.items():
        if name == still:
            assert slope is None
        else:
            torch.testing.assert_close(slope, exact[name].grad)
    assert ("sum_slopes" in {loop for loop, *_ in used}) == (still != "weight")


def test_an_activated_row_has_the_same_bits_wherever_it_stands():
    """Law 7."""
    maps = make_maps((32, 48), 64)
    factors = [torch.randn(200, 32), maps[0].weight, torch.randn(200, 48), *maps[1].parameters()]
    whole = perceptrons._activate(*factors, keep=True)[0]
    for first, last in ((0, 1), (90, 103), (199, 200)):
        one, weight, other, *rest = factors
        part = (one[first:last], weight, other[first:last], *rest)
        assert torch.equal(perceptrons._activate(*part, keep=False)[0], whole[first:last])


def make_perceptron(inputs, activation, bias=True, outputs=48):
    torch.manual_seed(2)
    return Perceptron(
        RowLinear(inputs, 32, bias=bias), activation(), RowLinear(32, outputs, bias=bias)
    )


@pytest.mark.parametrize("rows", [1, 95, 96, 97, 300])
@pytest.mark.parametrize("inputs", [17, 64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [nn.SiLU, ShiftedSoftplus])
def test_two_maps_are_one_loop_where_nothing_is_trained(used, activation, bias, inputs, rows):
    net, given = make_perceptron(inputs, activation, bias), 3.0 * torch.randn(rows, inputs)
    with torch.no_grad():
        result = net(given)
        assert [loop for loop, *_ in used] == ["map_twice"]
        plain = nn.Sequential(*net).double()(given.double())
    torch.testing.assert_close(result.double(), plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "case", ["trained", "eager", "double", "outputs", "layers", "activation", "dimensions"]
)
def test_other_chains_are_mapped_layer_by_layer(used, case):
    given = torch.randn(7, 2, 32) if case == "dimensions" else torch.randn(7, 32)
    net = make_perceptron(32, nn.SiLU, outputs=20 if case == "outputs" else 48)
    if case == "layers":
        net = Perceptron(*net, nn.SiLU())
    elif case == "activation":
        net = Perceptron(net[0], nn.Tanh(), net[2])
    elif case == "eager":
        use_kernels(net, "eager")
    elif case == "double":
        net, given = net.double(), given.double()
    with torch.set_grad_enabled(case == "trained"):
        actual = net(given)
        torch.testing.assert_close(actual, nn.Sequential(*net)(given))
    assert "map_twice" not in {loop for loop, *_ in used}


def test_a_mapped_row_has_the_same_bits_wherever_it_stands(used):
    """Law 7."""
    net, given = make_perceptron(32, nn.SiLU), torch.randn(200, 32)
    with torch.no_grad():
        whole = net(given)
        for first, last in ((0, 1), (90, 103), (199, 200)):
            assert torch.equal(net(given[first:last]), whole[first:last])
