"""What is odd about a data set, found by looking at all of it."""

from hydragnn_hpo.data.check.findings import TOLERANCE, Z_LIMIT, Findings, check_store

__all__ = ["TOLERANCE", "Z_LIMIT", "Findings", "check_store"]
