"""Translate a machine's profile into what agents and launchers need to start ranks.

This is separate from ``slots``, which agents import: profiles need pydantic, and agents must not
import it.
"""

from hydragnn_hpo.config import MachineConfig, ProfileConfig, cores_of, find_profile
from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching.protocol import HostProfile
from hydragnn_hpo.launching.slots import Layout

UNKNOWN = SiteConfig()
"""Settings of a machine without a profile."""


def site_of(machine: MachineConfig) -> SiteConfig:
    """Return the profile of a campaign's machine; ``UNKNOWN`` if it names none.

    ``machine.interface`` replaces the interfaces of the profile.

    Raises:
        ConfigError: the profile does not exist or is invalid.
    """
    site: SiteConfig = UNKNOWN if machine.profile is None else find_profile(machine.profile)
    if machine.interface is None:
        return site
    return site.model_copy(update={"interfaces": (machine.interface,)})


def layout_of(site: SiteConfig) -> Layout:
    """Return the slots, cores and devices of a host according to its profile."""
    layout = site.layout
    slots = site.slots_per_host if isinstance(site, ProfileConfig) else 0
    return Layout(
        slots=slots or len(layout.cores_of_slot),
        cores=tuple(map(cores_of, layout.cores_of_slot)),
        devices=layout.device_of_slot,
        accelerator=site.rank.accelerator,
        variable=site.rank.visible,
    )


def host_profile_of(site: SiteConfig) -> HostProfile:
    """Return the part of a profile that agents receive in ``Welcome``."""
    return HostProfile(tuple(site.interfaces), site.scratch, layout_of(site))
