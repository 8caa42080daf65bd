"""Laws of derivatives: gradients, second derivatives, the cutoff, cancelling directions.

Shapes: N nodes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.testing.check_report import ConvCheck, Measurement
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest, largest_deviation, predict_all
from hydragnn_hpo.testing.sample_structures import (
    CUTOFF,
    Structure,
    add_isolated_atom,
    batch_graphs,
    batch_structures,
    crowded_shell,
    molecule,
    random_structure,
    symmetric_sites,
)

STEP = 1e-5
"""Step of finite differences in angstrom, or in the unit of a parameter."""

SAME_SLOPE = 1e-6
"""Largest relative error of finite differences with this step."""

FLAT = 1e-3
"""Added to slopes that errors are relative to, so that small ones compare absolutely."""

THIRD_POWER = 7.0
"""Least ratio of the jumps at two distances from the cutoff, the second half the first: a function
that falls as the third power has 8, as the square 4."""

LINEAR = 1.5
"""Least ratio of the changes of the gradient over two distances, the second half the first: a
smooth function has 2, one with a kink between 1."""

TINY = 1e-7
"""Displacement in angstrom that decides which of equally distant neighbours are nearer."""

CONTINUOUS = 1e-4
"""Largest relative change of outputs by such displacements."""

NOISE = 1e-13
"""Jumps below this may be rounding."""


def _samples() -> Batch:
    return batch_structures([random_structure(5), random_structure(6, 4, periodic=True)])


def _energy(net: MultiHeadGNN, batch: Batch, positions: Tensor) -> Tensor:
    result: Tensor = net(replace(batch, positions=positions), ["energy"])["energy"].sum()
    return result


def _slope(energy: Tensor, positions: Tensor) -> Tensor:
    """Differentiate so that the result can be differentiated again; 0 if nothing depends."""
    if not energy.requires_grad:
        return torch.zeros_like(positions)
    (result,) = torch.autograd.grad(energy, positions, create_graph=True, allow_unused=True)
    return torch.zeros_like(positions) if result is None else result


def _directions(like: Tensor, count: int) -> list[Tensor]:
    """Return random directions of unit length."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(like.shape, generator=generator, dtype=like.dtype) for _ in range(count)]
    return [each / each.norm() for each in drawn]


def measure_gradient(subject: ConvUnderTest) -> Measurement:
    """Compare the energy's gradient with finite differences."""
    batch = _samples()
    positions = batch.positions.clone().requires_grad_(True)
    slope = _slope(_energy(subject.net, batch, positions), positions).detach()
    result = []
    with torch.no_grad():
        for way in _directions(positions, 3):
            sides = [_energy(subject.net, batch, positions + s * way) for s in (STEP, -STEP)]
            expected = (sides[0] - sides[1]) / (2 * STEP)
            result.append(((slope * way).sum() - expected).abs() / (FLAT + expected.abs()))
    return Measurement(float(torch.stack(result).max()), SAME_SLOPE)


def _force_loss(net: MultiHeadGNN, batch: Batch, positions: Tensor) -> Tensor:
    (weight,) = _directions(positions, 1)
    return (_slope(_energy(net, batch, positions), positions) * weight).sum()


def measure_force_training(subject: ConvUnderTest) -> Measurement:
    """Compare the gradient of a loss of forces with finite differences."""
    net = subject.build()
    batch = _samples()
    positions = batch.positions.clone().requires_grad_(True)
    inputs = [positions, *net.parameters()]
    loss = _force_loss(net, batch, positions)
    slopes = torch.autograd.grad(loss, inputs, allow_unused=True)
    worst = 0.0
    for some in (inputs[:1], inputs[1:]):
        given = [s for s, each in zip(slopes, inputs, strict=True) if any(each is i for i in some)]
        ways = [_directions(each, 1)[0] for each in some]
        analytic = sum(
            float((s * way).sum()) for s, way in zip(given, ways, strict=True) if s is not None
        )
        sides = []
        for sign in (1.0, -1.0):
            _step(some, ways, sign * STEP)
            sides.append(float(_force_loss(net, batch, positions).detach()))
            _step(some, ways, -sign * STEP)
        expected = (sides[0] - sides[1]) / (2 * STEP)
        off = abs(analytic - expected) / (FLAT + abs(expected))
        worst = off if off > worst or off != off else worst
    return Measurement(worst, SAME_SLOPE)


def _step(values: Sequence[Tensor], ways: Sequence[Tensor], length: float) -> None:
    with torch.no_grad():
        for value, way in zip(values, ways, strict=True):
            value.add_(length * way)


def measure_cutoff(subject: ConvUnderTest) -> Measurement:
    """Remove a bond shortly before it reaches the cutoff, with few and many others."""
    crowd = random_structure(7, 4)
    ratios = []
    for others in (molecule([6], [[0.0, 0.0, 0.0]]), crowd):
        jumps = [_jump(subject, others, CUTOFF - left) for left in (0.01, 0.005)]
        quiet = jumps[1] <= NOISE
        ratios.append(float("inf") if quiet else jumps[0] / jumps[1])
    return Measurement(float(np.min(ratios)), THIRD_POWER, at_most=False)


