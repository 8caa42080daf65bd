"""The multi-headed GNN without torch. Built by ``model.gnn``."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, Dimensions
from hydragnn_hpo.config.convs.spec import (
    MAX_LAYERS,
    USER_SPEC,
    Width,
    chain,
    check_name,
    is_user_conv,
    linear,
)
from hydragnn_hpo.config.data_config import INVARIANT, count_components
from hydragnn_hpo.config.schema import Config, Cutoff, validation_sentence
from hydragnn_hpo.config.trunk_specs import ELEMENTS, TRUNKS, TrunkSpec, count_features
from hydragnn_hpo.errors import unknown

MAX_ELEMENT = 118
"""Highest atomic number; every element up to it has an embedding (Law 8)."""


class HeadConfig(Config):
    """How one target is predicted. Read by ``model.gnn`` and ``training.stepper``."""

    weight: PositiveFloat = 1.0
    """Weight of this head in the loss and in the objective."""

    stage_two_weight: PositiveFloat | None = None
    """Weight of this head in the loss of stage two, the last ``training.stage_two_share`` of the
    epochs; ``weight`` if left out. The objective keeps ``weight``, so that trials with different
    values compare. Source: ``--stage_two_energy_weight`` of MACE; Batatia et al. (2022),
    arXiv:2206.07697."""

    loss: Literal["mae", "mse", "huber", "nll", "beta_nll"] = "huber"
    """Loss in units of the target's standard deviation; ``huber`` is linear for errors above 1.
    With ``nll`` (Gaussian) and ``beta_nll`` the head also predicts a variance. Classes always have
    the cross-entropy: leave it out there."""

    beta: NonNegativeFloat = 0.5
    """For ``beta_nll``: each error is weighted by its variance to this power, from 0 (the plain
    likelihood) to 1 (as in a mean square error).
    Source: Seitzer et al. (2022), arXiv:2203.09168."""

    cumulative: bool = False
    """For spectra: apply the loss to running sums along the axis, divided by the number of values,
    so that a peak costs more the further it is displaced. With ``mae`` this is the earth mover's
    distance of two spectra of equal area; source: Werman et al. (1985), Comput. Vis. Graph. Image
    Process. 32, 328."""

    kind: Literal["mlp", "conv"] = "mlp"
    """``conv``: the head has its own round of message passing before its MLP (scalars, spectra
    and classes of atoms only)."""

    layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)] = 2
    """Linear maps from node features to the prediction."""

    hidden: Width | None = None
    """Width of the hidden layers; the trunk's width if left out."""

    baseline: Literal["elements", "mean"] = "elements"
    """Baseline to which the head predicts the difference. ``elements``: one number per element
    (scalars only). ``mean``: the mean of the target."""

    pool: Literal["mean", "sum", "max", "attention", "contributions"] | None = None
    """How a graph head pools its nodes. ``mean``, ``sum``, ``max`` and (learned) ``attention`` pool
    node features before the MLP. ``contributions`` pools the MLP's output per node: the sum for
    extensive targets, as total energies, else the mean; extensive targets have no other pool. If
    left out, ``contributions`` for energies and extensive targets, else ``mean``."""

    branch: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]*$")] = ""
    """Graph heads of the same branch share the MLP of ``model.shared_layers``. If several data sets
    train one trunk, use one branch for the heads of each data set."""

    gradient: bool | None = None
    """Predict forces or stress as derivatives of their energy's head; the default if the card has
    ``derived_from``. ``false`` predicts forces directly, from vectors of the trunk."""

    @property
    def has_variance(self) -> bool:
        """Whether the head predicts a variance in addition to its value."""
        return self.loss in ("nll", "beta_nll")


