"""Products by compiled loops are those of torch, with derivatives; torch does what they cannot."""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear

from hydragnn_hpo.model import row_products
from hydragnn_hpo.model.row_products import RowLinear, multiply_rows, sum_outer_products
from tests.unit.model.conftest import differentiate

product_loops = pytest.importorskip("hydragnn_hpo.model.kernels.product_loops")


def make_inputs(rows=7, inputs=32, outputs=16):
    torch.manual_seed(0)
    sizes = ((rows, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(size, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 32, 48, 64, 80, 112, 145])
def test_loops_multiply_for_all_numbers_of_rows_and_of_panels(columns):
    """Against whole numbers, whose sums are exact."""
    draw = np.random.default_rng(0)
    multiply = product_loops.PRODUCTS.compile("multiply_rows", "float32")
    transposed = product_loops.PRODUCTS.compile("multiply_transposed", "float32")
    for rows, inner in product((0, 1, 3, 4, 5, 6, 11, 95, 96, 97, 203), (0, 1, 17, 64)):
        left, right, bias, high = (
            draw.integers(-8, 9, size).astype(np.float32)
            for size in ((rows, inner), (inner, columns), (columns,), (rows, columns))
        )
        out = np.full((rows + 1, columns), 7.0, np.float32)
        multiply(left, right, bias, out[:rows])
        np.testing.assert_array_equal(out[:rows], left @ right + bias)
        multiply(left, right, bias[:0], out[:rows])
        np.testing.assert_array_equal(out[:rows], left @ right)
        assert (out[rows] == 7.0).all()
        if columns % 16:
            continue
        sums = np.full((inner + 1, columns), 7.0, np.float32)
        transposed(left, high, sums[:inner])
        np.testing.assert_array_equal(sums[:inner], left.T @ high)
        assert (sums[inner] == 7.0).all()


COMPILED = """
import sys, numba, numpy as np
from hydragnn_hpo.model.kernels.product_loops import PRODUCTS
for _ in range(int(sys.argv[1])):
    numba.njit(numba.void())(lambda: None)
for name in sys.argv[2:]:
    PRODUCTS.compile(name, "float32")
left, right, out = np.ones((6, 3), "f4"), np.ones((3, 48), "f4"), np.full((8, 16), 7.0, "f4")
for first in (0, 16, 32):
    matrix = np.ascontiguousarray(right[:, first : first + 16])
    PRODUCTS.compile("multiply_rows", "float32")(left, matrix, np.zeros(0, "f4"), out[1:7])
    assert (out[1:7] == 3.0).all() and (out[[0, 7]] == 7.0).all(), out
"""


@pytest.mark.stress
def test_what_processes_have_cached_in_another_order_links_to_the_right_code(tmp_path):
    """Numba numbers functions as they come: loops of 2 and of 4 registers had the same symbol."""
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    for given in (["0", "multiply_rows"], ["2", "multiply_transposed"], ["4", "map_rows"]):
        subprocess.run([sys.executable, "-c", COMPILED, *given], env=env, check=True, timeout=300)
    names = ["differentiate_map", "map_rows", "multiply_transposed"]
    subprocess.run([sys.executable, "-c", COMPILED, "0", *names], env=env, check=True, timeout=300)


def test_a_row_has_the_same_bits_wherever_it_stands():
    """Law 7."""
    rows, weight, bias = (each.detach() for each in make_inputs(200, 60, 83))
    whole = row_products._multiply(rows, weight, bias)
    for first, last in ((0, 1), (5, 9), (90, 103), (199, 200)):
        alone = row_products._multiply(rows[first:last], weight, bias)
        assert torch.equal(alone, whole[first:last])


@pytest.mark.parametrize("rows", [1, 7, 120])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(32, 16), (20, 64), (64, 20), (5, 3)], ids=lambda each: str(each)
)
def test_values_and_derivatives_are_those_of_torch_in_double_precision(used, rows, inputs, outputs):
    results = differentiate(multiply_rows, make_inputs(rows, inputs, outputs))
    exact = [each.detach().double().requires_grad_() for each in make_inputs(rows, inputs, outputs)]
    for number, (own, wanted) in enumerate(zip(results, differentiate(linear, exact), strict=True)):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(
            own.double(), wanted, rtol=0, atol=3e-6 * scale, msg=str((number, used))
        )
    loops = {"map_rows", "multiply_transposed"}
    assert {loop for loop, *_ in used} >= loops if outputs > 3 else not used


