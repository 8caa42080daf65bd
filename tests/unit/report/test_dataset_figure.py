"""The figure of a data set: every panel there is something for, whatever the number of targets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hydragnn_hpo.config.data_config import SPLITS
from hydragnn_hpo.data.graph_sizes import histogram
from hydragnn_hpo.report import dataset_figure as data_figures
from hydragnn_hpo.report.dataset_figure import draw_dataset


def overview(targets: int) -> dict[str, Any]:
    """Make what the overview of a store of skewed sizes says."""
    rng = np.random.default_rng(0)
    edges = histogram(*np.unique(rng.lognormal(4, 2, 500).astype(int), return_counts=True))
    bins = np.linspace(-1.0, 4.0, 41)

    def split(count: int, steep: bool) -> dict[str, Any]:
        values = np.zeros(count) if steep else rng.normal(size=count).clip(-1, 4)
        counts = np.histogram(values, bins)[0].tolist()
        return {"values": count, "missing": 0.25, "max": 9.0, "counts": counts}

    names = [f"property_{k}" for k in range(targets)]
    return {
        "name": "made",
        "num_graphs": 500,
        "cutoff": 5.0,
        "nodes": {"mean": 5.0, "total": 2500},
        "edges": {"mean": 200.0},
        "histograms": {"nodes": {"edges": [5, 6], "counts": [500]}, "edges": edges},
        "degree": {str(float(r)): r**2.0 for r in range(3, 11)},
        "degrees": {str(float(r)): {"all": [0] * r + [2500]} for r in range(3, 11)},
        "element_counts": {f"E{k}": {"structures": k, "atoms": 2 * k} for k in range(1, 81)},
        "targets": {
            name: {"level": "node", "shape": "vector", "unit": "eV/angstrom"} for name in names
        },
        "target_splits": {
            name: {"bins": bins.tolist()}
            | {which: split(100 if which != "cal" else 0, steep=k == 1) for which in SPLITS}
            for k, name in enumerate(names)
        },
    }


def findings(targets: int) -> dict[str, Any]:
    counts = {"structures": 100, "twins": 3, "groups": 20, "compositions": 90}
    return {
        "duplicates": {"structures": 6, "groups": 3},
        "leakage": {"splits": dict.fromkeys(SPLITS[1:], counts)},
        "outliers": {
            f"property_{k}": {"count": 2 * k, "rows": [{"value": 100.0}, {"value": 0.3}][: 2 * k]}
            for k in range(targets)
        },
    }


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draw, and give the panels that are not empty."""
    kept: list[Figure] = []
    write = data_figures.write_png

    def keep(figure: Figure, out: Path) -> None:
        kept.append(figure)
        write(figure, out)

    monkeypatch.setattr(data_figures, "write_png", keep)

    def draw(*arguments: Any) -> list[Axes]:
        draw_dataset(tmp_path / "made.png", *arguments)
        assert (tmp_path / "made.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        return [axis for axis in kept[-1].axes if axis.axison]

    return draw


@pytest.mark.parametrize("targets", [1, pytest.param(6, marks=pytest.mark.stress)])
def test_a_panel_for_everything_and_none_empty(drawn: Any, targets: int) -> None:
    panels = drawn(overview(targets), findings(targets))
    assert len(panels) == 4 + targets + 1
    for axis in panels:
        assert axis.get_title(loc="left")
        assert axis.patches or axis.collections or axis.lines
    assert "6 duplicates in 3 sets" in panels[-1].get_title(loc="left")
    assert len(drawn(overview(targets))) == 4 + targets


def test_outliers_are_marked_inside_of_the_axis(drawn: Any) -> None:
    panels = drawn(overview(2), findings(2))
    _, labels = panels[5].get_legend_handles_labels()
    assert "2 outliers" in labels
    (marks,) = panels[5].collections
    places = np.asarray(marks.get_offsets())[:, 0]
    assert places == pytest.approx([0.3125, 3.9375])  # middles of the bins of 0.3 and of the end
    assert panels[5].get_yscale() == "log"
    assert panels[4].get_yscale() == "linear"
    assert not panels[4].collections
