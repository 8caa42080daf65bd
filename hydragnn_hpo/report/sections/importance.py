"""Section on importance: the parameters that decide accuracy, cost, memory and failures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.report.charts import scatter, series_colour, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.importance import METHODS, Importance, analyse_importance, beeswarm_offsets
from hydragnn_hpo.report.observations import list_targets, observe_trials
from hydragnn_hpo.report.page_blocks import Block, Column, Doubtful, Figure, Section, Table, Text
from hydragnn_hpo.report.trial_scores import short_names

SHOWN = 12
"""Parameters of a chart, the most important ones; its table has all."""

BARS = {"shap_share": "SHAP", "fanova": "fANOVA", "ped_anova": "PED-ANOVA"}

SUBJECTS = {"mae": "accuracy", "cost": "cost", "memory": "memory", "failure": "failures"}

ABOUT_LOGARITHMS = (
    "SHAP values of {label} are of its natural logarithm: 0.1 is about 10 % more. Compared are "
    "trials at the first rung, after {epochs} epochs, where all of them came to rest."
)
ABOUT_HEADS = "The MAE of one head by itself: hydragnn-hpo importance {run} --head {head}"


def make_section(facts: Facts) -> Section | None:
    """Show importances for each target; None before any trial has a measurement."""
    rows = observe_trials(facts)
    targets = list_targets(rows, facts.config.search.objective)
    wanted = [target for target in targets if target.key in SUBJECTS]
    if not wanted:
        return None
    found = [analyse_importance(facts.config, rows, target) for target in wanted]
    blocks: list[Block] = [Text(METHODS), _trust(found)]
    for each in found:
        blocks += _blocks(each)
    if found[0].target.log and found[0].target.key == "mae":
        label, rung = found[0].target.label, facts.config.search.rungs[0]
        blocks.append(Text(ABOUT_LOGARITHMS.format(label=f"the {label}", epochs=rung)))
    heads = [t.key.removeprefix("mae.") for t in targets if t.key.startswith("mae.")]
    if len(heads) > 1:
        blocks.append(Text(ABOUT_HEADS.format(run=facts.run.path, head=heads[0])))
    return Section(
        key="importance",
        title="What mattered",
        lead="Which searched parameters decided how accurate, how expensive and how large trials "
        "were, and which of them failed. What the trials cannot tell is greyed out.",
        blocks=tuple(blocks),
    )


def _trust(found: Sequence[Importance]) -> Table:
    """Show for each target how well a model of the parameters predicts unseen trials."""
    return Table(
        key="trust",
        columns=(
            Column("target", "explained"),
            Column("trials", "trials"),
            Column("r2", "out-of-bag R2"),
            Column("verdict", "verdict"),
        ),
        rows=tuple(
            (
                each.target.key,
                each.trials,
                each.skill,
                "not to be trusted" if each.doubt else "can be trusted",
            )
            for each in found
        ),
        note="Out-of-bag R2: share of the variance that a forest explains in trials that it has "
        "not seen; for failures, the Brier skill score against their base rate.",
    )


def _blocks(found: Importance) -> list[Block]:
    """Return the charts and the table of one target; greyed out if it cannot be trusted."""
    if not found.effects:
        return [Text(f"{SUBJECTS[found.target.key].capitalize()}: {found.doubt}")]
    blocks: tuple[Block, ...] = (_bars(found), _swarm(found), _make_table(found))
    return list(blocks) if found.doubt is None else [Doubtful(found.doubt, blocks)]


def _bars(found: Importance) -> Figure:
    names = list(found.effects)[:SHOWN]
    first = names[0]
    traces = []
    for place, (key, method) in enumerate(BARS.items()):
        if key == "ped_anova" and not found.has_ped_anova:
            continue
        shares = [getattr(found.effects[name], key) for name in names]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": method,
                "y": list(short_names(names).values()),
                "x": np.array(shares, dtype=float),
                "marker": {"color": series_colour(place)},
                "hovertemplate": "%{y}: %{x:.1%}",
            }
        )
    return Figure(
        key=f"{found.target.key}.bars",
        title=f"What decides the {found.target.label}",
        caption=f"Shares of each parameter by three methods; the most by SHAP is {first}.",
        data=tuple(traces),
        layout={
            "barmode": "group",
            "xaxis": titled_axis("share", tickformat=".0%", rangemode="tozero"),
            "yaxis": {"autorange": "reversed", "automargin": True},
        },
        height=_height(len(names)),
    )


def _swarm(found: Importance) -> Figure:
    """Draw a point for each explained trial and parameter."""
    names = list(found.effects)[:SHOWN]
    effects, heights, at = [], [], []
    for row, name in enumerate(names):
        place = found.parameters.index(name)
        effects.append(found.shap[:, place])
        heights.append(row + beeswarm_offsets(found.shap[:, place]))
        at.append(found.positions[:, place])
    x, y, shade = map(np.concatenate, (effects, heights, at))
    off = np.isnan(shade)
    unit = f" ({found.target.unit})" if found.target.unit else ""
    return Figure(
        key=f"{found.target.key}.swarm",
        title=f"Each trial's part, {found.target.label}",
        caption=f"A point is one of {len(found.shap)} trials; to the left its value of the "
        "parameter makes the target less. The colour says whether that value is low or high "
        "(choices: first or last); points without it had the parameter switched off.",
        data=(
            _points(x[off], y[off], {"color": "faint", "opacity": 0.5}),
            _points(x[~off], y[~off], _shading(shade[~off])),
        ),
        layout={
            "showlegend": False,
            "xaxis": titled_axis(f"SHAP value{unit}", zeroline=True),
            "yaxis": {
                "tickvals": list(range(len(names))),
                "ticktext": list(short_names(names).values()),
                "range": [len(names) - 0.4, -0.6],
                "automargin": True,
                "zeroline": False,
            },
        },
        height=_height(len(names)),
    )


def _points(x: Any, y: Any, marker: Mapping[str, Any]) -> dict[str, Any]:
    hover = "%{x:.3f}<extra></extra>"
    return scatter(x, y, "markers", marker={"size": 5, **marker}, hovertemplate=hover)


def _shading(shade: Any) -> dict[str, Any]:
    bar = {"tickvals": [0, 1], "ticktext": ["low", "high"], "thickness": 10}
    return {
        "color": shade,
        "colorscale": "Viridis",
        "cmin": 0,
        "cmax": 1,
        "showscale": True,
        "colorbar": bar,
    }


def _make_table(found: Importance) -> Table:
    return Table(
        key=found.target.key,
        columns=(
            Column("parameter", "parameter"),
            Column("shap", "mean |SHAP|", found.target.unit),
            Column("shap_share", "SHAP", "%"),
            Column("fanova", "fANOVA", "%"),
            Column("ped_anova", "PED-ANOVA", "%"),
            Column("least_at", "least at"),
        ),
        rows=tuple(
            (name, e.shap, e.shap_share, e.fanova, e.ped_anova, e.least_at)
            for name, e in found.effects.items()
        ),
        note="Least at: the choice, or the third of the range, with the least "
        f"{found.target.label}.",
    )


def _height(count: int) -> int:
    return 130 + 34 * count
