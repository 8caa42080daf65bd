"""Products of many rows with a small matrix, as loops that numba compiles.

MKL, which torch multiplies with, uses vectors of 256 bits on AMD processors: on one core of Zen 5 a
product of 5,241 rows with a matrix of 64 x 64 has 106 GFlop/s, and 250 by these loops. They hold a
*tile* of the result in registers, by instructions that are written here in LLVM's language, as its
optimizer finds no such tile by itself.

Each number is one sum in the order of the shared index, so that a row has the same bits wherever
it stands (Law 7).

Shapes: R rows, K, M and N columns. Matrices are contiguous.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

from hydragnn_hpo.compiled_loops import CompiledLoops

Array = np.ndarray[Any, Any]

LANES = 16
"""Numbers of fp32 in a vector register of 512 bits."""

CHUNK = 96
"""Rows at a time, which stay in the fastest cache."""


class _TileWriter:
    """Writes the instructions for a tile of ``out = base + sum_k left[row, k] right[k, :]``."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        """Unpack the arguments of ``_make_tile``'s function.

        Args:
            context: of numba's code generator.
            builder: of instructions.
            signature: types of the arguments.
            arguments: their values.
        """
        self.builder, (at, steps, self.count) = builder, arguments[4:]
        self.left, self.right, self.base, self.out = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        )
        self.at = [builder.extract_value(at, each) for each in range(4)]
        self.row_step, *self.k_steps, self.base_step, self.out_step = (
            builder.extract_value(steps, each) for each in range(5)
        )
        self.index, number = self.count.type, self.left.type.pointee
        self.vector = ir.VectorType(number, LANES)
        self.bytes = number.get_abi_size(context.target_data)
        name, module = f"llvm.fma.v{LANES}{number.intrinsic_name}", builder.module
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = module.globals.get(name) or ir.Function(module, kind, name)

    def write(self, rows: int, vectors: int) -> None:
        """Write a loop over k whose sums are ``vectors`` registers for each of ``rows`` rows."""
        builder, before = self.builder, self.builder.block
        initial = [
            [
                self._load(self._place(self.base, self.at[2], self.base_step, row, number))
                for number in range(vectors)
            ]
            for row in range(rows)
        ]
        head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        sums = [[builder.phi(self.vector) for _ in range(vectors)] for _ in range(rows)]
        counters = [builder.phi(self.index) for _ in range(3)]
        for counter, start in zip(counters, (self.index(0), *self.at[:2]), strict=True):
            counter.add_incoming(start, before)
        for row, phis in enumerate(sums):
            for number, phi in enumerate(phis):
                phi.add_incoming(initial[row][number], before)
        builder.cbranch(builder.icmp_signed("<", counters[0], self.count), body, end)
        builder.position_at_end(body)
        self._multiply(sums, *counters[1:])
        for counter, step in zip(counters, (self.index(1), *self.k_steps), strict=True):
            counter.add_incoming(builder.add(counter, step), body)
        builder.branch(head)
        builder.position_at_end(end)
        for row, phis in enumerate(sums):
            for number, phi in enumerate(phis):
                place = self._place(self.out, self.at[3], self.out_step, row, number)
                builder.store(phi, place).align = self.bytes

    def _multiply(self, sums: Any, left: Any, right: Any) -> None:
        """Write a turn of the loop: each number on the left with the row on the right.

        Args:
            sums: of each row and register.
            left: place of the first row's number.
            right: place of the row.
        """
        builder = self.builder
        loaded = [
            self._load(self._pointer(self.right, right, each)) for each in range(len(sums[0]))
        ]
        nothing, lanes = self.vector(ir.Undefined), ir.VectorType(ir.IntType(32), LANES)
        for row, phis in enumerate(sums):
            place = builder.gep(self.left, [self._row(left, self.row_step, row)])
            single = builder.insert_element(nothing, builder.load(place), self.index(0))
            spread = builder.shuffle_vector(single, nothing, lanes([0] * LANES))
            for phi, values in zip(phis, loaded, strict=True):
                phi.add_incoming(builder.call(self.fma, (spread, values, phi)), builder.block)

    def _place(self, array: Any, first: Any, step: Any, row: int, number: int) -> Any:
        """Point to a register of a tile's row.

        Args:
            array: where the tile lies.
            first: place of its first number.
            step: from row to row.
            row: number of the row.
            number: number of the register.
        """
        return self._pointer(array, self._row(first, step, row), number)

    def _row(self, first: Any, step: Any, row: int) -> Any:
        return self.builder.add(first, self.builder.mul(step, self.index(row)))

    def _pointer(self, base: Any, place: Any, number: int) -> Any:
        """Point to the ``number``-th register of a row."""
        moved = self.builder.gep(base, [self.builder.add(place, self.index(LANES * number))])
        return self.builder.bitcast(moved, self.vector.as_pointer())

    def _load(self, pointer: Any) -> Any:
        loaded = self.builder.load(pointer)
        loaded.align = self.bytes
        return loaded


def _make_tile(rows: int, vectors: int) -> Any:
    """Make the function ``tile(left, right, base, out, at, steps, count)``.

    ``at`` says where the tile begins in each of the four arrays, ``steps`` from row to row and from
    k to k on the left, from k to k on the right, and from row to row in ``base`` and in ``out``, in
    elements.
    """

    @intrinsic
    def tile(
        context: Any, left: Any, right: Any, base: Any, out: Any, at: Any, steps: Any, count: Any
    ) -> Any:
        def write(inner: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _TileWriter(inner, builder, signature, arguments).write(rows, vectors)
            return inner.get_dummy_value()

        return types.void(left, right, base, out, at, steps, count), write

    return tile


def _make_panel(vectors: int) -> Any:
    """Make the function that goes through the rows of a panel, ``vectors`` registers wide.

    Tiles of 6 rows and 4 registers use 29 of 32 registers.
    """
    six, four, one = (_make_tile(rows, vectors) for rows in (6, 4, 1))

    def panel(
        left: Array, right: Array, base: Array, out: Array, at: Any, steps: Any, size: Any
    ) -> None:
        rows, count = size
        row, (first, second, third, fourth) = 0, at
        while row + 6 <= rows:
            here = (first + row * steps[0], second, third + row * steps[3], fourth + row * steps[4])
            six(left, right, base, out, here, steps, count)
            row += 6
        if row + 4 <= rows:
            here = (first + row * steps[0], second, third + row * steps[3], fourth + row * steps[4])
            four(left, right, base, out, here, steps, count)
            row += 4
        while row < rows:
            here = (first + row * steps[0], second, third + row * steps[3], fourth + row * steps[4])
            one(left, right, base, out, here, steps, count)
            row += 1

    # Machine code is linked by name, also what another process has cached.
    panel.__qualname__ = f"_panel{vectors}"
    return register_jitable(panel)


_panel1, _panel2, _panel3, _panel4 = (_make_panel(vectors) for vectors in (1, 2, 3, 4))


@register_jitable
def multiply_panels(
    left: Array, right: Array, base: Array, out: Array, at: Any, steps: Any, size: Any
) -> None:
    """Add a product to ``base``, panel by panel of its columns.

    Args:
        left: array with the left matrix.
        right: array with the right one.
        base: what the product is added to; may be ``out``.
        out: the result.
        at: see ``_make_tile``.
        steps: see ``_make_tile``; 0 from row to row in ``base`` adds the same to all rows.
        size: numbers of rows and of k.
    """
    column, whole = 0, out.shape[1] - out.shape[1] % LANES
    while column < whole:
        here = (at[0], at[1] + column, at[2] + column, at[3] + column)
        vectors = min(4, (whole - column) // LANES)
        if vectors == 4:
            _panel4(left, right, base, out, here, steps, size)
        elif vectors == 3:
            _panel3(left, right, base, out, here, steps, size)
        elif vectors == 2:
            _panel2(left, right, base, out, here, steps, size)
        else:
            _panel1(left, right, base, out, here, steps, size)
        column += vectors * LANES


@register_jitable
def _multiply_rest(rows: Array, matrix: Array, base: Array, out: Array) -> None:
    """Find the columns that fill no vector register, see ``_multiply_rows``."""
    (count, inner), width = rows.shape, out.shape[1]
    for column in range(width - width % LANES, width):
        factors = matrix[:, column].copy()
        for row in range(count):
            total = base[column]
            for k in range(inner):
                total += rows[row, k] * factors[k]
            out[row, column] = total


@register_jitable
def bias_or_zeros(bias: Array, width: int) -> Array:
    """Return a bias, [width]; zeros where it is empty."""
    return bias if len(bias) else np.zeros(width, bias.dtype)


@register_jitable
def _multiply_rows(rows: Array, matrix: Array, bias: Array, out: Array) -> None:
    """Multiply rows, [R, K], with a matrix, [K, N], and add a bias, [N], if it is not empty."""
    (count, inner), width = rows.shape, out.shape[1]
    base, steps = bias_or_zeros(bias, width), (inner, 1, width, 0, width)
    for start in range(0, count, CHUNK):
        at, size = (start * inner, 0, 0, start * width), min(CHUNK, count - start)
        multiply_panels(rows, matrix, base, out, at, steps, (size, inner))
    if width % LANES:
        _multiply_rest(rows, matrix, base, out)


@register_jitable
def transpose(matrix: Array) -> Array:
    """Return the transpose of a matrix, contiguous."""
    turned = np.empty(matrix.shape[::-1], matrix.dtype)
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            turned[column, row] = matrix[row, column]
    return turned


def _map_rows(rows: Array, weight: Array, bias: Array, out: Array) -> None:
    """Multiply rows, [R, K], with the transpose of a matrix, [N, K], see ``_multiply_rows``."""
    _multiply_rows(rows, transpose(weight), bias, out)


@register_jitable
def add_map_slopes(slopes: Array, map_: Any, results: Any, start: int, size: int) -> None:
    """Find the gradients of some rows of a linear map, and add to that of its matrix.

    Args:
        slopes: gradients of these rows of the product, [``size`` or more, N].
        map_: all rows, [R, K], and the matrix, [N, K]; K is a multiple of ``LANES``.
        results: gradients of both; that of the rows may be without rows.
        start: first of the rows.
        size: number of rows.
    """
    (rows, weight), (to_rows, to_weight) = map_, results
    (width, inner), there = weight.shape, start * rows.shape[1]
    at, steps = (0, there, 0, 0), (1, width, inner, inner, inner)
    multiply_panels(slopes, rows, to_weight, to_weight, at, steps, (width, size))
    if len(to_rows):
        at, steps = (0, 0, 0, there), (width, 1, inner, 0, inner)
        nothing = np.zeros(inner, weight.dtype)
        multiply_panels(slopes, weight, nothing, to_rows, at, steps, (size, width))


@register_jitable
def add_rows(rows: Array, total: Array) -> None:
    """Add rows to ``total``, which may be empty."""
    for row in range(len(rows)):
        for column in range(len(total)):
            total[column] += rows[row, column]


def _differentiate_map(
    grad: Array, rows: Array, weight: Array, to_rows: Array, to_weight: Array, to_bias: Array
) -> None:
    """Differentiate ``_map_rows``; K is a multiple of ``LANES``.

    Args:
        grad: gradient of its result, [R, N].
        rows: [R, K].
        weight: [N, K].
        to_rows: result, [R, K], or without rows.
        to_weight: result, [N, K].
        to_bias: result, [N], or empty.
    """
    to_weight[:] = 0.0
    to_bias[:] = 0.0
    for start in range(0, len(grad), CHUNK):
        size = min(CHUNK, len(grad) - start)
        slopes = grad[start : start + size]
        add_map_slopes(slopes, (rows, weight), (to_rows, to_weight), start, size)
        add_rows(slopes, to_bias)


def _multiply_transposed(left: Array, right: Array, out: Array) -> None:
    """Sum outer products of rows, [R, M] and [R, N], to [M, N]; N is a multiple of ``LANES``."""
    count, (height, width) = len(left), out.shape
    for row in range(height):
        for column in range(width):
            out[row, column] = 0.0
    for start in range(0, count, CHUNK):
        at, steps = (start * height, start * width, 0, 0), (1, height, width, width, width)
        size = (height, min(CHUNK, count - start))
        multiply_panels(left, right, out, out, at, steps, size)


PRODUCTS = CompiledLoops({
    "multiply_rows": (_multiply_rows, "2 2 1 2"),
    "map_rows": (_map_rows, "2 2 1 2"),
    "differentiate_map": (_differentiate_map, "2 2 2 2 2 1"),
    "multiply_transposed": (_multiply_transposed, "2 2 2"),
})  # fmt: skip
