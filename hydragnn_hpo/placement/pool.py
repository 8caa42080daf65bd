"""Free slots of all hosts, and the choice of slots for a trial.

Shapes: H hosts in network order, S columns. The columns of a host are its slots in ``slot_order``:
slots that share a card, a NIC or a device are neighbours. An aligned share is a run of columns
whose length is a power of two and whose start is a multiple of that length.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

Cells = list[tuple[int, tuple[int, ...]]]
"""Row of each chosen host, with the columns to take there."""


class SlotPool:
    """Slots of one or several allocations; names are ``host:index``.

    With several allocations a host's name is ``NAME@ALLOCATION``. No trial gets slots of two
    allocations: they end at different times, and a fabric may isolate jobs from each other.
    """

    def __init__(
        self,
        hosts: Mapping[str, Sequence[int]],
        *,
        hosts_per_group: int = 0,
        slot_order: Sequence[int] = (),
    ) -> None:
        """Start with all slots free.

        Args:
            hosts: indices of the slots of each host, hosts in network order.
            hosts_per_group: hosts that follow each other and share a switch; 0: unknown.
            slot_order: indices of a host's slots, neighbours side by side; ascending if empty.
        """
        self._rank = {index: place for place, index in enumerate(slot_order)}
        self._hosts: list[str] = []
        self._names: list[tuple[str, ...]] = []
        self._where: dict[str, tuple[int, int]] = {}
        self._row: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._each = hosts_per_group
        widest = max((len(indices) for indices in hosts.values()), default=1)
        self._free = np.zeros((len(hosts), widest), dtype=bool)
        self._open = np.ones(len(hosts), dtype=bool)
        self._group = np.zeros(len(hosts), dtype=np.intp)
        self._allocation = np.zeros(len(hosts), dtype=np.intp)
        self._allocations: dict[str, int] = {}
        for host, indices in hosts.items():
            self._enter(host, indices)
        self._sizes = self._free.sum(axis=1)
        self._counts = self._sizes.copy()

    @classmethod
    def of(
        cls, names: Iterable[str], *, hosts_per_group: int = 0, slot_order: Sequence[int] = ()
    ) -> Self:
        """Build from slot names in network order.

        Args:
            names: slots as ``host:index``.
            hosts_per_group: hosts that share a switch; 0: unknown.
            slot_order: indices of a host's slots, neighbours side by side; ascending if empty.
        """
        hosts: dict[str, list[int]] = {}
        for name in names:
            host, _, index = name.rpartition(":")
            hosts.setdefault(host, []).append(int(index))
        return cls(hosts, hosts_per_group=hosts_per_group, slot_order=slot_order)

    def copy(self) -> "SlotPool":
        """Return an independent copy: changing it leaves this pool as it is."""
        other = object.__new__(SlotPool)
        other.__dict__.update(self.__dict__)
        for name in ("_free", "_open", "_counts"):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def hosts(self) -> tuple[str, ...]:
        """Open hosts.

        Returns:
            Names of hosts, in network order.
        """
        return tuple(self._hosts[row] for row in np.flatnonzero(self._open))

    @property
    def total(self) -> int:
        """Number of slots on open hosts, free or not."""
        return int(self._sizes[self._open].sum())

    @property
    def widest(self) -> int:
        """Number of slots, free or not, of the largest allocation: the limit of one trial."""
        sizes = np.where(self._open, self._sizes, 0)
        return int(np.bincount(self._allocation, weights=sizes, minlength=1).max())

    @property
    def free(self) -> int:
        """Number of free slots."""
        return int(self._counts.sum())

    def room(self, lanes: int = 1) -> int:
        """Return how many ranks of ``lanes`` slots each fit into the free slots."""
        return self.free if lanes == 1 else int(self._units(lanes).sum())

    def add_host(self, host: str, slots: Sequence[str]) -> None:
        """Add a host with its slots ``host:index``; reopen a known host with all slots free."""
        if host in self._row:
            row = self._row[host]
            self._open[row] = True
            self._free[row, : self._sizes[row]] = True
            self._counts[row] = self._sizes[row]
            return
        rows, widest = self._free.shape
        grown = np.zeros((rows + 1, max(widest, len(slots))), dtype=bool)
        grown[:rows, :widest] = self._free
        self._free = grown
        self._open = np.append(self._open, True)
        self._group = np.append(self._group, 0)
        self._allocation = np.append(self._allocation, 0)
        self._hosts, self._names = list(self._hosts), list(self._names)
        self._where, self._row, self._groups = {**self._where}, {**self._row}, {**self._groups}
        self._allocations = {**self._allocations}
        self._enter(host, [int(name.rpartition(":")[2]) for name in slots])
        self._sizes = np.append(self._sizes, len(slots))
        self._counts = np.append(self._counts, len(slots))

    def close_host(self, host: str) -> None:
        """Close a host that is lost or failed too often; slots returned later stay unavailable."""
        if host in self._row:
            row = self._row[host]
            self._open[row] = False
            self._free[row] = False
            self._counts[row] = 0

    def claim(self, slots: Iterable[str]) -> None:
        """Mark slots as taken; taken and unknown ones are ignored."""
        for name in slots:
            self._set(name, free=False)

    def give_back(self, slots: Iterable[str]) -> None:
        """Mark slots as free; those of closed or unknown hosts are ignored."""
        for name in slots:
            self._set(name, free=True)

    def take(self, width: int, lanes: int = 1) -> tuple[str, ...] | None:
        """Take slots for ``width`` ranks.

        If one host has enough free slots, all come from one: from the host with the fewest free
        slots that suffice, in an aligned share if possible. Wider trials take whole hosts, close
        together and in as few groups as possible, and part of a host for the remainder.

        Args:
            width: number of ranks.
            lanes: slots of each rank: all that share its device. These are neighbours in
                ``slot_order``, and the size of a host is a multiple of ``lanes``.

        Returns:
            ``width * lanes`` slots as ``host:index``, in the order of ranks; None if there are
            too few.
        """
        units = self._free if lanes == 1 else self._units(lanes)
        counts = self._counts if lanes == 1 else units.sum(axis=1)
        if width < 1 or width > counts.sum():
            return None
        if width > counts.max() and len(self._allocations) > 1:
            sums = np.bincount(self._allocation, weights=counts)
            if width > sums.max():
                return None
            chosen = np.where(sums >= width, sums, np.inf).argmin()
            counts = np.where(self._allocation == chosen, counts, 0)
        names: list[str] = []
        for row, places in self._choose(units, counts.copy(), width):
            columns = [p * lanes + lane for p in places for lane in range(lanes)]
            self._free[row, columns] = False
            self._counts[row] -= len(columns)
            names.extend(self._names[row][column] for column in columns)
        return tuple(names)

    def _choose(self, units: NDArray[np.bool_], counts: NDArray[np.intp], width: int) -> Cells:
        """Choose hosts and columns for ``width`` ranks; enough must be free.

        Args:
            units: free places of one rank, [H, S / lanes].
            counts: number of free places by host, [H]; changed.
            width: number of ranks.
        """
        most = units.shape[1]
        cells: Cells = []
        if width > counts.max():
            whole = np.flatnonzero(counts == most)[: None if width >= most else 0]
            for row in self._side_by_side(whole, width // most):
                cells.append((row, tuple(range(most))))
                counts[row] = 0
            width -= most * len(cells)
        while width > counts.max():
            row = int(counts.argmax())
            cells.append((row, _take_from_share(_bits(units[row]), int(counts[row]), most)))
            width -= int(counts[row])
            counts[row] = 0
        if width:
            row = self._fullest(units, counts, width, near={row for row, _ in cells})
            cells.append((row, _take_from_share(_bits(units[row]), width, most)))
        return cells

    def _side_by_side(self, rows: NDArray[np.intp], wanted: int) -> list[int]:
        """Choose up to ``wanted`` of the hosts in ``rows``, in as few groups as possible."""
        groups = self._group[rows]
        sizes = np.bincount(groups, minlength=1)
        chosen: list[int] = []
        while wanted > 0 and sizes.any():
            fits = np.where(sizes >= wanted, sizes, np.iinfo(sizes.dtype).max)
            group = int(fits.argmin() if (sizes >= wanted).any() else sizes.argmax())
            some = _closest_rows(rows[groups == group], wanted)
            chosen.extend(some)
            wanted -= len(some)
            sizes[group] = 0
        return chosen

    def _fullest(
        self, units: NDArray[np.bool_], counts: NDArray[np.intp], width: int, near: set[int]
    ) -> int:
        """Choose the host with the fewest free places that has at least ``width``.

        Among equals, hosts in the groups of the rows ``near`` come first. Of the best 16, the first
        with an aligned share wins, else the very first.
        """
        rows = np.flatnonzero(counts >= width)
        score = 4 * counts[rows]
        if near:
            score[np.isin(self._group[rows], self._group[list(near)])] -= 2
        best = rows[np.argsort(score, kind="stable")]
        for row in best[:16]:
            if _has_aligned_share(_bits(units[row]), width, units.shape[1]):
                return int(row)
        return int(best[0])

    def _units(self, lanes: int) -> NDArray[np.bool_]:
        """Return which devices of ``lanes`` slots are free as a whole, [H, S / lanes]."""
        rows, columns = self._free.shape
        count = columns // lanes
        devices = self._free[:, : count * lanes].reshape(rows, count, lanes)
        whole: NDArray[np.bool_] = np.equal(devices.sum(axis=2), lanes)
        return whole

    def _enter(self, host: str, indices: Sequence[int]) -> None:
        """Fill the next row of the tables, which exists already, with a host."""
        row = len(self._hosts)
        group = str(row // self._each) if self._each else ""
        ordered = sorted(indices, key=lambda index: (self._rank.get(index, len(self._rank)), index))
        names = tuple(f"{host}:{index}" for index in ordered)
        self._hosts.append(host)
        self._names.append(names)
        self._row[host] = row
        self._where.update((name, (row, column)) for column, name in enumerate(names))
        self._group[row] = self._groups.setdefault(group, len(self._groups))
        allocation = host.partition("@")[2]
        number = self._allocations.setdefault(allocation, len(self._allocations))
        self._allocation[row] = number
        self._free[row, : len(names)] = True

    def _set(self, name: str, *, free: bool) -> None:
        row, column = self._where.get(name, (-1, -1))
        if row >= 0 and self._open[row] and self._free[row, column] != free:
            self._free[row, column] = free
            self._counts[row] += 1 if free else -1


def _closest_rows(rows: NDArray[np.intp], wanted: int) -> list[int]:
    """Choose the ``wanted`` of the ascending ``rows`` that lie closest together."""
    if len(rows) <= wanted:
        return [int(row) for row in rows]
    spans = rows[wanted - 1 :] - rows[: len(rows) - wanted + 1]
    first = int(spans.argmin())
    return [int(row) for row in rows[first : first + wanted]]


def _bits(row: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")


@lru_cache(maxsize=65536)
def _has_aligned_share(free: int, wanted: int, columns: int) -> bool:
    """Check whether ``wanted`` free columns lie in one aligned share."""
    size = 1 << (wanted - 1).bit_length()
    share = (1 << size) - 1
    return any(((free >> at) & share).bit_count() >= wanted for at in range(0, columns, size))


@lru_cache(maxsize=65536)
def _take_from_share(free: int, wanted: int, columns: int) -> tuple[int, ...]:
    """Choose ``wanted`` free columns from the smallest aligned share that has enough.

    Among shares of this size the one with the fewest free columns is used. ``free`` has a bit for
    each column; at least ``wanted`` are set.
    """
    size = 1 << (wanted - 1).bit_length()
    while True:
        fits = []
        for at in range(0, columns, size):
            some = [c for c in range(at, min(at + size, columns)) if free >> c & 1]
            if len(some) >= wanted:
                fits.append((len(some), at, some))
        if fits:
            _, _, some = min(fits)
            return tuple(some) if len(some) == wanted else _take_within(free, wanted, some)
        size *= 2


def _take_within(free: int, wanted: int, columns: list[int]) -> tuple[int, ...]:
    """Choose ``wanted`` free columns of one share, those in the smallest free parts first."""

    def whole_part(column: int) -> int:
        size = 1
        while True:
            at = column // (2 * size) * (2 * size)
            share = ((1 << (2 * size)) - 1) << at
            if free & share != share or 2 * size > len(columns):
                return size
            size *= 2

    ordered = sorted(columns, key=lambda column: (whole_part(column), column))
    return tuple(sorted(ordered[:wanted]))
