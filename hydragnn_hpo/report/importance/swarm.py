"""Points on a line, side by side where they would cover each other."""

import numpy as np

from hydragnn_hpo.report.importance.design import Matrix

BINS = 40
WIDTH = 0.38
"""Half the height of the fullest place; the next line is 1 away."""

CROWD = 8
"""Points at one place that take the full height; fewer stand closer together."""


def heights_of(places: Matrix) -> Matrix:
    """Give heights about 0 at which points close to each other stand apart, [N]."""
    heights = np.zeros(len(places))
    spread = float(np.ptp(places)) if len(places) else 0.0
    if spread == 0.0:
        return heights
    bins = np.minimum((BINS * (places - places.min()) / spread).astype(int), BINS - 1)
    most = int(np.bincount(bins).max())
    for one in np.unique(bins):
        members = np.flatnonzero(bins == one)
        at = np.arange(len(members)) - 0.5 * (len(members) - 1)
        heights[members] = at * 2.0 * WIDTH / max(most, CROWD)
    return heights
