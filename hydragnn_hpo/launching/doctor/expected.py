"""What hosts are expected to be, as far as a profile says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.launching.doctor.order import Order


@dataclass(frozen=True)
class Expected:
    """What all checks compare with."""

    profile: ProfileConfig
    order: Order
    hosts: tuple[str, ...]
    """That we hold and asked."""

    missing: dict[str, str] = field(default_factory=dict)
    """Hosts that did not answer, and why."""

    asked_at: float = 0.0
    """When the order was given and when the last answer was there, by our clock, in seconds since
    the epoch."""
    answered_at: float = float("inf")

    given: Mapping[str, int] = field(default_factory=dict)
    """Devices that Slurm gave to our job, by host; empty where nobody says."""

    here: bool = False
    """Whether this computer was asked alone, outside of any allocation."""

    @property
    def devices(self) -> int:
        """Devices of a host; 0 where the profile does not say."""
        profile = self.profile
        if profile.device == "cpu":
            return 0
        return len(set(profile.layout.device_of_slot)) or profile.slots_per_host

    @property
    def memory_mb(self) -> float:
        """Memory of a device, or of a host that computes on its cores; 0 if not known."""
        profile = self.profile
        each = profile.memory_gb * 1e9 / (1 << 20)
        return each if profile.device == "gpu" else each * profile.slots_per_host


def plugin_names(profile: ProfileConfig, environment: dict[str, str]) -> tuple[str, ...]:
    """Give the names by which RCCL or NCCL would load its network plugin.

    Source: docs.nvidia.com/deeplearning/nccl, NCCL_NET_PLUGIN: a library, or what follows
    ``libnccl-net-`` in its name; ``libnccl-net.so`` (RCCL: ``librccl-net.so``) if left out.
    """
    rank = profile.rank
    said = {**environment, **profile.batch.environment, **rank.environment, **rank.many_hosts}
    network = said.get("NCCL_NET", "").lower()
    name = said.get("NCCL_NET_PLUGIN", "")
    if name:
        return (name, f"libnccl-net-{name}.so", f"librccl-net-{name}.so")
    if network in ("", "socket", "ib"):
        return ()
    return ("librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so")
