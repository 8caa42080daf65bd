"""Train with every optimizer on several ranks; print the parameters as JSON.

Run as ``python optimizer_ranks.py WORLD``. Like ``ranks.py``, this process only imports and forks;
the ranks train one trial after the other in one process group.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from forking import fork_ranks
from ranks import config, random_columns

from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.trainer import Trainer

OPTIMIZERS = ("adam", "sgd", "lamb", "muon")
"""Beside AdamW, with which ``parallel_ranks.py`` trains."""

WAYS = {1: {"one": {}}, 2: {"ddp": {}, "full": {"shard": "full"}, "tensor": {"tensor": 2}}}
BATCH, EPOCHS = 16, 2
"""50 graphs in four steps: 8 steps."""


def trials(world):
    """Give each optimizer with every way to share it; and bf16, by name."""
    plain = config("painn", BATCH, EPOCHS, "fp64").model_dump()
    plain["training"] |= {"weight_decay": 0.05, "schedule": "plateau", "plateau_epochs": 1}
    for way, parallel in WAYS[world].items():
        for name in OPTIMIZERS:
            training = plain["training"] | {"optimizer": name}
            yield f"{name}, {way}", plain | {"training": training, "parallel": parallel}
        training = plain["training"] | {"optimizer": "sgd", "precision": "bf16"}
        yield f"bf16, {way}", plain | {"training": training, "parallel": parallel}


def train(made, graphs, ranks):
    trainer = Trainer(TrialConfig.model_validate(made), graphs, ranks)
    trainer.run(EPOCHS, lambda: "go")
    weights = trainer.net.full_state()
    trainer.load_best_weights()
    best = trainer.net.full_state()
    names = [name for name, _ in trainer.model.named_parameters()] if ranks.first else []
    return [
        torch.cat([each[name].flatten() for name in names]).tolist() if names else []
        for each in (weights, best)
    ]


def run(world, out):
    torch.set_num_threads(1)
    ranks, graphs = join_ranks(), random_columns()
    found = {name: train(made, graphs, ranks) for name, made in trials(world)}
    if ranks.first:
        out.write_text(json.dumps(found))
    ranks.barrier()


def main():
    world = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        fork_ranks(world, partial(run, world, out))
        print(out.read_text())


if __name__ == "__main__":
    main()
