"""HydraGNN's ADIOS2 files, so that its users need not convert their data.

A file holds data sets by label (``trainset``, ``valset``, ``testset``). For each key of PyG's
``Data`` it has one global array with all graphs end to end along ``variable_dim``, and the
first row and number of rows of each graph (``variable_offset``, ``variable_count``). Strings are
bytes. The label becomes ``info["split"]``: ``train``, ``val`` or ``test``.

Source: ORNL/HydraGNN, hydragnn/utils/datasets/adiosdataset.py (AdiosWriter), 2026-08.
"""

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.readers.source import Item, Reader, Source, make_or_catch
from hydragnn_hpo.data.readers.tensors import atoms_of
from hydragnn_hpo.data.store_parts import remove_profile
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.optional_packages import explain_missing

SPLITS = {"trainset": "train", "valset": "val", "testset": "test"}
"""Names of splits by HydraGNN's labels, in the order in which labels are read."""

_LEFT_OUT = ("edge_index", "edge_attr", "edge_shifts")
"""Arrays that are not read: edges are computed with the card's cutoff."""

_OPEN_SECONDS = 60.0
"""Time limit for opening a file."""

_LISTED_PER_SECOND = 10_000
"""Bytes of metadata, about 100 per block, that add a second to the limit for probing all blocks."""

_AT_ONCE = 512
"""Number of graphs that are read in one call."""

_PROBE = """
import sys
from pathlib import Path
import adios2
from hydragnn_hpo.data.store_parts import remove_profile
with adios2.FileReader(sys.argv[1]) as file:
    for name in file.available_variables():
        for block in file.engine.blocks_info(name, 0):
            start, count = ([int(n) for n in block[k].split(",") if n] for k in ("Start", "Count"))
            if count and min(count):
                last = [s + c - 1 for s, c in zip(start, count)]
                file.read(name, start=last, count=[1] * len(count))
remove_profile(Path(sys.argv[1]))
"""


def is_hydragnn_bp(path: Path) -> bool:
    """Check whether a folder is an ADIOS2 file (``md.idx``), but not a store of this package."""
    return (path / "md.idx").is_file() and not (path / "index.json").exists()


def count_graphs(source: Source) -> int | None:
    """Count the graphs of all labels.

    Raises:
        DataError: the path is not an ADIOS2 file of HydraGNN, or it is damaged.
    """
    _check_readable(source.path)
    with _File(source.path) as file:
        return sum(file.sizes.values())


