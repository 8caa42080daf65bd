"""Train trials on ranks whose memory runs out; print how each rank ended as JSON.

Run as ``python crowded_ranks.py FOLDER CASE ...`` with cases ``TRIAL:WORLD:PHASE:MIB``; memory runs
out on the last rank in the second step. This process only imports and forks.
"""

import importlib
import json
import os
import resource
import sys
from pathlib import Path

import torch
import torch.distributed.fsdp

from hydragnn_hpo.config.schema import dump_config
from hydragnn_hpo.config.trial_config import PlacementConfig
from hydragnn_hpo.launching.job import PRELOAD
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training import memory
from hydragnn_hpo.training.stepper import Stepper
from hydragnn_hpo.training.trial import rank_main

EPOCHS = 2


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory.")


def run_out(phase):
    """Let memory run out once, in the second step: ``forward-first backward-last`` and so on."""
    way, piece = phase.split("-")
    take, losses, backward = Stepper.take_step, Stepper.losses, torch.autograd.backward
    forward = MultiHeadGNN.forward
    now = {"armed": False}

    def taking(stepper, indices, batches, **where):
        now["step"] = where["step"]
        now["pieces"] = len(batches)
        return take(stepper, indices, batches, **where)

    def losing(stepper, batch, counts, *, last):
        now["armed"] = now.get("step") == 1 and not now.get("done") and last == (piece == "last")
        now["model"] = stepper.net.model
        return losses(stepper, batch, counts, last=last)

    def forwarding(model, *arguments):
        result = forward(model, *arguments)
        if now["armed"] and way == "forward":
            now["done"] = True
            full()
        return result

    def going_back(loss, *arguments):
        if now["armed"] and way == "backward":
            now["done"] = True
            # The embedding's gradient comes last: others were sent by then.
            hook = now["model"].trunk.embedding.weight.register_hook(
                lambda _: (hook.remove(), full())
            )
        return backward(loss, *arguments)

    Stepper.take_step, Stepper.losses, MultiHeadGNN.forward = taking, losing, forwarding
    torch.autograd.backward = going_back


def limit(mib):
    """Let this process map so many MiB beside what it has."""
    most = memory._status("VmData") + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def train(folder, rank, world, phase, mib):
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo",
        "HYDRAGNN_HPO_DEVICE": "cpu",
    }  # fmt: skip
    trial = TrialDir(folder)
    if phase == "fit":
        os.environ["HYDRAGNN_HPO_MEMORY_MB"] = str(mib)
    elif phase == "limit":
        limit(mib)
    elif phase != "none" and rank == world - 1:
        run_out(phase)
    attempt = trial.attempts()[-1]
    return rank_main({"trial_dir": str(folder), "attempt": attempt, "one_host": True})


def place(folder, world):
    trial = TrialDir(folder)
    number = max(trial.attempts(), default=0) + 1
    placement = PlacementConfig(attempt=number, epochs=EPOCHS, width=world)
    trial.attempt(number).mkdir(parents=True)
    (trial.attempt(number) / "placement.toml").write_text(dump_config(placement))


def fork_ranks(folder, world, phase, mib):
    place(folder, world)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = train(folder, rank, world, phase, mib)
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main():
    for name in PRELOAD:
        importlib.import_module(name)
    folder = Path(sys.argv[1])
    codes = {}
    for case in sys.argv[2:]:
        name, world, phase, mib = case.split(":")
        codes[case] = fork_ranks(folder / name, int(world), phase, int(mib))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
