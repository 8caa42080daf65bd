"""Train one model: the same mathematics at any number of ranks (Law 1)."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hydragnn_hpo.config.data import WIDTHS
from hydragnn_hpo.config.model import HeadConfig
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.data.mixture import Mixture
from hydragnn_hpo.data.order import Order
from hydragnn_hpo.data.prefetch import Ahead
from hydragnn_hpo.data.shares import graph_costs
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.evaluate import Feed, error_sums
from hydragnn_hpo.training.loss import combine, head_sums
from hydragnn_hpo.training.optimizer import AveragedWeights, learning_rate, make_optimizer
from hydragnn_hpo.training.start import DTYPES, build_model

logger = logging.getLogger(__name__)

Signal = Literal["go", "stop", "interrupt"]


class Diverged(Exception):
    """The loss or the gradient is no longer finite; says where."""


@dataclass
class Progress:
    """Where the training stands: all that a checkpoint holds beside tensors."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_objective: float = math.inf
    best_val: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0


def objective_of(
    mae: dict[str, float], std: dict[str, float], heads: dict[str, HeadConfig]
) -> float:
    """Weigh the heads' MAEs in units of each target's standard deviation; lower is better."""
    total = sum(head.weight for head in heads.values())
    return sum(head.weight / total * mae[name] / std[name] for name, head in heads.items())


def order_of(config: TrialConfig, graphs: GraphSet) -> Order:
    """Lay out which graphs a trial trains on in which step."""
    ends = graphs.ends.tolist() if isinstance(graphs, Mixture) else ()
    ratios = [entry.ratio for entry in config.data]
    return Order.of(graphs, config.training, config.seed, ratios, ends)


