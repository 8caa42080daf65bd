"""SiLU has torch's values and derivatives, and differentiates twice in fewer operations."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn_hpo.kernels.activations import silu


class CountedOperations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def differentiate_twice(activation, values):
    """Return values, the slope, and the slope's slope; count operations."""
    x = values.clone().requires_grad_()
    weight = torch.linspace(1.0, 2.0, len(values)).double()
    out = activation(x)
    with CountedOperations() as operations:
        (slope,) = torch.autograd.grad(out, x, weight, create_graph=True)
        (second,) = torch.autograd.grad(slope, x, weight.cos())
    return (out, slope, second), operations.count


def test_silu_has_the_derivatives_of_torch_in_fewer_operations():
    values = torch.linspace(-9.0, 9.0, 37, dtype=torch.float64)
    ours, few = differentiate_twice(silu, values)
    expected, many = differentiate_twice(F.silu, values)
    for each, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(each, wanted, rtol=0, atol=1e-13)
    assert few <= 0.6 * many, (few, many)


def test_silu_can_be_differentiated_three_times():
    x = torch.linspace(-3.0, 3.0, 5, dtype=torch.float64, requires_grad=True)

    def slope(given):
        return torch.autograd.grad(silu(given).square().sum(), given, create_graph=True)[0]

    assert torch.autograd.gradcheck(silu, x)
    assert torch.autograd.gradgradcheck(slope, x)