@pytest.mark.parametrize("wanted", ["rwb", "rw", "wb", "w", "rb", "r", "b"])
@pytest.mark.parametrize("rows", [0, 1, 101])
def test_first_derivatives_by_what_is_wanted(used, wanted, rows):
    """Against whole numbers, whose sums are exact."""
    given = [torch.round(4.0 * each.detach()) for each in make_inputs(rows, 48, 37)]
    grad = torch.round(4.0 * torch.randn(rows, 37))
    inputs = [each.requires_grad_(kind in wanted) for kind, each in zip("rwb", given, strict=True)]
    bias = inputs[2] if "b" in wanted else None
    leaves = [each for each in inputs if each.requires_grad]
    results = torch.autograd.grad(multiply_rows(*inputs[:2], bias), leaves, grad)
    expected = torch.autograd.grad(linear(*inputs[:2], bias), leaves, grad)
    for own, value in zip(results, expected, strict=True):
        assert torch.equal(own, value)
    assert ("differentiate_map" in {loop for loop, *_ in used}) == ("w" in wanted)


def test_sums_of_outer_products_are_differentiated_twice(used):
    left, right = (each.detach().double() for each in make_inputs(9, 16, 32)[:2])
    right = torch.randn(9, 48, dtype=torch.float64)
    exact = [each.requires_grad_() for each in (left, right)]
    single = [each.detach().float().requires_grad_() for each in exact]
    wanted = differentiate(lambda one, other: one.t() @ other, exact)
    for own, value in zip(differentiate(sum_outer_products, single), wanted, strict=True):
        scale = float(value.detach().abs().max())
        torch.testing.assert_close(own.double(), value, rtol=0, atol=3e-6 * scale)
    assert ("multiply_transposed", (9, 16), (9, 48)) in used


def test_several_gradients_at_once_are_left_to_torch(used):
    rows, weight, bias = make_inputs()
    values = multiply_rows(rows, weight, bias)
    given = torch.randn(3, *values.shape)
    results = torch.autograd.grad(values, (rows, weight, bias), given, is_grads_batched=True)
    wanted = torch.autograd.grad(
        linear(rows, weight, bias), (rows, weight, bias), given, is_grads_batched=True
    )
    for own, value in zip(results, wanted, strict=True):
        torch.testing.assert_close(own, value)


def test_the_width_of_a_register_is_known_where_loops_are_not():
    assert row_products.LANES == product_loops.LANES


def test_gradients_may_be_spread_or_turned(used):
    """What autograd hands on is no whole array: here one number for all, and a matrix turned."""
    rows, weight, bias = make_inputs()
    multiply_rows(rows, weight, bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((16,), 7.0))
    torch.testing.assert_close(rows.grad, weight.detach().sum(0).expand(7, 32))
    torch.testing.assert_close(weight.grad, rows.detach().sum(0).expand(16, 32))
    turned = multiply_rows(rows.detach().t().contiguous().t(), weight)
    torch.testing.assert_close(turned, linear(rows, weight))


@pytest.mark.parametrize("shape", [(4, 32), (4, 3, 32), (2, 2, 3, 32), (0, 32), (0, 3, 32)])
def test_a_layer_maps_as_one_of_torch_with_the_same_names(used, shape):
    layer, plain = RowLinear(32, 16, bias=False), torch.nn.Linear(32, 16, bias=False)
    plain.load_state_dict(layer.state_dict())
    rows = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), plain(rows))
    assert used
    used.clear()
    row_products.use_kernels(layer, "eager")
    assert torch.equal(layer(rows), plain(rows))
    assert used == []


@pytest.mark.parametrize("way", ["double", "bf16", "vmap", "traced"])
def test_torch_multiplies_what_is_no_plain_matrix_in_single_precision(used, way):
    rows, weight, bias = (each.detach() for each in make_inputs())
    wanted = linear(rows, weight, bias)
    if way == "double":
        actual = multiply_rows(rows.double(), weight.double(), bias.double()).float()
    elif way == "bf16":
        with torch.autocast("cpu", torch.bfloat16):
            actual = multiply_rows(rows, weight, bias)
        assert actual.dtype is torch.bfloat16
        wanted = actual
    elif way == "vmap":
        actual = vmap(lambda one: multiply_rows(rows, one, bias))(weight.expand(2, 16, 32))[1]
    else:
        actual = make_fx(multiply_rows)(rows, weight, bias)(rows, weight, bias)
    torch.testing.assert_close(actual, wanted)
    assert used == []


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_is_traced_for_any_number_of_rows(used, monkeypatch, strict):
    """A look at the number of rows would tie the program to those on one side of the limit."""
    monkeypatch.setattr(row_products, "LEAST_WORK", 100 * 32 * 16)
    layer, rows = RowLinear(32, 16), torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        layer, (torch.randn(7, 32),), dynamic_shapes=({0: rows},), strict=strict
    )
    assert program.module()(torch.randn(4000, 32)).shape == (4000, 16)
    assert used == []


def test_few_rows_are_left_to_torch(used, monkeypatch):
    rows, weight, bias = make_inputs()
    monkeypatch.setattr(row_products, "LEAST_WORK", 7 * 32 * 16 + 1)
    multiply_rows(rows, weight, bias)
    assert used == []
    multiply_rows(torch.cat((rows, rows)), weight, bias)
    assert used
