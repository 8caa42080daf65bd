"""Translate a machine's profile into what agents and launchers need to start ranks.

Apart from ``slots``, which agents load: profiles need pydantic, which no agent imports.
"""

from typing import Any

from hydragnn_hpo.config import (
    LayoutConfig,
    MachineConfig,
    ProfileConfig,
    SiteConfig,
    cores_of,
    find_profile,
)
from hydragnn_hpo.launching.slots import Layout

UNKNOWN = SiteConfig()
"""Of a machine that no profile describes."""

NEAR = "HYDRAGNN_HPO_CORES"
"""Tells rank wrappers (``launch/rank``) the cores near device 0, 1, ...: ``49-55 57-63``."""


def near_devices(layout: LayoutConfig) -> str:
    """Return what ``NEAR`` says of a layout; empty if it names no cores."""
    devices = layout.device_of_slot or range(len(layout.cores_of_slot))
    cores = dict(zip(devices, layout.cores_of_slot, strict=False))
    return " ".join(cores.get(number, "-") for number in range(max(cores, default=-1) + 1))


def site_of(machine: MachineConfig) -> SiteConfig:
    """Return what is known of how a campaign's machine is used; nothing if it names no profile.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    found: SiteConfig = UNKNOWN if machine.profile is None else find_profile(machine.profile)
    if machine.interface is None:
        return found
    return found.model_copy(update={"interfaces": (machine.interface,)})


def layout_of(site: SiteConfig) -> Layout:
    """Return what a host needs to know of its own inside to find its slots."""
    said = site.layout
    slots = site.slots_per_host if isinstance(site, ProfileConfig) else 0
    return Layout(
        slots=slots or len(said.cores_of_slot),
        cores=tuple(map(cores_of, said.cores_of_slot)),
        devices=said.device_of_slot,
        accelerator=site.rank.accelerator,
        variable=site.rank.visible,
    )


def terms_of(site: SiteConfig) -> dict[str, Any]:
    """Return what agents are told of their hosts, as ``init`` carries it."""
    layout = layout_of(site)
    return {
        "interfaces": list(site.interfaces),
        "scratch": site.scratch,
        "layout": vars(layout),
    }
