"""Accuracy of one trial on fold 0 of matbench's perovskites.

One PaiNN is trained on the published training structures but 1,200 of them, which are kept for
validation; the fold's 3,449 test structures are looked at once, with the weights of the best
validated epoch. ``--quick`` trains a narrow one for 2 epochs, within 50 s, and is not recorded.
``--run`` keeps the run, and goes on with one that is there. Needs HYDRAGNN_HPO_DATA. Published on
the whole benchmark: CGCNN .0452 eV/cell.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from record import add_smoke, finish, lacks_data

from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.resources import resource_path
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.evaluate import error_sums
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.trial import load_trial

NAME = "perovskites_fold0"
SPLIT = """group = "structure"
shares = [0.73, 0.05, 0.01, 0.01, 0.2]
"""
"""The fold is random, so validation is too; a single trial has nothing to select or calibrate."""

TRIAL = f"""
trial = "painn"
[data]
store = "../{NAME}.bp"
[model]
conv = "painn"
features = 128
layers = 3
cutoff = 5.0
[heads.e_form]
loss = "mae"
[training]
epochs = EPOCHS
global_batch = 64
learning_rate = 1e-3
weight_decay = 0.05
ema = 0.998
"""
MINUTES = (1, 2, 5, 10, 20, 30, 40, 60, 90, 120)
"""Times of training at which the curve is told, as far as it went."""


def hpo(*arguments: object) -> None:
    """Run a command of ours, its words to stderr."""
    command = [sys.executable, "-m", "hydragnn_hpo", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def prepare(folder: Path, source: str, *, epochs: int, quick: bool) -> TrialDir:
    """Build the store and write the trial, unless they are there."""
    trial = TrialDir(folder / "trial")
    if trial.config.exists():
        return trial
    trial.path.mkdir(parents=True)
    card = resource_path(f"graph_datasets/{source}.toml").read_text()
    assert f'name = "{source}"' in card
    card = card.replace(f'name = "{source}"', f'name = "{NAME}"', 1)
    assert 'group = "composition"\n' in card
    card = card.replace('group = "composition"\n', SPLIT)
    (folder / f"{NAME}.toml").write_text(card)
    store = folder / f"{NAME}.bp"
    hpo("dataset", "build", folder / f"{NAME}.toml", "--out", store)
    text = TRIAL.replace("EPOCHS", str(epochs))
    if quick:
        text = text.replace("features = 128", "features = 32").replace("layers = 3", "layers = 2")
    trial.config.write_text(text)
    return trial


def error_on_test(trial: TrialDir) -> tuple[float, int]:
    """Return the MAE of the best epoch on the test split, and the number of its structures."""
    config, graphs = load_trial(trial)
    trainer = Trainer(config, graphs, Ranks(0, 1, torch.device("cpu")))
    trainer.model.load_state_dict(checkpoint.read_checkpoint(trial.best)[0])
    trainer.model.eval()
    ((error, count),) = error_sums(trainer.model, trainer.feed, graphs.indices_of("test")).tolist()
    return error / count, int(count)


def curve(trial: TrialDir) -> dict[str, float]:
    """Return the best validation MAE after some minutes of training, eV."""
    found: dict[str, float] = {}
    best, seconds, reached = float("inf"), 0.0, float("inf")
    epochs: list[dict[str, Any]] = [
        record
        for attempt in trial.attempts()
        for record in read_records(trial.attempt(attempt) / "metrics.jsonl")
        if record["record"] == "epoch"
    ]
    for record in epochs:
        seconds += record["train_seconds"] + record["val_seconds"]
        for minutes in MINUTES:
            if seconds > 60 * minutes >= reached:
                found.setdefault(f"val_mae_{minutes}_min", round(best, 4))
        best, reached = min(best, record["val_mae"]["e_form"]), min(reached, seconds)
    return found | {"train_minutes": round(seconds / 60, 1), "val_mae": round(best, 4)}


def main() -> None:
    """Train, or take over what was trained, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 epochs, narrow; not recorded")
    parser.add_argument("--run", type=Path, help="keep the run here, or go on with it")
    add_smoke(parser)
    options = parser.parse_args()
    if options.smoke and lacks_data(__file__):
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as scratch:
        quick = options.quick or options.smoke
        source = "castelli_mini" if options.smoke else "matbench_perovskites"
        epochs = 1 if options.smoke else 2 if quick else 80
        trial = prepare(options.run or Path(scratch), source, epochs=epochs, quick=quick)
        attempts = trial.attempts()
        if not attempts or not (trial.attempt(attempts[-1]) / "result.json").exists():
            hpo("trial", trial.path)
        result = json.loads((trial.attempt(trial.attempts()[-1]) / "result.json").read_text())
        mae, count = error_on_test(trial)
        figures = {
            "test_mae": round(mae, 4),
            "test_structures": count,
            "cgcnn_published_mae": 0.0452,
            "test_mae_over_cgcnn": round(mae / 0.0452, 3),
            "epochs": result["epochs"],
            "best_epoch": result["best_epoch"],
            "parameters": result["parameters"],
            **curve(trial),
        }
    finish(__file__, figures, keep=not quick)


if __name__ == "__main__":
    main()