def _jump(subject: ConvUnderTest, others: Structure, distance: float) -> float:
    """Return the change of all outputs when the bond of the first atom to a new one is removed.

    A hydrogen halfway between them keeps both from being isolated.

    Args:
        subject: the conv.
        others: atoms of which the first gets the bond.
        distance: length of the bond in angstrom.
    """
    first = others.positions[0]
    way = np.array([0.6, 0.0, 0.8])
    places = [*others.positions, first + 0.5 * CUTOFF * way, first + distance * way]
    whole = molecule([*others.numbers, 1, 8], places)
    bond = (0, len(others.numbers) + 1)
    pair = [batch_graphs([whole.graph(without=each)]) for each in (None, bond)]
    with_it, without = (predict_all(subject.net, each) for each in pair)
    changes = [(with_it[name] - without[name]).abs().sum() for name in with_it]
    return float(torch.stack([change.double() for change in changes]).sum())


def _count_nonfinite(subject: ConvUnderTest, structures: Sequence[Structure]) -> Measurement:
    """Count outputs and gradients that are not finite, also those of forces."""
    net = subject.build()
    batch = batch_structures(structures)
    positions = batch.positions.clone().requires_grad_(True)
    result: dict[str, Tensor] = net(replace(batch, positions=positions))
    bad = [name for name, value in result.items() if not torch.isfinite(value).all()]
    slope = _slope(result["energy"].sum(), positions)
    bad += [] if torch.isfinite(slope).all() else ["forces"]
    squares = [value.double().square().sum() for value in result.values()]
    loss = torch.stack([*squares, slope.square().sum() * float(subject.forces)]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    bad += _not_finite(net)
    return Measurement(len(bad), 0, detail=f"not finite: {', '.join(bad[:4])}" if bad else "")


def _not_finite(net: nn.Module) -> list[str]:
    return [
        f"gradient of {name}"
        for name, each in net.named_parameters()
        if each.grad is not None and not torch.isfinite(each.grad).all()
    ]


def measure_isolated_atom(subject: ConvUnderTest) -> Measurement:
    """Predict a structure with an atom that has no neighbour."""
    return _count_nonfinite(subject, [add_isolated_atom(8), molecule([26], [[0.0, 0.0, 0.0]])])


def measure_symmetric_site(subject: ConvUnderTest) -> Measurement:
    """Predict structures where directions around an atom cancel and angles are 180 degrees."""
    return _count_nonfinite(subject, symmetric_sites())


def measure_kinks(subject: ConvUnderTest) -> Measurement:
    """Cross these sites: beside one, the gradient changes in proportion to the distance."""
    ratios = [_smoothness(subject.net, batch_structures([site])) for site in symmetric_sites()]
    return Measurement(float(np.min(ratios)), LINEAR, at_most=False)


def _smoothness(net: MultiHeadGNN, batch: Batch) -> float:
    """Return how much more the gradient changes over twice the distance across a structure."""
    (way,) = _directions(batch.positions, 1)

    def change(step: float) -> float:
        slopes = []
        for sign in (1.0, -1.0):
            positions = (batch.positions + sign * step * way).requires_grad_(True)
            slopes.append(_slope(_energy(net, batch, positions), positions).detach())
        return float((slopes[0] - slopes[1]).norm())

    near = change(STEP)
    return float("inf") if near <= NOISE else change(2 * STEP) / near


def measure_many_neighbours(subject: ConvUnderTest) -> Measurement:
    """Change the order of 72 equally distant neighbours by tiny moves."""
    crowd = crowded_shell()
    moves = TINY * np.random.default_rng(3).uniform(-1.0, 1.0, (2, *crowd.positions.shape))
    first, second = (subject.predict([crowd.translate(move)]) for move in moves)
    return Measurement(largest_deviation(first, second), CONTINUOUS)


CHECKS = (
    ConvCheck(
        "cutoff",
        "outputs have two continuous derivatives at the cutoff",
        "Multiply every message by the envelope, and let counts, means and softmaxes over "
        "neighbours use sums of it: sum(w * m) / (1 + sum(w)) (Law 8).",
        measure_cutoff,
    ),
    ConvCheck(
        "gradient",
        "the gradient of the energy equals finite differences",
        "Look for detach, no_grad, rounding, or a wrong backward of a function of your own.",
        measure_gradient,
        needs="forces",
    ),
    ConvCheck(
        "force training",
        "the gradient of a loss of forces equals finite differences",
        "Every operation must be twice differentiable: write the backward of a function of your "
        "own out of operations that have a gradient.",
        measure_force_training,
        needs="forces",
    ),
    ConvCheck(
        "isolated atom",
        "an atom without neighbours: finite numbers and gradients",
        "Divide by 1 + sum(w), and write norms as sqrt(x**2 + small): the gradient of sqrt is "
        "infinite at 0.",
        measure_isolated_atom,
    ),
    ConvCheck(
        "symmetric site",
        "cancelling directions, straight angles: finite numbers and gradients",
        "Write norms as sqrt(x**2 + small), and use cosines instead of acos.",
        measure_symmetric_site,
    ),
    ConvCheck(
        "kink",
        "the gradient of the energy is continuous where directions cancel",
        "Write norms as sqrt(x**2 + small), also those that torch computes, and take no maximum or "
        "minimum over neighbours; a class with smooth = False is not asked.",
        measure_kinks,
        needs="smooth",
    ),
    ConvCheck(
        "many neighbours",
        "which of many neighbours is a little nearer does not matter",
        "Let all edges send: a layer that takes only the nearest neighbours jumps where two change "
        "places (Law 8).",
        measure_many_neighbours,
    ),
)
