"""A short fake trial: epochs of hundredths of a second, a checkpoint after each, one result.

    python fake_trial.py TRIAL.TOML ATTEMPT_FOLDER CHECKPOINTS EPOCHS GATE

The later trials wait until the folder GATE holds ``open``, and say in it that one ``waits``.
A result names the process that wrote it: one that is written again is another one.
"""

import json
import os
import sys
import time
import tomllib
from pathlib import Path


def whole(path, content):
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(path)


FREE = 18
"""Trials that do not wait."""


def wait_at(gate, name):
    while int(name[1:]) >= FREE and not (gate / "open").exists():
        (gate / "waits").touch()
        time.sleep(0.02)


def goal(config, epoch):
    return config["x"] + 1.0 / epoch


def main():
    config = tomllib.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    checkpoints = Path(sys.argv[3])
    epochs = int(sys.argv[4])
    wait_at(Path(sys.argv[5]), checkpoints.parent.name)
    last = checkpoints / "last.json"
    epoch = json.loads(last.read_text())["epoch"] if last.exists() else 0
    with (folder / "metrics.jsonl").open("a", buffering=1) as metrics:
        while epoch < epochs:
            time.sleep(config["seconds"])
            epoch += 1
            row = {"record": "epoch", "epoch": epoch, "objective": goal(config, epoch)}
            metrics.write(json.dumps({**row, "train_seconds": config["seconds"]}) + "\n")
            whole(last, {"epoch": epoch})
            metrics.write(json.dumps({"record": "checkpoint", "epoch": epoch}) + "\n")
    # Also where an earlier process was killed between its last checkpoint and its result.
    result = {"status": "stopped", "epochs": epoch, "objective": goal(config, epoch)}
    whole(folder / "result.json", {**result, "pid": os.getpid()})


main()
