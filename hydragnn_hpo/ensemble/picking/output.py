"""Write down what was picked: extxyz for the next labels, plain data for JSON."""

import io
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io import write as write_atoms

from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.picking.pick import Picked
from hydragnn_hpo.ensemble.picking.shortlist import Candidate
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import write_text
from hydragnn_hpo.records import finite
from hydragnn_hpo.units import inside

FORMATS = (".extxyz", ".xyz")


def check_format(path: Path) -> None:
    """Refuse a name that tells no format, before anything is computed.

    Raises:
        ConfigError: it does.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: structures are written as extxyz; end it in .extxyz.")


def as_plain(picked: Picked) -> dict[str, Any]:
    """Give the picked structures, in order, and what became of the others."""
    entries = [
        {"id": candidate.id, "pick": rank, "score": candidate.score, "distance": far}
        | candidate.told
        for rank, (candidate, far) in enumerate(
            zip(picked.candidates, picked.distances, strict=True), start=1
        )
    ]
    told: dict[str, Any] = finite(
        {
            "picked": entries,
            "counts": dict(picked.counts),
            "mean_distance": picked.mean_distance,
            "mean_distance_top": picked.mean_distance_top,
        }
    )
    return told


def write_picked(path: Path, manifest: Manifest, picked: Picked) -> None:
    """Write the picked structures, whole or not at all, in the order of picking.

    ``info`` of each frame holds ``id``, ``pick`` (from 1), ``score``, ``distance``, ``trust``,
    the standard deviations, and the known properties that the ensemble was told.
    """
    frames = []
    for entry, candidate in zip(as_plain(picked)["picked"], picked.candidates, strict=True):
        atoms = _atoms(candidate, manifest)
        atoms.info |= {key: value for key, value in entry.items() if value is not None}
        frames.append(atoms)
    text = io.StringIO()
    write_atoms(text, frames, format="extxyz")
    write_text(path, text.getvalue())


def _atoms(candidate: Candidate, manifest: Manifest) -> Atoms:
    graph = candidate.graph
    known = {
        item.key or name: graph.attributes[name] / inside(item.unit)[0]
        for name, item in manifest.attributes.items()
    }
    pbc = graph.pbc.tolist()
    return Atoms(graph.numbers, graph.positions, cell=graph.cell, pbc=pbc, info=known)
