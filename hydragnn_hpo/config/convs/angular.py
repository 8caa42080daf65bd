"""Convs that use angles: options, numbers of parameters, operations and saved values; no torch."""

import math
from typing import Annotated

from pydantic import Field, PositiveFloat

from hydragnn_hpo.config.convs.spec import (
    MAX_LAYERS,
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    Width,
    chain,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class DimeNetPPOptions(Config):
    """Options of the directional message passing. Read by ``model.convs.dimenetpp``."""

    num_spherical: Annotated[int, Field(ge=2, le=8), Range(low=2, high=7)] = 7
    """Number of functions of the angle: Legendre polynomials of degree 0 and up."""

    num_radial: Annotated[int, Field(gt=0, le=32), Range(low=3, high=12)] = 6
    """Number of spherical Bessel functions of the length for each function of the angle."""

    int_emb: Annotated[Width, Range(low=16, high=64, log=True)] = 32
    """Width of a message in the sum over angles."""

    basis_emb: Annotated[Width, Range(low=4, high=32, log=True)] = 8
    """Width of the hidden layer between the radial and angular functions and the filters."""

    out_emb: Annotated[Width, Range(low=32, high=256, log=True)] = 128
    """Width of the hidden layers that turn messages into node features."""

    out_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS), Range(low=0, high=3)] = 3
    """Number of these hidden layers."""

    before_skip: Annotated[int, Field(ge=0, le=MAX_LAYERS), Range(low=0, high=2)] = 1
    """Residual layers of a message before the previous message is added."""

    after_skip: Annotated[int, Field(ge=0, le=MAX_LAYERS), Range(low=0, high=2)] = 2
    """Residual layers of a message after the previous message is added."""

    angle_cutoff: Annotated[PositiveFloat | None, Range(low=3.0, high=5.0)] = None
    """Longest edge that takes part in an angle, in angstrom; the model's cutoff applies if this is
    left out or longer."""


def chebyshev_terms(orders: int, count: int) -> int:
    """Return the number of Chebyshev terms that expand spherical Bessel functions to rounding.

    The last root of order l is at most ``z = (count + l / 2) pi``. Coefficients of a wave with z
    radians over the range are Bessel functions of z / 2, which vanish at orders just above z / 2.
    """
    half = (count + orders / 2.0) * math.pi / 2.0
    return math.ceil(half + 6.0 * math.cbrt(half)) + 12


def _dimenetpp_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, DimeNetPPOptions)
    f, k, w, b = d.features, d.basis_size, o.int_emb, o.basis_emb
    into = linear(f, f) + linear(f, f, bias=False)
    if d.layer == 0:
        into += linear(k, f) + linear(f, f, bias=False)
    filters = linear(k, b, bias=False) + linear(b, f, bias=False)
    angular = o.num_spherical * o.num_radial * b + b * w
    messages = 3 * linear(f, f) + 2 * linear(f, w, bias=False)
    skips = (o.before_skip + o.after_skip) * 2 * linear(f, f)
    out = linear(k, f) + 2 * linear(f, o.out_emb, bias=False)
    return (
        into
        + filters
        + angular
        + messages
        + skips
        + out
        + o.out_layers * linear(o.out_emb, o.out_emb)
    )


def _dimenetpp_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, DimeNetPPOptions)
    f, k, w, b = d.features, d.basis_size, o.int_emb, o.basis_emb
    functions = o.num_spherical * o.num_radial
    total = s.nodes * 2 * products(f, f)
    if d.layer == 0:
        terms = chebyshev_terms(o.num_spherical, o.num_radial)
        total += s.pairs * (products(k, f, f) + products(terms, functions))
    total += s.pairs * (products(k, b, f) + products(k, f) + products(functions, w))
    total += functions * products(b, w)
    total += s.edges * ((3 + 2 * (o.before_skip + o.after_skip)) * products(f, f))
    total += s.edges * 2 * products(f, w)
    hidden = [o.out_emb] * (o.out_layers + 1)
    return total + s.nodes * products(f, *hidden, f)


