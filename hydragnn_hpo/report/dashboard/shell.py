"""The page of a dashboard: the report's, with what keeps it up to date."""

from collections.abc import Sequence
from importlib.resources import files

from hydragnn_hpo.report.page import bundle
from hydragnn_hpo.report.page.blocks import Section
from hydragnn_hpo.report.page.page import Title, body, head, policy, script, style
from hydragnn_hpo.report.page.render import Rendered

ASSETS = {"live.js": "text/javascript", "live.css": "text/css"}
"""Our own files, and what they are."""


def shell(title: Title, made: Sequence[tuple[Section, Rendered]]) -> str:
    """Give the page with the sections there are; its script fetches charts and what follows.

    Args:
        title: what stands on top.
        made: sections in their order.
    """
    sections, rendered = [section for section, _ in made], [each for _, each in made]
    return (
        f'{head(title)}<link rel="stylesheet" href="live.css"><style>{style()}</style></head>'
        f"{body(title, sections, rendered)}"
        '<div id="live"><span role="status" data-live="state">connecting</span>'
        '<span data-live="time"></span><a href="report.html" download>as a file</a></div>'
        f'<script type="text/plain" id="plotly">{bundle.packed()}</script>'
        f"<script>{script()}</script>"
        '<script src="live.js"></script></body></html>\n'
    )


def served_policy() -> str:
    """Give the content policy of the page: the report's, and requests to where it came from."""
    ours = policy().replace("script-src ", "script-src 'self' ")
    ours = ours.replace("style-src ", "style-src 'self' ")
    return f"{ours}; connect-src 'self'; frame-ancestors 'none'"


def own_file(name: str) -> bytes:
    """Give one of ``ASSETS``."""
    assert name in ASSETS, "a file that is not ours"
    return (files("hydragnn_hpo.report.dashboard") / name).read_bytes()
