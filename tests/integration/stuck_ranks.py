"""Train on two ranks of which one stops or is slow; print how it went as JSON.

Run as ``python stuck_ranks.py FOLDER WAY...``: ``file 0``, ``file 1``, ``port 0``, ``port 1`` (how
the ranks meet, and who stops) or ``slow``, one after the other. Like ``ranks.py``, this process
only imports and forks.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from forking import free_port
from ranks import config, random_columns

from hydragnn_hpo import log
from hydragnn_hpo.training import watchdog
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts
from hydragnn_hpo.training.watchdog import Watchdog, start_watchdog

STOPS_AT = 3
"""Steps that are taken before a rank stops."""

PATIENCE = 300.0
"""Seconds that nothing here takes."""

MARK_SECONDS = 2.0
"""A rank says so often where it is."""

SLOWER = 0.4
"""Seconds that the slow rank needs more for a step."""


def watched(folder):
    """Return an event that is set once the watchdog has told that we are where a rank stops.

    Whoever waits for it has no patience any more, but endless one before: he may be slow.
    """
    event = threading.Event()
    say = Watchdog._write_mark

    def saying(self, mark):
        say(self, mark)
        if (mark.step, mark.phase) == (STOPS_AT, "data"):
            event.set()
        if (mark.step, mark.phase) == (STOPS_AT, "backward") and (folder / "stopped").exists():
            self.limit = 0.0

    Watchdog._write_mark, watchdog.MARK_SECONDS = saying, MARK_SECONDS
    return event


def train(rank, way, folder):
    torch.set_num_threads(1)
    log.configure(rank=rank)
    ranks = join_ranks(None if way.startswith("port") else folder / "meeting")
    records = []
    event = watched(folder)
    batches = folder / "batches"
    trainer = Trainer(build_parts(
        config("schnet", 16, 4, "fp64"), random_columns(), ranks,
        lambda kind, **values: records.append({"record": kind, **values}),
    ))  # fmt: skip
    start_watchdog(ranks, trainer.parts.model, trainer.parts.meter, lambda: trainer.progress.step)
    made = trainer.parts.micro.make_ahead

    def delayed(indices):
        if way == "slow" and rank == 0:  # however long that took, rank 1 takes longer
            result = made(indices)
            with batches.open("ab") as file:
                file.write(b"x")
            return result
        if way == "slow":
            deadline = time.monotonic() + PATIENCE
            while not batches.exists() or batches.stat().st_size <= trainer.progress.step:
                assert time.monotonic() < deadline, "rank 0 has no batch"
                time.sleep(0.01)
            time.sleep(SLOWER)
        if way.endswith(f" {rank}") and trainer.progress.step == STOPS_AT:
            assert event.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGSTOP)
        return made(indices)

    trainer.parts.micro.make_ahead = delayed
    trainer.run(4, lambda: "go")
    if ranks.first:
        epochs = [record for record in records if record["record"] == "epoch"]
        (folder / "epochs.json").write_text(json.dumps(epochs))
    ranks.barrier()


def rank_main(rank, way, folder, port):
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    log_descriptor = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log_descriptor, 2)
    train(rank, way, folder)


def run(way, folder):
    """Train on two ranks; return how they ended."""
    children = []
    port = free_port()
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rank_main(rank, way, folder, port)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    if way == "slow":
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return {"codes": codes, "epochs": json.loads((folder / "epochs.json").read_text())}
    stopped = int(way.split()[1])
    os.waitpid(children[stopped], os.WUNTRACED)
    (folder / "stopped").touch()
    code = os.waitstatus_to_exitcode(os.waitpid(children[1 - stopped], 0)[1])
    os.kill(children[stopped], signal.SIGKILL)
    os.waitpid(children[stopped], 0)
    return {"code": code, "log": (folder / f"{1 - stopped}.log").read_text()}


def main():
    folder, *ways = sys.argv[1:]
    results = {}
    for way in ways:
        place = Path(folder) / way
        place.mkdir()
        results[way] = run(way, place)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
