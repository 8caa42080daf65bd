"""Settings of one trial: training, parallelism, and the checks that its parts fit together."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.convs.spec import check_installed, is_user_conv
from hydragnn_hpo.config.data_config import INVARIANT, MixedConfig, Name
from hydragnn_hpo.config.model_config import (
    HeadConfig,
    ModelConfig,
    is_by_gradient,
    is_directed,
    reads_positions,
)
from hydragnn_hpo.config.schema import Config, Tables
from hydragnn_hpo.config.search_config import Epochs
from hydragnn_hpo.config.trunk_specs import ELEMENTS, check_elements
from hydragnn_hpo.errors import unknown

Ranks = Annotated[int, Field(gt=0, le=10**6)]
"""A number of ranks, or of pieces of a rank's work."""

Count = Annotated[int, Field(gt=0, le=2**40)]
"""A number of graphs, atoms, edges or steps."""

Shard = Literal["none", "gradients", "full", "hybrid"]


class ParallelConfig(Config):
    """How the ranks of one trial share its work; never changes the mathematics (Law 1).

    Settings that a trial's width does not allow have no effect: one rank shards nothing.
    """

    shard: Shard = "none"
    """What is sharded among the ranks. ``none``: nothing (DDP). ``gradients``: gradients and
    optimizer state, and weights between steps. ``full``: weights are also released between forward
    and backward pass. ``hybrid``: ``full`` within ``shard_ranks``, copies between them (FSDP2).
    With heads that are derivatives, weights always stay between the passes, as they are needed
    twice. Source: Rajbhandari et al. (2020), arXiv:1910.02054; Zhao et al. (2023),
    arXiv:2304.11277."""

    shard_ranks: Ranks | None = None
    """Number of neighbouring ranks that hold one copy with ``hybrid``; all ranks of a host if left
    out."""

    tensor: Ranks = 1
    """Number of neighbouring ranks that divide every wide MLP among them and process the same
    graphs. Above 1, ``shard = "none"`` acts as ``gradients``. Source: Shoeybi et al. (2019),
    arXiv:1909.08053; with ``hybrid`` it is the layout of Wang et al. (2024), arXiv:2404.14712."""

    recompute: bool = False
    """Recompute the activations of the trunk's rounds in the backward pass instead of keeping them
    (activation checkpointing): memory of one round, for about half as much time again. Not worth
    it with heads that are derivatives, which need all activations twice."""

    bucket_mb: Annotated[float, Field(gt=0.0, le=10**5)] | None = None
    """Size in MiB of DDP's gradient buckets; chosen from the model if left out."""

    def is_sharded(self, world: int) -> bool:
        """Check whether each of ``world`` ranks holds only a part of the weights."""
        return world > 1 and (self.shard != "none" or self.tensor_ranks(world) > 1)

    def tensor_ranks(self, world: int) -> int:
        """Return how many of ``world`` ranks share a layer: the gcd of ``tensor`` and ``world``."""
        return math.gcd(self.tensor, world)

    def copy_ranks(self, world: int, local: int) -> int:
        """Return how many of ``world`` ranks hold one sharded copy of the weights.

        Args:
            world: ranks of the trial.
            local: ranks on one host.
        """
        data = world // self.tensor_ranks(world)
        if self.shard != "hybrid":
            return data
        wanted = self.shard_ranks or max(local // self.tensor_ranks(world), 1)
        return math.gcd(wanted, data)


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

_WAYS = ("global_batch", "batch_atoms", "batch_edges")
"""Keys that set the size of a step; a trial has one of them."""


class TrainConfig(Config):
    """How one trial trains. Read by ``Trainer``."""

    epochs: Epochs = 50
    """Passes over the training split at the full budget; the learning-rate schedule spans them."""

    global_batch: Count | None = None
    """Graphs per optimizer step, over all ranks together; 32 unless ``batch_atoms`` or
    ``batch_edges`` is set."""

    batch_atoms: Count | None = None
    """Maximum number of atoms per optimizer step, over all ranks together, in place of
    ``global_batch``. At least twice the atoms of the largest graph."""

    batch_edges: Count | None = None
    """Maximum number of edges (at the store's cutoff) per optimizer step, over all ranks together,
    in place of ``global_batch``. At least twice the edges of the largest graph."""

    steps_per_epoch: Count | None = None
    """Optimizer steps per epoch; one pass over the largest data set if left out."""

    train_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the training graphs to learn from, in whole groups, for learning curves. An epoch
    keeps its number of steps and sees fewer graphs more often, so that trials with different shares
    differ in their data alone; the statistics of targets stay those of the whole training split."""

    share_seed: NonNegativeInt | None = None
    """Seed of the order in which ``train_share`` takes groups: with one seed, a smaller share is
    part of a larger one. That of the trial if left out."""

    fold: NonNegativeInt | None = None
    """Fold of the labelled structures to leave out: train on all others but the test split, keep
    the last epoch, and predict this fold. Statistics of targets are those of the other folds;
    ``patience`` has no split to look at and does nothing."""

    folds: Annotated[int, Field(ge=2, le=100)] = 5
    """Number of folds, of whole groups, that ``fold`` is one of."""

    fold_seed: NonNegativeInt = 0
    """Seed of the assignment of groups to folds."""

    shuffle_buffer: Count = 65536
    """Number of training graphs that are shuffled at once. In larger data sets the windows of the
    store are shuffled, and then the graphs of as many windows as hold this number."""

    min_graphs_per_rank: Count = 4
    """Minimum number of graphs per rank and step, on average; it limits the number of ranks."""

    balance: Literal["scale", "unit", "uncertainty"] = "scale"
    """How the losses of heads are scaled, in addition to their ``weight``. ``scale``: errors in
    units of each target's standard deviation. ``unit``: errors in the target's unit.
    ``uncertainty``: by a learned uncertainty of each head; source: Kendall et al. (2018),
    arXiv:1705.07115, eq. 10."""

    weight_by: str | None = None
    """Attribute of the card, 0 or more, by which the loss of each structure is multiplied, divided
    by its mean over the training split. Errors are not weighted: validation, selection and
    calibration count every structure once."""

    stage_two_share: Fraction = 0.25
    """Share of ``epochs``, the last ones, that are stage two: heads have their
    ``stage_two_weight``, and the best of these epochs is kept. No effect where no head has one."""

    micro_batches: Ranks | None = None
    """Number of pieces into which every rank splits its share of a step, to save memory; the result
    is the same. Chosen to fit the memory if left out."""

    optimizer: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    """The optimizer. Sources: Loshchilov and Hutter (2019), arXiv:1711.05101; Kingma
    and Ba (2015), arXiv:1412.6980; Jordan et al. (2024), kellerjordan.github.io/posts/muon
    (matrices by Muon, the rest by AdamW)."""

    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""

    scale_rate: Literal["none", "sqrt", "linear"] = "none"
    """Multiply the learning rate by the global batch over ``rate_batch`` (``linear``), or by the
    square root of this ratio (``sqrt``)."""

    rate_batch: Count = 32
    """Graphs per step for which ``learning_rate`` is meant, with ``scale_rate``."""

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of matrices; norms, biases and embeddings have none. It is decoupled from the
    gradient, except with ``adam`` and ``sgd``, where it is an L2 penalty."""

    beta1: Fraction = 0.9
    """Decay of the average of gradients, for adaptive optimizers."""

    beta2: Fraction = 0.999
    """Decay of the average of squared gradients, for adaptive optimizers."""

    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean square, for adaptive optimizers."""

    momentum: Fraction = 0.9
    """Momentum of ``sgd`` and ``muon``."""

    nesterov: bool = True
    """Use Nesterov momentum with ``sgd`` and ``muon``."""

    schedule: Literal["cosine", "constant", "plateau", "one_cycle"] = "cosine"
    """Learning rate after the warm-up. ``cosine``: falls along a cosine to ``final_rate``.
    ``constant``: stays. ``plateau``: is multiplied by ``plateau_factor`` whenever the validation
    objective has not improved for ``plateau_epochs``. ``one_cycle``: rises from a 25th of the peak
    during ``warmup`` and falls to ``final_rate``, both along cosines (Smith and Topin (2017),
    arXiv:1708.07120)."""

    warmup: Fraction = 0.05
    """Share of all steps over which the learning rate rises."""

    final_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Final learning rate as a share of the peak; the lower limit of ``plateau``."""

    plateau_epochs: PositiveInt = 10
    """Epochs without improvement before ``plateau`` lowers the learning rate."""

    plateau_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Factor by which ``plateau`` lowers the learning rate."""

    clip_norm: PositiveFloat | None = 10.0
    """Maximum norm of the whole gradient; a longer gradient is scaled down to it."""

    cuda_graphs: bool = False
    """Record the kernels of a step on a GPU, and replay them with one launch. Batches are filled up
    to sizes that recur; the mathematics stays the same. Convs with angles, ``mfc``, a user's conv,
    global attention, random-walk encodings, the pools ``max`` and ``attention``, sharded weights
    and ``parallel.recompute`` launch their kernels singly."""

    ema: Fraction = 0.0
    """Decay per step of the exponential moving average of the weights. Validation and the saved
    model use this average; 0 switches it off."""

    patience: PositiveInt | None = None
    """Number of epochs without a better validation objective after which the trial ends. Stage two
    counts its own; a trial that ends before has none."""

    start_from: str | None = None
    """Checkpoint of another trial (``checkpoints/best.safetensors``) that the trunk's weights are
    loaded from; absolute, or relative to the trial's directory. Both trunks must have the same
    shape."""

    freeze_trunk: bool = False
    """Keep the trunk of ``start_from`` fixed; only the heads learn."""

    precision: Literal["fp32", "fp64", "tf32", "bf16"] = "fp32"
    """Floating point type of weights and arithmetic. ``tf32``: fp32, but matrix products on GPUs
    round their factors to 10 bits. ``bf16``: fp32 weights, products in bf16, losses in fp32."""

    bf16_derivatives: bool = False
    """Allow forces and stress with ``bf16``, although the energy then has only 8 bits."""

    checkpoint_seconds: Annotated[float, Field(ge=0.0, le=1e6)] = 10.0
    """Seconds between checkpoints; they are written in the background."""

    tensorboard: bool = False
    """Also write the epochs' records for TensorBoard, into ``attempts/NNN/tensorboard``."""

    @model_validator(mode="before")
    @classmethod
    def _graphs_unless_a_budget(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or any(values.get(way) is not None for way in _WAYS):
            return values
        return {**values, "global_batch": 32}

    @model_validator(mode="after")
    def _only_what_has_learned_is_frozen(self) -> Self:
        if self.freeze_trunk and self.start_from is None:
            raise ValueError(
                "freeze_trunk keeps a trunk that has learned nothing: name a checkpoint in "
                "start_from, or drop it."
            )
        return self

    @model_validator(mode="after")
    def _a_fold_is_one_of_the_folds(self) -> Self:
        if self.fold is None:
            return self
        if self.fold >= self.folds:
            raise ValueError(
                f"fold is {self.fold} of {self.folds} folds, which count from 0: lower it, or "
                "raise folds."
            )
        if self.train_share is not None:
            raise ValueError("fold and train_share exclude each other: keep one.")
        if self.schedule == "plateau":
            raise ValueError(
                "fold leaves no validation split for schedule = 'plateau': take 'cosine'."
            )
        return self

    @model_validator(mode="after")
    def _one_way_to_batch(self) -> Self:
        given = [way for way in _WAYS if getattr(self, way) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: keep one.")
        if self.global_batch is None and self.steps_per_epoch is not None:
            raise ValueError(
                "steps_per_epoch goes with global_batch; with a budget of atoms or edges the steps "
                "of an epoch follow from the data: drop one."
            )
        return self

    @property
    def budget(self) -> tuple[Literal["nodes", "edges"], int]:
        """Budget of a step; must not be read if ``global_batch`` is set.

        Returns:
            What is counted, and its maximum per step over all ranks.
        """
        if self.batch_atoms is not None:
            return "nodes", self.batch_atoms
        assert self.batch_edges is not None
        return "edges", self.batch_edges


INTERRUPTED = 3
"""Exit code of a rank that stopped on request and left a checkpoint."""

PEER_LOST = 4
"""Exit code of a rank that ended because another rank of its trial was lost."""

DISK_FULL = 5
"""Exit code of a rank whose disk was full: the trial has no result and may resume later."""

HALVED = 6
"""Exit code of a rank that ran out of memory while gradients were sent: the trial resumes from its
checkpoint with more micro-batches."""

STALE = 7
"""Exit code of a rank that waited too long for another rank, which it has reported."""

FILES_AWAY = 8
"""Exit code of a rank whose file server did not respond: the trial has no result and resumes from
its checkpoint."""

OUT_OF_MEMORY = 265
"""What a fork server reports for a rank that the kernel killed (SIGKILL, 9) for lack of memory; no
process has this exit code."""


FILES_AWAY_SECONDS = 20.0
"""Seconds that a rank waits for its file server before it frees its slot."""


class TrialDataConfig(MixedConfig):
    """A graph store and how to read it. Read by ``training.trial``."""

    store: str
    """Path of the graph store, absolute or relative to the trial's directory."""


def check_ratios(entries: Sequence[MixedConfig]) -> None:
    """Raise ``ValueError`` where some data sets have a ratio and others have none."""
    given = [entry.ratio is not None for entry in entries]
    if any(given) and not all(given):
        raise ValueError("some data sets have a ratio and others have none: give all or none.")


class TrialConfig(Config):
    """All settings that determine a trial's result: the content of ``trial.toml``."""

    trial: str = "trial"
    """Name of the trial."""

    seed: NonNegativeInt = 0
    """Seed of the initial weights and of the order of graphs."""

    data: Tables[TrialDataConfig]
    """The graphs: one ``[data]`` table, or ``[[data]]`` for each of several data sets."""

    shared: tuple[Name, ...] = ()
    """Targets that several data sets have in common, under one name and one head."""

    model: ModelConfig
    """The trunk."""

    heads: Annotated[dict[str, HeadConfig], Len(1)]
    """Heads by the name of their target."""

    training: TrainConfig = TrainConfig()
    """Optimizer, learning-rate schedule, batches."""

    parallel: ParallelConfig = ParallelConfig()
    """How ranks share the work."""

    @property
    def stage_one_epochs(self) -> int:
        """Epochs before stage two; all where no head has a ``stage_two_weight``.

        They follow from the full budget, so a trial that rests at a rung has the same stages.
        """
        weights = [head.stage_two_weight for head in self.heads.values()]
        share = 0.0 if weights.count(None) == len(weights) else self.training.stage_two_share
        return round(self.training.epochs * (1.0 - share))

    def heads_in(self, epoch: int) -> dict[str, HeadConfig]:
        """Return the heads as an epoch's loss weights them.

        Args:
            epoch: from 1.

        Returns:
            Settings by name; in stage two ``weight`` is ``stage_two_weight``, where there is one.
        """
        if epoch <= self.stage_one_epochs:
            return dict(self.heads)
        return {
            name: head.model_copy(update={"weight": head.stage_two_weight or head.weight})
            for name, head in self.heads.items()
        }

    @model_validator(mode="after")
    def _budgets_go_without_ratios(self) -> Self:
        check_ratios(self.data)
        if self.training.global_batch is None and self.data[0].ratio is not None:
            raise ValueError(
                "data sets with ratios go with training.global_batch, not with a budget of atoms "
                "or edges: drop one."
            )
        return self


class PlacementConfig(Config):
    """Slots and last epoch of an attempt: ``placement.toml``. Read by ``training.trial``."""

    attempt: PositiveInt
    """Number of this start of the trial, from 1."""

    epochs: Epochs
    """Train up to this epoch (the rung), counted from the first attempt."""

    width: Ranks = 1
    """Number of ranks."""

    slots: tuple[str, ...] = ()
    """Slots that the ranks occupy, ``host:index``."""

    reason: str = ""
    """Why the planner chose this width and these slots."""


KEPT_BY_TORCH = frozenset(
    (
        *("T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init"),
        *("children", "clear", "compile", "cpu", "cuda", "double", "dump_patches", "eval"),
        *("extra_repr", "float", "forward", "get_buffer", "get_extra_state", "get_parameter"),
        *("get_submodule", "half", "ipu", "items", "keys", "load_state_dict", "modules", "mtia"),
        *("named_buffers", "named_children", "named_modules", "named_parameters", "parameters"),
        *("pop", "register_backward_hook", "register_buffer", "register_forward_hook"),
        *("register_forward_pre_hook", "register_full_backward_hook"),
        *("register_full_backward_pre_hook", "register_load_state_dict_post_hook"),
        *("register_load_state_dict_pre_hook", "register_module", "register_parameter"),
        *("register_state_dict_post_hook", "register_state_dict_pre_hook", "requires_grad_"),
        *("set_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty"),
        *("train", "training", "type", "update", "values", "xpu", "zero_grad"),
    )
)
"""Names that ``torch.nn.ModuleDict`` takes for none of its modules, and so for no head."""


def check_head_name(name: str) -> None:
    """Check that torch takes a name for a head.

    Raises:
        ValueError: torch modules have an attribute of this name.
    """
    if name in KEPT_BY_TORCH:
        raise ValueError(
            f"head '{name}': torch keeps this name for itself; give the target another "
            f'name in the card, with key = "{name}" if the file calls it so.'
        )


class TrialHeads(Config):
    """Checked pairing of heads with a store's targets. Read by ``training.trial``."""

    heads: dict[str, HeadConfig]
    targets: dict[str, dict[str, Any]]
    model: ModelConfig
    training: TrainConfig = TrainConfig()
    attributes: dict[str, Any] | None = None
    """Statistics of the store's graph attributes, by name; not checked if left out."""
    laplacian: int | None = None
    """Laplacian encodings that the store holds; not checked if left out."""
    elements: tuple[int, ...] | None = None
    """Atomic numbers in the data; not checked if left out."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if is_user_conv(self.model.conv):
            check_installed(self.model.conv)
        for name, head in self.heads.items():
            if name not in self.targets:
                raise ValueError(unknown("target of a head", name, self.targets))
            check_head_name(name)
            target = self.targets[name]
            if target.get("derived_from"):
                self._derivative_fits(name, head, target["derived_from"])
            elif head.gradient:
                raise ValueError(
                    f"head '{name}' is no derivative of an energy: drop gradient, or set "
                    "derived_from in the card."
                )
            if is_directed(head, target):
                self._vector_fits(name)
            direct = target["level"] == "node" and target["shape"] in INVARIANT
            if head.kind == "conv" and not direct:
                raise ValueError(
                    f"head '{name}': kind = \"conv\" is for scalars, spectra and classes of atoms: "
                    "drop it."
                )
            if head.cumulative:
                self._cumulative_fits(name, head)
            if target["shape"] == "class" and head.loss != HeadConfig.model_fields["loss"].default:
                raise ValueError(
                    f"head '{name}' has loss = '{head.loss}', classes always have the "
                    "cross-entropy: drop loss."
                )
        self._inputs_exist()
        return self

    def _derivative_fits(self, name: str, head: HeadConfig, energy: str) -> None:
        what = "stress" if self.targets[name]["shape"] == "tensor" else "forces"
        if self.model.max_neighbors is not None:
            raise ValueError(
                f"head '{name}' predicts {what}, which jump with model.max_neighbors: drop the "
                "cap or the head."
            )
        if not is_by_gradient(head, self.targets[name]):
            if what == "stress":
                raise ValueError(
                    f"head '{name}' is the stress of '{energy}', a gradient of that head: drop "
                    "gradient = false, or the head."
                )
            return
        if energy not in self.heads:
            raise ValueError(
                f"head '{name}' is the gradient of '{energy}', which has no head: add "
                f"heads.{energy}, or drop '{name}'."
            )
        if head.has_variance:
            raise ValueError(
                f"head '{name}' is a gradient and has no variance of its own: let its loss be mae, "
                "mse or huber."
            )
        if self.training.precision == "bf16" and not self.training.bf16_derivatives:
            raise ValueError(
                f"head '{name}' predicts {what}, derivatives of an energy that training.precision "
                '= "bf16" gives 8 bits: use fp32 or tf32, or set training.bf16_derivatives = true.'
            )
        if not self.model.layers:
            raise ValueError(
                f"head '{name}' predicts {what}, and with model.layers = 0 no energy depends on "
                "positions: let layers be at least 1, or drop the head."
            )
        if self.model.embedding != ELEMENTS:
            raise ValueError(
                f"head '{name}' predicts {what}, and the features of model.embedding = "
                f'"{self.model.embedding}" are not differentiated by positions: use '
                f'"{ELEMENTS}", or drop the head.'
            )
        if not self.model.spec.forces:
            able = ", ".join(sorted(key for key, spec in CONV_SPECS.items() if spec.forces))
            raise ValueError(
                f"head '{name}' predicts {what}, conv '{self.model.conv}' does not look at "
                f"distances: use {able}, or drop the head."
            )

    def _cumulative_fits(self, name: str, head: HeadConfig) -> None:
        if self.targets[name]["shape"] != "spectrum":
            raise ValueError(
                f"head '{name}' has cumulative = true, which is for spectra, and predicts a "
                f"{self.targets[name]['shape']}: drop it."
            )
        if head.has_variance:
            raise ValueError(
                f"head '{name}' has cumulative = true and loss = '{head.loss}', whose variance is "
                "that of single values: let its loss be mae, mse or huber."
            )

    def _vector_fits(self, name: str) -> None:
        target = self.targets[name]
        charge = target.get("charge")
        if charge is not None and charge not in self.model.attributes:
            raise ValueError(
                f"head '{name}' predicts dipoles of structures with the charge '{charge}', which "
                f"the model does not read: add '{charge}' to model.attributes."
            )
        if not self.model.layers and not reads_positions(target):
            raise ValueError(
                f"head '{name}' predicts a {target['shape']}, and with model.layers = 0 the model "
                "has no vectors: let layers be at least 1, or drop the head."
            )
        if not self.model.spec.vectors and not reads_positions(target):
            able = ", ".join(sorted(key for key, spec in CONV_SPECS.items() if spec.vectors))
            place = "an atom" if target["level"] == "node" else "a structure without an origin"
            raise ValueError(
                f"head '{name}' predicts a {target['shape']} of {place}, conv "
                f"'{self.model.conv}' carries no vectors: use {able}, or drop the head."
            )

    def _inputs_exist(self) -> None:
        totals = {name: self.targets[name].get("sum") for name in self.heads}
        for name, total in totals.items():
            if isinstance(total, str) and total not in (self.attributes or {total: None}):
                raise ValueError(
                    f"head '{name}' sums to the attribute '{total}', which not all data sets have: "
                    "add it to their cards, or drop the head."
                )
        for name in self.model.attributes:
            if self.attributes is not None and name not in self.attributes:
                known = ", ".join(sorted(self.attributes)) or "none"
                raise ValueError(
                    f"model.attributes names '{name}', which the data do not have. Known: {known}."
                )
        self._check_weights()
        wanted = self.model.encoding_size if self.model.encoding == "laplacian" else 0
        if self.laplacian is not None and wanted > self.laplacian:
            raise ValueError(
                f"model.encoding_size is {wanted}, the store holds {self.laplacian} Laplacian "
                "encodings: lower it, raise graphs.laplacian in the card, or use random_walk."
            )
        if self.elements is not None and self.model.trunk_spec is not None:
            check_elements(self.model.trunk_spec, self.elements)

    def _check_weights(self) -> None:
        """Check that the data have the weights of structures, and that none is negative."""
        name = self.training.weight_by
        if name is None or self.attributes is None:
            return
        place = f"training.weight_by is '{name}'"
        if name not in self.attributes:
            known = ", ".join(sorted(self.attributes)) or "none"
            raise ValueError(f"{place}, which is no attribute of the data. Known: {known}.")
        weights = self.attributes[name]
        if "min" not in weights:
            raise ValueError(f"{place}, and the store is too old to tell its sign: build it again.")
        if weights["min"] < 0 or not weights["mean"] > 0:
            raise ValueError(
                f"{place}, whose values on train are {weights['min']:g} at least and "
                f"{weights['mean']:g} on average: let weights be 0 or more, and not all 0."
            )
