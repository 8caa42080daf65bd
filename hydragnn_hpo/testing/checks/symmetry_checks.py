"""Laws of space and of batches: rotation, reflection, translation, order, images, batching.

Shapes: N nodes.
"""

from dataclasses import replace

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from hydragnn_hpo.testing.check_report import ConvCheck, Measurement
from hydragnn_hpo.testing.conv_under_test import (
    TARGETS,
    ConvUnderTest,
    largest_deviation,
    predict_all,
    relative_deviation,
)
from hydragnn_hpo.testing.sample_structures import (
    Array,
    batch_structures,
    crowded_shell,
    molecule_and_crystal,
    random_structure,
    shuffle_edges,
)

EXACT = 1e-9
"""Largest relative difference by rounding in fp64."""

NOTICEABLE = 1e-6
"""Smallest relative difference that is more than rounding."""

ROTATION: Array = Rotation.from_euler("zyx", [0.3, -1.1, 2.0]).as_matrix()
MIRROR: Array = np.diag([1.0, 1.0, -1.0])


def rotate_predictions(predicted: dict[str, Tensor], matrix: Array) -> dict[str, Tensor]:
    """Rotate predicted vectors, [R, 3], and tensors, [R, 9], by an orthogonal matrix, [3, 3].

    Returns:
        Rotated predictions by target; scalars, [R, 1], as they are.
    """
    turn = torch.from_numpy(np.ascontiguousarray(matrix))
    # A row-major tensor rotates with the Kronecker product: R T R^T.
    by_width = {1: torch.eye(1, dtype=turn.dtype), 3: turn, 9: torch.kron(turn, turn)}
    return {name: values @ by_width[values.shape[1]].T for name, values in predicted.items()}


def _measure_transformed(subject: ConvUnderTest, matrix: Array) -> Measurement:
    """Compare predictions for structures transformed by an orthogonal matrix, [3, 3]."""
    deviations = []
    for sample in molecule_and_crystal():
        expected = rotate_predictions(subject.predict([sample]), matrix)
        deviations.append(largest_deviation(subject.predict([sample.rotate(matrix)]), expected))
    return Measurement(float(np.max(deviations)), EXACT)


def measure_rotation(subject: ConvUnderTest) -> Measurement:
    """Rotate structures."""
    return _measure_transformed(subject, ROTATION)


def measure_reflection(subject: ConvUnderTest) -> Measurement:
    """Mirror and rotate structures."""
    return _measure_transformed(subject, MIRROR @ ROTATION)


def measure_translation(subject: ConvUnderTest) -> Measurement:
    """Translate structures, and each atom of a crystal by lattice vectors of its own."""
    free, crystal = molecule_and_crystal()
    steps = np.random.default_rng(4).integers(-2, 3, (len(crystal.numbers), 3))
    pairs = (
        (free, free.translate(np.array([3.7, -21.0, 0.4]))),
        (crystal, crystal.translate(steps @ crystal.cell + np.array([0.3, 0.2, -0.1]))),
    )
    deviations = [
        largest_deviation(subject.predict([after]), subject.predict([before]))
        for before, after in pairs
    ]
    return Measurement(float(np.max(deviations)), EXACT)


def _rows(predicted: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Select rows of the predictions per node."""
    return {n: v if TARGETS[n]["level"] == "graph" else v[rows] for n, v in predicted.items()}


def measure_node_order(subject: ConvUnderTest) -> Measurement:
    """Reorder the atoms."""
    deviations = []
    for sample in molecule_and_crystal():
        order = np.random.default_rng(0).permutation(len(sample.numbers))
        expected = _rows(subject.predict([sample]), torch.from_numpy(order))
        deviations.append(largest_deviation(subject.predict([sample.reorder(order)]), expected))
    return Measurement(float(np.max(deviations)), EXACT)


def measure_edge_order(subject: ConvUnderTest) -> Measurement:
    """List the edges in another order, and not in pairs."""
    batch = batch_structures(molecule_and_crystal())
    reordered = predict_all(subject.net, shuffle_edges(batch, 5))
    return Measurement(largest_deviation(reordered, predict_all(subject.net, batch)), EXACT)


def measure_batching(subject: ConvUnderTest) -> Measurement:
    """Predict structures in one batch and one by one, in training mode."""
    samples = [random_structure(s, 2 + s, periodic=bool(s % 2)) for s in range(1, 5)]
    samples.append(crowded_shell())  # large, as some layers work otherwise then
    alone = [subject.predict([sample]) for sample in samples]
    expected = {name: torch.cat([each[name] for each in alone]) for name in alone[0]}
    return Measurement(largest_deviation(subject.predict(samples), expected), EXACT)


def measure_supercell(subject: ConvUnderTest) -> Measurement:
    """Compare a crystal with a supercell of two cells."""
    small = random_structure(4, 4, periodic=True)
    rows = torch.arange(len(small.numbers)).repeat(2)
    expected = _rows(subject.predict([small]), rows)
    return Measurement(largest_deviation(subject.predict([small.double_cell()]), expected), EXACT)


def measure_images(subject: ConvUnderTest) -> Measurement:
    """Compare a crystal with the same atoms without periodic images."""
    crystal = random_structure(4, 4, periodic=True)
    free = replace(crystal, cell=np.zeros((3, 3)), periodic=False)
    energies = [subject.predict([each])["energy"] for each in (crystal, free)]
    return Measurement(relative_deviation(*energies), NOTICEABLE, at_most=False)


CHECKS = (
    ConvCheck(
        "rotation",
        "a turned structure has the same scalars, and turned vectors and tensors",
        "Let scalars see only lengths, scalar products and cross products' lengths, never the x, y "
        "or z of a direction, and act on the channels of vectors by linear maps without bias.",
        measure_rotation,
    ),
    ConvCheck(
        "reflection",
        "a mirrored structure has the same scalars, and mirrored vectors and tensors",
        "Look for a cross product or a triple product: it gives a pseudovector or a pseudoscalar; "
        "use it in pairs.",
        measure_reflection,
    ),
    ConvCheck(
        "translation",
        "moving a structure, or atoms by lattice vectors, changes nothing",
        "Use edges.directions and edges.pair_lengths only; they do not depend on where atoms are "
        "written down, but the order of edges does.",
        measure_translation,
    ),
    ConvCheck(
        "node order",
        "the order of atoms does not matter",
        "Gather by sums, means or maxima over neighbours; a node's number must not enter.",
        measure_node_order,
    ),
    ConvCheck(
        "edge order",
        "the order of edges does not matter, in pairs or not",
        "Gather with edges.filtered_sum, edges.sum_messages or edges.outer_sum, and repeat what "
        "belongs to pairs with edges.expand_pairs.",
        measure_edge_order,
    ),
    ConvCheck(
        "batch",
        "predictions are the same alone and in any batch, in training mode",
        "Nothing may see two graphs at once: no BatchNorm, no mean or maximum over all nodes "
        "(Laws 1 and 7).",
        measure_batching,
    ),
    ConvCheck(
        "supercell",
        "two cells of a crystal taken as one give the same per atom",
        "Treat an edge from an atom to its own image like any other, and scale by no count of "
        "nodes (Law 8).",
        measure_supercell,
    ),
    ConvCheck(
        "images",
        "periodic images of neighbours change the energy",
        "Let messages of neighbours reach the change of the scalars.",
        measure_images,
    ),
)
