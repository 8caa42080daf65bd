"""What is told about each structure, as plain data; no NaN ever.

Shapes: G graphs, R rows of a head, w components.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry, Manifest
from hydragnn_hpo.ensemble.inference import Prediction
from hydragnn_hpo.records import finite

PARTS = ("mean", "std", "std_epistemic", "lo90", "hi90")
"""What is told of each head, in the head's unit; see ``HeadPrediction``."""


def entries(
    manifest: Manifest, prediction: Prediction, num_nodes: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Give what is told of each structure of a prediction, in order.

    Args:
        manifest: heads and units.
        prediction: of some structures.
        num_nodes: atoms of each of them, [G].
    """
    ends = np.cumsum(num_nodes)
    for row, end in enumerate(ends):
        heads = {}
        for name, values in prediction.heads.items():
            head = manifest.heads[name]
            node = head.level == "node"
            rows = slice(end - num_nodes[row], end) if node else slice(row, row + 1)
            heads[name] = {part: _plain(head, getattr(values, part)[rows]) for part in PARTS}
        told: dict[str, Any] = finite({"trust": prediction.trust[row], "heads": heads})
        yield told


def about(manifest: Manifest) -> dict[str, Any]:
    """Say what an ensemble predicts, from what it learned, and what it knows."""
    heads = {
        name: {
            "level": head.level,
            "shape": head.shape,
            "unit": head.unit,
            "description": head.description,
        }
        for name, head in manifest.heads.items()
    }
    told: dict[str, Any] = finite(
        {
            "package": manifest.package,
            "data": manifest.data.model_dump(mode="json"),
            "heads": heads,
            "elements": list(manifest.elements),
            "cutoff": manifest.cutoff,
            "members": len(manifest.members),
            "info": {name: item.unit for name, item in manifest.attributes.items()},
            "evaluation": manifest.evaluation,
        }
    )
    return told


def _plain(head: HeadEntry, array: np.ndarray) -> Any:
    """Give a number, the components of a vector, or one of them per atom."""
    values = array[:, 0].tolist() if array.shape[1] == 1 else array.tolist()
    return values[0] if head.level == "graph" else values