class Trainer:
    """One training: model, optimizer, schedule, progress."""

    def __init__(
        self,
        config: TrialConfig,
        graphs: GraphSet,
        ranks: Ranks,
        record: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """Build everything at epoch 0.

        Args:
            config: the trial.
            graphs: the data, one set or several as one.
            ranks: this rank among the others.
            record: called with a record's kind and its values; rank 0 writes them down.

        Raises:
            DataError: a head cannot be compared, nothing in ``val`` has its target.
        """
        self.config, self.graphs, self.ranks, self.record = config, graphs, ranks, record
        self.heads = dict(config.heads)
        self.model = build_model(config, graphs).to(ranks.device)
        self.wrapped = ranks.wrap(self.model)
        self.optimizer = make_optimizer(self.model, config.training)
        decay = config.training.ema
        self.average = AveragedWeights(self.model, decay) if decay else None
        self.feed = Feed(
            graphs=graphs,
            cutoff=config.model.cutoff,
            dtype=DTYPES[config.training.precision],
            targets=tuple(self.heads),
            ranks=ranks,
            costs=graph_costs(graphs, config.model),
            max_neighbors=config.model.max_neighbors,
        )
        self.counts = {name: _counts(graphs, name) for name in self.heads}
        self.val, self.order = graphs.indices_of("val"), order_of(config, graphs)
        self._check_val()
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self.total_steps = self.order.steps_per_epoch * config.training.epochs

    def _check_val(self) -> None:
        for name, counts in self.counts.items():
            if not counts[self.val].sum():
                raise DataError(
                    f"head '{name}': no structure of the validation split has this target; "
                    "drop the head, or add structures that have it."
                )

    def run(self, until: int, signal: Callable[[], Signal], folder: Path | None = None) -> Signal:
        """Train up to an epoch; checkpoint on the way; obey signals at the end of epochs.

        Args:
            until: last epoch, counted from the trial's beginning.
            signal: what a person, the controller or the system asks of this rank.
            folder: where rank 0 keeps checkpoints; none are written if left out.

        Returns:
            ``go`` if the epoch was reached or patience ran out, else the signal obeyed.

        Raises:
            Diverged: loss or gradient are no longer finite.
        """
        last_save = time.monotonic()
        asked: Signal = "go"
        while self.progress.epoch < until and asked == "go" and not self.out_of_patience:
            asked = self._epoch(signal)
            due = time.monotonic() - last_save >= self.config.training.checkpoint_seconds
            ends = self.progress.epoch >= until or asked != "go" or self.out_of_patience
            if folder is not None and self.ranks.first and (due or ends):
                self.save(folder)
                last_save = time.monotonic()
        return asked

    @property
    def out_of_patience(self) -> bool:
        """Whether the objective has not improved for ``patience`` epochs."""
        patience = self.config.training.patience
        return patience is not None and self.progress.epoch - self.progress.best_epoch >= patience

    def _epoch(self, signal: Callable[[], Signal]) -> Signal:
        started = time.perf_counter()
        progress = self.progress
        steps = self.order.steps(progress.epoch)
        losses = torch.zeros(len(self.heads), dtype=torch.float64, device=self.ranks.device)
        self.model.train()
        shares = (self.feed.share(indices) for indices in steps)
        with Ahead(self.feed.made, shares, self._depth()) as batches:
            for indices, batch in zip(steps, batches, strict=True):
                losses += self._step(indices, batch.to(self.ranks.device, non_blocking=True))
        progress.epoch += 1
        trained = time.perf_counter()
        sums, asked = self._validate(losses, signal())
        mae = {name: float(sums[row, 0] / sums[row, 1]) for row, name in enumerate(self.heads)}
        objective = objective_of(mae, self._stds(), self.heads)
        self._keep_best(objective, mae)
        ended = time.perf_counter()
        progress.train_seconds += ended - started
        self.record(
            "epoch",
            epoch=progress.epoch,
            loss=self._mean_losses(sums[:, 2], np.concatenate(steps)),
            val_mae=mae,
            objective=objective,
            best_objective=progress.best_objective,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            train_seconds=trained - started,
            val_seconds=ended - trained,
            graphs_per_second=sum(map(len, steps)) / (trained - started),
        )
        return asked

    def _mean_losses(self, sums: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Divide summed losses by what the graphs of the epoch hold of each target."""
        known = {name: max(int(self.counts[name][rows].sum()), 1) for name in self.heads}
        return {name: float(sums[row] / known[name]) for row, name in enumerate(self.heads)}

    def _depth(self) -> int:
        """Give how many batches are made ahead: while a GPU computes, or a disk is read.

        On a CPU nothing is won where the graphs are in memory: a rank has one thread.
        """
        if self.ranks.device.type == "cuda":
            return 2
        sets = self.graphs.sets if isinstance(self.graphs, Mixture) else (self.graphs,)
        return 0 if all(isinstance(graphs, Columns) for graphs in sets) else 1

    def _step(self, indices: np.ndarray, batch: Batch) -> Tensor:
        """Take one optimizer step on a global batch; gives this rank's loss sums per head.

        Args:
            indices: the graphs of all ranks.
            batch: this rank's share of them.
        """
        progress, training = self.progress, self.config.training
        predicted = self.wrapped(batch)
        sums = head_sums(self.model, predicted, batch, self.heads, training.balance)
        counts = {name: float(self.counts[name][indices].sum()) for name in self.heads}
        self.optimizer.zero_grad(set_to_none=True)
        learned = self.model.log_variances
        loss = combine(sums, counts, self.heads, self.ranks.world, learned)
        torch.autograd.backward(loss)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(training, progress.step, self.total_steps)
        self._clip()
        self.optimizer.step()
        if self.average:
            self.average.update(progress.step)
        progress.step += 1
        if progress.step == 1 or not self._started:
            self._started = True
            self.record("first_step", epoch=progress.epoch + 1)
        return torch.stack([sums[name].detach().double() for name in self.heads])

    _started = False

    def _clip(self) -> None:
        """Scale long gradients down; a gradient that is not finite ends the trial."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        looked = self.ranks.device.type == "cpu" or self.progress.step % 50 == 0
        if looked and not math.isfinite(norm):
            name = next(
                (n for n, p in self.model.named_parameters() if _bad(p.grad)), "the whole model"
            )
            raise Diverged(
                f"epoch {self.progress.epoch + 1}, step {self.progress.step + 1}: "
                f"the gradient of {name} is not finite"
            )
        if self.config.training.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.training.clip_norm, norm)

    def _validate(self, losses: Tensor, wish: Signal) -> tuple[np.ndarray, Signal]:
        """Sum errors, losses and wishes over ranks, in one all-reduce."""
        self.model.eval()
        if self.average:
            self.average.swap()
        sums = error_sums(self.model, self.feed, self.val)
        if self.average:
            self.average.swap()
        flags = torch.tensor([wish == "stop", wish == "interrupt"], device=losses.device)
        together = torch.cat((sums.flatten(), losses, flags.double()))
        self.ranks.sum(together)
        values = together.cpu().numpy()
        heads = len(self.heads)
        table = np.column_stack((values[: 2 * heads].reshape(heads, 2), values[2 * heads : -2]))
        asked: Signal = "interrupt" if values[-1] else "stop" if values[-2] else "go"
        return table, asked

    def _stds(self) -> dict[str, float]:
        targets = self.graphs.stats["targets"]
        return {name: float(targets[name]["std"]) or 1.0 for name in self.heads}

    def _keep_best(self, objective: float, mae: dict[str, float]) -> None:
        progress = self.progress
        if not math.isfinite(objective):
            raise Diverged(f"epoch {progress.epoch}: validation MAE {mae} is not finite")
        if objective < progress.best_objective:
            progress.best_objective, progress.best_epoch = objective, progress.epoch
            progress.best_val = mae
            if self.average:
                self.average.swap()
            self.best = checkpoint.model_tensors(self.model)
            if self.average:
                self.average.swap()

    def save(self, folder: Path) -> None:
        """Write ``best`` and then ``last``; a kill between the two costs nothing."""
        state: dict[str, Any] = {"progress": vars(self.progress), "seed": self.config.seed}
        checkpoint.write(folder / "best.safetensors", self.best, state)
        tensors = checkpoint.prefixed("model", self.model.state_dict())
        tensors |= checkpoint.optimizer_tensors(self.optimizer)
        if self.average:
            tensors |= checkpoint.prefixed("average", self.average.mean)
        tensors |= checkpoint.prefixed("best", self.best)
        checkpoint.write(folder / "last.safetensors", tensors, state)
        self.record("checkpoint", epoch=self.progress.epoch)

    def resume(self, folder: Path) -> bool:
        """Go on from ``last`` if it is there; every rank calls this."""
        path = folder / "last.safetensors"
        if not path.exists():
            return False
        tensors, state = checkpoint.read(path)
        self.model.load_state_dict(checkpoint.under("model", tensors))
        checkpoint.load_optimizer(self.optimizer, tensors)
        if self.average:
            self.average.load(checkpoint.under("average", tensors))
        self.best = {
            name: value.to(self.ranks.device)
            for name, value in checkpoint.under("best", tensors).items()
        }
        self.progress = Progress(**state["progress"])
        return True

    def use_best(self) -> None:
        """Put the best epoch's weights into the model (Law 8: "load" means the best epoch)."""
        self.model.load_state_dict(self.best)
        self.model.eval()


def _counts(graphs: GraphSet, name: str) -> np.ndarray:
    """Count the components of a target that each graph has, [G]."""
    width = WIDTHS[graphs.stats["targets"][name]["shape"]]
    counted: np.ndarray = graphs.known(name) * width
    return counted


def _bad(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())
