"""Spherical harmonics and their couplings.

Shapes: E edges.
"""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config.convs.vector import start

Array = np.ndarray


def spherical_harmonics(directions: Tensor, max_ell: int) -> Tensor:
    """Return the real spherical harmonics of unit vectors, of every degree up to ``max_ell``.

    Args:
        directions: unit vectors x, y, z, or zeros, [E, 3].
        max_ell: highest degree, 0 to 3.

    Returns:
        [E, (max_ell + 1)^2]; degree l starts at column l^2 and its squares sum to 2l + 1. Its
        columns are in the order of ``config.convs.vector.ORDERS``: degree 1 is sqrt(3) (x, y, z).

    Source: Homeier and Steinborn (1996), J. Mol. Struct. THEOCHEM 368, 31, apart from the scale.
    """
    x, y, z = directions.unbind(-1)
    columns = [torch.ones_like(x)]
    if max_ell >= 1:
        columns += [math.sqrt(3) * each for each in (x, y, z)]
    if max_ell >= 2:
        columns += _degree_two(x, y, z)
    if max_ell >= 3:
        columns += _degree_three(x, y, z)
    return torch.stack(columns, dim=-1)


def _degree_two(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    a = math.sqrt(15)
    b = math.sqrt(5) / 2
    flat = x * x + y * y
    middle = b * (2 * z * z - flat)
    return [a * x * y, a * y * z, middle, a * x * z, a / 2 * (x * x - y * y)]


def _degree_three(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    a = math.sqrt(105)
    b = math.sqrt(7) / 2
    c = math.sqrt(35 / 8)
    d = math.sqrt(21 / 8)
    xx, yy, zz = x * x, y * y, z * z
    ring = d * (4 * zz - xx - yy)
    return [
        c * y * (3 * xx - yy),
        a * x * y * z,
        ring * y,
        b * z * (2 * zz - 3 * (xx + yy)),
        ring * x,
        a / 2 * z * (xx - yy),
        c * x * (xx - 3 * yy),
    ]


@cache
def coupling_coefficients(first: int, second: int, third: int) -> Array:
    """Return the coupling of two harmonics to a third: ``out_c = sum_ab C_cab left_a right_b``.

    The mean over the sphere of the product of three harmonics is, for natural parity, a
    Clebsch-Gordan coefficient up to a factor. The factor is chosen so that the squares of the
    coefficients of one output component sum to 1.

    Args:
        first: degree of the left factor, >= 0.
        second: degree of the right factor, >= 0.
        third: degree of the product; ``first + second + third`` is even.

    Returns:
        [2 third + 1, 2 first + 1, 2 second + 1], fp64.

    Source: Homeier and Steinborn (1996), J. Mol. Struct. THEOCHEM 368, 31.
    """
    values, weights = _sphere_quadrature(max(first, second, third))
    left, right, out = (values[:, start(ell) : start(ell + 1)] for ell in (first, second, third))
    mean = np.einsum("e,ec,ea,eb->cab", weights, out, left, right)
    mean[np.abs(mean) < 1e-12] = 0.0
    scaled: Array = mean * math.sqrt((2 * third + 1) / np.square(mean).sum())
    return scaled


@cache
def _sphere_quadrature(max_ell: int) -> tuple[Array, Array]:
    """Return a quadrature of the sphere that is exact for products of three harmonics.

    Returns:
        Harmonics at its points, [points, (max_ell + 1)^2], and weights that sum to 1, [points].
    """
    heights, along = np.polynomial.legendre.leggauss(2 * max_ell + 1)
    turns = np.arange(4 * max_ell + 1) * (2 * math.pi / (4 * max_ell + 1))
    z, angle = (grid.ravel() for grid in np.meshgrid(heights, turns, indexing="ij"))
    radius = np.sqrt(1.0 - z * z)
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle), z), axis=-1)
    weights = np.repeat(along, len(turns)) / (2 * len(turns))
    return spherical_harmonics(torch.from_numpy(points), max_ell).numpy(), weights
