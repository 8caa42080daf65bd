"""Places of the elements in the periodic table, for maps of values by element."""

from collections.abc import Iterable
from functools import cache

NOBLE = (0, 2, 10, 18, 36, 54, 86, 118)
"""Atomic number at which each period ends; period 0 is empty."""

COLUMNS = 18
_LANTHANIDES = range(57, 72)
_ACTINIDES = range(89, 104)
_BELOW = 7
"""Row of the lanthanides, below the seven periods; the actinides follow."""


@cache
def place_of(number: int) -> tuple[int, int]:
    """Find the place of an element in the table of 18 columns.

    Returns:
        Row and column, both counted from 0.

    >>> place_of(1), place_of(6), place_of(26), place_of(64)
    ((0, 0), (1, 13), (3, 7), (7, 9))
    """
    for row, series in ((_BELOW, _LANTHANIDES), (_BELOW + 1, _ACTINIDES)):
        if number in series:
            return row, 2 + number - series.start
    period = next(k for k, last in enumerate(NOBLE) if number <= last)
    after, left = number - NOBLE[period - 1], NOBLE[period] - number
    if period == 1:
        return 0, 0 if number == 1 else COLUMNS - 1
    return period - 1, after - 1 if after <= 2 else COLUMNS - 1 - left


def list_places(known: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return row, column and atomic number of all elements of the rows up to the last known one."""
    rows = 1 + max((place_of(number)[0] for number in known), default=0)
    places = [(*place_of(number), number) for number in range(1, NOBLE[-1] + 1)]
    return [place for place in places if place[0] < rows]
