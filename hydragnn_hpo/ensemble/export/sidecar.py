"""What lies beside an exported program, so that people who do not have this package can use it.

Shapes: G graphs, N nodes, E edges.
"""

from typing import Any

import torch

from hydragnn_hpo import __version__
from hydragnn_hpo.config.data import WIDTHS
from hydragnn_hpo.ensemble.export.program import Program
from hydragnn_hpo.ensemble.manifest import HeadEntry, Manifest

LOADING = {
    "exported": "program = torch.export.load(path).module(); out = program(*inputs)",
    "compiled": "program = torch._inductor.aoti_load_package(path); out = program(*inputs)",
}
"""By kind of program, how it is used in Python."""

EDGES = (
    "All pairs up to the cutoff, periodic images included, once per direction. An edge leads from "
    "sender edge_index[0] to receiver edge_index[1] along positions[receiver] + edge_shift - "
    "positions[sender]. With ASE: i, j, S = neighbor_list('ijS', atoms, cutoff); edge_index = "
    "[i, j]; edge_shift = S @ atoms.cell. Several structures: atoms end to end, edges counted over "
    "all of them."
)


def describe(manifest: Manifest, program: Program, *, compiled: bool) -> dict[str, Any]:
    """Say what goes in and comes out, with shapes, types and units."""
    head, kind = program.head, "compiled" if compiled else "exported"
    return {
        "format": 1,
        "kind": kind,
        "python": LOADING[kind],
        "warning": "a .pt2 file may run code when it is loaded: take it only from who you trust",
        "target": program.target,
        "description": head.description,
        "unit": head.unit,
        "energy": head.energy,
        "cutoff": manifest.cutoff,
        "edges": EDGES,
        "elements": list(manifest.elements),
        "inputs": inputs(manifest, program.names),
        "outputs": outputs(head),
        "intervals": head.calibration.quantiles,
        "members": [member.trial for member in program.members],
        "data": manifest.data.model_dump(mode="json"),
        "device": "cpu",
        "made_by": {"hydragnn_hpo": __version__, "torch": str(torch.__version__)},
    }


def inputs(manifest: Manifest, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """List the inputs in their order."""
    rows: list[tuple[str, str, list[Any], str, str]] = [
        ("numbers", "int64", ["N"], "1", "atomic numbers"),
        ("positions", "float64", ["N", 3], "angstrom", "positions"),
        ("edge_index", "int64", [2, "E"], "1", "sender and receiver of each edge"),
        ("edge_shift", "float64", ["E", 3], "angstrom", "translation of the receiver's image"),
        ("graph_of_node", "int64", ["N"], "1", "structure of each atom, from 0, rising"),
        ("cell", "float64", ["G", 3, 3], "angstrom", "lattice vectors as rows; 0 without"),
        *(
            (name, "float64", ["G"], manifest.attributes[name].unit, "known property")
            for name in names
        ),
    ]
    return [_row(*row) for row in rows]


def outputs(head: HeadEntry) -> list[dict[str, Any]]:
    """List the outputs; they come as a dictionary, all in fp64."""
    rows, width, unit = "G" if head.level == "graph" else "N", WIDTHS[head.shape], head.unit
    interval = "calibrated standard deviation; mean -+ intervals['0.9'] * std covers 90 %"
    found: list[tuple[str, list[Any], str, str]] = [
        ("mean", [rows, width], unit, "mean of the members"),
        ("std", [rows, 1], unit, interval),
        ("std_epistemic", [rows, 1], unit, "spread of the members as it is"),
    ]
    if head.energy is not None:
        apart = "spread of the members as it is, by component"
        pressure = "slope of the total energy by strain over the volume, row by row; 0 without"
        found += [
            ("forces", ["N", 3], "eV/angstrom", "minus the slope of the total energy"),
            ("forces_std_epistemic", ["N", 3], "eV/angstrom", apart),
            ("stress", ["G", 9], "eV/angstrom^3", pressure),
            ("stress_std_epistemic", ["G", 9], "eV/angstrom^3", apart),
        ]
    return [_row(name, "float64", shape, unit, says) for name, shape, unit, says in found]


def _row(name: str, dtype: str, shape: list[Any], unit: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "unit": unit, "meaning": meaning}
