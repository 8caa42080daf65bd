"""Our training loop beside PyTorch Lightning, a bare PyG loop, and nothing but the model.

All sides train the same net on the same molecules (20 atoms, 340 edges; batches of 32, width 64, 3
layers, 1 thread, fp32) with the same loss, clipping, AdamW and course of the learning rate, an
epoch each in turns; medians of ratios of CPU time. The peers shuffle and batch with PyG's
``DataLoader``; the layout of edges in pairs, which our nets are fed with, is made for them too.
``loop_overhead`` is what our epoch takes beyond forward, backward and optimizer on ready batches.

``weak_scaling_2``: wall-clock time of an epoch on one rank over that on two gloo ranks with twice
the graphs and twice the batch, in turns, medians; ``imbalance_2`` is the share of the busier rank
over the mean. ``strangers_2`` is the same of two trainings that know nothing of each other: what
the machine itself allows. ``--quick`` has few turns and is not recorded. Lightning: extra [bench].
"""

import os
import signal
import socket
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from models import BASIS, BATCH, CUTOFF, FEATURES, LAYERS, molecules, seconds
from record import finish, make_parser
from torch import Tensor, nn

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.batch import Batch, lay_out_pairs, make_batch
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.training.ddp import Ranks, join_ranks
from hydragnn_hpo.training.epoch import train_epoch
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.stepper import combine_losses, head_sums
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

ALONE = Ranks(0, 1, torch.device("cpu"))
STEPS, HELD_OUT = 20, 32
"""Steps of an epoch; molecules of the validation split, which no epoch here looks at."""
CLIP, EPOCHS = 10.0, 100
CONVS = ("painn", "schnet", "egnn", "gin")
"""The first one gives the named figures."""
TARGETS = {"energy": TargetConfig(level="graph", unit="eV", energy="total")}


def data(world: int, steps: int = STEPS) -> Columns:
    """Make molecules for some steps of ``world`` ranks, and some to validate on."""
    count = BATCH * steps * world
    made = molecules(count + HELD_OUT)
    made = replace(made, split=np.repeat([0, 1], (count, HELD_OUT)).astype(np.int8))
    splits = {"train": count, "val": HELD_OUT, "sel": 0, "cal": 0, "test": 0}
    stats = {
        "splits": splits,
        **size_stats(made, CUTOFF),
        "targets": fit_target_stats(made, TARGETS),
    }
    return replace(made, stats=cast("StoreStats", stats))


def trainer_of(conv: str, columns: Columns, ranks: Ranks = ALONE) -> Trainer:
    """Make our trainer; one of several ranks has the same work as one alone."""
    config = TrialConfig.model_validate(
        {
            "data": {"store": "none"},
            "model": {
                "conv": conv,
                "features": FEATURES,
                "layers": LAYERS,
                "cutoff": CUTOFF,
                "basis_size": BASIS,
            },
            "heads": {"energy": {"pool": "contributions"}},
            "training": {
                "epochs": EPOCHS,
                "global_batch": BATCH * ranks.world,
                "clip_norm": CLIP,
                "micro_batches": 1,
            },
        }
    )
    return Trainer(build_parts(config, columns, ranks))


def our_epoch(trainer: Trainer) -> None:
    """Train an epoch as ``Trainer.run`` does, without its validation."""
    parts, progress = trainer.parts, trainer.progress
    steps = parts.order.steps(progress.epoch)
    train_epoch(parts, steps, progress, trainer.sync_points, best={}, folder=None)
    trainer.progress.epoch += 1


def loss_of(trainer: Trainer, net: Any, batch: Batch) -> Tensor:
    """Return the loss of a batch: the same arithmetic for all sides."""
    counts = {"energy": float(batch.num_graphs)}
    heads = trainer.parts.config.heads
    return combine_losses(head_sums(net, net(batch), batch, heads), counts, heads, 1)


