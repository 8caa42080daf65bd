"""HydraGNN's ADIOS2 files: its users switch without converting back.

A file holds data sets by label (``trainset``, ``valset``, ``testset``). For each key of PyG's
``Data`` it has one global array with all graphs end to end along ``variable_dim``, and where
each graph begins and how long it is (``variable_offset``, ``variable_count``). Strings are
bytes. The label becomes ``info["split"]``: ``train``, ``val`` or ``test``.

Source: ORNL/HydraGNN, hydragnn/utils/datasets/adiosdataset.py (AdiosWriter), 2026-08.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.readers.source import Item, Reader, Source
from hydragnn_hpo.data.readers.tensors import atoms_of
from hydragnn_hpo.data.store.parts import remove_profile
from hydragnn_hpo.errors import DataError

SPLITS = {"trainset": "train", "valset": "val", "testset": "test"}
"""HydraGNN's labels, in the order they are read, and what they become."""

_LEFT_OUT = ("edge_index", "edge_attr", "edge_shifts")
_OPEN_SECONDS = 60.0
_AT_ONCE = 512
"""Graphs that are read together."""

_PROBE = """
import sys
from pathlib import Path
import adios2
from hydragnn_hpo.data.store.parts import remove_profile
adios2.FileReader(sys.argv[1]).close()
remove_profile(Path(sys.argv[1]))
"""


def is_hydragnn_bp(path: Path) -> bool:
    """Tell whether a folder is an ADIOS2 file (``md.idx``) and no store of ours."""
    return (path / "md.idx").is_file() and not (path / "index.json").exists()


def count_graphs(source: Source) -> int | None:
    """Count the graphs of all labels.

    ADIOS2 hangs on some truncated files: another process opens it first, and is given a minute.

    Raises:
        DataError: it is no such file, or it is damaged.
    """
    path = source.path
    _look(path)
    try:
        command = [sys.executable, "-c", _PROBE, str(path)]
        done = subprocess.run(command, capture_output=True, timeout=_OPEN_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _damaged(path, "ADIOS2 does not come back from opening it") from error
    if done.returncode != 0:
        raise _damaged(path, "ADIOS2 cannot open it")
    with _File(path) as file:
        return sum(file.sizes.values())


def read_graphs(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read graphs ``start`` to ``stop``, counted over the labels.

    Raises:
        DataError: the file is damaged, or not as HydraGNN writes it.
    """
    _look(source.path)
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
    """An open file."""

    def __init__(self, path: Path) -> None:
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
        """Give a run of graphs of one label."""
        try:
            columns = {key: self._run(label, key, first, last) for key in self._keys(label)}
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise _damaged(self.path, f"its arrays of '{label}' do not fit each other") from error
        for row in range(last - first):
            name = f"{self.path.name}:{label}:{first + row + 1}"
            place = f"{self.path}: structure {first + row + 1} of {label}"
            values = {key: pieces[row] for key, pieces in columns.items()}
            texts = {
                key: value.tobytes().decode("utf-8", "replace")
                for key, value in values.items()
                if value.dtype == np.uint8 and value.ndim == 1 and key != "pbc"
            }
            try:
                atoms = atoms_of({k: v for k, v in values.items() if k not in texts}, place)
            except DataError as error:
                yield name, error
                continue
            atoms.info.update({"split": SPLITS.get(label, label), **texts})
            yield name, atoms

    def _keys(self, label: str) -> list[str]:
        ends = f"{label}/", "/variable_count"
        names = [name for name in self.variables if name.startswith(ends[0])]
        keys = [n.removeprefix(ends[0]).removesuffix(ends[1]) for n in names if n.endswith(ends[1])]
        return [key for key in sorted(keys) if key not in _LEFT_OUT]

    def _run(self, label: str, key: str, first: int, last: int) -> list[NDArray[Any]]:
        """Read one key of a run of graphs."""
        name = f"{label}/{key}"
        asked = {"start": [first], "count": [last - first]}
        counts = np.asarray(self.reader.read(f"{name}/variable_count", **asked)).reshape(-1)
        offsets = np.asarray(self.reader.read(f"{name}/variable_offset", **asked)).reshape(-1)
        axis = self._attribute(f"{name}/variable_dim")
        shape = [int(size) for size in self.variables[name]["Shape"].split(",")]
        start, count = [0] * len(shape), list(shape)
        start[axis] = int(offsets[0])
        count[axis] = int(offsets[-1] + counts[-1] - offsets[0])
        block = np.zeros(count)
        if block.size:
            block = np.asarray(self.reader.read(name, start=start, count=count)).reshape(count)
        at = offsets - offsets[0]
        cuts = [slice(int(a), int(a + n)) for a, n in zip(at, counts, strict=True)]
        return [np.moveaxis(np.moveaxis(block, axis, 0)[cut], 0, axis) for cut in cuts]


def _look(path: Path) -> None:
    """Refuse what is plainly no ADIOS2 file, or cut off, before ADIOS2 sees it."""
    if not path.is_dir():
        raise DataError(f"{path}: no such ADIOS2 file (a folder NAME.bp); correct the path.")
    for name in ("md.idx", "md.0", "data.0"):
        if not (path / name).is_file() or (path / name).stat().st_size == 0:
            raise _damaged(path, f"{name} is missing or empty")


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: cannot be read ({reason}); get the file again.")
