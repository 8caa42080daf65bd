"""The page around the sections: head, contents, themes, and what it may load: nothing.

Everything is in the file. Its content policy names the two scripts by their checksums, so that no
text from a run directory can become a script, and no request can leave the page.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

from hydragnn_hpo.report.page import bundle
from hydragnn_hpo.report.page.blocks import Section
from hydragnn_hpo.report.page.palette import DARK, LIGHT
from hydragnn_hpo.report.page.render import Rendered, render

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M4 12 8 3l4 9z' fill='none' stroke='%231d5fc4' stroke-width='1.5'/%3E"
    "%3Cg fill='%231d5fc4'%3E%3Ccircle cx='4' cy='12' r='2'/%3E%3Ccircle cx='8' cy='3' r='2'/%3E"
    "%3Ccircle cx='12' cy='12' r='2'/%3E%3C/g%3E%3C/svg%3E"
)


@dataclass(frozen=True)
class Title:
    """What stands on top of a page."""

    name: str
    about: str
    """One line: of when, from where."""


def asset(name: str) -> str:
    """Give one of our own files: ``page.css``, ``page.js``, ``lines.js``."""
    return (files("hydragnn_hpo.report.page") / "assets" / name).read_text()


@cache
def style() -> str:
    """Give the style sheet with the colours of both themes."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in theme.items()) for theme in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{"
        f":root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}" + asset("page.css")
    )


@cache
def script() -> str:
    """Give our own script."""
    return asset("lines.js") + asset("page.js")


def policy() -> str:
    """Give the content policy of a page that is one file."""
    ours = bundle.digest_of(script().encode())
    return (
        f"default-src 'none'; script-src '{ours}' '{bundle.digest()}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def document(title: Title, sections: Sequence[Section]) -> str:
    """Give the whole page as one file.

    Args:
        title: what stands on top.
        sections: in their order.
    """
    made = [render(section) for section in sections]
    figures = {key: figure for each in made for key, figure in each.figures.items()}
    packed = bundle.pack(json.dumps(figures, separators=(",", ":"), allow_nan=False).encode())
    guard = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">'
    return (
        f"{head(title, guard)}<style>{style()}</style></head>"
        f"{body(title, sections, made)}"
        f'<script type="text/plain" id="figures">{packed}</script>'
        f'<script type="text/plain" id="plotly">{bundle.packed()}</script>'
        f"<script>{script()}</script></body></html>\n"
    )


def head(title: Title, guard: str = "") -> str:
    """Begin a page; its ``<head>`` stays open."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{guard}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<title>{escape(title.name)}</title><link rel="icon" href="{ICON}">'
    )


def body(title: Title, sections: Sequence[Section], made: Sequence[Rendered]) -> str:
    """Give what can be read, without scripts; its ``<body>`` stays open."""
    links = "".join(f'<li><a href="#{escape(s.key)}">{escape(s.title)}</a></li>' for s in sections)
    inside = "".join(each.html for each in made)
    return (
        '<body><a class="skip" href="#content">to the content</a>'
        f"<header><div><h1>{escape(title.name)}</h1><p>{escape(title.about)}</p></div>"
        '<button type="button" id="theme" aria-label="light or dark">light / dark</button></header>'
        f'<nav aria-label="contents"><details open><summary>Contents</summary><ol>{links}</ol>'
        f'</details></nav><main id="content">{inside}</main>'
        "<noscript><p>Charts need JavaScript; all numbers are here without it.</p></noscript>"
    )
