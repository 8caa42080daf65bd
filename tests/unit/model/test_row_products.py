"""Products by oneDNN are those of torch, with derivatives; torch does what they cannot."""

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear

from hydragnn_hpo.model import row_products
from hydragnn_hpo.model.row_products import RowLinear, multiply_rows

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN."
)


@pytest.fixture
def used(monkeypatch):
    """Use oneDNN for 2 rows and more on any processor, and list the shapes that it is given."""
    shapes = []
    product = row_products._multiply

    def noted(rows, weight, bias=None):
        shapes.append((tuple(rows.shape), tuple(weight.shape)))
        return product(rows, weight, bias)

    monkeypatch.setattr(row_products, "_is_quicker", lambda: True)
    monkeypatch.setattr(row_products, "BLOCKS", (4, 2))
    monkeypatch.setattr(row_products, "LEAST_WORK", 0)
    monkeypatch.setattr(row_products, "_multiply", noted)
    return shapes


def make_inputs(rows=7):
    torch.manual_seed(0)
    return [torch.randn(size, requires_grad=True) for size in ((rows, 5), (3, 5), (3,))]


def differentiate(product, inputs):
    """Return the values, and the first and second derivatives of a nonlinear function of them."""
    values = product(*inputs)
    first = torch.autograd.grad((values**3).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum((each**2).sum() for each in first), inputs)
    return [values, *first, *second]


@pytest.mark.parametrize("rows", [2, 7, 12])
def test_values_and_derivatives_are_those_of_torch_in_double_precision(used, rows):
    found = differentiate(multiply_rows, make_inputs(rows))
    exact = [tensor.detach().double().requires_grad_() for tensor in make_inputs(rows)]
    for number, (own, wanted) in enumerate(zip(found, differentiate(linear, exact), strict=True)):
        torch.testing.assert_close(own.double(), wanted, rtol=1e-5, atol=1e-4, msg=str(number))
    block = min(rows, 4)
    assert used[0] == ((block, 5), (3, 5))
    assert ((block, 3), (5, 3)) in used, "gradients by rows are such products, too"


def test_numbers_of_rows_do_not_make_new_shapes(used):
    """oneDNN compiles a function for each shape, and keeps it."""
    for rows in range(2, 40):
        multiply_rows(*make_inputs(rows))
    assert set(used) == {((4, 5), (3, 5)), ((2, 5), (3, 5))}


def test_a_layer_maps_as_one_of_torch_with_the_same_names(used):
    layer, plain = RowLinear(5, 3, bias=False), torch.nn.Linear(5, 3, bias=False)
    plain.load_state_dict(layer.state_dict())
    rows = torch.randn(4, 5)
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), plain(rows))
    assert used


@pytest.mark.parametrize("way", ["double", "bf16", "vmap", "traced", "three dimensions"])
def test_torch_multiplies_what_is_no_plain_matrix_in_single_precision(used, way):
    rows, weight, bias = (each.detach() for each in make_inputs())
    wanted = linear(rows, weight, bias)
    if way == "double":
        found = multiply_rows(rows.double(), weight.double(), bias.double()).float()
    elif way == "bf16":
        with torch.autocast("cpu", torch.bfloat16):
            found = multiply_rows(rows, weight, bias)
        assert found.dtype is torch.bfloat16
        wanted = found
    elif way == "vmap":
        found = vmap(lambda one: multiply_rows(rows, one, bias))(weight.expand(2, 3, 5))[1]
    elif way == "traced":
        found = make_fx(multiply_rows)(rows, weight, bias)(rows, weight, bias)
    else:
        found = multiply_rows(rows.unsqueeze(0), weight, bias)[0]
    torch.testing.assert_close(found, wanted)
    assert used == []


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_is_traced_for_any_number_of_rows(used, monkeypatch, strict):
    """A look at the number of rows would tie the program to those on one side of the limit."""
    monkeypatch.setattr(row_products, "LEAST_WORK", 100 * 15)
    layer, rows = RowLinear(5, 3), torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        layer, (torch.randn(7, 5),), dynamic_shapes=({0: rows},), strict=strict
    )
    assert program.module()(torch.randn(4000, 5)).shape == (4000, 3)
    assert used == []


def test_few_rows_are_left_to_torch(used, monkeypatch):
    rows, weight, bias = make_inputs()
    multiply_rows(rows[:1], weight, bias)
    monkeypatch.setattr(row_products, "LEAST_WORK", 7 * 15 + 1)
    multiply_rows(rows, weight, bias)
    assert used == []
    multiply_rows(torch.cat((rows, rows)), weight, bias)
    assert used
