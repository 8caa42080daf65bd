"""Run attempts of trials in forked ranks, kill some of them, and tell how they ended.

A server: reads one JSON task per line, answers with one line. It only imports and forks, so that
a start costs what a campaign's zygote needs, not seconds of imports.

A task: ``trial`` (directory), ``attempt``, ``world``; ``environment`` of the ranks; ``kill``:
``{"rank", "step"}``, where a rank kills itself in the middle of a step, or with ``"writing"`` in
the middle of writing the next checkpoint, or ``{"rank", "calling"}``, where it calls a function of
a module of ``training`` for the first time; ``full``: a step from which on no checkpoint finds
room; ``sees``: ``{"rank", "file"}``, what one rank finds in place of the last checkpoint;
``term``: a step before which every rank is asked to end; ``end``: one with which the allocation
comes to its end.
"""

import errno
import functools
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401

from hydragnn_hpo.launching.job import PRELOAD
from hydragnn_hpo.training import checkpoint_saver, ddp, sharded, trial
from hydragnn_hpo.training.stepper import Stepper
from hydragnn_hpo.training.training_parts import TrainingParts
from hydragnn_hpo.walltime import WallTime

DEADLINE = 300.0
ROOM = "hydragnn_hpo.training"


def killed_in(step):
    """Let this process be killed when it has the gradient of a step, but no new weights.

    A checkpoint that it writes in the background is on disk by then.
    """
    real = Stepper._piece
    save = checkpoint_saver.CheckpointSaver.save
    savers = []

    def noted_save(self, *arguments, **options):
        savers.append(self)
        save(self, *arguments, **options)

    def piece(self, *arguments, **options):
        result = real(self, *arguments, **options)
        if self.step_is == step:
            for saver in savers[-1:]:
                saver._background.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    take = Stepper.take_step

    def noted(self, *arguments, **options):
        self.step_is = options["step"]
        return take(self, *arguments, **options)

    Stepper._piece, Stepper.take_step = piece, noted
    checkpoint_saver.CheckpointSaver.save = noted_save


def before_step(do):
    """Call with the number of every step before it is taken."""
    take = Stepper.take_step

    def taking(self, *arguments, **options):
        do(options["step"])
        return take(self, *arguments, **options)

    Stepper.take_step = taking


def ends_with(step):
    """Let the allocation, of which an hour is left, be nearly over from a step on."""
    taken = [0]
    near = WallTime.near
    before_step(lambda at: taken.append(at))

    def nearly(self, *seconds):
        over = replace(self, clock=lambda: self.end) if taken[-1] >= step else self
        return near(over, *seconds)

    WallTime.near = nearly


def killed_writing(step):
    """Let this process be killed when a checkpoint is written but does not count yet."""
    wanted = []
    real, save = os.replace, sharded.save

    def replace(source, target):
        if wanted and Path(target).name == checkpoint_saver.LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    def save_parts(*arguments, **options):
        save(*arguments, **options)
        if wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace, sharded.save = replace, save_parts
    on_save(lambda at: wanted.append(at) if at >= step else None)


def killed_calling(name):
    """Let this process be killed where it first calls a function, such as ``trial.load_trial``.

    A checkpoint that a trainer writes in the background is on disk by then.
    """
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path[1:], importlib.import_module(f"{ROOM}.{path[0]}"))
    assert hasattr(owner, last), name

    def kill(*arguments, **_):
        for given in arguments:
            if isinstance(parts := getattr(given, "parts", given), TrainingParts):
                parts.saver._background.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, last, kill)


def full_from(step):
    """Let the disk of this rank be full for checkpoints from a step on."""
    wanted = []
    real = os.fsync

    def fsync(descriptor):
        if wanted and threading.current_thread().name == "checkpoint":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    os.fsync = fsync
    on_save(lambda at: wanted.append(at) if at >= step else None)


def sees(file):
    """Make this rank find another file, or none, where the last checkpoint is."""
    real = checkpoint_saver.read_checkpoint

    def read(path):
        return real(Path(file) if path.name == checkpoint_saver.LAST else path)

    checkpoint_saver.read_checkpoint = read


def on_save(do):
    """Call with the step of every checkpoint when it begins."""
    real = checkpoint_saver.CheckpointSaver.save

    def save(self, folder, state, best):
        self._background.wait()
        do(state["progress"]["step"])
        real(self, folder, state, best)

    checkpoint_saver.CheckpointSaver.save = save


def run(task, rank):
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(task["world"]), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(task["world"]), "GLOO_SOCKET_IFNAME": "lo",
        "HYDRAGNN_HPO_DEVICE": "cpu", **task.get("environment", {}),
    }  # fmt: skip
    ddp.SYNC_SECONDS = task.get("look_seconds", ddp.SYNC_SECONDS)
    kill = task.get("kill")
    if kill and kill["rank"] == rank:
        if "calling" in kill:
            killed_calling(kill["calling"])
        else:
            (killed_writing if kill.get("writing") else killed_in)(kill["step"])
    if task.get("full", {}).get("rank") == rank:
        full_from(task["full"]["step"])
    if task.get("sees", {}).get("rank") == rank:
        sees(task["sees"]["file"])
    if "term" in task:
        before_step(lambda at: at == task["term"] and os.kill(os.getpid(), signal.SIGTERM))
    if "end" in task:
        ends_with(task["end"])
    spec = {"trial_dir": task["trial"], "attempt": task["attempt"], "one_host": True}
    return trial.rank_main(spec)


def forked(task, rank, log):
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = run(task, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def attempt(task):
    folder = Path(task["trial"]) / "attempts" / f"{task['attempt']:03d}"
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    children = [forked(task, rank, log) for rank in range(task["world"])]
    os.close(log)
    codes = [None] * len(children)
    deadline = time.monotonic() + DEADLINE
    while None in codes:
        now = time.monotonic()
        for rank, child in enumerate(children):
            if codes[rank] is None and (result := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(result[1])
        if now > deadline:
            for rank, child in enumerate(children):
                if codes[rank] is None:
                    os.kill(child, signal.SIGKILL)
            deadline = now + DEADLINE
        time.sleep(0.002)
    return {"codes": codes}


def main():
    for name in PRELOAD:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(attempt(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
