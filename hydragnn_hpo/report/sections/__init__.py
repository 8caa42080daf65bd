"""The sections of the report, in the order of the page, and the charts in them that have a name."""

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

FIGURES: dict[str, str] = {
    "progress": "progress",
    "progress_by_cost": "progress",
    "slots": "slots",
    "slot_time": "slots",
    "learning_curves": "progress",
    "parallel_coordinates": "parallel",
    "slice": "slices",
    "importance": "importance",
    "importance_by_trial": "importance",
    "pareto": "pareto",
    "parity": "heads",
    "calibration": "heads",
    "error_against_sigma": "heads",
    "errors_by_element": "errors",
    "errors_by_size": "errors",
    "errors_by_distance": "errors",
    "errors_by_composition": "errors",
    "ensemble_size": "members",
}
"""Section of each chart by the name with which a notebook asks for it."""
