"""A report as one self-contained HTML page, from Jinja templates with autoescape.

The page loads no other file: style, script, plotly.js and the data of its charts are embedded. Its
content security policy allows scripts by checksum only, so that no text of a run directory can run
as a script and the page can send no request.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue

from hydragnn_hpo.report.charts import DARK, LIGHT, PlotlyValue
from hydragnn_hpo.report.page_blocks import Cell, Data, Figure, Section, flatten

LONG_TABLE = 16
"""Number of rows above which a table scrolls in its own frame."""

WIDE_TEXT = 32
"""Number of characters above which a text makes its column wide."""

SCRIPTS = ("parallel_coordinates.js", "structure_viewer.js", "page.js", "details.js")
"""Files of ``templates/`` that make up the script of every page."""

SHORT_LIST = 8
"""Maximum length of a list of numbers that is not encoded in base64."""


@dataclass(frozen=True)
class Title:
    """The heading of a page."""

    name: str
    about: str
    """One line below the name: state and time of the last event, or the compared campaigns."""


@dataclass(frozen=True)
class RenderedSection:
    """A section as HTML, and the data of its charts."""

    key: str
    title: str
    html: Markup
    figures: Mapping[str, JsonValue]
    """Traces and layout of each chart as JSON data, by ``SECTION.FIGURE``; and other data of the
    page's script, by its key."""


def render_page(title: Title, sections: Sequence[Section]) -> str:
    """Render the whole page as one file; the same sections give the same bytes."""
    rendered = [render_section(section) for section in sections]
    figures = {key: figure for each in rendered for key, figure in each.figures.items()}
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    page = _environment().get_template("page.html.jinja")
    return page.render(
        title=title,
        sections=rendered,
        policy=content_policy(page_script()),
        style=_stylesheet("page.css"),
        script=Markup(page_script()),
        figures=_pack(data.encode()),
        plotly=packed_plotly(),
    )


def render_live_page(title: Title, sections: Sequence[RenderedSection]) -> str:
    """Render the page of a dashboard; its script fetches chart data and newer sections."""
    page = _environment().get_template("live.html.jinja")
    return page.render(
        title=title,
        sections=sections,
        style=_stylesheet("page.css", "live.css"),
        script=Markup(live_script()),
        plotly=packed_plotly(),
    )


def render_section(section: Section) -> RenderedSection:
    """Render a section as HTML, and its charts as JSON data."""
    html = _environment().get_template("section.html.jinja").render(section=section)
    figures: dict[str, JsonValue] = {}
    for block in flatten(section.blocks):
        if isinstance(block, Figure):
            key = f"{section.key}.{block.key}"
            figures[key] = to_json({"data": block.data, "layout": block.layout})
        elif isinstance(block, Data):
            figures[block.key] = to_json(block.content)
    return RenderedSection(section.key, section.title, Markup(html), figures)


def format_value(value: Cell, unit: str = "") -> str:
    """Round a value to four digits, with thousands separators; a share in ``%`` is shown times 100.

    A rounded number keeps its trailing zeros: 3.5 stays 3.5, 0.22699 becomes 0.2270.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return str(value)
    if unit == "%":
        return f"{100 * value:.1f}"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    size = abs(value)
    if not 1e-3 <= size < 1e15:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, 3 - math.floor(math.log10(size)))}f}"
    exact = float(text.replace(",", "")) == value and "." in text
    return text.rstrip("0") if exact else text


def _exact(value: float | int) -> str:
    """Return a number with all its digits, for scripts and tests."""
    plain = value.item() if isinstance(value, np.generic) else value
    return repr(float(plain)) if isinstance(plain, float) else str(int(plain))


# -- templates, style and scripts --------------------------------------------------------


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("hydragnn_hpo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(LONG=LONG_TABLE, WIDE=WIDE_TEXT)
    environment.filters["rounded"] = format_value
    environment.filters["exact"] = _exact
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def _template(name: str) -> str:
    """Read a file of ``templates/`` as it is."""
    return (files("hydragnn_hpo.report") / "templates" / name).read_text()


@cache
def _stylesheet(*names: str) -> Markup:
    """Return style sheets, preceded by the colours of both themes."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in theme.items()) for theme in (LIGHT, DARK)
    )
    themes = (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{"
        f":root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
    return Markup(themes + "".join(map(_template, names)))


@cache
def page_script() -> str:
    """Return the script of every page."""
    return "".join(map(_template, SCRIPTS))


@cache
def live_script() -> str:
    """Return the script of a page that a dashboard keeps up to date."""
    return page_script() + _template("live.js")


def content_policy(script: str) -> str:
    """Return the content security policy of a page: only ``script`` and plotly.js may run."""
    allowed = f"'{script_digest(script.encode())}' '{script_digest(_plotly())}'"
    return (
        f"default-src 'none'; script-src {allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@cache
def script_digest(content: bytes) -> str:
    """Return ``sha256-...`` of a script, as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


@cache
def _plotly() -> bytes:
    """Read plotly.js out of the installed ``plotly`` package."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed_plotly() -> str:
    """Return plotly.js compressed, in base64: 2 MB rather than 4.8."""
    return _pack(_plotly())


def _pack(content: bytes) -> str:
    """Compress reproducibly, and encode in base64."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


# -- charts as JSON ----------------------------------------------------------------------


def to_json(value: PlotlyValue) -> JsonValue:
    """Convert a figure, or any part of it, to plain JSON data.

    Long arrays of numbers become base64: floats in 32 bits, integers in the smallest type that
    holds them. Other floats are rounded to 7 digits, or become null if not finite.

    Source: plotly.js, "typed array specification" (``bdata``, ``dtype``, ``shape``), 2026-11-22.
    """
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _array_to_json(value)
    if isinstance(value, (list, tuple)):
        if len(value) > SHORT_LIST and all(type(inner) in (int, float) for inner in value):
            return _array_to_json(np.asarray(value))
        return [to_json(inner) for inner in value]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    assert value is None or isinstance(value, (str, int)), f"{type(value)} in a chart"
    return value


def _array_to_json(values: np.ndarray) -> JsonValue:
    if values.dtype.kind not in "iuf" or values.size <= SHORT_LIST or values.ndim > 2:
        return [to_json(value) for value in values.tolist()]
    narrow = np.ascontiguousarray(values, _narrow_type(values))
    data = base64.b64encode(narrow.tobytes()).decode()
    encoded: dict[str, JsonValue] = {
        "dtype": f"{narrow.dtype.kind}{narrow.dtype.itemsize}",
        "bdata": data,
    }
    if values.ndim == 2:
        encoded["shape"] = ", ".join(map(str, values.shape))
    return encoded


def _narrow_type(values: np.ndarray) -> str:
    """Return the smallest little-endian type that holds the values; floats get 32 bits."""
    if values.dtype.kind == "f":
        return "<f4"
    low = int(values.min())
    high = int(values.max())
    for name in ("<i1", "<u1", "<i2", "<u2", "<i4"):
        if np.iinfo(name).min <= low and high <= np.iinfo(name).max:
            return name
    return "<u4" if low >= 0 and high <= np.iinfo("<u4").max else "<f4"
