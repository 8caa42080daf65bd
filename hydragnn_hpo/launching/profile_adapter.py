"""Translate a machine's profile into what agents and launchers need to start ranks.

Apart from ``slots``, which agents load: profiles need pydantic, which no agent imports.
"""

from hydragnn_hpo.config import (
    MachineConfig,
    ProfileConfig,
    SiteConfig,
    cores_of,
    find_profile,
)
from hydragnn_hpo.launching.protocol import HostProfile
from hydragnn_hpo.launching.slots import Layout

UNKNOWN = SiteConfig()
"""Of a machine that no profile describes."""


def site_of(machine: MachineConfig) -> SiteConfig:
    """Return what is known of how a campaign's machine is used; nothing if it names no profile.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    site: SiteConfig = UNKNOWN if machine.profile is None else find_profile(machine.profile)
    if machine.interface is None:
        return site
    return site.model_copy(update={"interfaces": (machine.interface,)})


def layout_of(site: SiteConfig) -> Layout:
    """Return what a host needs to know of its own inside to find its slots."""
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
    """Return what agents are told of their hosts."""
    return HostProfile(tuple(site.interfaces), site.scratch, layout_of(site))
