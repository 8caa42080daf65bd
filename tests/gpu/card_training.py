"""Trainings on a device: the weights of the CPU, resumed on the other one, and full memory."""

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import models
import numpy as np
import torch
from ranks import config, random_columns

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.training import micro_batches
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.memory import is_out_of_memory, release_memory
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

if TYPE_CHECKING:
    from run import Report

CPU = torch.device("cpu")
SINGLY = ("dimenetpp", "alignn", "mfc")
"""Convs whose shapes depend on values, so that kernels are launched singly."""

EPOCHS = 2
RANKS_SCRIPT = Path(__file__).parents[1] / "integration" / "parallel_ranks.py"


def trained(
    devices: list[torch.device],
    conv: str,
    precision: str,
    pieces: int | None = 1,
    *,
    cuda_graphs: bool = True,
) -> torch.Tensor:
    """Train on each device in turn, going on from the checkpoint; return the weights."""
    made = config(conv, 16, EPOCHS, precision)
    update = {"micro_batches": pieces, "cuda_graphs": cuda_graphs}
    training = made.training.model_copy(update=update)
    made = made.model_copy(update={"training": training})
    graphs = random_columns()
    with tempfile.TemporaryDirectory() as folder:
        for number, device in enumerate(devices):
            trainer = Trainer(build_parts(made, graphs, Ranks(0, 1, device)))
            if trainer.resume(Path(folder)) != (number > 0):
                raise AssertionError(f"training {number} did not begin from the right checkpoint")
            until = EPOCHS if number == len(devices) - 1 else number + 1
            trainer.run(until, lambda: "go", Path(folder))
            check_replays(trainer, cuda_graphs)
        weights = [p.detach().flatten().cpu().double() for p in trainer.parts.model.parameters()]
    return torch.cat(weights)


