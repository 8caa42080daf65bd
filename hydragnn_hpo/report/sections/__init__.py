"""The sections of the report: a plain dict, in the order of the page."""

from collections.abc import Callable

from hydragnn_hpo.report.page_blocks import Section
from hydragnn_hpo.report.reading.facts import Facts
from hydragnn_hpo.report.sections import (
    costs,
    curves,
    failures,
    headline,
    heads,
    importance,
    members,
    parallel,
    pareto,
    progress,
    provenance,
    slices,
    slots,
    utilization,
)

MakeSection = Callable[[Facts], Section | None]

SECTIONS: dict[str, MakeSection] = {
    "headline": headline.section,
    "progress": progress.section,
    "slots": slots.section,
    "losses": utilization.section,
    "curves": curves.section,
    "parallel": parallel.section,
    "slices": slices.section,
    "importance": importance.section,
    "pareto": pareto.section,
    "heads": heads.section,
    "members": members.section,
    "failures": failures.section,
    "costs": costs.section,
    "provenance": provenance.section,
}
"""By key, in the order of the page; a section with nothing to show returns None."""
