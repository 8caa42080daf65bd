"""Lists of PyG's ``Data``: a ``.pt`` file, or objects in memory.

Reading a file runs no code that it names: only PyG's own containers and types that
``torch.load(weights_only=True)`` accepts are loaded.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ase import Atoms

from hydragnn_hpo.data.readers.source import Item, Reader, Source, make_or_catch, read_stamp
from hydragnn_hpo.data.readers.tensors import atoms_of
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.optional_packages import explain_missing


def read_pyg(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read entries of a list, or of a collated ``InMemoryDataset`` file.

    Args:
        source: the ``.pt`` file.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the file is damaged, holds something else, or names code that must not be run.
    """
    path = source.path
    for number, data in enumerate(_load(path)[start:stop], start=start):
        place = f"{path}: structure {number}"
        made = make_or_catch(place, lambda d=data, p=place: atoms_of_data(d, p))  # type: ignore[misc]
        yield f"{path.name}@{number}", made


def count_pyg(source: Source) -> int | None:
    """Count the entries."""
    return len(_load(source.path))


PYG = Reader(count_pyg, read_pyg)


def atoms_of_data(data: Any, place: str = "Data") -> Atoms:
    """Convert one ``torch_geometric.data.Data`` to a structure; see ``tensors.atoms_of``.

    Raises:
        DataError: ``data`` has no positions or atomic numbers.
    """
    import torch

    entries = dict(data.to_dict().items())
    values = {k: v.detach().cpu().numpy() for k, v in entries.items() if torch.is_tensor(v)}
    atoms = atoms_of(values, place)
    plain = {k: v for k, v in entries.items() if isinstance(v, (str, int, float))}
    atoms.info.update(plain)
    return atoms


def _load(path: Path) -> list[Any]:
    """Read a file; the latest is kept in memory, because its pieces are read one by one."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; correct the path.")
    return _read_once(path, read_stamp(path))


@functools.lru_cache(maxsize=1)
def _read_once(path: Path, stamp: tuple[int, int]) -> list[Any]:
    import torch

    with explain_missing(f"{path}: a list of PyG Data"):
        from torch_geometric import data as pyg
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

    safe = [pyg.Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage]
    try:
        with torch.serialization.safe_globals(safe):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types
        reason = " ".join(str(error).split())
        problem = "it names what must not be run" if "weights_only" in reason else reason[:80]
        raise DataError(
            f"{path}: cannot be read as a list of PyG Data ({problem}); save it again as a plain "
            "list of Data with tensors, numbers and strings."
        ) from error
    return _entries(content, path)


def _entries(content: Any, path: Path) -> list[Any]:
    from torch_geometric import data as pyg
    from torch_geometric.data.separate import separate

    if isinstance(content, pyg.Data):
        content = [content]
    if isinstance(content, tuple) and len(content) in (2, 3) and isinstance(content[1], dict):
        whole, slices = content[:2]  # what InMemoryDataset.save writes
        whole = pyg.Data.from_dict(whole) if isinstance(whole, dict) else whole
        count = len(next(iter(slices.values()))) - 1
        content = [
            separate(cls=pyg.Data, batch=whole, idx=row, slice_dict=slices, decrement=False)
            for row in range(count)
        ]
    if not isinstance(content, list) or not all(isinstance(d, pyg.Data) for d in content):
        raise DataError(
            f"{path}: is no list of PyG Data (found {type(content).__name__}); save it again."
        )
    if not content:
        raise DataError(f"{path}: holds no structure; get it again.")
    return content