def bare_epoch(trainer: Trainer, batches: list[Batch]) -> None:
    """Train on ready batches, nothing else."""
    trainer.parts.model.train()
    for batch in batches:
        trainer.parts.state.optimizer.zero_grad(set_to_none=True)
        loss_of(trainer, trainer.parts.model, batch).backward()
        trainer.parts.state.optimizer.step()


def peer_loader(columns: Columns) -> Any:
    """Give PyG's loader on the training molecules."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    graphs = []
    for row in columns.indices_of("train"):
        one = make_batch(columns, [row], cutoff=CUTOFF, targets=("energy",))
        graphs.append(
            Data(
                z=one.numbers,
                pos=one.positions,
                edge_index=one.edge_index,
                shift=one.edge_shift,
                y=one.targets["energy"],
            )
        )
    return DataLoader(graphs, batch_size=BATCH, shuffle=True)


def as_ours(batch: Any) -> Batch:
    """Turn PyG's batch into what our net takes."""
    count = batch.num_graphs
    given = Batch(
        numbers=batch.z,
        positions=batch.pos,
        edge_index=batch.edge_index,
        edge_shift=batch.shift,
        graph_of_node=batch.batch,
        num_graphs=count,
        targets={"energy": batch.y},
        masks={"energy": torch.ones(count, dtype=torch.bool)},
        graph_index=torch.arange(count),
    )
    return lay_out_pairs(given)


def cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return the peers' course of the learning rate."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS)


def fused(net: nn.Module) -> torch.optim.Optimizer:
    """Return the peers' optimizer."""
    return torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)


class Plain:
    """The loop that PyG's users write."""

    def __init__(self, trainer: Trainer, loader: Any) -> None:
        self.trainer = trainer
        self.loader = loader
        self.net = trainer.parts.model
        self.optimizer = fused(self.net)
        self.schedule = cosine(self.optimizer)

    def epoch(self) -> None:
        """Train one epoch."""
        self.net.train()
        for batch in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = loss_of(self.trainer, self.net, as_ours(batch))
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
            self.optimizer.step()
            self.schedule.step()


