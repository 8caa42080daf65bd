"""Section of slices: the objective against each parameter, and its partial dependence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.report.charts import scatter, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.importance import LEAST_SKILL
from hydragnn_hpo.report.observations import (
    Target,
    TrialObservation,
    list_targets,
    observe_trials,
    target_values,
)
from hydragnn_hpo.report.page_blocks import Block, Doubtful, Figure, Section, Text
from hydragnn_hpo.report.surrogate import (
    Dependence,
    draw_uniform,
    fill_inactive,
    fit_forest,
    make_design,
    partial_dependence,
)
from hydragnn_hpo.report.test_predictions import sample_evenly
from hydragnn_hpo.report.trial_scores import (
    axis,
    cell,
    goal_name,
    goal_unit,
    short_names,
    with_unit,
)
from hydragnn_hpo.search import choice_index

POINTS = 2000
"""Most points of a chart."""
CHARTS = 30
"""Most parameters that have a chart, in the order of the campaign."""
FEWEST = 10
"""Trials that a forest is fitted to at least."""
BACKGROUND = 150
"""Configurations over which a dependence is averaged."""

_GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 never bunch: points of one choice are spread by them."""


@dataclass(frozen=True)
class ForestFit:
    """Partial dependence by a forest that was fitted to the trials."""

    skill: float
    """Out-of-bag R2."""
    of: dict[str, Dependence]
    """By parameter, in the unit of the objective."""


def make_section(facts: Facts) -> Section | None:
    """Show a chart for each parameter; None before a trial has ended at the first rung."""
    every = observe_trials(facts)
    order = [k for k, row in enumerate(every) if "mae" in row.measured]
    if not order:
        return None
    rows, names = [every[k] for k in order], list(facts.config.space)[:CHARTS]
    forest_fit = _fit_forest(facts, rows, names) if len(rows) >= FEWEST else None
    sure = forest_fit is not None and forest_fit.skill >= LEAST_SKILL
    trials = FirstRung(facts, rows, np.array(order) + 1.0)
    blocks: list[Block] = []
    for name in names:
        over = forest_fit.of.get(name) if forest_fit is not None and sure else None
        blocks.append(trials.figure("slice", name, over))
    if forest_fit is None:
        blocks.append(Text(f"Partial dependence is trials from {FEWEST} trials on."))
    elif not sure:
        blocks.append(_doubtful(trials, forest_fit))
    rung = facts.config.search.rungs[0]
    return Section(
        key="slices",
        title="Slices",
        lead=f"Where along each parameter do good trials lie? Each dot is a trial after {rung} "
        "epochs, the first rung, so that all are comparable: later trials are brighter."
        + (f" {_dependence_lead(forest_fit)}" if forest_fit is not None and sure else ""),
        blocks=tuple(blocks),
    )


def _dependence_lead(forest_fit: ForestFit) -> str:
    return (
        "The line is what a forest of trees expects when only this parameter is changed (partial "
        f"dependence; it explains {100 * forest_fit.skill:.0f} % of the variance of trials that it "
        "has not seen)."
    )


def _doubtful(trials: "FirstRung", forest_fit: ForestFit) -> Doubtful:
    why = (
        "Partial dependence is not to be trusted here: the forest explains "
        f"{100 * max(forest_fit.skill, 0.0):.0f} % of the variance of trials that it has not seen "
        f"(out-of-bag R2 {forest_fit.skill:.2f}, trusted from {LEAST_SKILL:g} on)."
    )
    return Doubtful(why, tuple(trials.figure("dependence", n, d) for n, d in forest_fit.of.items()))


def _fit_forest(
    facts: Facts, rows: Sequence[TrialObservation], names: Sequence[str]
) -> ForestFit | None:
    """Fit a forest to the trials; None where all have the same objective."""
    target = next(t for t in list_targets(rows, facts.config.search.objective) if t.key == "mae")
    values, config = target_values(rows, target), facts.config
    if not np.ptp(values):
        return None
    design = make_design(config.space)
    forest = fit_forest(design.rows([row.values for row in rows]), values, seed=config.seed)
    search = config.search
    draws = draw_uniform(
        config.space,
        BACKGROUND,
        seed=config.seed,
        constraints=search.constraints,
        template=config.trial,
    )
    background = fill_inactive(config.space, draws, seed=config.seed)

    def predict(points: list[dict[str, Scalar]]) -> np.ndarray:
        found: np.ndarray = forest.model.predict(design.rows(points))
        return found

    of = {name: partial_dependence(config.space, name, predict, background) for name in names}
    return ForestFit(forest.skill, {n: _in_unit(d, target) for n, d in of.items() if d is not None})


