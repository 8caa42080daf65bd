"""Find structures that are frames of one relaxation or simulation, and so not independent.

Frames of a run follow each other in the files: the same atoms in the same order, moved a little.
Copies of one structure that were displaced at random are as near, but no nearer to their neighbours
in the file than to any other one; the frames of a run drift.

Shapes: G graphs, N nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.config.data_config import TRAJECTORY
from hydragnn_hpo.data.name_patterns import NAMES
from hydragnn_hpo.data.properties import PropertyTable

Array = NDArray[np.float64]

LONGEST_STEP, MAX_STRAIN = 0.5, 0.05
"""Largest displacement of an atom from one frame to the next, angstrom, and largest change of a
lattice vector's component, as a share of the longest vector."""

NEAR_COPIES = 0.03
"""Largest displacement between successive frames, angstrom, that makes them near copies even where
they do not drift."""

DRIFT = 0.5
"""Largest ratio of the displacement of successive frames to that of frames half a run apart, for
frames that drift; it is 1 for random displacements."""

MIN_IN_RUNS, MIN_FRAMES = 0.5, 4
"""Share of the structures that must be in runs, and shortest run whose drift is measured."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Structures in the order of the files."""

    numbers: NDArray[np.int64]
    """Atomic numbers, [N]."""
    positions: Array
    """Angstrom, [N, 3]."""
    cell: Array
    """Lattice vectors as rows, angstrom, [G, 3, 3]."""
    pbc: NDArray[np.bool_]
    """Periodic directions, [G, 3]."""
    sizes: NDArray[np.int64]
    """Nodes of each graph, [G]."""

    @classmethod
    def of(cls, structures: Sequence[Atoms]) -> "Frames":
        """Return structures as frames."""
        return cls(
            np.concatenate([atoms.numbers for atoms in structures]).astype(np.int64),
            np.concatenate([atoms.positions for atoms in structures]),
            np.stack([np.asarray(atoms.cell.array) for atoms in structures]),
            np.stack([atoms.pbc for atoms in structures]),
            np.array([len(atoms) for atoms in structures], dtype=np.int64),
        )

    def last(self) -> "Frames":
        """Return the last frame alone."""
        first = len(self.numbers) - int(self.sizes[-1])
        cell = self.cell[-1:]
        pbc = self.pbc[-1:]
        numbers, positions = self.numbers[first:], self.positions[first:]
        return Frames(numbers, positions, cell, pbc, self.sizes[-1:])

    def after(self, before: "Frames | None") -> "Frames":
        """Return the same frames with others before them."""
        if before is None:
            return self
        pairs = zip(vars(before).values(), vars(self).values(), strict=True)
        return Frames(*(np.concatenate(pair) for pair in pairs))


def measure_steps(frames: Frames, lag: int = 1) -> Array:
    """Return the largest displacement of an atom from an earlier frame to each frame, [G].

    Args:
        frames: structures in the order of the files.
        lag: number of frames between both.

    Returns:
        Angstrom, to the nearest periodic image; infinite where atoms, periodic directions or cell
        differ, and for the first frames.
    """
    sizes = frames.sizes
    count = len(frames.sizes)
    result = np.full(count, np.inf)
    starts = np.cumsum(sizes) - sizes
    first = np.arange(count) - lag
    same = first >= 0
    earlier = np.maximum(first, 0)
    same &= (sizes == sizes[earlier]) & (frames.pbc == frames.pbc[earlier]).all(axis=1)
    longest = np.maximum(np.linalg.norm(frames.cell, axis=2).max(axis=1), 1e-12)
    strain = np.abs(frames.cell - frames.cell[earlier]).max(axis=(1, 2))
    same &= (strain <= MAX_STRAIN * longest) | ~frames.pbc.any(axis=1)
    graphs = np.flatnonzero(same)
    if not len(graphs):
        return result
    owner = np.repeat(graphs, sizes[graphs])
    begin = np.cumsum(sizes[graphs]) - sizes[graphs]
    within = np.arange(len(owner)) - np.repeat(begin, sizes[graphs])
    here, there = starts[owner] + within, starts[earlier[owner]] + within
    step = _wrap(frames.positions[here] - frames.positions[there], frames, owner)
    length = np.linalg.norm(step, axis=1)
    length[frames.numbers[here] != frames.numbers[there]] = np.inf
    result[graphs] = np.maximum.reduceat(length, begin)
    return result


def _wrap(step: Array, frames: Frames, owner: NDArray[np.int64]) -> Array:
    """Return displacements of atoms to the nearest periodic images.

    Args:
        step: displacements, angstrom, [n, 3].
        frames: with the cells.
        owner: graph of each displacement, [n].
    """
    if not frames.pbc[owner].any():
        return step
    graphs, place = np.unique(owner, return_inverse=True)
    cells = np.where(frames.pbc[graphs][:, :, None], frames.cell[graphs], 0.0)
    shift = np.round(np.einsum("ni,nij->nj", step, np.linalg.pinv(cells)[place]))
    return np.asarray(step - np.einsum("ni,nij->nj", shift, cells[place]), dtype=np.float64)


