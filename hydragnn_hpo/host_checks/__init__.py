"""The doctor: whether hosts are fit for trainings, before any starts."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.host_checks.doctor import examine_hosts, find_job_hosts
    from hydragnn_hpo.host_checks.doctor_checks import Finding
    from hydragnn_hpo.host_checks.network_probe import probe_network

__all__ = [
    "Finding",
    "examine_hosts",
    "find_job_hosts",
    "probe_network",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
