"""Figure of a data set as a PNG: sizes, neighbours, elements, targets, outliers, leakage.

All numbers come from ``data.store_summary`` and ``data.quality``; nothing is computed here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.report.style import (
    ALARM,
    COLOURS,
    FAINT,
    INK,
    make_figure,
    set_title,
    tidy_axis,
    write_png,
)
from hydragnn_hpo.units import shown_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hydragnn_hpo.file_records import TargetStats

ELEMENTS = 18
"""Maximum number of elements shown."""

PLACES = (4, 3)
"""Possible numbers of panels in a row; the one with the fewest empty places is chosen."""

STEEP = 40.0
"""Share of the fullest bin (%) above which the vertical axis is logarithmic."""

_SHARED = (
    ("twins", "duplicate", ALARM),
    ("groups", "group", COLOURS[1]),
    ("compositions", "composition", COLOURS[4]),
)


def draw_dataset(
    out: Path, overview: Mapping[str, Any], findings: Mapping[str, Any] | None = None
) -> None:
    """Draw a data set into one PNG.

    Args:
        out: PNG file to write.
        overview: result of ``data.store_summary.describe_store``.
        findings: the report of ``data.quality.check_store``; None leaves out the marks of outliers
            and the panel on leakage.

    Raises:
        StorageError: the PNG cannot be written.
    """
    targets = overview["targets"]
    count = 4 + len(targets) + (findings is not None)
    places = min(PLACES, key=lambda wide: -count % wide)
    lines = -(-count // places)
    figure = make_figure(3.9 * places, 3.3 * lines, pad=0.08)
    axes = figure.subplots(lines, places, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    draw_sizes(axes[0], overview, "nodes", "atoms per graph")
    draw_sizes(axes[1], overview, "edges", f"edges per graph within {overview['cutoff']:g} A")
    draw_degrees(axes[2], overview)
    draw_elements(axes[3], overview["element_counts"])
    for axis, (name, target) in zip(axes[4:], targets.items(), strict=False):
        outliers = None if findings is None else findings["outliers"][name]
        draw_target(axis, name, target, overview["target_splits"][name], outliers)
    if findings is not None:
        draw_leakage(axes[count - 1], findings)
    text = f"{overview['name']}: {overview['num_graphs']:,} graphs"
    figure.suptitle(text, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    write_png(figure, out)


def draw_sizes(axis: "Axes", overview: Mapping[str, Any], key: str, label: str) -> None:
    """Draw the histogram of graph sizes; bins of doubling width get a logarithmic axis.

    Args:
        axis: the panel.
        overview: result of ``data.store_summary.describe_store``.
        key: ``nodes`` or ``edges``.
        label: label of the horizontal axis.
    """
    from matplotlib.ticker import MaxNLocator

    histogram = overview["histograms"][key]
    edges = np.array(histogram["edges"], dtype=np.float64)
    counts = histogram["counts"]
    widths = np.diff(edges)
    doubling = len(widths) > 2 and widths[-1] > 2 * widths[0]
    if doubling:
        edges = np.maximum(edges, 0.5)
        axis.set_xscale("log")
    whole = len(widths) and widths[0] == 1 and not doubling
    shift = 0.5 if whole else 0.0  # centres a bin of one integer on that integer
    axis.bar(
        edges[:-1] - shift, counts, np.diff(edges), align="edge", color=COLOURS[0],
        edgecolor="white", linewidth=0.4,
    )  # fmt: skip
    if len(widths) == 1:
        axis.set_xlim(edges[0] - 4 * widths[0], edges[-1] + 3 * widths[0])
    if whole:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel=label, ylabel="graphs")
    what = "atoms" if key == "nodes" else key
    set_title(axis, f"{overview[key]['mean']:,.1f} {what} on average")
    tidy_axis(axis)


def draw_degrees(axis: "Axes", overview: Mapping[str, Any]) -> None:
    """Draw the distribution of the number of neighbours, one line per cutoff."""
    total = max(overview["nodes"]["total"], 1)
    by_cutoff = list(overview["degrees"].items())
    # At most five cutoffs: the smallest, the largest, and some between.
    chosen = np.unique(
        np.linspace(0, len(by_cutoff) - 1, min(len(by_cutoff), 5)).round().astype(int)
    )
    for place, number in enumerate(chosen.tolist()):
        cutoff, degrees = by_cutoff[number]
        shares = 100.0 * np.array(degrees["all"]) / total
        colour = COLOURS[place % len(COLOURS)]
        label = f"{float(cutoff):g} A: {overview['degree'][cutoff]:.1f}"
        axis.stairs(shares, np.arange(len(shares) + 1) - 0.5, color=colour, label=label)
    axis.set(xlabel="neighbours", ylabel="atoms (%)", ylim=(0, None))
    axis.legend(title="cutoff: mean", fontsize=8, title_fontsize=8, frameon=False)
    set_title(axis, "neighbours of an atom")
    tidy_axis(axis)


def draw_elements(axis: "Axes", counts: Mapping[str, Mapping[str, int]]) -> None:
    """Draw the number of structures that contain each of the most frequent elements."""
    ranked = sorted(counts.items(), key=lambda pair: -pair[1]["structures"])[:ELEMENTS]
    names = [symbol for symbol, _ in ranked]
    places = np.arange(len(ranked))
    axis.bar(places, [number["structures"] for _, number in ranked], color=COLOURS[2], width=0.75)
    axis.set_xticks(places, names)
    axis.set(ylabel="structures with it", xlim=(-0.7, len(ranked) - 0.3))
    many = f"the first {len(ranked)} of {len(counts)}" if len(ranked) < len(counts) else "all"
    set_title(axis, f"elements ({many})")
    tidy_axis(axis)
    axis.tick_params(axis="x", labelsize=7 if len(ranked) > 12 else 8, length=0)
    axis.grid(visible=False, axis="x")


def draw_target(
    axis: "Axes",
    name: str,
    target: "TargetStats",
    splits: Mapping[str, Any],
    outliers: Mapping[str, Any] | None,
) -> None:
    """Draw the distribution of a target in every split; outliers as marks above the axis.

    Args:
        axis: the panel.
        name: name of the target.
        target: its level, shape and unit.
        splits: bins, and counts and missing values of each split.
        outliers: outliers that ``data.quality.check_store`` found; None draws no marks.
    """
    edges = np.array(splits["bins"])
    for place, split in enumerate(SPLITS):
        counts = np.array(splits[split]["counts"], dtype=np.float64)
        if counts.sum():
            first = split == "train"
            shares = 100.0 * counts / counts.sum()
            axis.stairs(
                shares, edges, label=split, fill=first, alpha=0.35 if first else 1.0,
                color=COLOURS[place], linewidth=1.0,
            )  # fmt: skip
    _scale(axis, target, splits)
    missing = splits["train"]["missing"]
    note = f" ({100 * missing:.0f} % missing)" if missing else ""
    set_title(axis, name.replace("_", " ") + note)
    if outliers is not None:
        _mark(axis, edges, [row["value"] for row in outliers["rows"]], outliers["count"])
    box: dict[str, Any] = {"facecolor": "white", "framealpha": 0.7, "edgecolor": "none"}
    axis.legend(fontsize=8, loc="best", handlelength=1.2, **box)
    tidy_axis(axis)


def _scale(axis: "Axes", target: "TargetStats", splits: Mapping[str, Any]) -> None:
    """Label the axes; for a steep distribution, make the vertical axis logarithmic."""
    edges = splits["bins"]
    unit = "" if target["unit"] == "1" else f" ({shown_unit(target)})"
    norm = "" if target["shape"] == "scalar" else "norm "
    what = f"{norm}per {'atom' if target['level'] == 'node' else 'structure'}{unit}"
    beyond = any(row["max"] is not None and row["max"] > edges[-1] for row in _splits(splits))
    axis.set_xlabel(f"{what}, last bin: and more" if beyond else what, fontsize=8.5)
    axis.set_ylabel("share of the split (%)")
    if max(max(row["counts"]) * 100.0 / max(row["values"], 1) for row in _splits(splits)) > STEEP:
        axis.set_yscale("log")
        axis.set_ylim(top=100.0)


def _splits(splits: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [splits[name] for name in SPLITS]


def _mark(axis: "Axes", edges: np.ndarray, values: Sequence[float], count: int) -> None:
    """Mark each bin that holds an outlier; values beyond the axis count in its end bins."""
    if not values:
        return
    bins = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    places = (edges[:-1] + edges[1:])[bins > 0] / 2
    label = f"{count:,} outlier{'' if count == 1 else 's'}"
    axis.scatter(
        places, np.full(len(places), 0.025), s=18, marker="v", color=ALARM, linewidths=0,
        transform=axis.get_xaxis_transform(), label=label, clip_on=False, zorder=3,
    )  # fmt: skip


def draw_leakage(axis: "Axes", findings: Mapping[str, Any]) -> None:
    """Draw the share of each split that also occurs in train; the title counts duplicates."""
    splits = findings["leakage"]["splits"]
    places = np.arange(len(splits))
    height = 0.26
    for offset, (key, label, colour) in zip((-1, 0, 1), _SHARED, strict=True):
        counts = [split[key] for split in splits.values()]
        shares = [100.0 * split[key] / max(split["structures"], 1) for split in splits.values()]
        where = places + offset * height
        axis.barh(where, shares, height=height * 0.9, color=colour, label=label)
        for y, share, count in zip(where, shares, counts, strict=True):
            ink = FAINT if not count else INK
            axis.text(share + 1.2, y, f"{count:,}", va="center", fontsize=7, color=ink)
    axis.set_yticks(places, [f"{name} ({split['structures']:,})" for name, split in splits.items()])
    axis.set(xlim=(0, 112), ylim=(len(splits) - 0.5, -0.5), xlabel="share that train has, too (%)")
    axis.set_xticks([0, 25, 50, 75, 100])
    duplicates = findings["duplicates"]
    sets = f"{duplicates['groups']:,} set{'' if duplicates['groups'] == 1 else 's'}"
    text = f"{duplicates['structures']:,} duplicates in {sets}"
    set_title(axis, f"leakage; {text if duplicates['groups'] else 'no duplicates'}")
    axis.legend(
        fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=3,
        columnspacing=0.8, handlelength=1.0, handletextpad=0.4,
    )  # fmt: skip
    tidy_axis(axis)