class ModelConfig(Config):
    """The trunk. Read by ``model.gnn``."""

    conv: str
    """Name of the message-passing layer, see ``CONVS``, or a user's class such as
    ``my_pkg.my_module:MyConv``."""

    features: Width = 64
    """Channels per node."""

    layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 3
    """Rounds of message passing. With 0 the heads read the embedding of each atom alone, and
    geometry counts only for ``embedding``, ``encoding``, ``repulsion`` and heads of ``kind``
    conv."""

    embedding: str = ELEMENTS
    """What an atom begins with: its element alone (``elements``), or also the features that a
    foundation model, which is not trained further, gives to it: ``chgnet``, ``sevennet``, or the
    name of one in ``[trunks]`` of the campaign."""

    embedding_trunk: TrunkSpec | None = None
    """What is known of a foundation model of the user's; the campaign fills it in."""

    embedding_layers: Literal["all", "early", "late"] = "all"
    """Layers of the foundation model whose features are read: all, or the first or last half. Early
    ones suit some properties best. Source: HackNIP (2025), arXiv:2506.18497."""

    cutoff: Cutoff = 5.0
    """Longest edge used, in angstrom; at most the store's cutoff."""

    max_neighbors: PositiveInt | None = None
    """Approximate maximum number of neighbours of a node; whole shells are kept, see
    ``data.batch``. The energy then jumps where neighbours change, so forces cannot be
    predicted."""

    basis: Literal["bessel", "gaussian"] = "bessel"
    """Radial functions that expand an edge's length."""

    basis_size: Annotated[int, Field(gt=0, le=1000)] = 16
    """Number of radial functions."""

    norm: Literal["layer", "rms", "graph", "none"] = "layer"
    """Norm before each round: over the channels of a node (``layer``, ``rms``), over the nodes of
    a graph (``graph``), or none. Norms over a batch are excluded, as predictions would depend on
    the number of ranks and on the other graphs (Laws 1 and 7)."""

    attention: Literal["none", "gps"] = "none"
    """``gps``: in every round all nodes of a graph also attend to each other, in parallel with the
    conv. Source: Rampasek et al. (2022), arXiv:2205.12454."""

    attention_heads: Width = 4
    """Heads of the global attention; a divisor of ``features``."""

    encoding: Literal["none", "laplacian", "random_walk"] = "none"
    """Positional encoding of a node, added to its embedding: eigenvectors of the Laplacian (from
    the store, see the card), or return probabilities of a random walk."""

    encoding_size: Annotated[int, Field(gt=0, le=1000)] = 8
    """Number of eigenvectors, or of steps of the random walk."""

    attributes: tuple[str, ...] = ()
    """Known properties of whole structures (charge, spin) that are inputs of the model."""

    conditioning: Literal["concat", "film", "fuse"] = "film"
    """Where attributes enter the net. ``concat``: with the embedding of every node. ``film``: as a
    scale and a shift in every round. ``fuse``: with the pooled features of graph heads."""

    shared_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    """Number of linear maps that the graph heads of one branch share, before their own."""

    atom_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    """Number of linear maps, each with its activation, through which a head that pools features
    sends every atom before. Pooling forgets which atom had what: a property that depends on one
    kind of atom, as many gaps do, is easier to read before it."""

    repulsion: Literal["none", "zbl"] = "none"
    """``zbl``: add the screened repulsion of nuclei to energies, so that atoms closer than any in
    the data repel each other."""

    kernels: Literal["auto", "eager", "numba", "triton"] = "auto"
    """Implementation of the passes over the edges. ``eager``: torch's operations. ``numba``: loops
    compiled for the CPU (extra ``fast``), in fp32 and fp64. ``triton``: loops compiled for CUDA and
    ROCm devices (torch for these brings Triton), also in bf16, which they sum in fp32 and round
    once. What loops do not know runs as with ``eager``. ``auto``: the loops of the device, where
    they are installed. Results differ in rounding only."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the conv; those left out take their defaults."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_options(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "conv" not in values:
            return values
        name = str(values["conv"])
        if is_user_conv(name):
            check_name(name)
            return values
        if name not in CONV_SPECS:
            raise ValueError(unknown("conv", name, CONV_SPECS))
        schema = CONV_SPECS[name].options
        try:
            options = schema.model_validate(values.get("options", {}))
        except ValidationError as error:
            raise ValueError(
                f"options of conv '{name}': {validation_sentence(error, schema)}"
            ) from error
        return {**values, "options": options.model_dump(exclude_none=True)}

    @model_validator(mode="after")
    def _embedding_is_known(self) -> Self:
        known = (ELEMENTS, *TRUNKS)
        if self.embedding in known and self.embedding_trunk is not None:
            raise ValueError(f"embedding_trunk is of no use with '{self.embedding}': drop it.")
        if self.embedding not in known and self.embedding_trunk is None:
            sentence = unknown("embedding", self.embedding, known)
            raise ValueError(f"{sentence} A model of your own needs [trunks.NAME] in the campaign.")
        return self

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.attention != "none" and self.features % self.attention_heads:
            raise ValueError(
                f"attention_heads is {self.attention_heads}, which does not divide features "
                f"{self.features}: choose a divisor."
            )
        for first in self.dimensions(vectors=False)[:1]:
            self.spec.check(first, self.conv_options)
        return self

    @property
    def trunk_spec(self) -> TrunkSpec | None:
        """The foundation model that atoms begin from; None for elements alone."""
        return TRUNKS.get(self.embedding, self.embedding_trunk)

    @property
    def spec(self) -> ConvSpec:
        """Spec of the conv; that of a user's conv is generic."""
        return USER_SPEC if is_user_conv(self.conv) else CONV_SPECS[self.conv]

    @property
    def conv_options(self) -> Config:
        """The conv's options as their own config."""
        return self.spec.options.model_validate(self.options)

    def dimensions(self, vectors: bool, degree: float = 12.0) -> tuple[Dimensions, ...]:
        """Return the dimensions of each layer.

        Args:
            vectors: whether a head reads the state after the last layer.
            degree: mean number of neighbours in the training data.

        Returns:
            One entry for each layer, the first layer first.
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


Target = Mapping[str, Any]
"""``level``, ``shape``, ``size``, ``derived_from``, ``energy`` and ``extensive`` of a target;
further keys are not read."""


def is_by_gradient(head: HeadConfig, target: Target) -> bool:
    """Check whether a head is the derivative of another head's energy."""
    return bool(target.get("derived_from")) and head.gradient is not False


