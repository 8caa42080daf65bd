"""One number per structure, counted by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry
from hydragnn_hpo.ensemble.inference import HeadPrediction
from hydragnn_hpo.ensemble.picking.scores import counted, disagreement, head_score, levels, score
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.ensemble.uncertainty.moments import moments_of


def head(level: str = "graph", a: float = 1.0, **more: Any) -> HeadEntry:
    known = Calibration(a=a, b=0.01, quantiles={"0.9": 1.6}, spread99=1.0, rows=9, groups=9)
    values = {"level": level, "shape": "scalar", "unit": "eV", "mean": 0.0, "std": 2.0}
    return HeadEntry(**{**values, **more}, calibration=known)


def said(std: list[float], epistemic: list[float] | None = None) -> HeadPrediction:
    column = np.array(std)[:, None]
    spread = column if epistemic is None else np.array(epistemic)[:, None]
    return HeadPrediction(column, column, spread, column, column)


def test_a_graph_head_counts_in_units_of_the_target() -> None:
    offsets = np.array([0, 2, 3])
    assert head_score(head(), said([1.0, 4.0]), offsets).tolist() == [0.5, 2.0]


def test_of_a_node_head_the_worst_atom_counts() -> None:
    offsets = np.array([0, 2, 3])
    assert head_score(head("node"), said([1.0, 6.0, 4.0]), offsets).tolist() == [3.0, 2.0]


def test_a_constant_sigma_ranks_by_the_raw_spread() -> None:
    found = head_score(head(a=0.0), said([1.0, 1.0], [0.2, 0.4]), np.array([0, 1, 2]))
    assert found.tolist() == [0.1, 0.2]


def test_heads_whose_spread_tells_nothing_do_not_count_beside_others() -> None:
    known = SimpleNamespace(heads={"x": head(), "y": head(), "z": head(a=0.0)})
    offsets = np.array([0, 1])
    heads = {"x": said([1.0]), "y": said([3.0]), "z": said([9.0], [8.0])}
    assert score(known, heads, offsets).tolist() == [(0.5 + 1.5) / 2]  # type: ignore[arg-type]
    assert score(known, {"z": heads["z"]}, offsets).tolist() == [4.0]  # type: ignore[arg-type]


def test_a_target_that_never_changed_does_not_divide_by_zero() -> None:
    assert head_score(head(std=0.0), said([3.0]), np.array([0, 1])).tolist() == [3.0]


def test_disagreement_on_forces_is_that_of_dp_gen() -> None:
    rng = np.random.default_rng(1)
    forces = rng.normal(size=(5, 7, 3))  # members, atoms
    offsets = np.array([0, 3, 7])
    spread = moments_of(forces, np.full(5, 0.2)).spread
    found = disagreement(HeadPrediction(forces[0], spread, spread, forces[0], forces[0]), offsets)
    for graph in range(2):
        worst = 0.0
        for atom in range(offsets[graph], offsets[graph + 1]):
            mean = sum(forces[m, atom] for m in range(5)) / 5
            square = sum(np.linalg.norm(forces[m, atom] - mean) ** 2 for m in range(5)) / 5
            worst = max(worst, float(np.sqrt(square)))
        assert found[graph] == pytest.approx(worst, rel=1e-12)


def test_levels_include_their_lower_end() -> None:
    level = levels(np.array([0.04, 0.05, 0.1, 0.25, 9.0]), 0.05, 0.25)
    assert level.tolist() == [0, 1, 1, 2, 2]
    assert counted(level) == {"accurate": 1, "candidate": 2, "failed": 2}
