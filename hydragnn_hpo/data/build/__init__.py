"""From a card and its files to a graph store, in parallel and restartable."""

from hydragnn_hpo.data.build.job import build_store, job_main
from hydragnn_hpo.data.build.plan import DATA_ROOT, find_file
from hydragnn_hpo.data.build.read import graphs_from_file

__all__ = ["DATA_ROOT", "build_store", "find_file", "graphs_from_file", "job_main"]
