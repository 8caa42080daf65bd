"""What no planner can beat: the Turek-Ludwig lower bound on the time that moldable tasks take."""

from collections.abc import Sequence

import numpy as np

from hydragnn_hpo.placement.deadline import Floats, smallest_fitting
from hydragnn_hpo.planning.simulator import SimulatedWork


def least_makespan(seconds: Floats, slots: Floats, total: int) -> float:
    """Return the least T for which the narrowest widths that end within T fit into ``total`` x T.

    Any schedule of length T gives every task some width with which it takes at most T, and the
    narrowest of these takes the least slot-time, since a wider one is never more efficient.

    Args:
        seconds: what each task takes at each width, [n, W], falling along W.
        slots: what that width occupies, rising along W: [W], or [n, W].
        total: slots of the machine.

    Returns:
        Seconds, to within one part in a million.

    Source: Turek, Wolf, Yu (1992), SPAA '92; Ludwig, Tiwari (1994), SODA '94.
    """
    slots = np.broadcast_to(slots, seconds.shape)
    seconds = np.where(slots <= total, seconds, np.inf)
    areas = seconds * slots
    rows = np.arange(len(seconds))

    def fits(limit: float) -> bool:
        columns = (seconds <= limit).argmax(axis=1)
        return float(areas[rows, columns].sum()) <= total * limit

    low = max(float(seconds.min(axis=1).max()), float(areas.min(axis=1).sum()) / total)
    if fits(low):
        return low
    return smallest_fitting(fits, low, 2.0 * low, 1e-6)


def campaign_bound(works: Sequence[SimulatedWork], slots: int) -> float:
    """Return the bound of simulated trials at the widths that they may have; no start-up in it."""
    most = max(len(work.widths) for work in works)
    seconds = np.full((len(works), most), np.inf)
    occupied = np.full((len(works), most), np.inf)
    for row, work in enumerate(works):
        count = len(work.widths)
        seconds[row, :count] = np.minimum.accumulate(work.seconds)
        occupied[row, :count] = np.array(work.widths) * work.lanes
    return least_makespan(seconds, occupied, slots)
