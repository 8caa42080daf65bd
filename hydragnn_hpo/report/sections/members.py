"""Section on the ensemble: its members, the correlation of their errors, error against size."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.report.charts import scatter, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Cell, Column, Figure, Section, Table, Text
from hydragnn_hpo.report.trial_scores import LEGEND, with_unit

NAMED = 14
"""Most members whose correlations are written into the cells."""
HEADS = 12
"""Most heads with charts of their own; the tables have all."""

_KINDS = (
    ("top", "sel_mae", "the best K, on sel", {"color": "c0", "width": 2}),
    ("greedy", "sel_mae", "greedy, on sel", {"color": "c2", "width": 2, "dash": "dash"}),
    ("top", "test_mae", "the best K, on test", {"color": "c1", "width": 2}),
    ("greedy", "test_mae", "greedy, on test", {"color": "c3", "width": 2, "dash": "dash"}),
)
"""Lines of the error against K."""


def make_section(facts: Facts) -> Section | None:
    """Show members, correlations of errors, and the error against the number of members."""
    if facts.ensemble is None:
        return None
    table = facts.ensemble
    blocks: list[Block] = [_members(facts, table), _diversity(table)]
    blocks += [_correlation(name, table["diversity"][name]) for name in _shared_heads(table)]
    if "by_size" in table:
        blocks += [_by_size(name, table) for name in list(table["heads"])[:HEADS]]
        blocks.append(_sizes(table))
    else:
        blocks.append(
            Text(
                "This ensemble was built before errors were kept for every number of members: "
                "'hydragnn-hpo ensemble build RUN' adds them."
            )
        )
    return Section(
        key="members",
        title="The ensemble",
        lead="Who is in it, do its members err in different ways, and would fewer or more do as "
        f"well? Kept: {'the K best' if table['method'] == 'top' else 'greedy selection'}, because "
        f"{table['why']}.",
        blocks=tuple(blocks),
    )


def _shared_heads(table: Mapping[str, Any]) -> list[str]:
    """Return the heads that two members or more predict."""
    found = [name for name, seen in table["diversity"].items() if len(seen["members"]) > 1]
    return found[:HEADS]


def _members(facts: Facts, table: Mapping[str, Any]) -> Table:
    heads = list(table["heads"])
    units = {name: head["unit"] for name, head in table["heads"].items()}
    sel = {one["trial"]: one["sel_mae"] for one in table.get("candidates", ())}
    convs = {row["trial"]: row["conv"] for row in table["leaderboard"]}
    columns = [
        Column("trial", "trial"),
        Column("weight", "weight", "%"),
        Column("conv", "conv"),
        Column("parameters", "parameters"),
        Column("objective", "objective", "MAE / std"),
        *(Column(f"val_mae.{name}", f"{name}, val MAE", units[name]) for name in heads),
        *(Column(f"sel_mae.{name}", f"{name}, sel MAE", units[name]) for name in heads if sel),
    ]
    rows = []
    for member in table["members"]:
        trial = facts.trials.get(member["trial"])
        known = sel.get(member["trial"], {})
        row: list[Cell] = [member["trial"], member["weight"], convs.get(member["trial"])]
        row += [None if trial is None else trial.parameters, member["objective"]]
        row += [member["val_mae"].get(name) for name in heads]
        row += [known.get(name) for name in heads if sel]
        rows.append(tuple(row))
    note = "Weight: the mean over heads. val chose the trials, sel the members."
    return Table("members", tuple(columns), tuple(rows), note)


def _diversity(table: Mapping[str, Any]) -> Table:
    columns = (
        Column("head", "head"),
        Column("unit", "unit"),
        Column("mean_correlation", "mean correlation of errors"),
        Column("member_rmse", "RMSE of a member"),
        Column("rmse", "RMSE of the mix"),
        Column("ambiguity", "ambiguity"),
        Column("gained", "mean square error saved", "%"),
    )
    rows = []
    for name, seen in table["diversity"].items():
        alone = seen["mean_member_mse"]
        rows.append(
            (
                name,
                table["heads"][name]["unit"],
                seen["mean_correlation"],
                float(np.sqrt(alone)),
                float(np.sqrt(seen["mse"])),
                seen["ambiguity"],
                seen["ambiguity"] / alone if alone else None,
            )
        )
    note = (
        "On sel. The mean square error of the mix is that of its members less the ambiguity (in "
        "the unit squared): the mean square by which they differ from the mix (Krogh and Vedelsby, "
        "1995)."
    )
    return Table("alike", columns, tuple(rows), note)


def _correlation(name: str, seen: Mapping[str, Any]) -> Figure:
    matrix, members = np.array(seen["correlation"], dtype=float), list(seen["members"])
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": matrix,
        "x": members,
        "y": members,
        "colorscale": "Viridis",
        "zmin": float(min(0.0, matrix.min())),
        "zmax": 1.0,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "r"}, "thickness": 12},
        "hovertemplate": "%{y} and %{x}: %{z:.3f}",
    }
    if len(members) <= NAMED:
        trace["texttemplate"] = "%{z:.2f}"
    return Figure(
        key=f"correlation.{name}",
        title=f"{name}: correlation of the members' errors",
        caption=f"Mean off the diagonal {seen['mean_correlation']:.2f}: at 1 members err alike and "
        "mixing them gains nothing; the lower, the more it does.",
        data=(trace,),
        layout={
            "xaxis": {"type": "category", "tickangle": -45, "constrain": "domain"},
            "yaxis": {
                "type": "category",
                "autorange": "reversed",
                "scaleanchor": "x",
                "constrain": "domain",
            },
        },
        height=420,
    )


def _by_size(name: str, table: Mapping[str, Any]) -> Figure:
    unit, kept = table["heads"][name]["unit"], len(table["members"])
    traces = []
    for method, split, label, line in _KINDS:
        sizes = [s for s in table["by_size"].get(method, ()) if _error(s, split, name) is not None]
        if sizes:
            traces.append(
                scatter(
                    np.array([s["members"] for s in sizes]),
                    np.array([s[split][name] for s in sizes]),
                    "lines+markers",
                    name=label,
                    text=[s["added"] for s in sizes],
                    line=line,
                    hovertemplate="%{x} members, with %{text}: %{y:.4g}",
                )
            )
    sizes = [s["members"] for s in table["by_size"]["top"]]
    return Figure(
        key=f"by_size.{name}",
        title=f"{name}: MAE against the number of members",
        caption=f"The error of the mean of 1 to {max(sizes)} members; the ensemble has {kept} "
        "(upright line). Where the lines are flat, further members are worth nothing. On test only "
        "members were run.",
        data=tuple(traces),
        layout={
            "xaxis": titled_axis("members", dtick=1 if max(sizes) <= 12 else 4),
            "yaxis": titled_axis(with_unit("MAE", unit)),
            "legend": LEGEND,
            "shapes": [_vertical_line(kept)],
        },
    )


def _vertical_line(x: float) -> dict[str, Any]:
    line = {"color": "faint", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _error(size: Mapping[str, Any], split: str, head: str) -> float | None:
    found: float | None = (size[split] or {}).get(head)
    return found


def _sizes(table: Mapping[str, Any]) -> Table:
    heads, most = table["heads"], max(len(sizes) for sizes in table["by_size"].values())
    columns = [Column("members", "members")]
    for name in heads:
        for method, split, label, _ in _KINDS:
            key = f"{method}_{split.removesuffix('_mae')}.{name}"
            columns.append(Column(key, f"{name}, {label}", heads[name]["unit"]))
    rows = [(str(k + 1), *_row(table["by_size"], list(heads), k)) for k in range(most)]
    return Table("by_size", tuple(columns), tuple(rows), "MAE of the mean of K members.")


def _row(by_size: Mapping[str, Any], heads: Sequence[str], place: int) -> list[Cell]:
    return [
        _error(by_size[method][place], split, name) if place < len(by_size[method]) else None
        for name in heads
        for method, split, _, _ in _KINDS
    ]
