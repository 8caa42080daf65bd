"""What an ensemble says about structures: mean, calibrated sigma, interval, trust.

Shapes: G graphs, N nodes, R rows of a head (G or N), w components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydragnn_hpo.config.data import WIDTHS
from hydragnn_hpo.ensemble.manifest import HeadEntry
from hydragnn_hpo.ensemble.moments import Moments


@dataclass(frozen=True)
class HeadPrediction:
    """One head; all in the head's unit."""

    mean: np.ndarray
    """Mean of the members, [R, w]."""
    std: np.ndarray
    """Calibrated standard deviation, [R, 1]; one for all components of a vector."""
    std_epistemic: np.ndarray
    """Spread of the members as it is, [R, 1]."""
    lo90: np.ndarray
    """Lower end of the 90 % interval, [R, w]."""
    hi90: np.ndarray
    """Upper end of the 90 % interval, [R, w]."""
    bounds: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Ends of the intervals of other levels that were asked for, by percent, each [R, w]."""
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What each member says, by its trial, [R, w]; empty unless asked for."""


@dataclass(frozen=True)
class Prediction:
    """What an ensemble says about some structures, in their order."""

    heads: dict[str, HeadPrediction]
    """By head; node-level heads hold all nodes of the first structure, then the next."""
    trust: tuple[str, ...]
    """``ok``, or why a structure's predictions should not be believed, [G]."""


def head_prediction(
    head: HeadEntry,
    parts: Sequence[Moments],
    *,
    levels: Sequence[int] = (),
    members: Mapping[str, Sequence[np.ndarray]] | None = None,
    stratum: np.ndarray | None = None,
) -> HeadPrediction:
    """Turn the moments of batch after batch into mean, sigma and intervals of one head.

    Args:
        head: with its calibration.
        parts: moments of the batches.
        levels: intervals besides that of 90 %, in percent.
        members: what each member said of each batch.
        stratum: name of each row's kind of structure, [R]; all alike if left out.
    """
    mean = _stack([part.mean for part in parts], WIDTHS[head.shape])
    spread = _stack([part.spread for part in parts], 1)
    noise = _stack([part.noise for part in parts], 1)
    sigma = head.calibration.sigma(spread, noise)
    half = head.calibration.half_width(sigma, 0.9, stratum)
    wide = {n: head.calibration.half_width(sigma, n / 100, stratum) for n in levels}
    return HeadPrediction(
        mean,
        sigma,
        spread,
        mean - half,
        mean + half,
        bounds={level: (mean - width, mean + width) for level, width in wide.items()},
        members={name: np.concatenate(said) for name, said in (members or {}).items() if said},
    )


def _stack(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width))
