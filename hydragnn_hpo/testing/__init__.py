"""The physics suite as a library: does a conv obey the laws, on a CPU, in seconds?"""

from hydragnn_hpo.testing.report import Finding, Report
from hydragnn_hpo.testing.suite import CHECKS, check_conv

__all__ = ["CHECKS", "Finding", "Report", "check_conv"]
