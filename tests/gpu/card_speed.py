"""Speed on a card beside plain PyG on the same card, with the cases of ``benchmarks/models.py``.

The benchmark takes CPU time; here seconds pass until the device is idle. Our steps are a trial's,
replayed as CUDA graphs where a conv allows it.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import models
import numpy as np
import torch
from card_correctness import links_on
from kernel_cases import SUMS, inputs_of, links_of
from models import Bench
from pyg_models import as_batch, loss_of

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.config.trial_config import ParallelConfig, TrainConfig
from hydragnn_hpo.data.batch import lay_out_pairs, make_batch
from hydragnn_hpo.data.batch_layout import pad_batch
from hydragnn_hpo.kernels import choose_kernels
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.cuda_graphs import Replays
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.divergence import DivergenceGuard
from hydragnn_hpo.training.energy import Energy, find_counters
from hydragnn_hpo.training.optim import make_optimizer
from hydragnn_hpo.training.parallel import ModelParallelism
from hydragnn_hpo.training.stepper import Stepper
from hydragnn_hpo.training.timers import make_timers
from hydragnn_hpo.training.train_state import TrainState

if TYPE_CHECKING:
    from run import Report

ORDER = ("painn", "schnet", "pna", "egnn", "mace", "pnaeq", "et", "gin", "cgcnn", "dimenetpp")
"""Convs from which most is expected first; the others follow."""


def clock_of(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """Return a function that times work on a device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def seconds(work: Callable[[], object]) -> float:
        wait()
        started = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - started

    return seconds


@dataclass(frozen=True)
class Sides:
    """Our training and the peer's on the same batches: each takes a step, given its number."""

    ours: Callable[[int], object]
    peer: Callable[[int], object]
    stepper: Stepper

    @classmethod
    def of(cls, conv: str, bench: Bench, device: torch.device, forces: bool = False) -> "Sides":
        """Build both nets with new optimizers.

        Ours takes whole steps as a trial does, from batches in page-locked memory: copies, clipping
        and all. The peer's batches are on the device already.
        """
        net, heads = models.our_net(conv, bench, forces)
        net, peer = net.to(device), models.peer_net(conv, bench).to(device)
        stepper = stepper_of(net, heads, bench, device)
        scale = (bench.mean, bench.std)
        updates = torch.optim.AdamW(peer.parameters(), lr=1e-3)
        rows = len(bench.batches)
        indices = np.arange(bench.batches[0].num_real_graphs)

        def ours(number: int) -> None:
            batch = bench.batches[number % rows]
            stepper.take_step(indices, [batch], rate=1e-3, epoch=1, step=number)

        def peers(number: int) -> None:
            updates.zero_grad(set_to_none=True)
            loss_of(peer, bench.peers[number % rows], scale, forces).backward()
            updates.step()

        return cls(ours, peers, stepper)


def stepper_of(
    net: MultiHeadGNN, heads: dict[str, HeadConfig], bench: Bench, device: torch.device
) -> Stepper:
    """Return what takes our optimizer steps, as ``Trainer`` builds it."""
    training = TrainConfig()
    parallel = ModelParallelism(net, ParallelConfig(), Ranks(0, 1, device))
    atoms = np.full(bench.batches[0].num_real_graphs, 60.0)
    return Stepper(
        SimpleNamespace(heads=heads, heads_in=lambda epoch: heads, training=training, seed=0),
        TrainState(parallel, make_optimizer(net, training), average=None),
        counts={"energy": atoms / 60.0, "forces": atoms},
        guard=DivergenceGuard(net, device),
        meter=make_timers(device),
        replays=device.type == "cuda" and net.fixed_shapes,
    )


def bench_on(device: torch.device, rows: int, size: int) -> Bench:
    """Make batches of molecules: ours in host memory, as they are fed, the peer's on a device."""
    columns = models.molecules(rows * size)
    made = [
        make_batch(columns, row, cutoff=models.CUTOFF, targets=("energy", "forces"))
        for row in np.arange(rows * size).reshape(rows, size)
    ]
    degree = sum(b.edge_index.shape[1] for b in made) / sum(len(b.numbers) for b in made)
    energy = columns.targets["energy"]
    padded = [pad_batch(lay_out_pairs(batch)) for batch in made]
    ours = [batch.pin() for batch in padded] if device.type == "cuda" else padded
    peers = [as_batch(batch).to(device) for batch in made]
    return Bench(ours, peers, degree, float(energy.mean()), float(energy.std()), 0.0)


def ratio_of(
    ours: Callable[[int], object],
    peer: Callable[[int], object],
    device: torch.device,
    turns: int,
    steps: int,
) -> float:
    """Return how many times as fast ours takes its steps, the median of turns."""
    clock = clock_of(device)
    ratios = []

    def several(side: Callable[[int], object]) -> None:
        for number in range(steps):
            side(number)

    for _ in range(turns + 2):
        spent = clock(partial(several, ours))
        ratios.append(clock(partial(several, peer)) / spent)
    return statistics.median(ratios[2:])  # the first ones compile and record


