"""Charts of the report as plotly figures, by name, for notebooks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.optional_packages import explain_missing
from hydragnn_hpo.report.charts import LIGHT, SERIES, Layout, PlotlyValue
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Doubtful, Figure, Fold, Row
from hydragnn_hpo.report.sections import FIGURES, SECTIONS

if TYPE_CHECKING:
    import plotly.graph_objects


_COLOUR = re.compile("color", re.IGNORECASE)
_NO_COLOUR = re.compile("text|name", re.IGNORECASE)
"""Keys of plotly whose values are colours, and keys below them whose values are not."""


def make_plotly_figure(
    facts: Facts, name: str, of: str | None = None
) -> "plotly.graph_objects.Figure":
    """Return a chart of the report as a plotly figure.

    Args:
        facts: content of the run directory.
        name: a key of ``FIGURES``, or ``NAME.OF``.
        of: what it is of: a head (``parity``), a parameter (``slice``), a cost (``pareto``); None
            takes the first.

    Raises:
        ConfigError: there is no such name, or no chart of this, or Plotly is not installed.
        RunError: the run has nothing to show for it yet.
    """
    name, _, after = name.partition(".") if of is None else (name, "", of)
    if name not in FIGURES:
        raise ConfigError(unknown("figure", name, FIGURES))
    section = SECTIONS[FIGURES[name]](facts)
    charts: dict[str, tuple[Figure, str]] = {}
    for figure, doubt in _figures(() if section is None else section.blocks):
        named, _, shown = figure.name.partition(".")
        if named == name:
            charts[shown] = figure, doubt
    if not charts:
        raise RunError(
            f"{facts.run.path}: has nothing to show in figure '{name}' yet: let the campaign go on."
        )
    if after and after not in charts:
        raise ConfigError(unknown(f"{name} of", after, filter(None, charts)))
    return convert_figure(*(charts[after] if after else next(iter(charts.values()))))


def _figures(blocks: Sequence[Block], doubt: str = "") -> Iterator[tuple[Figure, str]]:
    """Yield all charts, each with the reason not to trust it, or an empty text."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block, doubt
        elif isinstance(block, Doubtful | Fold | Row):
            why = block.why if isinstance(block, Doubtful) else doubt
            yield from _figures(block.blocks, why)


def convert_figure(figure: Figure, doubt: str = "") -> "plotly.graph_objects.Figure":
    """Convert a chart of a page to a plotly figure in the colours of a light page.

    Args:
        figure: the chart.
        doubt: why it is not to be trusted, for its title; empty if it is.
    """
    with explain_missing("a figure"):
        import plotly.graph_objects

    title = f"{figure.title} - NOT TO BE TRUSTED: {doubt}" if doubt else figure.title
    shown: Layout = {
        "title": {"text": title},
        "height": figure.height,
        "template": "plotly_white",
        "colorway": [LIGHT[name] for name in SERIES],
        "meta": {"caption": figure.caption},
    }
    traces = [_with_colours(trace) for trace in figure.data]
    return plotly.graph_objects.Figure(
        data=traces, layout={**_with_colours(figure.layout), **shown}
    )


def _with_colours(value: PlotlyValue, inside: bool = False) -> Any:
    """Return a copy in which names of colours are colours.

    Args:
        value: a trace, a layout, or a part of one.
        inside: whether it belongs to a key whose values are colours.
    """
    if isinstance(value, str):
        return LIGHT.get(value, value) if inside else value
    if isinstance(value, Mapping):
        return {key: _with_colours(part, _is_colour(key, inside)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_colours(part, inside) for part in value]
    return value


def _is_colour(key: str, inside: bool) -> bool:
    """Check whether the values of a key are colours, as ``templates/page.js`` does."""
    return bool(_COLOUR.search(key)) or (inside and not _NO_COLOUR.search(key))
