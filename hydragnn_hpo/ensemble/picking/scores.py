"""How uncertain each structure is, as one number; and how far members disagree on forces.

Shapes: G graphs, N nodes, R rows of a head (G or N).
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry, Manifest
from hydragnn_hpo.ensemble.inference import HeadPrediction
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.ensemble.uncertainty.forces import force_deviation, largest_deviation

LEVELS = ("accurate", "candidate", "failed")
"""What DP-GEN calls a structure below, between and above its two trust levels."""


def tells(calibration: Calibration) -> bool:
    """Whether sigma differs from structure to structure; where the fit found a = 0 it does not."""
    return calibration.a > 0.0 or calibration.c > 0.0


def head_score(head: HeadEntry, said: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Give each structure's uncertainty of one head, in standard deviations of the target, [G].

    Of a node-level head the atom counts that is known worst. Where sigma is one constant
    the members' raw spread ranks in its place.

    Args:
        head: with unit, spread of the target, calibration.
        said: of G structures.
        offsets: first atom of each structure, and the end, [G + 1].
    """
    values = (said.std if tells(head.calibration) else said.std_epistemic)[:, 0]
    unit = head.std or 1.0
    return (largest_deviation(values, offsets) if head.level == "node" else values) / unit


def score(
    manifest: Manifest, heads: Mapping[str, HeadPrediction], offsets: np.ndarray
) -> np.ndarray:
    """Give each structure's uncertainty, the mean over some heads, [G].

    Heads whose spread tells nothing of their errors (a = 0 on ``cal``) count only where there
    are no others.

    Args:
        manifest: of the ensemble.
        heads: predictions of the heads that count.
        offsets: first atom of each structure, and the end, [G + 1].
    """
    telling = {n: said for n, said in heads.items() if tells(manifest.heads[n].calibration)}
    each = [head_score(manifest.heads[n], said, offsets) for n, said in (telling or heads).items()]
    return np.mean(each, axis=0) if each else np.zeros(len(offsets) - 1)


def disagreement(said: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Give the largest disagreement on the force on an atom, eV/angstrom, [G].

    Args:
        said: of a head of forces; its spread is the root *mean* variance of three components.
        offsets: first atom of each structure, and the end, [G + 1].

    Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
    """
    variance = np.repeat(np.square(said.std_epistemic), 3, axis=1)
    return largest_deviation(force_deviation(variance), offsets)


def levels(deviation: np.ndarray, low: float, high: float) -> np.ndarray:
    """Give each structure's level as an index into ``LEVELS``, [G].

    Below ``low`` the model is right already, from ``high`` on the structure is too strange to
    be worth a label.
    """
    level: np.ndarray = np.digitize(deviation, [low, high])
    return level


def counted(level: np.ndarray) -> Counter[str]:
    """Count structures by the name of their level."""
    return Counter({name: int((level == place).sum()) for place, name in enumerate(LEVELS)})
