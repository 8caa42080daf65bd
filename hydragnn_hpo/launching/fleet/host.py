"""One host as the controller knows it."""

import math
from dataclasses import dataclass

from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.wire.channel import Channel

NAMES = r"[\w.-]+(@[\w.-]+)?"
"""Ids of hosts: ``HOST``, or ``HOST@ALLOCATION`` where several allocations serve one campaign,
since a host may be in two of them."""


@dataclass
class Host:
    """One host as the controller knows it."""

    name: str
    channel: Channel | None = None
    life: str = ""
    """Of the agent that is there or was last; empty once all it started is gone for sure."""

    code: str = ""
    """Checksum of the package that its ranks use."""

    over: str = ""
    """The last life that was said to be over: it does not come back while another is started."""

    joined: bool = False
    """Whether its agent is there and told its slots."""

    announced: bool = False
    """Whether ``host_joined`` was told, and ``host_lost`` was not since."""

    slots: tuple[Slot, ...] = ()
    address: str = ""
    interface: str = ""
    ends_at: float = math.inf
    """When it is taken from us, in seconds since the epoch."""

    heard: float = 0.0
    answered: float = 0.0
    """When we last told it that we live, in monotonic time."""

    tries: int = 0
    starting: bool = False
    """Whether an agent is on its way."""

    next_start: float = -math.inf
    """When an agent is to be started there; infinity while one is there."""

    why: str = ""
    """Why no agent is there."""
