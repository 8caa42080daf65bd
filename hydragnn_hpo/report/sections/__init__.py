"""The sections of the report: a plain dict, in the order of the page."""

from collections.abc import Callable

from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Section
from hydragnn_hpo.report.sections import (
    costs,
    ensemble,
    failures,
    headline,
    importance,
    parallel,
    pareto,
    progress,
    provenance,
    slices,
    slots,
)

MakeSection = Callable[[Facts], Section | None]

SECTIONS: dict[str, MakeSection] = {
    "headline": headline.make_section,
    "progress": progress.make_progress,
    "slots": slots.make_slots,
    "losses": slots.make_losses,
    "curves": progress.make_curves,
    "parallel": parallel.make_section,
    "slices": slices.make_section,
    "importance": importance.make_section,
    "pareto": pareto.make_section,
    "heads": ensemble.make_heads,
    "members": ensemble.make_members,
    "failures": failures.make_section,
    "costs": costs.make_section,
    "provenance": provenance.make_section,
}
"""Function that makes each section, in the order of the page; None if there is nothing to show."""
