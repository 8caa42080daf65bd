"""Small trainings that share one device, as ``machine.lanes`` lets them: weights and throughput.

Lanes have the slots that ``launching.slots`` lays out: device, cores and memory of each. A lane is
a process of its own (``python card_lanes.py EPOCHS CORE ...``), which first trains in fp64, and
then, when all lanes of its device are ready, in fp32 against the clock.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

import torch
from card_training import difference
from ranks import config, random_columns

from hydragnn_hpo.launching.slots import Slot, detect_slots
from hydragnn_hpo.training.ddp import Ranks, join_ranks
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

if TYPE_CHECKING:
    from run import Report

WAIT = 400.0
"""Seconds after which lanes that are not done fail their check."""


class Lanes(NamedTuple):
    """What trainings did that shared a device."""

    weights: list[torch.Tensor]
    """Weights of the training in fp64 of each lane, as one vector."""
    graphs_per_second: float
    """Graphs that all of them trained on together in fp32, by the time of the slowest."""
    busy: float
    """Percent of the time in which NVML saw a kernel; 0 on a CPU."""


def slots_of_device(lanes: int, device: torch.device) -> list[Slot]:
    """Return the slots of lanes on the first device, or on a CPU."""
    if device.type == "cpu":
        return list(detect_slots(lanes))
    slots = detect_slots(lanes=lanes)
    return [slot for slot in slots if slot.visible == slots[0].visible]


def environment_of(slot: Slot) -> dict[str, str]:
    """Return the environment of a slot's rank, see ``launching.rank_environment``."""
    own = {"HYDRAGNN_HPO_DEVICE": slot.device, "PYTHONPATH": os.pathsep.join(sys.path)}
    if slot.memory_mb:
        own["HYDRAGNN_HPO_MEMORY_MB"] = str(slot.memory_mb)
    return os.environ | own | ({slot.variable: slot.visible} if slot.visible else {})


@cache
def run_lanes(lanes: int, device: torch.device, epochs: int) -> Lanes:
    """Train in several lanes at a time."""
    slots = slots_of_device(lanes, device)
    if len(slots) != lanes:
        raise AssertionError(f"{len(slots)} slots for {lanes} lanes")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(epochs), *map(str, slot.cores)],
            env=environment_of(slot), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for slot in slots
    ]  # fmt: skip
    try:
        if any(rank.stdout.readline() != "ready\n" for rank in ranks):
            raise AssertionError("a lane ended before its training")
        with ThreadPoolExecutor(lanes) as pool:
            ends = [pool.submit(rank.communicate, "go\n", timeout=WAIT) for rank in ranks]
            seen = []
            while not all(end.done() for end in ends):
                if device.type == "cuda":
                    seen.append(torch.cuda.utilization(device))
                time.sleep(0.1)
        results = [json.loads(end.result()[0]) for end in ends]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    seconds = max(each["seconds"] for each in results)
    weights = [torch.tensor(each["weights"], dtype=torch.float64) for each in results]
    rate = sum(each["graphs"] for each in results) / seconds
    return Lanes(weights, rate, mean(seen) if seen else 0.0)


def largest_difference(lanes: int, device: torch.device, epochs: int) -> float:
    """Compare the weights of all lanes with those of a training that has the device alone."""
    alone, *_ = run_lanes(1, device, epochs).weights
    return max(difference(each, alone) for each in run_lanes(lanes, device, epochs).weights)


def throughput_over_one(lanes: int, device: torch.device, epochs: int) -> float:
    """Return the throughput of all lanes together over that of a single one."""
    one, several = (run_lanes(n, device, epochs).graphs_per_second for n in (1, lanes))
    return several / one


def run(report: "Report", device: torch.device) -> None:
    """Check the weights of trainings that share a device, and measure their throughput."""
    epochs = 1 if report.small else 60
    for lanes in (2,) if report.small else (2, 4):
        given = (lanes, device, epochs)
        report.check(f"{lanes} lanes: weights as alone", partial(largest_difference, *given), 1e-8)
        report.check(f"{lanes} lanes: throughput over one", partial(throughput_over_one, *given))
    for lanes in (1, 2) if report.small else (1, 2, 4):
        made = partial(run_lanes, lanes, device, epochs)
        report.check(f"{lanes} lanes: graphs per second", lambda m=made: m().graphs_per_second)
        report.check(f"{lanes} lanes: busy, percent", lambda m=made: m().busy)


def train(precision: str, epochs: int, ranks: Ranks) -> Trainer:
    """Train a small PaiNN, on this lane's device."""
    trainer = Trainer(build_parts(config("painn", 16, epochs, precision), random_columns(), ranks))
    trainer.run(epochs, lambda: "go")
    return trainer


def main(epochs: int, cores: list[int]) -> None:
    """Train as one lane; see above."""
    if cores:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    ranks = join_ranks()
    trained = train("fp64", 2, ranks).parts.model
    train("fp32", 1, ranks)  # compiles kernels
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    train("fp32", epochs, ranks)
    seconds = time.perf_counter() - began
    weights = torch.cat([p.detach().flatten().cpu().double() for p in trained.parameters()])
    result = {
        "seconds": seconds,
        "graphs": epochs * len(random_columns().indices_of("train")),
        "weights": weights.tolist(),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(int(sys.argv[1]), [int(core) for core in sys.argv[2:]])
