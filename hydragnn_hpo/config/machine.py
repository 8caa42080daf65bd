"""Machines as data: what price, planner and simulation must know of one. Read by ``placement``."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hydragnn_hpo.config.loading import load
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.shipped import find

PROFILES = "launch/machines"
"""Where profiles that ship lie."""

HERE = "workstation"
"""The profile of this computer."""


class LinkConfig(Config):
    """How ranks reach each other. Read by ``placement.cost.sending``."""

    latency_seconds: NonNegativeFloat
    """What one message costs however short it is."""

    bytes_per_second: PositiveFloat
    """Bytes per second of long ones, per rank within a host, per host between hosts."""


class ProfileConfig(Config):
    """A machine. Read by ``placement.cost``, by the planner and by its simulation.

    Speeds are first guesses: what runs corrects them by a factor. Ratios between them matter more.
    """

    name: str
    """Name of the machine."""

    description: str
    """One line for tables."""

    source: Annotated[tuple[str, ...], Field(min_length=1)]
    """Where its numbers come from, and which of them are guesses."""

    checked: date
    """When they were last compared with their source."""

    device: Literal["cpu", "gpu"]
    """What a slot computes on."""

    hosts: NonNegativeInt = 0
    """Hosts of the whole machine; 0: as many as there are."""

    slots_per_host: NonNegativeInt = 0
    """Slots of a host; 0: as many as the backend finds."""

    slot_order: tuple[NonNegativeInt, ...] = ()
    """Slots of a host, neighbours side by side, so that any power of two of them in a row (from a
    multiple of itself on) is close; rising if left out."""

    memory_gb: NonNegativeFloat = 0.0
    """Memory of a slot's device, or a slot's part of its host, 10^9 bytes; 0: not known."""

    process_gb: NonNegativeFloat = 0.0
    """What a rank takes of it, as it measures itself, before it trains, 10^9 bytes."""

    flops_per_second: PositiveFloat
    """Operations per second that a slot sustains in the matrix products of a GNN, fp32."""

    bytes_per_second: PositiveFloat
    """Bytes per second that it moves between its memory and its arithmetic."""

    step_seconds: NonNegativeFloat
    """What an optimizer step costs beside arithmetic and memory."""

    layer_seconds: NonNegativeFloat
    """What each round of message passing in it adds: starting many small operations."""

    within: LinkConfig
    """Between ranks of one host."""

    between: LinkConfig
    """Between hosts."""

    start_seconds: NonNegativeFloat
    """From the placement of a trial to its first step, in a rank forked by a warm zygote."""

    cold_start_seconds: NonNegativeFloat
    """Until the agents of an allocation are there and their zygotes warm, once."""

    restart_seconds: NonNegativeFloat
    """What stopping a trial at a checkpoint and starting it again costs."""

    failures_per_host_hour: NonNegativeFloat = 0.0
    """Hosts that are lost, per host and hour."""

    hosts_per_group: PositiveInt = 1
    """Hosts that are close to each other in the network."""

    wall_hours: PositiveFloat | None = None
    """Longest allocation; no limit if left out."""

    @model_validator(mode="after")
    def _order_names_every_slot(self) -> Self:
        if self.slot_order and sorted(self.slot_order) != list(range(self.slots_per_host)):
            raise ValueError(
                f"slot_order names slots {list(self.slot_order)}, the host has "
                f"{self.slots_per_host}: name each from 0 to {self.slots_per_host - 1} once."
            )
        return self

    @property
    def memory_bytes(self) -> float:
        """Memory of a slot in bytes; infinity where it is not known."""
        return 1e9 * self.memory_gb or float("inf")


def find_profile(argument: str | None = None) -> ProfileConfig:
    """Give a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    return load(find(argument or HERE, PROFILES), ProfileConfig)
