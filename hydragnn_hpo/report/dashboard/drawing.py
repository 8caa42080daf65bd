"""Sections as a page shows them, and the page around them (a stand-in)."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.page.blocks import Section

if TYPE_CHECKING:
    from hydragnn_hpo.report.dashboard.board import Part


@dataclass(frozen=True)
class Drawn:
    """A section in HTML."""

    html: str
    figures: Mapping[str, Any]

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return asdict(self)


def draw(section: Section) -> Drawn:
    """Draw a section."""
    return Drawn(f"<section id={section.key}><h2>{html.escape(section.title)}</h2></section>", {})


def failed(key: str) -> Drawn:
    """Say that a section could not be made."""
    return Drawn(f"<section id={key}>could not be made; the log says why</section>", {})


def page(run: RunDir, parts: "Mapping[str, Part]") -> tuple[str, str]:
    """Give the page with what is there, and its content policy."""
    made = "".join(part.drawn.html for part in parts.values() if part.drawn)
    return f"<!doctype html>{made}", "default-src 'self'"


def whole(run: RunDir) -> bytes:
    """Make the report as one file."""
    return b"<!doctype html>"
