"""Every number of a report, computed once more without the code that shows it."""

from unit.report.independent_course import COURSE
from unit.report.independent_importance import IMPORTANCE
from unit.report.independent_search import SEARCH

INDEPENDENT = {**COURSE, **SEARCH, **IMPORTANCE}
"""By section: a function of a run directory (``Path``) that gives the value of each key, without
the section's own: ``test_mae.gap``, ``causes.tail.share``."""
