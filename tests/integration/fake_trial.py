"""A short fake trial: epochs of hundredths of a second, a checkpoint after each, one result.

    python fake_trial.py TRIAL.TOML ATTEMPT_FOLDER CHECKPOINTS EPOCHS

Every epoch that ends and every result is noted in ``ran.log`` beside the campaign.
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


def main():
    config = tomllib.loads(Path(sys.argv[1]).read_text())
    folder, checkpoints, epochs = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    log = os.open(os.environ["RAN_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    last = checkpoints / "last.json"
    epoch = json.loads(last.read_text())["epoch"] if last.exists() else 0
    with (folder / "metrics.jsonl").open("a", buffering=1) as metrics:
        while epoch < epochs:
            time.sleep(config["seconds"])
            epoch += 1
            objective = config["x"] + 1.0 / epoch
            row = {"record": "epoch", "epoch": epoch, "objective": objective}
            metrics.write(json.dumps({**row, "train_seconds": config["seconds"]}) + "\n")
            whole(last, {"epoch": epoch})
            metrics.write(json.dumps({"record": "checkpoint", "epoch": epoch}) + "\n")
    whole(folder / "result.json", {"status": "stopped", "epochs": epoch, "objective": objective})
    os.write(log, f"{config['trial']} {epochs}\n".encode())


main()
