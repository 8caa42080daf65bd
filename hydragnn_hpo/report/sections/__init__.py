"""The sections of the report: a plain dict, in the order of the page."""

from collections.abc import Callable

from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Section
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
    "headline": headline.make_section,
    "progress": progress.make_section,
    "slots": slots.make_section,
    "losses": utilization.make_section,
    "curves": curves.make_section,
    "parallel": parallel.make_section,
    "slices": slices.make_section,
    "importance": importance.make_section,
    "pareto": pareto.make_section,
    "heads": heads.make_section,
    "members": members.make_section,
    "failures": failures.make_section,
    "costs": costs.make_section,
    "provenance": provenance.make_section,
}
"""By key, in the order of the page; a section with nothing to show returns None."""