def ratio_of_steps(
    conv: str, bench: Bench, device: torch.device, turns: int, forces: bool = False
) -> float:
    """Return how many times as fast as PyG our net trains."""
    sides = Sides.of(conv, bench, device, forces)
    ratio = ratio_of(sides.ours, sides.peer, device, turns, 5 if forces else 10)
    replays = sides.stepper.replays
    if replays is not None and replays.problem:
        raise AssertionError(f"not recorded: {replays.problem}")
    return ratio


@torch.no_grad()
def ratio_of_inference(conv: str, bench: Bench, device: torch.device, turns: int) -> float:
    """Return how many times as fast as PyG our net predicts energies."""
    net = models.our_net(conv, bench, forces=False)[0].to(device).eval()
    peer = models.peer_net(conv, bench).to(device).eval()
    rows = len(bench.batches)
    replays = Replays(lambda batch, _: net(batch), device)
    batches = [batch.to(device) for batch in bench.batches]
    ours = replays.run if device.type == "cuda" and net.fixed_shapes else net
    return ratio_of(
        lambda number: ours(batches[number % rows]),
        lambda number: peer(bench.peers[number % rows]),
        device,
        turns,
        10,
    )


def share_of_bandwidth(form: str, nodes: int, device: torch.device) -> float:
    """Return the bytes that a sum must read and write once, over its time and the bandwidth."""
    clock = clock_of(device)
    links, rows = links_of(form, 1, paired=True, nodes=nodes)
    kernels = choose_kernels("auto", device.type, torch.float32)
    given = [each.detach().to(device) for each in inputs_of(form, links, rows, torch.float32)]
    there = replace(links_on(links, device), kernels=kernels)
    result = SUMS[form](*given, there)
    best = min(clock(lambda: SUMS[form](*given, there)) for _ in range(20))
    arrays = [*given, result, there.sender, there.by_receiver, there.receiver_starts]
    moved = sum(each.numel() * each.element_size() for each in arrays)
    return moved / best / models.bytes_per_second(device, 2**26 if device.type == "cuda" else 2**20)


def joules_per_graph(bench: Bench, device: torch.device, steps: int) -> float:
    """Return the energy that training PaiNN takes; 0 where no counter can be read."""
    sides = Sides.of("painn", bench, device)
    clock = clock_of(device)
    for step in range(len(bench.batches)):
        sides.ours(step)
    energy = Energy(find_counters(device, whole_host=device.type == "cpu"))
    clock(lambda: [sides.ours(step) for step in range(steps)])
    energy.count("train")
    return energy.take_joules().sum().item() / (steps * bench.batches[0].num_real_graphs)


def percent_busy(bench: Bench, device: torch.device, steps: int) -> float:
    """Return the share of time in which NVML sees a kernel run; on a CPU, the process's own."""
    sides = Sides.of("painn", bench, device)
    seen = []
    started = time.perf_counter()
    used = time.process_time()
    for step in range(steps):
        sides.ours(step)
        if device.type == "cuda" and step > 100 and step % 100 == 99:
            seen.append(torch.cuda.utilization(device))
    if device.type == "cuda":
        return statistics.mean(seen)
    return 100.0 * (time.process_time() - used) / (time.perf_counter() - started)


def run(report: "Report", device: torch.device) -> None:
    """Measure training and inference beside PyG, kernels beside torch, bandwidth, energy."""
    models.seconds = clock_of(device)
    small = report.small
    bench = bench_on(device, 1 if small else 4, 4 if small else models.BATCH)
    turns, chosen = (1, ["schnet"]) if small else (8, models.chosen(None))
    for conv in sorted(chosen, key=lambda c: ORDER.index(c) if c in ORDER else len(ORDER)):
        work = partial(ratio_of_steps, conv, bench, device, turns)
        report.check(f"train over PyG {conv}", work)
        infer = partial(ratio_of_inference, conv, bench, device, turns)
        report.check(f"inference over PyG {conv}", infer)
        if CONV_SPECS[conv].forces:
            work = partial(ratio_of_steps, conv, bench, device, turns, forces=True)
            report.check(f"forces over PyG {conv}", work)
    large = bench_on(device, 1 if small else 2, 4 if small else 16 * models.BATCH)
    for conv in ORDER[:1] if small else ORDER[:4]:
        work = partial(ratio_of_steps, conv, large, device, turns)
        report.check(f"train over PyG {conv}, batches of {16 * models.BATCH}", work)
    for form in ("filtered",) if small else SUMS:
        size = 100 if small else 50_000
        report.check(f"bandwidth {form}", partial(share_of_bandwidth, form, size, device))
    report.check("energy per graph, J", partial(joules_per_graph, bench, device, 200 * turns))
    report.check("busy, percent", partial(percent_busy, bench, device, 300 * turns))
