"""Section on the parameters that matter most for accuracy, cost, memory and failures."""

from collections.abc import Sequence

import numpy as np

from hydragnn_hpo.report.charts import (
    Layout,
    Trace,
    axes,
    scatter,
    series_colour,
    short_names,
    titled_axis,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.importance import (
    BARS,
    METHODS,
    Importance,
    analyse_importance,
    beeswarm_offsets,
)
from hydragnn_hpo.report.observations import list_targets, observe_trials
from hydragnn_hpo.report.page_blocks import (
    Block,
    Doubtful,
    Figure,
    Section,
    Table,
    Text,
    make_table,
)

SHOWN = 12
"""Maximum number of parameters in a chart, the most important ones; the table shows all."""

SUBJECTS = {"mae": "accuracy", "cost": "cost", "memory": "memory", "failure": "failures"}


def make_section(facts: Facts) -> Section | None:
    """Show importances for each target; None before any trial has a measurement."""
    rows = observe_trials(facts)
    targets = list_targets(rows, facts.config.search.objective)
    analyses = [analyse_importance(facts.config, rows, t) for t in targets if t.key in SUBJECTS]
    if not analyses:
        return None
    blocks: list[Block] = [Text(METHODS), _trust(analyses)]
    for each in analyses:
        blocks += _blocks(each)
    first = analyses[0].target
    if first.log and first.key == "mae":
        text = (
            f"SHAP values of the {first.label} are of its natural logarithm: 0.1 is about 10 % "
            f"more. Compared are trials at the first rung, after {facts.config.search.rungs[0]} "
            "epochs, where all of them came to rest."
        )
        blocks.append(Text(text))
    heads = [t.key.removeprefix("mae.") for t in targets if t.key.startswith("mae.")]
    if len(heads) > 1:
        command = f"hydragnn-hpo importance {facts.run.path} --head {heads[0]}"
        blocks.append(Text(f"The MAE of one head by itself: {command}"))
    lead = (
        "Which searched parameters decided how accurate, how expensive and how large trials "
        "were, and which of them failed. What the trials cannot tell is greyed out."
    )
    return Section("importance", "What mattered", lead, tuple(blocks))


def _trust(analyses: Sequence[Importance]) -> Table:
    """Show for each target how well a model of the parameters predicts unseen trials."""
    columns = {
        "target": "explained",
        "trials": "trials",
        "r2": "out-of-bag R2",
        "verdict": "verdict",
    }
    rows = [
        (
            each.target.key,
            each.trials,
            each.skill,
            "not to be trusted" if each.doubt else "can be trusted",
        )
        for each in analyses
    ]
    note = (
        "Out-of-bag R2: share of the variance that a forest explains in trials that it has not "
        "seen; for failures, the Brier skill score against their base rate."
    )
    return make_table("trust", columns, rows, note)


def _blocks(found: Importance) -> list[Block]:
    """Return the charts and the table of one target; greyed out if it cannot be trusted."""
    if not found.effects:
        return [Text(f"{SUBJECTS[found.target.key].capitalize()}: {found.doubt}")]
    names = list(found.effects)[:SHOWN]
    height = 130 + 34 * len(names)
    blocks = (_bars(found, names, height), _swarm(found, names, height), _make_table(found))
    return list(blocks) if found.doubt is None else [Doubtful(found.doubt, blocks)]


def _bars(found: Importance, names: Sequence[str], height: int) -> Figure:
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": method,
            "y": list(short_names(names).values()),
            "x": np.array([getattr(found.effects[name], key) for name in names], dtype=float),
            "marker": {"color": series_colour(place)},
            "hovertemplate": "%{y}: %{x:.1%}",
        }
        for place, (key, method) in enumerate(BARS.items())
        if key != "ped_anova" or found.has_ped_anova
    ]
    share = titled_axis("share", tickformat=".0%", rangemode="tozero")
    return Figure(
        key=f"{found.target.key}.bars",
        title=f"What decides the {found.target.label}",
        caption=f"Shares of each parameter by three methods; the most by SHAP is {names[0]}.",
        data=tuple(traces),
        layout=axes(share, {"autorange": "reversed", "automargin": True}, barmode="group"),
        height=height,
    )


def _swarm(found: Importance, names: Sequence[str], height: int) -> Figure:
    """Draw a point for each explained trial and parameter."""
    places = [found.parameters.index(name) for name in names]
    x = np.concatenate([found.shap[:, place] for place in places])
    y = np.concatenate(
        [row + beeswarm_offsets(found.shap[:, place]) for row, place in enumerate(places)]
    )
    shade = np.concatenate([found.positions[:, place] for place in places])
    off = np.isnan(shade)
    unit = f" ({found.target.unit})" if found.target.unit else ""
    bar: Layout = {"tickvals": [0, 1], "ticktext": ["low", "high"], "thickness": 10}
    shading: Trace = {"color": shade[~off], "colorscale": "Viridis", "cmin": 0, "cmax": 1}
    parameters: Layout = {
        "tickvals": list(range(len(names))),
        "ticktext": list(short_names(names).values()),
        "range": [len(names) - 0.4, -0.6],
        "automargin": True,
        "zeroline": False,
    }
    return Figure(
        key=f"{found.target.key}.swarm",
        title=f"Each trial's part, {found.target.label}",
        caption=f"A point is one of {len(found.shap)} trials; to the left its value of the "
        "parameter makes the target less. The colour says whether that value is low or high "
        "(choices: first or last); points without it had the parameter switched off.",
        data=(
            _points(x[off], y[off], {"color": "faint", "opacity": 0.5}),
            _points(x[~off], y[~off], shading | {"showscale": True, "colorbar": bar}),
        ),
        layout=axes(titled_axis(f"SHAP value{unit}", zeroline=True), parameters, showlegend=False),
        height=height,
    )


def _points(x: np.ndarray, y: np.ndarray, marker: Trace) -> Trace:
    hover = "%{x:.3f}<extra></extra>"
    return scatter(x, y, "markers", marker={"size": 5, **marker}, hovertemplate=hover)


def _make_table(found: Importance) -> Table:
    columns = {
        "parameter": "parameter",
        "shap": ("mean |SHAP|", found.target.unit),
        "shap_share": ("SHAP", "%"),
        "fanova": ("fANOVA", "%"),
        "ped_anova": ("PED-ANOVA", "%"),
        "least_at": "least at",
    }
    rows = [
        (name, e.shap, e.shap_share, e.fanova, e.ped_anova, e.least_at)
        for name, e in found.effects.items()
    ]
    label = found.target.label
    note = f"Least at: the choice, or the third of the range, with the least {label}."
    return make_table(found.target.key, columns, rows, note)
