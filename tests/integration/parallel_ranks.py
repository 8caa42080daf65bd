"""Train the same trials with every way to share a model among ranks; print what came out as JSON.

Run as ``python parallel_ranks.py TRIALS``, such as ``{"1": {"painn": ["one"]}, "2": {"painn":
["ddp"]}}``: strategies by number of ranks and case. Like ``ranks.py``, this process only imports
and forks; the ranks train one trial after the other in one group.
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from forking import fork_ranks
from ranks import config, random_columns

from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.training import checkpoint, evaluate
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.parallel import local_part
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_model, build_parts

BATCH, EPOCHS = 16, 2
"""50 graphs in four steps, the last with 2: at 4 ranks some shares are empty."""

FEW_EDGES = 300
"""Of a batch that is evaluated: ranks have unlike numbers of batches."""

CLIP = 0.05
"""Longest gradient: every step is clipped, more or less."""

STRATEGIES = {
    1: {"one": {}, "recompute": {"recompute": True}, "ignored": {"shard": "full", "tensor": 2}},
    2: {
        "ddp": {},
        "ddp, recompute": {"recompute": True},
        "gradients": {"shard": "gradients"},
        "full": {"shard": "full"},
        "full, recompute": {"shard": "full", "recompute": True},
        "tensor": {"tensor": 2},
    },
    4: {
        "ddp": {"bucket_mb": 0.002},
        "full": {"shard": "full"},
        "hybrid": {"shard": "hybrid", "shard_ranks": 2},
        "tensor x gradients": {"tensor": 2},
        "tensor x full": {"tensor": 2, "shard": "full", "recompute": True},
        "tensor x copies": {"tensor": 2, "shard": "hybrid", "shard_ranks": 1},
    },
}
"""By number of ranks."""

CASES = {
    "painn": ("painn", 3, ()),
    "forces": ("painn", 1, ("forces",)),
    "pieces": ("schnet", 3, ("forces",)),
    "frozen": ("schnet", 1, ("frozen",)),
}
"""Conv, pieces of a step, and what else: forces are learned too, or the trunk is not. All are
trained with AdamW, and clipped."""

PLAIN = {"weight_decay": 0.05, "schedule": "plateau", "plateau_epochs": 1}
OPTIMIZERS = {
    **{name: PLAIN | {"optimizer": name} for name in ("adam", "sgd", "muon")},
    "bf16": PLAIN | {"optimizer": "sgd", "precision": "bf16"},
}
"""How painn is trained in the other cases."""


def trial(case, parallel, folder):
    if case in OPTIMIZERS:
        made = config("painn", BATCH, EPOCHS, "fp64").model_dump()
        made["training"] |= OPTIMIZERS[case]
        return TrialConfig.model_validate(made | {"parallel": parallel})
    conv, pieces, more = CASES[case]
    made = config(conv, BATCH, EPOCHS, "fp64").model_dump()
    made["model"] |= {"features": 8}
    made["training"] |= {"micro_batches": pieces, "clip_norm": CLIP}
    if "forces" in more:
        made["heads"] |= {"force": {"weight": 3.0}}
    if "frozen" in more:
        start = TrialConfig.model_validate(made | {"seed": 8})
        path = folder / f"start{os.environ['RANK']}.safetensors"
        checkpoint.write_checkpoint(
            path, build_model(start, random_columns(60).stats).state_dict(), {}
        )
        made["training"] |= {"start_from": str(path), "freeze_trunk": True}
    return TrialConfig.model_validate(made | {"parallel": parallel})


def train(made, graphs, ranks):
    epochs = []
    note = lambda kind, **values: epochs.append(values) if kind == "epoch" else None  # noqa: E731
    trainer = Trainer(build_parts(made, graphs, ranks, note))
    trainer.run(EPOCHS, lambda: "go")
    last = trainer.parts.state.net.full_state()
    trainer.load_best_weights()
    predictions = evaluate.predict_split(trainer.parts.model, trainer.parts.feed, trainer.parts.val)
    parameters = list(trainer.parts.model.parameters())
    best = trainer.parts.state.net.full_state()
    return {
        "steps": trainer.progress.step,
        "objective": trainer.progress.best_objective,
        "predictions": {name: p.ravel().tolist() for name, p in predictions.items()},
        "held": sum(local_part(p).numel() for p in parameters) / sum(p.numel() for p in parameters),
        "last": {name: value.flatten().tolist() for name, value in last.items()},
        "best": {name: value.flatten().tolist() for name, value in best.items()},
        "sent": [[epoch.get(f"{n}_seconds") for n in ("communication", "exposed", "backward")]
                 for epoch in epochs],
    }  # fmt: skip


def run(world, cases, out):
    torch.set_num_threads(1)
    evaluate.EDGES_PER_BATCH = FEW_EDGES
    ranks = join_ranks()
    graphs = random_columns()
    results = {
        case: {
            way: train(trial(case, STRATEGIES[world][way], out.parent), graphs, ranks)
            for way in ways
        }
        for case, ways in cases.items()
    }
    if ranks.first:
        out.write_text(json.dumps(results))
    ranks.barrier()


def main():
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for world, cases in json.loads(sys.argv[1]).items():
            out = Path(folder) / f"{world}.json"
            fork_ranks(int(world), partial(run, int(world), cases, out))
            results[world] = json.loads(out.read_text())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
