"""The devices of one process: which a user means, and which members each of several gets."""

import heapq
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.engine import Engine
from hydragnn_hpo.ensemble.engines.choose import engine_of
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.member import Member
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.ranks.place import DEVICE

AUTO = "auto"

_KINDS = ("cpu", "cuda", "xpu")
_LOOKS = 3
"""Times that a member is timed; the least counts."""

Timer = Callable[[Engine, GraphSet, np.ndarray], float]


def assign(costs: Sequence[float], places: int) -> list[list[int]]:
    """Divide members among places so that all end about together.

    The longest first, each to the place that is done first: never above 4/3 of the best.

    Args:
        costs: seconds of each member.
        places: how many.

    Returns:
        The members of each place, by their positions, rising.

    Source: Graham (1969), SIAM J. Appl. Math. 17, 416.
    """
    busy = [(0.0, place) for place in range(places)]
    found: list[list[int]] = [[] for _ in busy]
    for cost, member in sorted(((cost, -n) for n, cost in enumerate(costs)), reverse=True):
        until, place = heapq.heappop(busy)
        found[place].append(-member)
        heapq.heappush(busy, (until + cost, place))
    return [sorted(members) for members in found]


class MultiDeviceEngine:
    """Engines of several devices, side by side; see ``inference.engine.Engine``."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """Take engines that share no member."""
        self.engines = tuple(engines)
        self._pool = ThreadPoolExecutor(len(self.engines), thread_name_prefix="device")

    def said(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Give each member's heads and variances for one batch of graphs, device after device."""

        def all_of(engine: Engine) -> list[tuple[Member, dict[str, Tensor]]]:
            return list(engine.said(graphs, indices))

        for answer in [self._pool.submit(all_of, engine) for engine in self.engines]:
            yield from answer.result()


def seconds_of(engine: Engine, graphs: GraphSet, indices: np.ndarray) -> float:
    """Time one batch, after one that nobody counts."""
    found = []
    for _ in range(1 + _LOOKS):
        began = time.perf_counter()
        for _, said in engine.said(graphs, indices):
            for values in said.values():
                values.cpu()  # a GPU has worked when its result is here
        found.append(time.perf_counter() - began)
    return min(found[1:])


def spread_members(
    ensemble: Ensemble,
    devices: Sequence[str],
    graphs: GraphSet,
    indices: np.ndarray,
    *,
    timer: Timer = seconds_of,
) -> list[list[str]]:
    """Give each device of a process some members, by what they cost on a first batch.

    Args:
        ensemble: predicts on all devices from here on.
        devices: as torch names them, alike.
        graphs: hold a first batch.
        indices: the graphs of it.
        timer: times an engine on the batch.

    Returns:
        Names of the members of each device.
    """
    first, compiled = torch.device(devices[0]), ensemble.compiled
    for member in ensemble.members:
        member.model.to(first)
    alone = [engine_of([member], first, compiled=compiled) for member in ensemble.members]
    places = assign([timer(engine, graphs, indices) for engine in alone], len(devices))
    engines, names = [], []
    for name, positions in zip(devices, places, strict=True):
        members = [ensemble.members[position] for position in positions]
        for member in members:
            member.model.to(torch.device(name))
        engines.append(engine_of(members, torch.device(name), compiled=compiled))
        names.append([member.trial for member in members])
    ensemble.engine = MultiDeviceEngine(engines)
    return names


class Dividing:
    """Members on several devices once a first batch has shown what each costs."""

    def __init__(self, ensemble: Ensemble, devices: Sequence[str]) -> None:
        """Take the ensemble, whose engine this becomes until then."""
        self.ensemble, self.devices = ensemble, devices

    def said(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Divide the members, and let them say what they have to of this batch."""
        spread_members(self.ensemble, self.devices, graphs, indices)
        return self.ensemble.engine.said(graphs, indices)


def load_on(
    named: str, archive: Path, *, trust: Collection[str] = (), compiled: bool = False
) -> Ensemble:
    """Load an ensemble that predicts on one device, or with its members on several.

    Args:
        named: devices, see ``devices_of``.
        archive: the ensemble's file.
        trust: packages whose convs may run.
        compiled: predict with machine code.

    Raises:
        ConfigError: there is no such device.
        HydraError: the file is not what it says.
    """
    devices = devices_of(named)
    ensemble = Ensemble.load(archive, device=devices[0], trust=trust, compiled=compiled)
    if len(devices) > 1:
        ensemble.engine = Dividing(ensemble, devices)
    return ensemble


def device_of(named: str) -> str:
    """Give the one device that a text names.

    Raises:
        ConfigError: it is not here, or there are several.
    """
    first, *others = devices_of(named)
    if others:
        raise ConfigError(f"device {named}: only one will do here, as {first}.")
    return first


def devices_of(named: str) -> list[str]:
    """Give the devices that a text names.

    Args:
        named: ``auto`` (that of this rank's slot, else the first accelerator, else the processor),
            or names as torch has them, with commas between.

    Raises:
        ConfigError: one of them is not here.
    """
    if named == AUTO:
        return [os.environ.get(DEVICE) or _first_accelerator() or "cpu"]
    names = [name.strip() for name in named.split(",")]
    for name in names:
        _check(name)
    return names


def _first_accelerator() -> str | None:
    found = torch.accelerator.current_accelerator(check_available=True)
    return f"{found.type}:0" if found is not None and found.type in _KINDS else None


def _check(name: str) -> None:
    first = _first_accelerator()
    here = f"cpu, {first}" if first else "cpu alone"
    if name.partition(":")[0] not in _KINDS:
        raise ConfigError(f"device {name!r}: not one that can be used; here: {here}.")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, ValueError):
        raise ConfigError(f"device {name!r}: torch finds none; here: {here}.") from None
