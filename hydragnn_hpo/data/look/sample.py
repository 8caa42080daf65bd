"""Some structures of files that may be huge: the first ones, and runs spread over the rest."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ase import Atoms

from hydragnn_hpo.data.look.files import Opened, Stray, count_of, guessed_count
from hydragnn_hpo.errors import DataError

QUICK = ("extxyz", "database", "pyg", "hydragnn_bp")
"""Readers of a millisecond a structure; the others take ten, or a hundred."""

LIMITS = {True: 2000, False: 300}
"""Structures that are read, from quick readers and from others."""

RUNS = 20
"""Places of a file at which runs of structures are read."""

MOST_COUNTED = 50
"""Files whose structures are counted; of more files every one is read a little."""

MOST_REASONS = 3


@dataclass(frozen=True)
class Sample:
    """What was read."""

    structures: tuple[Atoms, ...]
    names: tuple[str, ...]
    total: int
    """Structures of all files, or about so many."""
    exact: bool
    """Whether they were counted."""
    bad: int
    """Structures that cannot be read, of those that were tried."""
    reasons: tuple[str, ...]
    """Why, of the first ones."""
    torn: str | None
    """Why a file could not be read on, if so."""
    strays: tuple[Stray, ...]
    """Files of folders that hold no structure at all."""


def sampled(files: Sequence[Opened]) -> Sample:
    """Read some structures of all files.

    Raises:
        DataError: none can be read; the sentence is that of the first.
    """
    limit = LIMITS[all(one.name in QUICK for one in files)]
    each = max(2, limit // len(files))
    good: list[tuple[str, Atoms]] = []
    bad: list[str] = []
    strays: list[Stray] = []
    torn, total, exact = None, 0, True
    for one in files:
        if len(good) + len(bad) >= limit:
            total, exact = total * len(files) // (files.index(one)), False
            break
        before, count = len(good) + len(bad), None
        try:
            count = count_of(one) if len(files) <= MOST_COUNTED else None
            for name, found in _some(one, count, each):
                if isinstance(found, DataError):
                    bad.append(str(found))
                else:
                    good.append((name, found))
        except DataError as error:
            if one.found and len(good) + len(bad) == before:
                strays.append((one.path, str(error)))
                continue
            torn = torn or str(error)
        read = len(good) + len(bad) - before
        ended = count is not None or read < each
        exact &= ended
        total += count or (read if ended else max(read, guessed_count(one) or 0))
    if not good:
        stray = strays[0][1] if strays else f"{files[0].path}: holds no structure."
        raise DataError(torn or (bad[0] if bad else stray))
    names, structures = zip(*good, strict=True)
    reasons = tuple(bad[:MOST_REASONS])
    return Sample(structures, names, total, exact, len(bad), reasons, torn, tuple(strays))


def _some(one: Opened, count: int | None, limit: int) -> Iterator[tuple[str, Atoms | DataError]]:
    """Read the first half of what may be read, then the other half in runs over the rest."""
    if count is None or count <= limit:
        yield from itertools.islice(one.reader.read(one.source, 0, None), limit)
        return
    for start, stop in runs(count, limit):
        yield from one.reader.read(one.source, start, stop)


def runs(count: int, limit: int) -> Iterator[tuple[int, int]]:
    """Give the runs that are read of many structures, rising.

    >>> list(runs(1000, 40))[:3]
    [(0, 20), (68, 69), (117, 118)]

    Args:
        count: structures there are, more than ``limit``.
        limit: structures to read.
    """
    first = max(1, limit // 2)
    yield 0, first
    number = min(RUNS, limit - first)
    if number < 1:
        return
    length = (limit - first) // number
    for place in range(number):
        end = first + (count - first) * (place + 1) // number
        yield end - length, end