def _dimenetpp_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, DimeNetPPOptions)
    f, k, w, b = d.features, d.basis_size, o.int_emb, o.basis_emb
    skips = o.before_skip + o.after_skip
    orders = o.num_spherical
    kept = s.edges * ((8 + 4 * skips) * f + 3 * w)
    kept += s.pairs * (2 * f + b + orders * w)
    kept += s.nodes * (2 * f + (1 + 2 * o.out_layers) * o.out_emb)
    if d.layer > 0:
        return kept
    kept += s.pairs * (k + 2 * f + orders * o.num_radial) + s.edges * (2 * f + 12)
    return kept + s.triplets * (orders + 8)  # weights, and the links as int64


def _dimenetpp_reach(options: Config) -> float | None:
    assert isinstance(options, DimeNetPPOptions)
    return options.angle_cutoff


DIMENETPP = ConvSpec(
    DimeNetPPOptions,
    _dimenetpp_parameters,
    _dimenetpp_flops,
    _dimenetpp_kept,
    angle_cutoff=_dimenetpp_reach,
)


class AlignnOptions(Config):
    """Options of the convolution on atoms, bonds and angles. Read by ``model.convs.alignn``."""

    angle_cutoff: Annotated[PositiveFloat | None, Range(low=2.5, high=4.5)] = 3.5
    """Longest edge that takes part in an angle, in angstrom; the model's cutoff applies if it is
    shorter. Work and memory grow with the sixth power of this length."""

    angle_basis: Annotated[int, Field(ge=2, le=64), Range(low=4, high=16)] = 8
    """Number of functions of the angle: Legendre polynomials of degree 0 and up."""

    line_graph_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS), Range(low=1, high=4)] = 4
    """Number of layers, from the first, in which bonds exchange messages over angles; in later
    layers only atoms do, over bonds."""


def sees_angles(d: Dimensions, o: AlignnOptions) -> bool:
    """Check whether bonds exchange messages in this layer."""
    return d.layer < o.line_graph_layers


def keeps_angles(d: Dimensions, o: AlignnOptions) -> bool:
    """Check whether a later layer reads the angle features that this layer returns."""
    return d.state_is_read and d.layer + 1 < o.line_graph_layers


def _gated(features: int, keeps: bool) -> int:
    """Count the parameters of one edge-gated convolution."""
    maps = 2 * linear(features, features) + 3 * linear(features, features, bias=False)
    return maps + (4 if keeps else 2) * features


def _alignn_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, AlignnOptions)
    f = d.features
    angles = sees_angles(d, o)
    total = _gated(f, d.state_is_read)
    if d.layer == 0:
        total += chain(d.basis_size, f, f) + (linear(o.angle_basis, f) if angles else 0)
    return total + (_gated(f, keeps_angles(d, o)) if angles else 0)


def _alignn_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, AlignnOptions)
    f = d.features
    angles = sees_angles(d, o)
    total = (4 * s.nodes + s.edges) * products(f, f)
    if angles:
        total += (4 * s.edges + s.triplets) * products(f, f)
    if d.layer == 0:
        total += s.pairs * products(d.basis_size, f, f)
        total += s.triplets * products(o.angle_basis, f) if angles else 0.0
    return total


def _alignn_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, AlignnOptions)
    f = d.features
    angles = sees_angles(d, o)
    kept = s.nodes * 6 * f + s.edges * 3 * f
    if angles:
        kept += s.edges * 5 * f + s.triplets * 3 * f
    if d.layer > 0:
        return kept
    kept += s.pairs * (d.basis_size + 2 * f) + s.edges * 10
    return kept + (s.triplets * (f + o.angle_basis + 9) if angles else 0.0)


def _alignn_reach(options: Config) -> float | None:
    assert isinstance(options, AlignnOptions)
    return options.angle_cutoff


ALIGNN = ConvSpec(
    AlignnOptions,
    _alignn_parameters,
    _alignn_flops,
    _alignn_kept,
    angle_cutoff=_alignn_reach,
    tried_first=9,
)
