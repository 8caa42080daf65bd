"""Section on the parameters that matter most for accuracy, cost, memory and failures."""

from collections.abc import Sequence

import numpy as np

from hydragnn_hpo.report.charts import (
    DOTS,
    Layout,
    Trace,
    axes,
    scatter,
    series_colour,
    short_names,
    titled_axis,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.importance import METHODS, Importance, analyse_importance, beeswarm_offsets
from hydragnn_hpo.report.observations import list_targets, observe_trials
from hydragnn_hpo.report.page_blocks import (
    Block,
    Doubtful,
    Figure,
    Fold,
    Section,
    Table,
    Text,
    make_table,
)

SHOWN = 12
"""Maximum number of parameters in a chart, the most important ones; the table shows all."""

BARS = {"shap_share": "SHAP", "fanova": "fANOVA", "ped_anova": "PED-ANOVA"}
"""Shares that are drawn side by side: name of the method by attribute of an effect."""

COUNTS = {2: "two", 3: "three"}
"""Numbers of methods in words."""

SUBJECTS = {"mae": "accuracy", "cost": "cost", "memory": "memory", "failure": "failures"}


def make_section(facts: Facts) -> Section | None:
    """Show importances for each target; None before any trial has a measurement."""
    rows = observe_trials(facts)
    targets = list_targets(rows, facts.config.search.objective)
    analyses = [analyse_importance(facts.config, rows, t) for t in targets if t.key in SUBJECTS]
    if not analyses:
        return None
    first = analyses[0]
    blocks = _trusted(first, _bars(first)) or [Text(f"Accuracy: {first.doubt}")]
    if first.doubt is None:
        blocks.insert(0, Text(_conclusion(first)))
    more: list[Block] = [_trust(analyses)]
    for each in analyses:
        more += _blocks(each, with_bars=each is not first)
    more.append(Text(METHODS))
    if first.target.log and first.target.key == "mae":
        text = (
            f"SHAP values of the {first.target.label} are of its natural logarithm: 0.1 is about "
            f"10 % more. Trials are compared at the first rung, after "
            f"{facts.config.search.rungs[0]} epochs, which all of them reached."
        )
        more.append(Text(text))
    heads = [t.key.removeprefix("mae.") for t in targets if t.key.startswith("mae.")]
    if len(heads) > 1:
        command = f"hydragnn-hpo importance {facts.run.path} --head {heads[0]}"
        more.append(Text(f"The MAE of one target by itself: {command}"))
    blocks.append(Fold("Cost, memory, failures, and each trial's part", tuple(more)))
    lead = (
        "Which searched parameters decided how accurate trials were? What the trials cannot tell "
        "is greyed out."
    )
    return Section("importance", "Hyperparameters", lead, tuple(blocks))


def _conclusion(found: Importance) -> str:
    """Return what trusted importances say, in a sentence."""
    names = list(short_names(found.effects).values())
    return (
        f"The {found.target.label} depends most on {' and '.join(names[:2])}: a model of "
        f"{found.trials} trials explains {100 * (found.skill or 0.0):.0f} % of the variance of "
        "trials that it has not seen."
    )


def _trusted(found: Importance, *blocks: Block | None) -> list[Block]:
    """Return blocks, greyed out if what they show cannot be trusted."""
    known = tuple(block for block in blocks if block is not None)
    if found.doubt is None or not known:
        return list(known)
    return [Doubtful(f"Not to be trusted. {found.doubt}", known)]


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


def _blocks(found: Importance, *, with_bars: bool) -> list[Block]:
    """Return the charts and the table of one target; greyed out if it cannot be trusted."""
    if not found.effects:
        return [Text(f"{SUBJECTS[found.target.key].capitalize()}: {found.doubt}")]
    bars = _bars(found) if with_bars else None
    return _trusted(found, bars, _swarm(found), _make_table(found))


def _shown(found: Importance) -> tuple[list[str], int]:
    """Return the parameters in a chart, and its height in pixels."""
    names = list(found.effects)[:SHOWN]
    return names, 110 + 30 * len(names)


def _bars(found: Importance) -> Figure | None:
    """Draw the shares of the parameters by each method; None if there are none."""
    if not found.effects:
        return None
    names, height = _shown(found)
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
        name=f"importance.{found.target.key}",
        title=f"What decides the {found.target.label}",
        caption=f"Share of each parameter by {COUNTS[len(traces)]} methods; SHAP gives the largest "
        f"to {short_names(names)[names[0]]}.",
        data=tuple(traces),
        layout=axes(share, {"autorange": "reversed", "automargin": True}, barmode="group"),
        height=height,
    )


def _swarm(found: Importance) -> Figure:
    """Draw a point for each explained trial and parameter."""
    names, height = _shown(found)
    places = [found.parameters.index(name) for name in names]
    x = np.concatenate([found.shap[:, place] for place in places])
    y = np.concatenate(
        [row + beeswarm_offsets(found.shap[:, place]) for row, place in enumerate(places)]
    )
    shade = np.concatenate([found.positions[:, place] for place in places])
    off = np.isnan(shade)
    unit = f" ({found.target.unit})" if found.target.unit else ""
    bar: Layout = {"tickvals": [0, 1], "ticktext": ["low", "high"], "thickness": 10}
    shading: Trace = {"color": shade[~off], "colorscale": DOTS, "cmin": 0, "cmax": 1}
    parameters: Layout = {
        "tickvals": list(range(len(names))),
        "ticktext": list(short_names(names).values()),
        "range": [len(names) - 0.4, -0.6],
        "automargin": True,
        "zeroline": False,
    }
    return Figure(
        key=f"{found.target.key}.swarm",
        name=f"importance_by_trial.{found.target.key}",
        title=f"Effect on each trial: {found.target.label}",
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
        **({"ped_anova": ("PED-ANOVA", "%")} if found.has_ped_anova else {}),
        "least_at": "lowest at",
    }
    rows = [
        (name, *(getattr(effect, key) for key in columns if key != "parameter"))
        for name, effect in found.effects.items()
    ]
    label = found.target.label
    note = f"Lowest at: the choice, or the third of the range, with the lowest {label}."
    return make_table(found.target.key, columns, rows, note)