def lightning_turns(trainer: Trainer, loader: Any, turns: int, between: Callable[[], None]) -> Any:
    """Let Lightning train ``turns`` epochs, and do something else after each; CPU seconds each."""
    import lightning

    results: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = trainer.parts.model

        def training_step(self, batch: Any, _: int) -> Tensor:
            return loss_of(trainer, self.net, as_ours(batch))

        def configure_optimizers(self) -> Any:
            optimizer = fused(self.net)
            schedule = {"scheduler": cosine(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    class Clock(lightning.Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            self.started = time.process_time()

        def on_train_epoch_end(self, *_: Any) -> None:
            results.append(time.process_time() - self.started)
            between()

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    lightning.Trainer(
        max_epochs=turns,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=CLIP,
        enable_checkpointing=False,
        callbacks=[Clock()],
        **quiet,
    ).fit(Module(), loader)
    return results


def throughput(conv: str, columns: Columns, turns: int) -> dict[str, float]:
    """Compare the sides on one conv."""
    ours, bare, peer, light = (trainer_of(conv, columns) for _ in range(4))
    loader = peer_loader(columns)
    plain = Plain(peer, loader)
    rows = ours.parts.order.steps(0)
    ready = [ours.parts.feed.batch_on_host(step) for step in rows]
    our_epoch(ours)
    times: list[tuple[float, float, float]] = []

    def others() -> None:
        times.append(
            (
                seconds(lambda: our_epoch(ours)),
                seconds(plain.epoch),
                seconds(lambda: bare_epoch(bare, ready)),
            )
        )

    lit = lightning_turns(light, loader, turns + 1, others)[1:]
    times = times[1:]
    middle = statistics.median
    return {
        "throughput_over_lightning": middle(b / a[0] for a, b in zip(times, lit, strict=True)),
        "throughput_over_pyg": middle(a[1] / a[0] for a in times),
        "loop_overhead": middle(a[0] / a[2] for a in times) - 1.0,
        "cpu_graphs": BATCH * STEPS / middle(a[0] for a in times),
    }


@dataclass
class Rank:
    """A process that trains an epoch whenever it is told to."""

    pid: int
    line: Connection

    def end(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def rank_main(conv: str, line: Connection, columns: Columns) -> None:
    """Train an epoch on each word, and tell its wall seconds, the imbalance and hidden share."""
    ranks = join_ranks()
    trainer = trainer_of(conv, columns, ranks)
    line.send("ready")
    while line.recv():
        shares = [
            float(trainer.parts.feed.costs[trainer.parts.feed.share(step)].sum())
            for step in trainer.parts.order.steps(trainer.progress.epoch)
        ]
        trainer.parts.meter.take_seconds()
        started = time.perf_counter()
        our_epoch(trainer)
        spent = time.perf_counter() - started
        line.send((spent, shares, trainer.parts.meter.take_seconds()))


@contextmanager
def ranks_of(world: int, conv: str, steps: int) -> Iterator[list[Rank]]:
    """Fork the ranks of one training."""
    columns = data(world, steps)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for number in range(world):
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            os.environ |= {
                "RANK": str(number),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(number),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            ours.close()
            try:
                rank_main(conv, theirs, columns)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        ranks.append(Rank(pid, ours))
    try:
        for rank in ranks:
            assert rank.line.recv() == "ready"
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def epoch_of(ranks: list[Rank]) -> list[Any]:
    """Let ranks train one epoch together; what each says."""
    for rank in ranks:
        rank.line.send(True)
    return [rank.line.recv() for rank in ranks]


def weak_scaling(conv: str, turns: int, steps: int = STEPS) -> dict[str, float]:
    """Compare one rank with two of the same work each, and with two strangers, in turns."""
    ratios, limits, imbalances, waits = [], [], [], []
    with (
        ranks_of(1, conv, steps) as one,
        ranks_of(1, conv, steps) as other,
        ranks_of(2, conv, steps) as two,
    ):
        for ranks in (one, other, two):
            epoch_of(ranks)
        for _ in range(turns):
            ((alone, _, _),) = epoch_of(one)
            both = epoch_of(two)
            strangers = epoch_of([*one, *other])
            ratios.append(alone / max(spent for spent, _, _ in both))
            limits.append(alone / max(spent for spent, _, _ in strangers))
            loads = np.array([shares for _, shares, _ in both])
            imbalances.append(float((loads.max(0) / loads.mean(0)).mean()))
            waits.append(both[0][2])
    values = {
        "weak_scaling_2": statistics.median(ratios),
        "strangers_2": statistics.median(limits),
        "imbalance_2": max(imbalances),
    }
    for name in ("communication", "exposed"):
        if all(name in wait for wait in waits):
            values[f"{name}_ms_per_step"] = 1e3 / steps * statistics.median(w[name] for w in waits)
    return values


def main() -> None:
    """Measure, print, record."""
    parser = make_parser(__doc__, "few turns, one conv, not recorded")
    parser.add_argument("--only", nargs="+", choices=("throughput", "scaling"))
    options = parser.parse_args()
    parts = options.only or ("throughput", "scaling")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    if options.smoke:  # without Lightning, which only some have
        return finish(__file__, weak_scaling(CONVS[0], 1, 2), keep=False)
    figures: dict[str, float] = {}
    if "scaling" in parts:  # forks: before anything else has threads
        figures |= weak_scaling(CONVS[0], 3 if options.quick else 15)
    if "throughput" in parts:
        columns = data(1)
        for conv in CONVS[: 1 if options.quick else None]:
            result = throughput(conv, columns, 3 if options.quick else 9)
            if conv == CONVS[0]:
                figures |= result
            figures |= {f"{name}_{conv}": value for name, value in result.items()}
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    return finish(__file__, rounded, keep=not (options.quick or options.only))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
