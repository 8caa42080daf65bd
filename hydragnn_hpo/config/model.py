"""The multi-headed GNN without torch. Built by ``model.gnn``."""

from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, Dimensions, GraphSizes
from hydragnn_hpo.config.convs.spec import linear
from hydragnn_hpo.config.loading import sentence
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.errors import unknown

MAX_ELEMENT = 118
"""Every element has an embedding (Law 8)."""


class HeadConfig(Config):
    """How one target is predicted. Read by ``model.heads`` and ``training.loss``."""

    weight: PositiveFloat = 1.0
    """Weight of this head in the loss and in the objective."""

    loss: Literal["mae", "mse", "huber"] = "huber"
    """Loss in units of the target's standard deviation; Huber bends at 1."""

    layers: PositiveInt = 2
    """Linear maps from node features to the prediction."""

    hidden: PositiveInt | None = None
    """Width between them; the trunk's width if left out."""

    baseline: Literal["elements", "mean"] = "elements"
    """What the head starts from: one number per element (scalars only), or the mean alone."""

    pool: Literal["mean", "sum", "contributions"] = "mean"
    """How a graph head gathers its nodes: ``mean`` or ``sum`` of features before its MLP, or
    per-node ``contributions`` after it: their mean, or their sum for total energies."""


class ModelConfig(Config):
    """The trunk. Read by ``model.gnn``."""

    conv: str
    """Name of the message-passing layer, see ``CONVS``."""

    features: PositiveInt = 64
    """Channels per node."""

    layers: PositiveInt = 3
    """Rounds of message passing."""

    cutoff: PositiveFloat = 5.0
    """Longest edge used, in angstrom; at most the store's cutoff."""

    max_neighbors: PositiveInt | None = None
    """Cap on the neighbours of a node: whole shells up to about so many, see ``data.cap``. The
    energy jumps where neighbours change places, so there are no forces with it."""

    basis: Literal["bessel", "gaussian"] = "bessel"
    """Radial functions that expand an edge's length."""

    basis_size: PositiveInt = 16
    """Number of radial functions."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the conv; those left out take their defaults."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_options(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "conv" not in values:
            return values
        name = values["conv"]
        if name not in CONV_SPECS:
            raise ValueError(unknown("conv", str(name), CONV_SPECS))
        schema = CONV_SPECS[name].options
        try:
            options = schema.model_validate(values.get("options", {}))
        except ValidationError as error:
            raise ValueError(f"options of conv '{name}': {sentence(error, schema)}") from error
        return {**values, "options": options.model_dump()}

    @property
    def spec(self) -> ConvSpec:
        """The conv's entry in the table of specs."""
        return CONV_SPECS[self.conv]

    @property
    def conv_options(self) -> Config:
        """The conv's options as their own config."""
        return self.spec.options.model_validate(self.options)

    def dimensions(self, vectors: bool, degree: float = 12.0) -> tuple[Dimensions, ...]:
        """Give what each layer is built from.

        Args:
            vectors: whether a head reads vectors after the last layer.
            degree: mean number of neighbours in the training data.
        """
        return tuple(
            Dimensions(
                self.features,
                self.basis_size,
                self.cutoff,
                degree,
                layer=layer,
                state_is_read=vectors or layer + 1 < self.layers,
            )
            for layer in range(self.layers)
        )


def head_parameters(features: int, head: HeadConfig, vector: bool) -> int:
    """Count the parameters of a head; ``vector``: its target is a vector per node."""
    if vector:
        return linear(features, 1, bias=False) + linear(features, features) + linear(features, 1)
    widths = [features, *[head.hidden or features] * (head.layers - 1), 1]
    return sum(linear(a, b) for a, b in zip(widths, widths[1:], strict=False))


def parameters(model: ModelConfig, heads: dict[str, tuple[HeadConfig, bool]]) -> int:
    """Count the parameters of the whole net from its dimensions.

    Args:
        model: the trunk.
        heads: for each target its head, and whether it is a vector.
    """
    dimensions = model.dimensions(any(vector for _, vector in heads.values()))
    convs = sum(model.spec.parameters(each, model.conv_options) for each in dimensions)
    embedding = (MAX_ELEMENT + 1) * model.features
    norms = 2 * model.features * model.layers
    total = embedding + convs + norms
    return total + sum(head_parameters(model.features, h, v) for h, v in heads.values())


def forward_flops(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate the floating point operations of one forward pass of the trunk."""
    sizes, options = GraphSizes(nodes, edges, triplets), model.conv_options
    return sum(model.spec.flops(each, options, sizes) for each in model.dimensions(False))


def kept_bytes(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate what the trunk's layers keep for the backward pass, in bytes of fp32."""
    sizes, options = GraphSizes(nodes, edges, triplets), model.conv_options
    return 4.0 * sum(model.spec.kept(each, options, sizes) for each in model.dimensions(False))


class Heads(Config):
    """Checked pairing of heads with a store's targets. Read by ``training.trial``."""

    heads: dict[str, HeadConfig]
    targets: dict[str, dict[str, Any]]
    model: ModelConfig

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name in self.heads:
            if name not in self.targets:
                raise ValueError(unknown("target of a head", name, self.targets))
            if self.targets[name]["shape"] == "tensor":
                energy = self.targets[name].get("derived_from")
                raise ValueError(
                    f"head '{name}' is the stress of '{energy}', a gradient of that head and no "
                    "head of its own: drop it."
                )
            if self.model.max_neighbors is not None and self.targets[name].get("derived_from"):
                raise ValueError(
                    f"head '{name}' predicts forces, which jump with model.max_neighbors: drop the "
                    "cap or the head."
                )
            if self.targets[name]["shape"] == "vector":
                self._vector_fits(name)
        return self

    def _vector_fits(self, name: str) -> None:
        target = self.targets[name]
        if target["level"] != "node":
            raise ValueError(f"head '{name}': vectors per structure cannot be predicted; drop it.")
        if not self.model.spec.vectors:
            able = ", ".join(sorted(key for key, spec in CONV_SPECS.items() if spec.vectors))
            raise ValueError(
                f"head '{name}' predicts a vector per atom, conv '{self.model.conv}' carries "
                f"no vectors: use {able}, or drop the head."
            )
