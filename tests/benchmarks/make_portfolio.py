"""Make the portfolio: settings that do well on recorded data sets, a few for all of them.

Each recorded set tells by Gaussian processes over its configurations, so that a lucky seed counts
little, which share of random configurations is better than a given one: by the objective, and by
the error of each head, as other data have other heads. Greedily, the next entry is the recorded
configuration that lowers the mean of the best shares most for what it costs. There is a portfolio
of nets that may begin from features of a foundation model, and one of nets that begin from elements
alone. Writes ``hydragnn_hpo/search/portfolio.toml``; what it is worth on a set that it was made
without, ``search.py`` measures.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
from curve_table import SETS, CurveTable, is_recorded
from record import finish, make_parser

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.search.brains.gaussian_process_brain import (
    Encoder,
    Observations,
    RungProcess,
    fit_hyperparameters,
    scale_scores,
)
from hydragnn_hpo.search.objective import TrialScore
from hydragnn_hpo.search.portfolio import EMBEDDING, PORTFOLIOS, Kind, fit_to_space
from hydragnn_hpo.search.space import active_parameters, configuration_key, middle_value

Values = dict[str, Scalar]

ENTRIES = 16
COST_POWER = 0.5
"""Power of an entry's time over the median of its set by which its merit is divided: 0 chooses the
best whatever they cost, 1 the most for a second."""
DIGITS = 2
"""Significant digits of an entry's numbers."""
HEADER = """\
# Settings that did well on recorded data sets, the most useful first: of nets that may begin from
# features of a foundation model, and of nets that begin from elements alone. Made by
# tests/benchmarks/make_portfolio.py from the curves of
# {sets}.
"""


class Judge:
    """Which share of random configurations is better than a given one, by a recorded figure."""

    def __init__(self, space: Space, rows: np.ndarray, reached: np.ndarray) -> None:
        """Fit a Gaussian process.

        Args:
            space: of the recorded set.
            rows: its encoded configurations, [n, D].
            reached: a figure of each, the lower the better, [n].
        """
        self._space = space
        self._encoder = Encoder(space)
        results = [TrialScore({}, float(one)) for one in reached]
        places = np.arange(len(rows))
        data = Observations(places, rows, 0.0 * places, places, scale_scores(results))
        self._process = RungProcess(data, fit_hyperparameters(data, self._encoder.groups))
        self._expected = np.sort(self._process.predict(rows)[0])

    def find_shares(self, entries: Sequence[Values]) -> np.ndarray:
        """Return for each entry the share that is expected to be better; 1 if the set lacks it."""
        middle = {key: middle_value(parameter) for key, parameter in self._space.items()}
        points = [fit_to_space(entry, self._space) for entry in entries]
        able = [place for place, point in enumerate(points) if point is not None]
        shares = np.ones(len(entries))
        if able:
            whole = [active_parameters(self._space, middle | (points[i] or {})) for i in able]
            rows = np.array([self._encoder.encode(values) for values in whole])
            better = np.searchsorted(self._expected, self._process.predict(rows)[0])
            shares[able] = better / len(self._expected)
        return shares


def make_judges(table: CurveTable) -> list[Judge]:
    """Return a judge of a set's objective, and one of each head's error."""
    encoder = Encoder(table.space)
    rows = np.array([encoder.encode(values) for values in table.values])
    figures = [table.reached, *table.errors.values()]
    return [Judge(table.space, rows, reached) for reached in figures]


def make_portfolio(tables: Sequence[CurveTable], count: int) -> list[Values]:
    """Choose entries greedily, each for what it adds to those before, and for what it costs.

    Args:
        tables: recorded sets of one kind; each counts alike.
        count: entries.
    """
    candidates, costs = list_candidates(tables)
    judges = [(judge, table) for table in tables for judge in make_judges(table)]
    shares = np.array([judge.find_shares(candidates) for judge, _ in judges])
    weights = np.array([1.0 / (1 + len(table.errors)) for _, table in judges])
    best = np.ones(len(judges))
    chosen: list[int] = []
    for _ in range(min(count, len(candidates))):
        gains = weights @ np.maximum(best[:, None] - shares, 0.0) / costs
        gains[chosen] = -1.0
        # Where nothing lowers the best, the entry that is good everywhere is the next.
        chosen.append(int(np.lexsort((weights @ shares * costs, -gains))[0]))
        best = np.minimum(best, shares[:, chosen[-1]])
    return [candidates[place] for place in chosen]


def list_candidates(tables: Sequence[CurveTable]) -> tuple[list[Values], np.ndarray]:
    """Return what an entry may be: recorded configurations, each once, and their costs.

    Args:
        tables: recorded sets.

    Returns:
        n candidates; by what their merits are divided, [n].
    """
    known: dict[str, tuple[Values, list[float]]] = {}
    for table in tables:
        for values, times in zip(
            table.values, table.seconds / np.median(table.seconds), strict=True
        ):
            entry = round_values(values)
            known.setdefault(configuration_key(entry), (entry, []))[1].append(float(times))
    costs = [statistics.geometric_mean(times) ** COST_POWER for _, times in known.values()]
    return [entry for entry, _ in known.values()], np.array(costs)


def round_values(values: Mapping[str, Scalar]) -> Values:
    """Return values with as many digits as a person would write."""
    return {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for key, value in values.items()
    }


def kind_of(table: CurveTable) -> Kind:
    """Return the portfolio that a set is for."""
    return "features" if EMBEDDING in table.space else "elements"


def make_without(tables: Sequence[CurveTable], left_out: CurveTable) -> list[Values]:
    """Return the portfolio that other sets make, as the configurations of the one left out.

    Args:
        tables: all recorded sets.
        left_out: one of them.

    Returns:
        Nothing where no other set is of its kind.
    """
    kind = kind_of(left_out)
    space = left_out.space
    others = [t for t in tables if t.name != left_out.name and kind_of(t) == kind]
    if not others:
        return []
    middle = {key: middle_value(parameter) for key, parameter in space.items()}
    points = [fit_to_space(entry, space) for entry in make_portfolio(others, ENTRIES)]
    return [active_parameters(space, middle | point) for point in points if point is not None]


def main() -> None:
    options = make_parser(__doc__).parse_args()
    tables = [CurveTable(name) for name in SETS if is_recorded(name)]
    made = {
        kind: make_portfolio([t for t in tables if kind_of(t) == kind], ENTRIES)
        for kind in get_args(Kind)
    }
    if not options.smoke:
        PORTFOLIOS.write_text(HEADER.format(sets=", ".join(t.name for t in tables)) + write(made))
    finish(__file__, {kind: len(entries) for kind, entries in made.items()}, keep=False)


def write(made: Mapping[str, Sequence[Values]]) -> str:
    """Return portfolios as TOML, a table for each entry."""
    blocks = []
    for kind, entries in made.items():
        for entry in entries:
            lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entry.items()]
            blocks.append("\n".join(["", f"[[{kind}]]", *lines, ""]))
    return "".join(blocks)


if __name__ == "__main__":
    main()
