"""How far members disagree about forces: the signal that active learning of potentials uses.

Shapes: G graphs, N nodes.
"""

import numpy as np


def force_deviation(variance: np.ndarray) -> np.ndarray:
    """Give the members' disagreement about each atom's force, in the unit, [N].

    It is the root of the mean squared distance of the members' vectors from their mean; the
    spread of ``Moments``, one number per component, is smaller by the root of 3.

    Args:
        variance: the members' variance of each component, [N, 3], in the unit squared.

    Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
    """
    root: np.ndarray = np.sqrt(variance.sum(axis=-1))
    return root


def largest_deviation(deviation: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Give the largest disagreement within each structure, [G]; 0 without atoms.

    Args:
        deviation: of the atoms, [N].
        offsets: first atom of each structure, and the end, [G + 1].
    """
    largest = np.zeros(len(offsets) - 1)
    np.maximum.at(largest, np.repeat(np.arange(len(largest)), np.diff(offsets)), deviation)
    return largest
