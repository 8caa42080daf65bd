"""Slices of the tests that CI runs in turn: ``--slice K/N`` keeps the files of slice K of N.

Files are spread by their seconds (``seconds.json``), longest first, each into the slice with the
fewest seconds so far. A file is never divided, as its tests share fixtures.
"""

from collections import Counter
from collections.abc import Iterable

import pytest
from cpu_budget import read_seconds

UNKNOWN = 10
"""Seconds of a file that was never recorded."""


def assign_slices(paths: Iterable[str], seconds: dict[str, float], count: int) -> dict[str, int]:
    """Return the slice of each file, from 0 to ``count`` - 1.

    Args:
        paths: files, relative to the checkout.
        seconds: what files take, in seconds.
        count: number of slices.
    """
    load = Counter({number: 0 for number in range(count)})
    slices = {}
    for path in sorted(set(paths), key=lambda p: (-seconds.get(p, UNKNOWN), p)):
        slices[path] = min(load, key=lambda number: (load[number], number))
        load[slices[path]] += seconds.get(path, UNKNOWN)
    return slices


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a slice."""
    parser.addoption("--slice", metavar="K/N", help="run the files of slice K (from 0) of N only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other slices; markers have chosen before."""
    if not (wanted := config.getoption("slice")):
        return
    number, count = map(int, wanted.split("/"))
    path_of = {item: item.nodeid.split("::")[0] for item in items}
    slices = assign_slices(path_of.values(), read_seconds("slices"), count)
    config.hook.pytest_deselected(items=[i for i in items if slices[path_of[i]] != number])
    items[:] = [i for i in items if slices[path_of[i]] == number]