def read_graphs(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read graphs, counted over all labels.

    Args:
        source: the ADIOS2 folder.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the file is damaged, or not as HydraGNN writes it.
    """
    _check_readable(source.path)
    with _File(source.path) as file:
        before = 0
        for label, count in file.sizes.items():
            first = max(start - before, 0)
            last = count if stop is None else min(stop - before, count)
            for at in range(first, last, _AT_ONCE):
                yield from file.items(label, at, min(at + _AT_ONCE, last))
            before += count


HYDRAGNN_BP = Reader(count_graphs, read_graphs)


class _File:
    """An open ADIOS2 file of HydraGNN."""

    def __init__(self, path: Path) -> None:
        with explain_missing(f"{path}: a file of ADIOS2"):
            import adios2

        self.path = path
        try:
            self.reader = adios2.FileReader(str(path))
            self.variables = self.reader.available_variables()
            names = self.reader.available_attributes()
        except (RuntimeError, ValueError) as error:
            raise _damaged(path, "ADIOS2 cannot open it") from error
        labels = sorted(
            (name.removesuffix("/ndata") for name in names if name.endswith("/ndata")),
            key=lambda label: (list(SPLITS).index(label) if label in SPLITS else 9, label),
        )
        if not labels:
            raise DataError(
                f"{path}: is no file of HydraGNN (it has no attribute LABEL/ndata); choose another "
                "reader."
            )
        self.sizes = {label: self._attribute(f"{label}/ndata") for label in labels}

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        remove_profile(self.path)

    def _attribute(self, name: str) -> int:
        return int(np.asarray(self.reader.read_attribute(name)).reshape(-1)[0])

    def items(self, label: str, first: int, last: int) -> Iterator[Item]:
        """Read a run of graphs of one label.

        Args:
            label: HydraGNN's name of the data set.
            first: first graph of the label, counted from 0.
            last: one after the last graph.
        """
        try:
            columns = {key: self._run(label, key, first, last) for key in self._keys(label)}
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise _damaged(self.path, f"its arrays of '{label}' do not fit each other") from error
        for row in range(last - first):
            name = f"{self.path.name}:{label}@{first + row}"
            place = f"{self.path}: structure {first + row} of {label}"
            values = {key: pieces[row] for key, pieces in columns.items()}
            texts = {
                key: value.tobytes().decode("utf-8", "replace")
                for key, value in values.items()
                if value.dtype == np.uint8 and value.ndim == 1 and key != "pbc"
            }
            arrays = {k: v for k, v in values.items() if k not in texts}
            atoms = make_or_catch(place, lambda a=arrays, p=place: atoms_of(a, p))  # type: ignore[misc]
            if isinstance(atoms, Atoms):
                atoms.info.update({"split": SPLITS.get(label, label), **texts})
            yield name, atoms

    def _keys(self, label: str) -> list[str]:
        ends = f"{label}/", "/variable_count"
        names = [name for name in self.variables if name.startswith(ends[0])]
        keys = [n.removeprefix(ends[0]).removesuffix(ends[1]) for n in names if n.endswith(ends[1])]
        return [key for key in sorted(keys) if key not in _LEFT_OUT]

    def _run(self, label: str, key: str, first: int, last: int) -> list[NDArray[Any]]:
        """Read one key of a run of graphs; return an array per graph."""
        name = f"{label}/{key}"
        run = {"start": [first], "count": [last - first]}
        counts = np.asarray(self.reader.read(f"{name}/variable_count", **run)).reshape(-1)
        offsets = np.asarray(self.reader.read(f"{name}/variable_offset", **run)).reshape(-1)
        axis = self._attribute(f"{name}/variable_dim")
        shape = [int(size) for size in self.variables[name]["Shape"].split(",")]
        start = [0] * len(shape)
        count = list(shape)
        start[axis] = int(offsets[0])
        count[axis] = int(offsets[-1] + counts[-1] - offsets[0])
        block = np.zeros(count)
        if block.size:
            block = np.asarray(self.reader.read(name, start=start, count=count)).reshape(count)
        at = offsets - offsets[0]
        cuts = [slice(int(a), int(a + n)) for a, n in zip(at, counts, strict=True)]
        return [np.moveaxis(np.moveaxis(block, axis, 0)[cut], 0, axis) for cut in cuts]


def _check_readable(path: Path) -> None:
    """Refuse a folder that is not an ADIOS2 file, or a truncated file, on which ADIOS2 would hang.

    Raises:
        DataError: the path is not an intact ADIOS2 file.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such ADIOS2 file (a folder NAME.bp); correct the path.")
    for name in ("md.idx", "md.0", "data.0"):
        if not (path / name).is_file() or (path / name).stat().st_size == 0:
            raise _damaged(path, f"{name} is missing or empty")

    data = (path / "data.0").stat()
    _probe(path, (data.st_mtime_ns, data.st_size))


@functools.lru_cache(maxsize=8)
def _probe(path: Path, stamp: tuple[int, int]) -> None:
    """Read the last number of every block in another process, under a time limit.

    ADIOS2 hangs on truncated files, on some when they are opened, on others when they are read.

    Args:
        path: the ADIOS2 folder.
        stamp: modification time and size of its data; an unchanged file is not probed again.
    """
    seconds = _OPEN_SECONDS + (path / "md.0").stat().st_size / _LISTED_PER_SECOND
    try:
        command = [sys.executable, "-c", _PROBE, str(path)]
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise _damaged(path, "ADIOS2 does not come back from reading it") from error
    if done.returncode != 0:
        raise _damaged(path, "ADIOS2 cannot read it")


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: cannot be read ({reason}); get the file again.")