def is_directed(head: HeadConfig, target: Target) -> bool:
    """Check whether a head predicts a vector or tensor that is no derivative of an energy."""
    return target["shape"] in ("vector", "tensor") and not is_by_gradient(head, target)


def reads_state(head: HeadConfig, target: Target, vectors: bool) -> bool:
    """Check whether a head needs the trunk's last state, for vectors or a conv of its own.

    Args:
        head: the head.
        target: level, shape and ``derived_from`` of its target.
        vectors: whether the state of the trunk's conv holds vectors.
    """
    return (vectors and is_directed(head, target)) or (
        head.kind == "conv" and target["level"] == "node"
    )


def is_graph_scalar(head: HeadConfig, target: Target) -> bool:
    """Check whether a head predicts numbers per structure that do not turn with it.

    These heads use the shared MLP.
    """
    return target["level"] == "graph" and target["shape"] in INVARIANT


def mlp_widths(features: int, head: HeadConfig, target: Target) -> tuple[int, ...]:
    """Return the widths of a head's own MLP.

    Args:
        features: channels per node of the trunk.
        head: the head.
        target: shape and size of its target.

    Returns:
        Channels of the input, of each hidden layer and of the output: one for each component, and
        one more with a variance.
    """
    outputs = count_components(target) + head.has_variance
    return (features, *[head.hidden or features] * (head.layers - 1), outputs)


def head_conv_dimensions(model: ModelConfig, degree: float = 12.0) -> Dimensions:
    """Return the dimensions of a node head's own conv: those of a further, last layer."""
    deeper = model.model_copy(update={"layers": model.layers + 1})
    return deeper.dimensions(False, degree)[-1]


TENSOR_CHANNELS = 8
"""Products of two mixed vectors that a tensor sums over."""


class DirectedChannels(NamedTuple):
    """Sizes of the layers of a head for vectors or tensors."""

    mixed: int
    """Vectors of each atom that are mixed from those of the trunk."""
    weights: int
    """Weights of each atom's vectors or products of two vectors, and of the unit tensor."""


def count_channels(target: Target, vectors: bool) -> DirectedChannels:
    """Count the channels of a head for vectors or tensors, see ``model.gnn``.

    Args:
        target: level, shape and origin.
        vectors: whether the conv carries vectors.
    """
    positions = reads_positions(target)
    if target["shape"] == "vector":
        return DirectedChannels(int(vectors), vectors + positions)
    products = TENSOR_CHANNELS * vectors + (1 + vectors) * positions
    return DirectedChannels((2 * TENSOR_CHANNELS + positions) * vectors, products + 1)


