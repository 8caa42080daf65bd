"""ALIGNN without torch. Built by ``model.convs.alignn``."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    chain,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class AlignnOptions(Config):
    """Options of the convolution on atoms, bonds and angles. Read by ``model.convs.alignn``."""

    angle_cutoff: Annotated[PositiveFloat | None, Range(low=2.5, high=4.5)] = 3.5
    """Longest edge that takes part in an angle, in angstrom; left out or longer than the model's
    cutoff, that counts. Work and memory grow with its sixth power."""

    angle_basis: Annotated[int, Field(ge=2, le=64), Range(low=4, high=16)] = 8
    """Functions of the angle: Legendre polynomials of degree 0 and up."""

    line_graph_layers: Annotated[NonNegativeInt, Range(low=1, high=4)] = 4
    """Layers, from the first, in which bonds hear each other at angles; in later ones only atoms
    and bonds do."""


def sees_angles(d: Dimensions, o: AlignnOptions) -> bool:
    """Tell whether bonds hear each other in this layer."""
    return d.layer < o.line_graph_layers


def keeps_angles(d: Dimensions, o: AlignnOptions) -> bool:
    """Tell whether a later layer reads the angles that this layer gives."""
    return d.state_is_read and d.layer + 1 < o.line_graph_layers


def _gated(features: int, keeps: bool) -> int:
    """Count the parameters of one edge-gated convolution."""
    maps = 2 * linear(features, features) + 3 * linear(features, features, bias=False)
    return maps + (4 if keeps else 2) * features


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, AlignnOptions)
    f, angles = d.features, sees_angles(d, o)
    total = _gated(f, d.state_is_read)
    if d.layer == 0:
        total += chain(d.basis_size, f, f) + (linear(o.angle_basis, f) if angles else 0)
    return total + (_gated(f, keeps_angles(d, o)) if angles else 0)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, AlignnOptions)
    f, angles = d.features, sees_angles(d, o)
    total = (4 * s.nodes + s.edges) * products(f, f)
    if angles:
        total += (4 * s.edges + s.triplets) * products(f, f)
    if d.layer == 0:
        total += s.pairs * products(d.basis_size, f, f)
        total += s.triplets * products(o.angle_basis, f) if angles else 0.0
    return total


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, AlignnOptions)
    f, angles = d.features, sees_angles(d, o)
    kept = s.nodes * 6 * f + s.edges * 3 * f
    if angles:
        kept += s.edges * 5 * f + s.triplets * 3 * f
    if d.layer > 0:
        return kept
    kept += s.pairs * (d.basis_size + 2 * f) + s.edges * 10
    return kept + (s.triplets * (f + o.angle_basis + 9) if angles else 0.0)


def _reach(options: Config) -> float | None:
    assert isinstance(options, AlignnOptions)
    return options.angle_cutoff


SPEC = ConvSpec(AlignnOptions, _parameters, _flops, _kept, angle_cutoff=_reach)
