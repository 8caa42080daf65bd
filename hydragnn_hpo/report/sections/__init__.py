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
    structures,
)

MakeSection = Callable[[Facts], Section | None]

SECTIONS: dict[str, MakeSection] = {
    "headline": headline.make_section,
    "heads": ensemble.make_heads,
    "worst": structures.make_worst,
    "errors": structures.make_errors,
    "members": ensemble.make_members,
    "progress": progress.make_section,
    "importance": importance.make_section,
    "parallel": parallel.make_section,
    "slices": slices.make_section,
    "pareto": pareto.make_section,
    "slots": slots.make_section,
    "costs": costs.make_section,
    "failures": failures.make_section,
    "provenance": provenance.make_section,
}
"""Function that makes each section, in the order that a reader asks; None if there is nothing to
show. Sections on the machine, for operators, come late and are folded."""