def is_extensive(target: Target) -> bool:
    """Check whether a target is a sum over the atoms of a structure."""
    return target.get("energy") == "total" or bool(target.get("extensive"))


def pool_of(head: HeadConfig, target: Target) -> str:
    """Return how the head of a target of structures pools its nodes."""
    sums = target.get("energy") is not None or is_extensive(target)
    return head.pool or ("contributions" if sums else "mean")


def reads_positions(target: Target) -> bool:
    """Check whether the head of a target reads positions: molecules alone have unique ones."""
    return target.get("origin") in ("mass", "geometry")


_NORMS = {"layer": 2, "rms": 1, "graph": 3, "none": 0}
"""Parameters per channel of each norm."""


def head_parameters(model: ModelConfig, head: HeadConfig, target: Target) -> int:
    """Count the parameters that belong to one head alone.

    Args:
        model: the trunk.
        head: the head.
        target: level, shape and ``derived_from`` of its target.

    Returns:
        Number of parameters; 0 for the derivative of another head.
    """
    f = model.features
    if is_by_gradient(head, target):
        return 0
    if is_directed(head, target):
        channels = count_channels(target, model.spec.vectors)
        mix = linear(f, channels.mixed, bias=False) if channels.mixed else 0
        return mix + chain(f, f, channels.weights + head.has_variance)
    if target["level"] == "node":
        own = head_conv_dimensions(model)
        conv = model.spec.parameters(own, model.conv_options) if head.kind == "conv" else 0
        return conv + (norm_parameters(model) if conv else 0) + chain(*mlp_widths(f, head, target))
    fused = len(model.attributes) if model.conditioning == "fuse" else 0
    score = linear(f, 1) if head.pool == "attention" else 0
    first, *rest = mlp_widths(f, head, target)
    pooled = 0 if pool_of(head, target) == "contributions" else model.atom_layers
    return pooled * linear(f, f) + score + chain(first + fused, *rest)


def norm_parameters(model: ModelConfig) -> int:
    """Count the parameters of one norm."""
    return _NORMS[model.norm] * model.features


def trunk_parameters(model: ModelConfig, state_is_read: bool) -> int:
    """Count the parameters of embeddings, encodings, rounds and conditioning."""
    f = model.features
    attributes = len(model.attributes)
    dimensions = model.dimensions(state_is_read)
    convs = sum(model.spec.parameters(each, model.conv_options) for each in dimensions)
    total = (MAX_ELEMENT + 1) * f + convs + model.layers * norm_parameters(model)
    if model.attention == "gps":
        total += model.layers * (4 * linear(f, f) + chain(f, 2 * f, f) + norm_parameters(model))
    if read := count_features(model.trunk_spec, model.embedding_layers):
        total += chain(read, f, f)
    if model.encoding == "laplacian":
        total += chain(model.encoding_size, f, f)
    elif model.encoding == "random_walk":
        total += linear(model.encoding_size, f)
    if attributes and model.conditioning == "concat":
        total += linear(f + attributes, f)
    elif attributes and model.conditioning == "film":
        total += max(model.layers, 1) * chain(attributes, f, 2 * f)
    return total


def count_parameters(
    model: ModelConfig, heads: Mapping[str, HeadConfig], targets: Mapping[str, Target]
) -> int:
    """Count the parameters of the whole net from its dimensions.

    Args:
        model: the trunk.
        heads: by the name of their target.
        targets: level, shape and ``derived_from`` of the targets, by name.
    """
    pairs = [(head, targets[name]) for name, head in heads.items()]
    vectors = model.spec.vectors
    total = trunk_parameters(model, any(reads_state(*pair, vectors) for pair in pairs))
    graph = [head for head, target in pairs if is_graph_scalar(head, target)]
    branches = {head.branch for head in graph}
    shared = chain(*[model.features] * (model.shared_layers + 1))
    return total + len(branches) * shared + sum(head_parameters(model, *pair) for pair in pairs)
