"""Ensembles on a device: every engine beside single members on the CPU, and beside separate calls.

Members are those of ``benchmarks/ensemble.py``, of unlike convs, and members of one signature,
which differ in their weights alone and are stacked.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import ensemble
import models
import numpy as np
import torch
from card_correctness import error_of
from card_speed import clock_of
from card_training import total_bytes
from torch import Tensor

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    EagerEngine,
    Engine,
    Member,
    pieces,
    predict_in_halves,
)
from hydragnn_hpo.ensemble.stacked_engine import StackedEngine
from hydragnn_hpo.training.memory import measure_peak_bytes, release_memory

if TYPE_CHECKING:
    from run import Report

CPU = torch.device("cpu")
ALIKE = (("schnet", 64, 3, 5.0), ("painn", 64, 3, 5.0))
"""Conv, width, layers and cutoff of nets of which several members are made."""

LIMITS = {"fp64": 1e-9, "fp32": 1e-4}
"""Largest error of an engine's outputs, over their norm."""

Nets = Sequence[tuple[str, int, int, float]]
Make = Callable[[list[Member], torch.device], Engine]


def members_on(device: torch.device, precision: str, nets: Nets) -> list[Member]:
    """Build members on a device, each with its own weights."""
    made = [each.in_precision(precision) for each in ensemble.members(nets)]
    for member in made:
        member.model.to(device)
    return made


def outputs_of(engine: Engine, graphs: Columns) -> list[Tensor]:
    """Return the energies of each member for all graphs."""
    rows = np.arange(graphs.num_graphs)
    return [heads["energy"] for _, heads in engine.predict(graphs, rows)]


def compare_engines(
    make: Make, nets: Nets, precision: str, graphs: Columns, device: torch.device
) -> float:
    """Compare an engine's energies with those of single members in fp64 on the CPU."""
    engine = make(members_on(device, precision, nets), device)
    expected = outputs_of(EagerEngine(members_on(CPU, "fp64", nets), CPU), graphs)
    outputs_of(engine, graphs)  # of other engines the first batch is special
    error = error_of(outputs_of(engine, graphs), expected)
    if isinstance(engine, StackedEngine):
        check_replays(engine)
        groups = sum(len(group) > 1 for group in engine.groups)
        if len([stack for stack in engine._stacks.values() if stack]) != groups:
            raise AssertionError("members of one signature are not stacked")
    return error


def check_replays(engine: StackedEngine) -> None:
    """Check that batches on a card were recorded and replayed."""
    for replays in engine.replays.values():
        if not replays.recordings:
            raise AssertionError(f"not recorded: {replays.problem}")


def predict_all(engine: Engine, graphs: Columns) -> None:
    """Predict in batches of usual size, and copy energies to the CPU."""
    for piece in pieces(graphs, np.arange(graphs.num_graphs), EDGES_PER_BATCH):
        for _, heads in engine.predict(graphs, piece):
            heads["energy"].cpu()


def predict_alone(members: Sequence[Member], graphs: Columns, device: torch.device) -> None:
    """Call each member for itself, as a committee of nets is run."""
    for member in members:
        predict_all(EagerEngine([member], device), graphs)


def ratio_of_calls(
    make: Make, nets: Nets, graphs: Columns, device: torch.device, turns: int
) -> float:
    """Return how many times as fast as separate calls an engine predicts, the median of turns."""
    members = members_on(device, "fp32", nets)
    clock = clock_of(device)
    engine = make(members, device)
    ratios = []
    for _ in range(turns + 2):
        separate = clock(lambda: predict_alone(members, graphs, device))
        ratios.append(separate / clock(lambda: predict_all(engine, graphs)))
    return statistics.median(ratios[2:])  # the first ones trace, compile, and record


