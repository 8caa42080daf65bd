"""Section of slices: the objective against each parameter, and its partial dependence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.report.charts import (
    DOTS,
    Layout,
    Trace,
    axes,
    fitting_axis,
    scatter,
    short_names,
    titled_axis,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.importance import LEAST_SKILL
from hydragnn_hpo.report.observations import (
    TrialObservation,
    list_targets,
    observe_trials,
    target_values,
)
from hydragnn_hpo.report.page_blocks import (
    Block,
    Doubtful,
    Figure,
    Row,
    Section,
    Text,
    searched_cell,
)
from hydragnn_hpo.report.sections.parallel import GOLDEN_RATIO
from hydragnn_hpo.report.surrogate import (
    Dependence,
    draw_uniform,
    encode,
    fit_forest,
    partial_dependence,
)
from hydragnn_hpo.report.test_predictions import sample_evenly
from hydragnn_hpo.search.space import choice_index

POINTS = 2000
"""Maximum number of points in a chart."""
CHARTS = 30
"""Maximum number of parameters with a chart, in the order of the campaign."""
FEWEST = 10
"""Minimum number of trials to fit a forest to."""
BACKGROUND = 150
"""Number of configurations over which a partial dependence is averaged."""


@dataclass(frozen=True)
class ForestFit:
    """Partial dependence according to a forest fitted to the trials."""

    skill: float
    """Out-of-bag R2."""
    of: Mapping[str, Dependence]
    """Dependence by parameter, in the unit of the objective."""


def make_section(facts: Facts) -> Section | None:
    """Show a chart for each parameter; None before a trial has ended at the first rung."""
    every = observe_trials(facts)
    order = [k for k, row in enumerate(every) if "mae" in row.measured]
    if not order:
        return None
    rows = [every[k] for k in order]
    names = list(facts.config.space)[:CHARTS]
    fit = _fit_forest(facts, rows, names) if len(rows) >= FEWEST else None
    lines = fit.of if fit is not None and fit.skill >= LEAST_SKILL else {}
    every_name = list(facts.trials)
    trials = FirstRung(facts, rows, np.array(order) + 1.0, [every_name[k] for k in order])
    blocks: list[Block] = [Row(tuple(trials.draw(name, lines.get(name)) for name in names))]
    rung = facts.config.search.rungs[0]
    lead = (
        f"Where along each parameter do good trials lie? Each dot is a trial after {rung} epochs, "
        "the first rung, so that all are comparable; the colour is its number."
    )
    if fit is None:
        blocks.append(Text(f"Partial dependence is computed from {FEWEST} trials on."))
    elif fit.skill < LEAST_SKILL:
        why = (
            "Partial dependence is not to be trusted here: the forest explains "
            f"{100 * max(fit.skill, 0.0):.0f} % of the variance of trials that it has not seen "
            f"(out-of-bag R2 {fit.skill:.2f}, trusted from {LEAST_SKILL:g} on)."
        )
        charts = (trials.draw(name, over, dots=False) for name, over in fit.of.items())
        blocks.append(Doubtful(why, (Row(tuple(charts)),)))
    else:
        lead += (
            " The line is what a forest of trees expects when only this parameter is changed "
            f"(partial dependence; it explains {100 * fit.skill:.0f} % of the variance of trials "
            "that it has not seen)."
        )
    return Section("slices", "Each parameter by itself", lead, tuple(blocks), folded=True)


def _fit_forest(
    facts: Facts, rows: Sequence[TrialObservation], names: Sequence[str]
) -> ForestFit | None:
    """Fit a forest to the trials; return None if all have the same objective.

    Args:
        facts: content of the run directory.
        rows: the trials.
        names: parameters whose dependence is computed.
    """
    config = facts.config
    target = next(t for t in list_targets(rows, config.search.objective) if t.key == "mae")
    values = target_values(rows, target)
    if not np.ptp(values):
        return None
    forest = fit_forest(
        encode(config.space, (row.values for row in rows)), values, seed=config.seed
    )
    background = draw_uniform(config, BACKGROUND, seed=config.seed)

    def predict(points: list[dict[str, Scalar]]) -> np.ndarray:
        predicted: np.ndarray = forest.predict(encode(config.space, points))
        return predicted

    of = {}
    for name in names:
        over = partial_dependence(config.space, name, predict, background)
        if over is not None:
            expected = np.exp(over.expected) if target.log else over.expected
            of[name] = Dependence(over.values, expected)
    return ForestFit(float(forest.oob_score_), of)


@dataclass(frozen=True)
class FirstRung:
    """The trials that have a result at the first rung, and their charts."""

    facts: Facts
    rows: Sequence[TrialObservation]
    order: np.ndarray
    """Number of each trial, from 1 in the order of proposal."""
    names: Sequence[str]
    """Names of the trials."""

    def draw(self, name: str, over: Dependence | None, *, dots: bool = True) -> Figure:
        """Draw the objective against one parameter.

        Args:
            name: name of the parameter.
            over: its partial dependence; None draws none.
            dots: whether to draw the trials as dots.
        """
        facts = self.facts
        parameter = self.facts.config.space[name]
        here = [k for k, row in enumerate(self.rows) if name in row.values]
        every = np.array([row.measured["mae"] for row in self.rows])
        here = [here[k] for k in sorted(sample_evenly(every[here], POINTS).tolist())]
        traces = [self._dots(name, here, every[here])] if dots else []
        if over is not None:
            traces.append(_line(parameter, over))
        best = self.rows[int(np.argmin(every))].values.get(name)
        text = f"{best:.4g}" if isinstance(best, float) else str(searched_cell(best))
        short = short_names(facts.config.space)[name]
        return Figure(
            key=f"{'slice' if dots else 'dependence'}.{name}",
            name=f"slice.{name}",
            title=short,
            caption=f"{len(here)} trials that have it; the best has "
            f"{'no such parameter' if best is None else text}.",
            data=tuple(traces),
            layout=axes(
                _axis(parameter, short),
                fitting_axis(every, with_unit(facts.goal_name(), facts.goal_unit())),
                showlegend=False,
                hovermode="closest",
            ),
            height=320,
        )

    def _dots(self, name: str, here: list[int], scores: np.ndarray) -> Trace:
        parameter, order = self.facts.config.space[name], self.order[here]
        values = [self.rows[k].values[name] for k in here]
        if parameter.choices is None:
            places = np.array(values, dtype=float)
        else:  # each choice has a number; its points are spread around it
            places = np.array([choice_index(parameter, value) for value in values], dtype=float)
            places += 0.5 * ((order * GOLDEN_RATIO) % 1.0 - 0.5)
        marker: Trace = {
            "color": order,
            "colorscale": DOTS,
            "cmin": 1,
            "cmax": float(max(self.order.max(), 2.0)),
            "showscale": True,
            "colorbar": {"title": {"text": "trial"}, "thickness": 10},
            "size": 6,
            "opacity": 0.8,
        }
        return scatter(
            places,
            scores,
            "markers",
            name="trials",
            text=[self.names[k] for k in here],
            marker=marker,
            hovertemplate="%{text}: %{x:.4g}, %{y:.4g}<extra></extra>",
        )


def _axis(parameter: ParameterConfig, name: str) -> Layout:
    if parameter.choices is None:
        return titled_axis(name, type="log" if parameter.log else "linear")
    ticks = [str(searched_cell(choice)) for choice in parameter.choices]
    places = list(range(len(ticks)))
    return titled_axis(name, tickvals=places, ticktext=ticks, range=[-0.5, len(ticks) - 0.5])


def _line(parameter: ParameterConfig, over: Dependence) -> Trace:
    text = {"name": "partial dependence", "hovertemplate": "expected %{y:.4g}<extra></extra>"}
    if parameter.choices is None:
        line: Trace = {"color": "c1", "width": 3}
        return scatter(np.array(over.values, float), over.expected, "lines", line=line, **text)
    outline: Trace = {"color": "ink", "width": 1}
    marker: Trace = {"color": "c1", "size": 13, "symbol": "diamond", "line": outline}
    return scatter(np.arange(len(over.values)), over.expected, "markers", marker=marker, **text)