def _in_unit(found: Dependence, target: Target) -> Dependence:
    """Convert expected logarithms to the unit of the objective."""
    expected = np.exp(found.expected) if target.log else found.expected
    return Dependence(found.values, expected)


@dataclass(frozen=True)
class FirstRung:
    """The trials that have a result at the first rung, and their charts."""

    facts: Facts
    rows: Sequence[TrialObservation]
    order: np.ndarray
    """Number of each trial, from 1 in the order of proposal."""

    def figure(self, kind: str, name: str, over: Dependence | None) -> Figure:
        """Draw the objective over one parameter.

        Args:
            kind: ``slice`` draws the trials, too.
            name: of the parameter.
            over: its partial dependence, if it is to be trials.
        """
        parameter = self.facts.config.space[name]
        here = [k for k, row in enumerate(self.rows) if name in row.values]
        scores = np.array([self.rows[k].measured["mae"] for k in here])
        here = [here[k] for k in sorted(sample_evenly(scores, POINTS).tolist())]
        every = np.array([row.measured["mae"] for row in self.rows])
        short = short_names(self.facts.config.space)[name]
        traces = [self._dots(name, here)] if kind == "slice" else []
        if over is not None:
            traces.append(_line(parameter, over))
        across, unit = _across(parameter, short), goal_unit(self.facts)
        best = self.rows[int(np.argmin(every))].values.get(name)
        return Figure(
            key=f"{kind}.{name}",
            title=short,
            caption=f"{len(here)} trials that have it; the best has {_value_text(best)}.",
            data=tuple(traces),
            layout={
                "xaxis": across,
                "yaxis": axis(every, with_unit(goal_name(self.facts), unit)),
                "showlegend": False,
                "hovermode": "closest",
            },
            height=320,
        )

    def _dots(self, name: str, here: Sequence[int]) -> dict[str, Any]:
        values = [self.rows[k].values[name] for k in here]
        places = _places(self.facts.config.space[name], values, self.order[list(here)])
        marker = {
            "color": self.order[list(here)],
            "colorscale": "Viridis",
            "cmin": 1,
            "cmax": float(max(self.order.max(), 2.0)),
            "showscale": True,
            "colorbar": {"title": {"text": "trial"}, "thickness": 10},
            "size": 6,
            "opacity": 0.8,
        }
        scores = np.array([self.rows[k].measured["mae"] for k in here])
        hover = "trial %{marker.color:.0f}: %{x:.4g}, %{y:.4g}<extra></extra>"
        return scatter(places, scores, "markers", name="trials", marker=marker, hovertemplate=hover)


def _value_text(value: Scalar | None) -> str:
    if value is None:
        return "no such parameter"
    return f"{value:.4g}" if isinstance(value, float) else str(cell(value))


def _places(parameter: ParameterConfig, values: Sequence[Scalar], order: np.ndarray) -> np.ndarray:
    """Return places on the axis; choices are numbered, and their points spread."""
    if parameter.choices is None:
        return np.array(values, dtype=float)
    spread = 0.5 * ((order * _GOLDEN) % 1.0 - 0.5)
    numbered: np.ndarray = np.array([choice_index(parameter, v) for v in values]) + spread
    return numbered


def _across(parameter: ParameterConfig, name: str) -> dict[str, Any]:
    if parameter.choices is not None:
        ticks = [str(cell(choice)) for choice in parameter.choices]
        ends = [-0.5, len(ticks) - 0.5]
        places = list(range(len(ticks)))
        return titled_axis(name, tickvals=places, ticktext=ticks, range=ends)
    return titled_axis(name, type="log" if parameter.log else "linear")


def _line(parameter: ParameterConfig, over: Dependence) -> dict[str, Any]:
    text = {"name": "partial dependence", "hovertemplate": "expected %{y:.4g}<extra></extra>"}
    if parameter.choices is None:
        line = {"color": "c1", "width": 3}
        return scatter(np.array(over.values, float), over.expected, "lines", line=line, **text)
    marker = {"color": "c1", "size": 13, "symbol": "diamond", "line": {"color": "ink", "width": 1}}
    return scatter(np.arange(len(over.values)), over.expected, "markers", marker=marker, **text)