def structures_per_second(
    make: Make, nets: Nets, graphs: Columns, device: torch.device, turns: int
) -> float:
    """Return the structures that an engine predicts in a second with all members."""
    engine = make(members_on(device, "fp32", nets), device)
    clock = clock_of(device)
    spent = [clock(lambda: predict_all(engine, graphs)) for _ in range(turns + 2)]
    return graphs.num_graphs / statistics.median(spent[2:])


def memory_over_one(graphs: Columns, device: torch.device) -> float:
    """Return the peak of memory of all members over that of the member that takes most."""
    members = members_on(device, "fp32", ensemble.UNLIKE)
    sizes = [
        measure_peak_bytes(partial(predict_all, EagerEngine(some, device), graphs), device) or 1
        for some in (members, *([each] for each in members))
    ]
    return sizes[0] / max(sizes[1:])


def survive_full_memory(graphs: Columns, device: torch.device) -> float:
    """Predict a batch in memory that it does not fit into; compare with single members on the CPU.

    On a card torch's share of the memory is cut to half of what the batch takes, so that the error
    is torch's own; on a CPU the engine raises it for more than half of the structures.
    """
    members = members_on(device, "fp64", ensemble.UNLIKE)
    rows = np.arange(graphs.num_graphs)
    sizes: list[int] = []

    class Counted(EagerEngine):
        def predict(self, graphs, indices):
            sizes.append(len(indices))
            if device.type == "cpu" and len(indices) > len(rows) // 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            yield from super().predict(graphs, indices)

    try:
        if device.type == "cuda":
            whole = partial(outputs_of, EagerEngine(members, device), graphs)
            whole()  # compiles kernels
            peak = measure_peak_bytes(whole, device) or 0
            release_memory(device)
            share = (torch.cuda.memory_reserved(device) + 0.5 * peak) / total_bytes(device)
            torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
        halves = predict_in_halves(Counted(members, device), graphs, rows, device)
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    if len(sizes) < 3 or sizes[0] != len(rows):
        raise AssertionError(f"batches of {sizes} structures: memory did not run out")
    expected = outputs_of(EagerEngine(members_on(CPU, "fp64", ensemble.UNLIKE), CPU), graphs)
    return error_of([heads["energy"] for _, heads in halves], expected)


def check_engines(report: "Report", few: Columns, device: torch.device) -> None:
    """Check the energies of every engine."""
    alike = {f"{net[0]} x 4": [net] * 4 for net in ALIKE}
    if report.small:  # tracing takes long on a CPU
        alike = {"schnet x 2": [("schnet", 16, 1, 5.0)] * 2}
    cases: list[tuple[str, Make, Nets]] = [
        ("eager unlike", EagerEngine, ensemble.UNLIKE),
        ("replayed unlike", StackedEngine, ensemble.UNLIKE),
        *((f"stacked {name}", StackedEngine, nets) for name, nets in alike.items()),
    ]
    for name, make, nets in cases:
        for precision, limit in LIMITS.items():
            work = partial(compare_engines, make, nets, precision, few, device)
            report.check(f"{name} {precision}", work, limit)


def run(report: "Report", device: torch.device) -> None:
    """Check engines, memory that runs out, then speed beside separate calls, and memory."""
    few, many = (models.molecules(n) for n in ((6, 8) if report.small else (64, 1024)))
    turns = 1 if report.small else 20
    engines: dict[str, tuple[Make, Nets]] = {"replayed unlike": (StackedEngine, ensemble.UNLIKE)}
    check_engines(report, few, device)
    report.check("full memory", partial(survive_full_memory, many, device), LIMITS["fp64"])
    if not report.small:
        engines |= {f"stacked {net[0]} x 8": (StackedEngine, [net] * 8) for net in ALIKE}
    for name, (make, nets) in engines.items():
        work = partial(ratio_of_calls, make, nets, few, device, turns)
        report.check(f"over separate calls, {name}", work)
    for name, (make, nets) in engines.items():
        work = partial(structures_per_second, make, nets, many, device, turns)
        report.check(f"structures per second, {name}", work)
    report.check("memory over one member", partial(memory_over_one, many, device))
