"""How one trial trains. Read by ``training.trainer``."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from hydragnn_hpo.config.schema import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

_WAYS = ("global_batch", "batch_atoms", "batch_edges")
"""Ways to say how large a step is; a trial has one."""


class TrainConfig(Config):
    """How one trial trains. Read by ``Trainer``."""

    epochs: PositiveInt = 50
    """Passes over the training split at the full budget; the schedule is laid over these."""

    global_batch: PositiveInt | None = None
    """Graphs per optimizer step, over all ranks together; 32 unless there is a budget."""

    batch_atoms: PositiveInt | None = None
    """Most atoms per optimizer step, over all ranks together, in place of ``global_batch``. At
    least twice the largest graph."""

    batch_edges: PositiveInt | None = None
    """The same for edges (at the store's cutoff)."""

    steps_per_epoch: PositiveInt | None = None
    """Steps that are called an epoch; one pass over the largest data set if left out."""

    shuffle_buffer: PositiveInt = 65536
    """Training graphs that are shuffled at once. In larger data sets the windows of the store
    are shuffled, and then the graphs of as many windows as hold this many."""

    min_graphs_per_rank: PositiveInt = 4
    """A trial is at most so wide that a rank has this many graphs of a step, on average."""

    balance: Literal["scale", "unit", "uncertainty"] = "scale"
    """How heads are weighed against each other, beside their own ``weight``: errors in units of
    each target's spread (``scale``), in its own unit (``unit``), or by a learned uncertainty of
    each head. Source of the last: Kendall et al. (2018), arXiv:1705.07115, eq. 10."""

    micro_batches: PositiveInt | None = None
    """Pieces in which every rank takes its share of a step, one after another, for less memory;
    never changes the mathematics. Fitted to the memory if left out."""

    optimizer: Literal["adamw", "adam", "sgd", "lamb", "muon"] = "adamw"
    """Who makes steps of gradients. Sources: Loshchilov and Hutter (2019), arXiv:1711.05101; Kingma
    and Ba (2015), arXiv:1412.6980; You et al. (2020), arXiv:1904.00962 (LAMB, for very large
    batches); Jordan et al. (2024), kellerjordan.github.io/posts/muon (matrices by Muon, the rest
    by AdamW)."""

    learning_rate: PositiveFloat = 1e-3
    """Peak step size."""

    scale_rate: Literal["none", "sqrt", "linear"] = "none"
    """Multiply the learning rate by the global batch over ``rate_batch``, or its root."""

    rate_batch: PositiveInt = 32
    """Graphs per step at which ``learning_rate`` holds as it is, with ``scale_rate``."""

    weight_decay: NonNegativeFloat = 0.01
    """Decay of matrices; norms, biases and embeddings have none. Decoupled from the gradient but
    with ``adam`` and ``sgd``, where it is an L2 penalty."""

    beta1: Fraction = 0.9
    """Memory of the gradient's mean; of the adaptive optimizers."""

    beta2: Fraction = 0.999
    """Memory of its square; of the adaptive optimizers."""

    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean square; of the adaptive optimizers."""

    momentum: Fraction = 0.9
    """Of ``sgd`` and ``muon``."""

    nesterov: bool = True
    """Look ahead along the momentum; of ``sgd`` and ``muon``."""

    schedule: Literal["cosine", "constant", "plateau", "one_cycle"] = "cosine"
    """Course of the learning rate after the warm-up: down a cosine to ``final_rate``; constant;
    lowered by ``plateau_factor`` whenever the validation objective has not improved for
    ``plateau_epochs``; or from a 25th up to the peak over ``warmup`` and down to ``final_rate``,
    both along cosines (Smith and Topin (2017), arXiv:1708.07120)."""

    warmup: Fraction = 0.05
    """Share of all steps over which the learning rate rises."""

    final_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Where the learning rate ends, as a share of the peak; the floor of ``plateau``."""

    plateau_epochs: PositiveInt = 10
    """Epochs without improvement before ``plateau`` lowers the learning rate."""

    plateau_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """By what ``plateau`` multiplies the learning rate."""

    clip_norm: PositiveFloat | None = 10.0
    """Largest norm of the whole gradient; longer ones are scaled down."""

    ema: Fraction = 0.0
    """Decay per step of averaged weights, which are validated and kept; 0 switches it off."""

    patience: PositiveInt | None = None
    """Epochs without a better validation objective after which the trial ends."""

    start_from: str | None = None
    """Checkpoint of another trial (``checkpoints/best.safetensors``) whose trunk this one starts
    from; absolute, or relative to the trial's directory. The trunk must have the same shape."""

    freeze_trunk: bool = False
    """Keep the trunk as it was taken over; only the heads learn."""

    precision: Literal["fp32", "fp64", "tf32", "bf16"] = "fp32"
    """Floating point type of weights and arithmetic. ``tf32``: fp32, but matrix products on GPUs
    round their factors to 10 bits. ``bf16``: fp32 weights, products in bf16, losses in fp32."""

    bf16_derivatives: bool = False
    """Allow forces and stress with ``bf16``: derivatives of an energy that has 8 bits."""

    checkpoint_seconds: NonNegativeFloat = 10.0
    """Time between checkpoints; they are written in the background."""

    tensorboard: bool = False
    """Write the epochs' records for TensorBoard too, into ``attempts/NNN/tensorboard``."""

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
        """Give what a step has a budget of, and how much; only where ``global_batch`` is None."""
        if self.batch_atoms is not None:
            return "nodes", self.batch_atoms
        assert self.batch_edges is not None
        return "edges", self.batch_edges
