"""Write predictions down: CSV, extxyz, or plain data for JSON.

The columns of a head ``t`` are ``t``, ``t_std``, ``t_std_epistemic``, ``t_lo90`` and ``t_hi90``;
a vector has ``t_x``, ``t_y``, ``t_z`` and so on, but one ``t_std``. Files carry no unit in a
column's name, so that scripts do not break over it: units stand in the ensemble, in the
JSON, and in the ``units`` of every extxyz frame. There, a head whose name ASE would take for
its own (``energy`` would become the total energy) is called ``predicted_energy``.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.data import chemical_symbols
from ase.io import write as write_atoms

from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.predictor import HeadPrediction, Prediction
from hydragnn_hpo.ensemble.structures import Structures
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import write_text
from hydragnn_hpo.records import finite

FORMATS = (".csv", ".extxyz", ".xyz", ".json")
_PARTS = (("", "mean"), ("_std", "std"), ("_std_epistemic", "std_epistemic"))
_AXES = {
    "scalar": ("",),
    "vector": ("_x", "_y", "_z"),
    "tensor": tuple(f"_{a}{b}" for a in "xyz" for b in "xyz"),
}
"""What is put behind the names of components, by the shape of a head."""
_RESERVED = {*all_properties, "charge", "magmom", "id", "trust", "units", "pos", "positions"}
_RESERVED |= {"species", "numbers", "Z", "tags", "momenta", "momentum", "masses", "mass"}
"""Names to which ASE gives a meaning of its own when it reads extxyz."""
_ENDS = (("_lo90", "lo90"), ("_hi90", "hi90"))


def write_predictions(
    path: Path, manifest: Manifest, structures: Structures, prediction: Prediction
) -> list[Path]:
    """Write predictions in the format that the file's name asks for; each file whole.

    A structure that could not be predicted has a row with its reason in the column
    ``error`` (CSV, JSON); extxyz, which can only hold structures, leaves it out.

    Args:
        path: ``NAME.csv`` (and ``NAME.nodes.csv`` where there are node-level heads),
            ``NAME.extxyz`` or ``NAME.json``.
        manifest: heads and units.
        structures: what was read.
        prediction: what was predicted for the structures that could be read.

    Returns:
        The files written.

    Raises:
        ConfigError: the format is not known.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: cannot tell the format; end it in {', '.join(FORMATS)}.")
    if path.suffix == ".csv":
        return _write_csv(path, manifest, structures, prediction)
    if path.suffix == ".json":
        import json

        plain = as_plain(manifest, structures, prediction)
        write_text(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")
    else:
        write_text(path, as_extxyz(manifest, structures, prediction))
    return [path]


def as_plain(manifest: Manifest, structures: Structures, prediction: Prediction) -> dict[str, Any]:
    """Give predictions as plain data: units, and one entry per structure; no NaN."""
    entries: list[dict[str, Any]] = []
    parts = dict(_split(manifest, structures, prediction))
    for position, name in enumerate(structures.ids):
        entry: dict[str, Any] = {"id": name, "error": structures.errors.get(position)}
        if position in parts:
            row, heads = parts[position]
            entry["trust"] = prediction.trust[row]
            entry["heads"] = {
                head: {key: _plain(manifest, head, getattr(values, key)) for key in _keys()}
                for head, values in heads.items()
            }
        entries.append(entry)
    found: dict[str, Any] = finite({"units": manifest.units(), "structures": entries})
    return found


def as_extxyz(manifest: Manifest, structures: Structures, prediction: Prediction) -> str:
    """Give the structures with their predictions in ``info`` and ``arrays``; atoms in order."""
    frames = []
    units = " ".join(f"{name}={unit}" for name, unit in manifest.units().items())
    for position, (row, heads) in _split(manifest, structures, prediction):
        atoms = _atoms(structures, row)
        atoms.info |= {"id": structures.ids[position], "trust": prediction.trust[row]}
        atoms.info["units"] = units
        for name, values in heads.items():
            for suffix, key in (*_PARTS, *_ENDS):
                array = getattr(values, key)
                title = f"predicted_{name}" if name + suffix in _RESERVED else name + suffix
                if manifest.heads[name].level == "graph":
                    atoms.info[title] = float(array[0, 0]) if array.shape[1] == 1 else array[0]
                else:
                    atoms.arrays[title] = array[:, 0] if array.shape[1] == 1 else array
        frames.append(atoms)
    text = io.StringIO()
    if frames:
        write_atoms(text, frames, format="extxyz")
    return text.getvalue()


def _write_csv(
    path: Path, manifest: Manifest, structures: Structures, prediction: Prediction
) -> list[Path]:
    parts = dict(_split(manifest, structures, prediction))
    graph = [name for name, head in manifest.heads.items() if head.level == "graph"]
    node = [name for name, head in manifest.heads.items() if head.level == "node"]
    titles = [title for name in graph for title in _titles(manifest, name)]
    table: list[list[str]] = [["id", *titles, "trust", "error"]]
    for position, name in enumerate(structures.ids):
        row, heads = parts.get(position, (-1, {}))
        cells = (
            [c for head in graph for c in _cells(heads, head, 0)] if heads else [""] * len(titles)
        )
        trust = prediction.trust[row] if heads else ""
        table.append([name, *cells, trust, structures.errors.get(position, "")])
    write_text(path, _csv(table))
    if not node:
        return [path]
    titles = [title for name in node for title in _titles(manifest, name)]
    table = [["id", "atom", "element", *titles]]
    for position, (row, heads) in parts.items():
        for atom, symbol in enumerate(_atoms(structures, row).symbols):
            cells = [c for head in node for c in _cells(heads, head, atom)]
            table.append([structures.ids[position], str(atom), symbol, *cells])
    nodes = path.with_suffix(".nodes.csv")
    write_text(nodes, _csv(table))
    return [path, nodes]


def _split(
    manifest: Manifest, structures: Structures, prediction: Prediction
) -> Iterator[tuple[int, tuple[int, dict[str, HeadPrediction]]]]:
    """Give for each structure that was predicted: position, row, and its part of each head."""
    offset = structures.columns.node_offset
    good = (p for p in range(len(structures.ids)) if p not in structures.errors)
    for row, position in enumerate(good):
        heads = {}
        for name, values in prediction.heads.items():
            node = manifest.heads[name].level == "node"
            rows = slice(offset[row], offset[row + 1]) if node else slice(row, row + 1)
            heads[name] = HeadPrediction(**{key: getattr(values, key)[rows] for key in _keys()})
        yield position, (row, heads)


def _keys() -> tuple[str, ...]:
    return tuple(key for _, key in (*_PARTS, *_ENDS))


def _titles(manifest: Manifest, name: str) -> list[str]:
    axes = _AXES[manifest.heads[name].shape]
    mean, ends = [name + axis for axis in axes], [s + axis for s, _ in _ENDS for axis in axes]
    return [*mean, f"{name}_std", f"{name}_std_epistemic", *[name + end for end in ends]]


def _cells(heads: dict[str, HeadPrediction], name: str, row: int) -> list[str]:
    return [f"{value:.10g}" for key in _keys() for value in getattr(heads[name], key)[row]]


def _csv(table: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()


def _plain(manifest: Manifest, name: str, array: np.ndarray) -> Any:
    values = array[:, 0].tolist() if array.shape[1] == 1 else array.tolist()
    return values[0] if manifest.heads[name].level == "graph" else values


def _atoms(structures: Structures, row: int) -> Atoms:
    columns = structures.columns
    nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
    symbols = [chemical_symbols[z] for z in columns.numbers[nodes]]
    return Atoms(
        symbols, columns.positions[nodes], cell=columns.cell[row], pbc=columns.pbc[row].tolist()
    )
