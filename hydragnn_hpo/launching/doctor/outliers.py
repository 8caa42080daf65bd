"""Hosts that are far behind the others: what is slow is said by the majority."""

import statistics
from collections.abc import Mapping

LEAST = 4
"""Hosts from which on there is a majority to speak of."""

_DEVIATIONS = 4.0
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def behind(values: Mapping[str, float], factor: float, *, low_is_bad: bool) -> dict[str, float]:
    """Give hosts whose value is worse than the median by a factor, and by far more than is usual.

    Args:
        values: of each host.
        factor: by which it must be worse, above 1.
        low_is_bad: whether small values are bad (a speed) or large ones (a time).

    Returns:
        Host -> median of all; empty where too few hosts answered.

    Source: Leys et al. (2013), J. Exp. Soc. Psychol. 49, 764: median absolute deviation.
    """
    if len(values) < LEAST:
        return {}
    median = statistics.median(values.values())
    usual = _NORMAL * statistics.median(abs(value - median) for value in values.values())

    def bad(value: float) -> bool:
        far = value * factor < median if low_is_bad else value > median * factor
        return far and abs(value - median) > _DEVIATIONS * usual

    return {host: median for host, value in values.items() if bad(value)}