def number_runs(windows: Iterator[Frames]) -> NDArray[np.int64]:
    """Number the runs of frames of a data set, in the order of the files, [G].

    Args:
        windows: all structures, some at a time; one part is in memory.
    """
    before: Frames | None = None
    begins = []
    for frames in windows:
        steps = measure_steps(frames.after(before))[0 if before is None else 1 :]
        begins.append(steps > LONGEST_STEP)
        before = frames.last()
    return np.cumsum(np.concatenate(begins)) - 1


@dataclass(frozen=True)
class FoundRuns:
    """Runs among the structures of a sample."""

    group: str
    """``split.group`` that keeps each together: a key, or ``TRAJECTORY``."""
    count: int
    """Number of runs."""
    keys: tuple[str, ...]
    """Properties that name runs, and so are no targets."""


def find_runs(structures: Sequence[Atoms], table: PropertyTable) -> FoundRuns | None:
    """Find the frames of runs by a key that names these, else by what moves little.

    Args:
        structures: in the order of the files.
        table: their properties.

    Returns:
        The runs; None where structures are independent as far as that can be seen.
    """
    steps = measure_steps(frames := Frames.of(structures))
    formulas = [np.sort(atoms.numbers).tobytes() for atoms in structures]
    keys = {
        key: names
        for key, names in _list_names(structures, table)
        if _names_runs(key, names, formulas, steps, is_text=key in table.texts)
    }
    if keys:
        key = min(keys, key=lambda each: len(set(keys[each])))
        return FoundRuns(key, len(set(keys[key])), tuple(keys))
    runs = np.cumsum(steps > LONGEST_STEP) - 1
    sizes = np.bincount(runs)
    if sizes[sizes > 1].sum() < MIN_IN_RUNS * len(structures) or not _drift(frames, steps, runs):
        return None
    return FoundRuns(TRAJECTORY, len(sizes), ())


def _list_names(
    structures: Sequence[Atoms], table: PropertyTable
) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys that every structure has, with text or a whole number, and their values."""
    texts = [key for key, counts in table.texts.items() if counts.total() == len(structures)]
    for key in texts:
        yield key, [str(atoms.info.get(key)) for atoms in structures]
    for key, prop in table.numbers.items():
        values = prop.values[:, 0]
        whole = prop.scalar and prop.present == len(structures)
        whole = whole and bool(prop.known.all()) and bool((values == np.round(values)).all())
        if whole and all(key in atoms.info for atoms in structures):
            yield key, [str(atoms.info[key]) for atoms in structures]


def _names_runs(
    key: str, names: Sequence[str], formulas: Sequence[bytes], steps: Array, *, is_text: bool
) -> bool:
    """Check whether the values of a key name the runs that structures are from.

    By its name, unless it names compositions; else where each value stands for one run of near
    copies.

    Args:
        key: name of the property.
        names: its values.
        formulas: composition of each structure.
        steps: displacement from the structure before, angstrom.
        is_text: whether the values are text.
    """
    counts = Counter(names)
    if key in ("composition", "structure", TRAJECTORY) or not 2 <= len(counts) <= len(names) / 2:
        return False
    if len(set(zip(names, formulas, strict=True))) > len(counts):  # one has two compositions
        return False
    named = NAMES["runs"].search(key) is not None
    if named and (len(set(formulas)) == 1 or len(counts) > len(set(formulas))):
        return True
    same = np.array([one == other for one, other in zip(names, names[1:], strict=False)])
    one_run_each = int((~same).sum()) == len(counts) - 1
    near = steps[1:] <= NEAR_COPIES
    copies = bool(same.any()) and float(near[same].mean()) >= 0.8 and not near[~same].any()
    return copies and (named or (is_text and one_run_each))


def _drift(frames: Frames, steps: Array, runs: NDArray[np.int64]) -> bool:
    """Check whether the frames of runs are near copies, or drift along their run."""
    inside = np.isfinite(steps) & (steps <= LONGEST_STEP)
    if float(np.median(steps[inside])) <= NEAR_COPIES:
        return True
    sizes = np.bincount(runs)
    lag = int(np.median(sizes[sizes >= MIN_FRAMES])) // 2 if (sizes >= MIN_FRAMES).any() else 0
    if lag < 2:
        return False
    far = measure_steps(frames, lag)
    rows = np.flatnonzero((np.arange(len(runs)) >= lag) & np.isfinite(far))
    rows = rows[runs[rows] == runs[rows - lag]]
    return len(rows) > 0 and float(np.median(steps[inside])) <= DRIFT * float(np.median(far[rows]))
