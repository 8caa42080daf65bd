"""Speed on a card beside plain PyG on the same card, with the cases of ``benchmarks/models.py``.

The benchmark takes CPU time; here seconds pass until the device is idle.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import models
import torch
from card_correctness import links_on
from kernel_cases import SUMS, inputs_of, links_of
from models import Bench, Pair

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.model.kernels.passes import choose_kernels
from hydragnn_hpo.training.energy import find_counters
from hydragnn_hpo.training.optim import make_optimizer

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


def pair_on(device: torch.device, pair: Pair) -> Pair:
    """Move our net and the peer to a device, with new optimizers."""
    ours, peer = (net.to(device) for net in pair.nets)
    optimizers = make_optimizer(ours, TrainConfig()), torch.optim.AdamW(peer.parameters(), lr=1e-3)
    return Pair((ours, peer), pair.losses, optimizers)


def ratio_of_steps(
    make: Callable[[], Pair], bench: Bench, device: torch.device, budget: float
) -> float:
    """Return how many times as fast as the second net the first one trains."""
    pair = pair_on(device, make())
    for row in range(len(bench.batches)):
        for side in (0, 1):
            pair.step(side, row)  # compiles kernels
    return pair.turns(bench, budget)["ratio"]


@torch.no_grad()
def ratio_of_inference(conv: str, bench: Bench, device: torch.device, turns: int) -> float:
    """Return how many times as fast as PyG our net predicts energies."""
    pair, clock = pair_on(device, Pair.of(conv, bench, forces=False)), clock_of(device)
    for net in pair.nets:
        net.eval()
    spent = []
    for turn in range(turns + 1):
        row = turn % len(bench.batches)
        spent.append([clock(partial(loss, row)) for loss in pair.losses])
    ratios = sorted(peer / ours for ours, peer in spent[1:])  # the first one compiles
    return ratios[len(ratios) // 2]


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
    pair = pair_on(device, Pair.of("painn", bench, forces=False))
    counters = find_counters(device, whole_host=device.type == "cpu")
    before = [counter.joules() for counter in counters]
    for step in range(steps):
        pair.step(0, step % len(bench.batches))
    spent = sum(c.joules() - b for c, b in zip(counters, before, strict=True))
    return spent / (steps * models.BATCH)


def percent_busy(bench: Bench, device: torch.device, steps: int) -> float:
    """Return the share of time in which NVML sees a kernel run; on a CPU, the process's own."""
    pair = pair_on(device, Pair.of("painn", bench, forces=False))
    seen, started, used = [], time.perf_counter(), time.process_time()
    for step in range(steps):
        pair.step(0, step % len(bench.batches))
        if device.type == "cuda" and step % 20 == 19:
            seen.append(torch.cuda.utilization(device))
    if device.type == "cuda":
        return sum(seen) / len(seen)
    return 100.0 * (time.process_time() - used) / (time.perf_counter() - started)


def run(report: "Report", device: torch.device) -> None:
    """Measure training and inference beside PyG, kernels beside torch, bandwidth, energy."""
    models.seconds = clock_of(device)
    made = Bench.of(1 if report.small else 4)
    bench = replace(
        made,
        batches=[batch.to(device) for batch in made.batches],
        peers=[peer.to(device) for peer in made.peers],
    )
    budget, turns = (0.0, 2) if report.small else (2.0, 50)
    convs = [*ORDER, *(conv for conv in models.chosen(None) if conv not in ORDER)]
    chosen = ["schnet"] if report.small else [c for c in convs if c in models.chosen(None)]
    for form in ("filtered",) if report.small else SUMS:
        size = 100 if report.small else 50_000
        report.check(f"bandwidth {form}", partial(share_of_bandwidth, form, size, device))
    for conv in chosen:
        work = partial(ratio_of_steps, partial(Pair.of, conv, bench, False), bench, device, budget)
        report.check(f"train over PyG {conv}", work)
        infer = partial(ratio_of_inference, conv, bench, device, turns)
        report.check(f"inference over PyG {conv}", infer)
        if CONV_SPECS[conv].forces:
            make = partial(Pair.of, conv, bench, True)
            work = partial(ratio_of_steps, make, bench, device, budget)
            report.check(f"forces over PyG {conv}", work)
    report.check("energy per graph, J", partial(joules_per_graph, bench, device, 2 * turns))
    report.check("busy, percent", partial(percent_busy, bench, device, 4 * turns))
