"""Seats of a host: a device and the cores near it. Pure but for ``Layout`` travelling as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host.devices import Device


@dataclass(frozen=True)
class Layout:
    """What a machine's profile says of a host's inside; what it leaves out is found out."""

    slots: int = 0
    """Slots of a host; 0: as many as there are devices, or cores."""

    cores: tuple[tuple[int, ...], ...] = ()
    """Of each slot."""

    devices: tuple[int, ...] = ()
    """Number of each slot's device; its own number if empty."""

    accelerator: str = ""
    """What torch calls the devices; whatever is found if empty."""

    variable: str = ""
    """By which a rank is told its device."""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Self:
        """Read it as ``init`` carries it."""
        cores = tuple(tuple(each) for each in told["cores"])
        return cls(**{**told, "cores": cores, "devices": tuple(told["devices"])})


@dataclass(frozen=True)
class Seat:
    """Where one slot, or several lanes of one device, may sit."""

    index: int
    cores: tuple[int, ...]
    device: Device | None = None


def share_cores(cores: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """Split the cores into equal neighbouring shares; with too few, slots take turns."""
    if slots > len(cores):
        return [(cores[index % len(cores)],) for index in range(slots)]
    edges = [index * len(cores) // slots for index in range(slots + 1)]
    return [tuple(cores[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def share_near(near: Sequence[Sequence[int]], cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Divide cores among devices, each among those it is nearest to.

    Args:
        near: for each device the cores of its NUMA domain, siblings side by side.
        cores: all there are.

    Returns:
        The cores of each device; equal shares of all where a domain is unknown or has none left.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, local in enumerate(near):
        groups.setdefault(tuple(local), []).append(number)
    listed = [core for group in groups for core in group]
    unclear = () in groups or len(set(listed)) < len(listed)
    if unclear or any(len(group) < len(members) for group, members in groups.items()):
        return share_cores(cores, len(near))
    found: dict[int, tuple[int, ...]] = {}
    for group, members in groups.items():
        found |= dict(zip(members, share_cores(group, len(members)), strict=True))
    return [found[number] for number in range(len(near))]


def seat_by(
    layout: Layout, *, host: str, cores: Sequence[int], devices: Sequence[Device]
) -> tuple[list[Seat], list[str]]:
    """Give the seats of a host as its profile lays them out, and what does not fit.

    Args:
        layout: of ``layout.slots`` slots with devices, or with cores.
        host: its name.
        cores: those that we may use here.
        devices: those that we may use here.

    Returns:
        Seats that have a device (if the profile wants one) and at least one core, and half
        sentences for a warning.

    Raises:
        ConfigError: none of the devices is there.
    """
    amiss: list[str] = []
    numbers = layout.devices or tuple(range(layout.slots))
    held: dict[int, Device | None] = dict.fromkeys(range(layout.slots))
    if layout.accelerator in ("cuda", "xpu"):
        held = _devices_of(layout, numbers, devices)
        if not held:
            raise ConfigError(
                f"host {host} has no {layout.accelerator} device, its profile names "
                f"{layout.slots}: leave the host out, or choose another profile."
            )
        if gone := [str(n) for slot, n in enumerate(numbers) if slot not in held]:
            amiss.append(f"devices {','.join(gone)} are not there: their slots are left out")
    shares = _cores_of(layout, list(held), cores, amiss)
    return [Seat(slot, shares[slot], device) for slot, device in held.items()], amiss


def _devices_of(
    layout: Layout, numbers: Sequence[int], devices: Sequence[Device]
) -> dict[int, Device | None]:
    """Find the device of each slot, by its number where devices are named by numbers."""
    if layout.accelerator == "xpu" and not devices:  # we know no tool that lists them: believe it
        known = {str(n): Device(str(n), layout.variable) for n in numbers}
    elif all(device.name.isdigit() for device in devices):
        known = {device.name: device for device in devices}
    else:  # ids in place of numbers: in the order in which we were given them
        known = {str(number): device for number, device in enumerate(devices)}
    return {slot: known[str(n)] for slot, n in enumerate(numbers) if str(n) in known}


def _cores_of(
    layout: Layout, slots: Sequence[int], cores: Sequence[int], amiss: list[str]
) -> dict[int, tuple[int, ...]]:
    """Give each slot those of its cores that are ours; never none."""
    if not layout.cores:
        return dict(zip(slots, share_cores(cores, len(slots)), strict=True))
    ours = set(cores)
    found = {slot: tuple(c for c in layout.cores[slot] if c in ours) for slot in slots}
    if all(found.values()):
        if short := [slot for slot in slots if len(found[slot]) < len(layout.cores[slot])]:
            amiss.append(f"some cores of slots {','.join(map(str, short))} are not ours")
        return found
    amiss.append("not every slot has cores of its own here: slots share those that we have")
    return dict(zip(slots, share_cores(cores, len(slots)), strict=True))
