"""The order of a report."""

from collections.abc import Callable

from hydragnn_hpo.report.page.blocks import Section
from hydragnn_hpo.report.reading.facts import Facts

MakeSection = Callable[[Facts], Section | None]

SECTIONS: dict[str, MakeSection] = {}
"""By key, in the order in which they are read; one that has nothing to say gives None."""