def check_replays(trainer: Trainer, wanted: bool) -> None:
    """Check that a training on a card has replayed its steps and validations."""
    on_card = trainer.parts.ranks.device.type == "cuda"
    if trainer.parts.feed.pads != (wanted and on_card and trainer.parts.model.fixed_shapes):
        raise AssertionError(f"batches are {'' if trainer.parts.feed.pads else 'not '}padded")
    for replays in (trainer.parts.stepper.replays, trainer.parts.val_replays):
        if replays is not None and not replays.recordings:
            raise AssertionError(f"not recorded: {replays.problem}")


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the norm of a difference over that of the second."""
    return float((first - second).norm() / second.norm())


def compare_trainings(
    devices: list[torch.device], conv: str, precision: str, pieces: int | None = 1
) -> float:
    """Compare the weights of a training with those of the same one on the CPU, unbroken."""
    return difference(trained(devices, conv, precision, pieces), trained([CPU], conv, precision))


def compare_compiled(conv: str, device: torch.device) -> float:
    """Compare predictions of a compiled trunk with those of the same net."""
    columns = models.molecules(4)
    rows = np.arange(columns.num_graphs)
    made = make_batch(columns, rows, cutoff=models.CUTOFF, targets=("energy",), pairs=True)
    batch = made.to(device)
    bench = models.Bench([], [], 16.0, -80.0, 5.0, 0.0)
    net = models.our_net(conv, bench, forces=False)[0].to(device).eval()
    expected = net(batch)["energy"].detach()
    net.trunk.compile(dynamic=True)
    return difference(net(batch)["energy"].detach(), expected)


def compare_replays(conv: str, precision: str, device: torch.device) -> float:
    """Compare a training that replays CUDA graphs with one that launches kernels singly."""
    single = trained([device], conv, precision, cuda_graphs=False)
    return difference(trained([device], conv, precision), single)


def repeat_bits(conv: str, device: torch.device) -> float:
    """Compare a training that was broken off and resumed with one that was not."""
    return difference(trained([device] * 2, conv, "fp32"), trained([device], conv, "fp32"))


def survive_full_memory(device: torch.device) -> float:
    """Train in memory that a whole step does not fit into; return the pieces of a step.

    On a card torch's share of the memory is cut to what a quarter of a step takes above the
    weights, so that the error is torch's own; on a CPU the first backward pass raises it.
    """
    made = config("painn", 48, 1, "fp32")
    graphs = random_columns()
    if device.type == "cuda":  # torch takes memory in blocks of 20 MB
        made = made.model_copy(update={"model": made.model.model_copy(update={"features": 1024})})
    trainer = Trainer(build_parts(made, graphs, Ranks(0, 1, device)))
    real = micro_batches.Stepper._piece
    calls = []

    def full(self, *arguments, **options):
        calls.append(1)
        if device.type == "cpu" and len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, *arguments, **options)

    micro_batches.Stepper._piece = full
    try:
        if device.type == "cuda":
            whole = trainer_peak(made, graphs, device)
            release_memory(device)
            share = (torch.cuda.memory_reserved(device) + 0.6 * whole) / total_bytes(device)
            torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
            trainer.parts.micro.requested = 1  # the estimate would prevent it
        trainer.run(1, lambda: "go")
    finally:
        micro_batches.Stepper._piece = real
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    if trainer.parts.micro.pieces < 2:
        raise AssertionError("no step ran out of memory")
    return float(trainer.parts.micro.pieces)


def trainer_peak(made, graphs, device: torch.device) -> int:
    """Return the bytes that one epoch allocates at most."""
    trainer = Trainer(build_parts(made, graphs, Ranks(0, 1, device)))
    torch.cuda.reset_peak_memory_stats(device)
    trainer.run(1, lambda: "go")
    return torch.cuda.max_memory_allocated(device)


def total_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory


def provoke_out_of_memory(device: torch.device) -> float:
    """Allocate more than there is, and return 0 if that is recognized and passes."""
    try:
        torch.empty(2**50, dtype=torch.uint8, device=device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_memory(device)
        return 0.0
    raise AssertionError("a petabyte was allocated")


def compare_ranks(worlds: str, device: torch.device) -> float:
    """Train with DDP and sharded weights (FSDP2) in ranks of their own; compare with one rank."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if device.type == "cpu":
        env["HYDRAGNN_HPO_DEVICE"] = "cpu"
    trials = {"1": {"painn": ["one"]}}
    if worlds != "1":
        trials["2"] = {"painn": ["ddp", "full"]}
    done = subprocess.run(
        [sys.executable, str(RANKS_SCRIPT), json.dumps(trials)],
        env=env, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    ways = {
        f"{world} {name}": torch.tensor(sum(each["last"].values(), []), dtype=torch.float64)
        for world, cases in json.loads(done.stdout.splitlines()[-1]).items()
        for name, each in cases["painn"].items()
    }
    if len(ways) != (1 if worlds == "1" else 3):
        raise AssertionError(f"trained {', '.join(ways)}")
    return max(difference(each, ways["1 one"]) for each in ways.values())


def run(report: "Report", device: torch.device) -> None:
    """Check trainings, from those that say most to those that say least."""
    convs = ("painn",) if report.small else ("painn", "pna", "egnn", "gat")
    for conv in convs:
        work = partial(compare_trainings, [device], conv, "fp64")
        report.check(f"training {conv} fp64", work, 1e-8)
    for name, devices in {"to": [CPU, device], "from": [device, CPU]}.items():
        work = partial(compare_trainings, devices, "painn", "fp64")
        report.check(f"resumed {name} the device", work, 1e-8)
    work = partial(compare_trainings, [device], "painn", "fp64", 3)
    report.check("training in three pieces", work, 1e-8)
    report.check("training bf16", partial(compare_trainings, [device], "painn", "bf16"), 0.1)
    report.check("out of memory is recognized", partial(provoke_out_of_memory, device), 0.0)
    report.check("full memory cuts steps", partial(survive_full_memory, device), 64.0)
    worlds = "1,2" if device.type == "cpu" or torch.cuda.device_count() > 1 else "1"
    report.check(f"ranks {worlds}: DDP, FSDP2", partial(compare_ranks, worlds, device), 1e-9)
    for conv in ("schnet",) if report.small else (c for c in CONV_SPECS if c not in SINGLY):
        work = partial(compare_replays, conv, "fp64", device)
        report.check(f"replayed {conv} fp64", work, 1e-9)
    report.check("resumed bits", partial(repeat_bits, "painn", device), 0.0)
    if not report.small:  # compiling takes minutes on a CPU
        report.check("compiled schnet", partial(compare_compiled, "schnet", device), 1e-4)
