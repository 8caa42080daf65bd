"""The members of an ensemble over several devices of one process, divided by what each costs."""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.engine import Engine, Member, make_engine

_TIMINGS = 3
"""Times that a member is timed; the least counts."""

Timer = Callable[[Engine, GraphSet, np.ndarray], float]


def assign_members(costs: Sequence[float], devices: int) -> list[list[int]]:
    """Divide members among devices so that all end about together.

    The longest first, each to the device that is done first: never above 4/3 of the best.

    Args:
        costs: seconds of each member.
        devices: how many.

    Returns:
        The members of each device, by their positions, rising.

    Source: Graham (1969), SIAM J. Appl. Math. 17, 416.
    """
    busy = [(0.0, device) for device in range(devices)]
    assigned: list[list[int]] = [[] for _ in busy]
    for cost, member in sorted(((cost, -n) for n, cost in enumerate(costs)), reverse=True):
        until, device = heapq.heappop(busy)
        assigned[device].append(-member)
        heapq.heappush(busy, (until + cost, device))
    return [sorted(members) for members in assigned]


def time_engine(engine: Engine, graphs: GraphSet, indices: np.ndarray) -> float:
    """Return the seconds of one batch, after one that does not count."""
    seconds = []
    for _ in range(1 + _TIMINGS):
        began = time.perf_counter()
        for _, heads in engine.predict(graphs, indices):
            for values in heads.values():
                values.cpu()  # a GPU has worked when its result is here
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


class MultiDeviceEngine:
    """Engines of several devices, side by side; the first batch shows what each member costs."""

    def __init__(
        self,
        members: Sequence[Member],
        devices: Sequence[str],
        *,
        compiled: bool = False,
        timer: Timer = time_engine,
    ) -> None:
        """Keep members; they are divided at the first batch.

        Args:
            members: of the ensemble.
            devices: as torch names them, alike.
            compiled: predict with machine code.
            timer: times an engine on the first batch.
        """
        self.members, self.devices = tuple(members), tuple(devices)
        self.engines: tuple[Engine, ...] = ()
        self._compiled, self._timer = compiled, timer
        self._pool = ThreadPoolExecutor(len(self.devices), thread_name_prefix="device")

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs, device after device."""
        if not self.engines:
            self.divide(graphs, indices)

        def run(engine: Engine) -> list[tuple[Member, dict[str, Tensor]]]:
            return list(engine.predict(graphs, indices))

        for answer in [self._pool.submit(run, engine) for engine in self.engines]:
            yield from answer.result()

    def divide(self, graphs: GraphSet, indices: np.ndarray) -> list[list[str]]:
        """Time each member on a batch, and move it to its device.

        Returns:
            Names of the members of each device.
        """
        first = torch.device(self.devices[0])
        for member in self.members:
            member.model.to(first)
        alone = [make_engine([member], first, compiled=self._compiled) for member in self.members]
        costs = [self._timer(engine, graphs, indices) for engine in alone]
        engines, names = [], []
        for name, positions in zip(
            self.devices, assign_members(costs, len(self.devices)), strict=True
        ):
            members = [self.members[position] for position in positions]
            for member in members:
                member.model.to(torch.device(name))
            engines.append(make_engine(members, torch.device(name), compiled=self._compiled))
            names.append([member.trial for member in members])
        self.engines = tuple(engines)
        return names
