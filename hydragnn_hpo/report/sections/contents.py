"""The order of a report."""

from collections.abc import Callable

from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page.blocks import Section
from hydragnn_hpo.report.sections import (
    costs,
    curves,
    failures,
    headline,
    heads,
    importance,
    losses,
    members,
    parallel,
    pareto,
    progress,
    provenance,
    slices,
    slots,
)

MakeSection = Callable[[Facts], Section | None]

SECTIONS: dict[str, MakeSection] = {
    "headline": headline.section,
    "progress": progress.section,
    "slots": slots.section,
    "losses": losses.section,
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
"""By key, in the order in which they are read; one that has nothing to say gives None."""
