"""The multi-headed GNN: a trunk of rounds of message passing, and a head for each target.

Shapes: G graphs, N nodes, A attributes, R rows of a target (graphs or nodes), F features,
w components of a target.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from ase.data import atomic_masses
from pydantic import ValidationError
from torch import Tensor, nn

from hydragnn_hpo.config import (
    ELEMENTS,
    MAX_ELEMENT,
    Config,
    HeadConfig,
    ModelConfig,
    count_components,
    is_extensive,
    is_graph_scalar,
    mean_degree,
    pool_of,
    reads_positions,
    validation_sentence,
)
from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec
from hydragnn_hpo.config.convs.spec import (
    USER_SPEC,
    UserOptions,
    check_installed,
    check_name,
    is_user_conv,
)
from hydragnn_hpo.config.model_config import (
    TENSOR_CHANNELS,
    Target,
    count_channels,
    head_conv_dimensions,
    is_by_gradient,
    is_directed,
    mlp_widths,
    reads_state,
)
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.file_records import AttributeStats
from hydragnn_hpo.kernels import check_kernels
from hydragnn_hpo.model.conditioning import (
    ENCODINGS,
    ConcatConditioning,
    FiLM,
    FrozenFeatures,
    GlobalRound,
    GraphAttributes,
)
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.model.derivatives import (
    ZBL,
    attach_strain,
    forces_and_stress,
    total_energy,
)
from hydragnn_hpo.model.edges import BASES, Edges, measure_edges
from hydragnn_hpo.model.element_numbers import embed_elements
from hydragnn_hpo.model.layers import (
    POOLS,
    AttentionPool,
    Padding,
    apply_with_float32_output,
    apply_without_autocast,
    build_norm,
    mlp,
    node_counts,
    pool_mean,
    pool_sum,
)


def find_conv(name: str) -> type[nn.Module]:
    """Return the class of a conv.

    Raises:
        ConfigError: there is no conv of this name, or it is not a ``torch.nn.Module``.
    """
    if not is_user_conv(name):
        if name not in CONVS:
            raise ConfigError(unknown("conv", name, CONVS))
        return CONVS[name]
    module_name, _, class_name = name.partition(":")
    try:
        check_name(name)
        check_installed(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        conv = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:  # a user's module may raise anything
        cause = str(error).strip().rstrip(".") or type(error).__name__
        raise ConfigError(
            f"conv '{name}': its module cannot be imported ({cause}): mend it."
        ) from error
    if not (isinstance(conv, type) and issubclass(conv, nn.Module)):
        raise ConfigError(
            f"conv '{name}': '{module_name}' holds no torch module of this name: correct it."
        )
    return conv


def options_of(config: ModelConfig) -> Config:
    """Return a conv's options; those of a user's conv are checked by the ``Options`` of its class.

    Raises:
        ConfigError: an option is unknown or wrong.
    """
    if not is_user_conv(config.conv):
        return config.conv_options
    return check_options(find_conv(config.conv), config.options, config.conv)


def check_options(
    conv_class: type[nn.Module], options: Mapping[str, Any] | Config | None, name: str
) -> Config:
    """Check the options of a conv against its own class of settings.

    Args:
        conv_class: the class; a user's may have ``Options``, a ``Config``.
        options: the options; None takes all defaults, a ``Config`` is taken as it is.
        name: name of the conv, for errors.

    Raises:
        ConfigError: ``Options`` is no class of settings, or an option is unknown or wrong.
    """
    if isinstance(options, Config):
        return options
    builtin = next((known for known, each in CONVS.items() if each is conv_class), None)
    schema: Any = getattr(conv_class, "Options", UserOptions)
    schema = schema if builtin is None else CONV_SPECS[builtin].options
    if not (isinstance(schema, type) and issubclass(schema, Config)):
        raise ConfigError(
            f"conv '{name}': its Options are no class of settings: derive them from "
            "hydragnn_hpo.config.schema.Config."
        )
    try:
        checked: Config = schema.model_validate(options or {})
    except ValidationError as error:
        sentence = validation_sentence(error, schema)
        raise ConfigError(f"options of conv '{name}': {sentence}") from error
    return checked


def describe_conv(name: str) -> ConvSpec:
    """Return the capabilities of a conv; a user's class declares them as class attributes."""
    if not is_user_conv(name):
        return CONV_SPECS[name]
    conv = find_conv(name)
    vectors = getattr(conv, "vectors", False)
    forces = getattr(conv, "forces", True)
    return replace(USER_SPEC, vectors=bool(vectors), forces=bool(forces))


class TrunkFeatures(NamedTuple):
    """Output of the trunk, which heads read: node features, geometry and attributes."""

    scalars: Tensor
    """Invariant features, [N, F]."""
    vectors: Tensor
    """Vectors that rotate with the structure, [N, 3, F]; zeros if the conv has none."""
    state: Any
    """State of the last conv, see ``model.convs``."""
    edges: Edges
    """Geometry of the edges."""
    attributes: Tensor | None
    """Attributes of the graphs, centred and scaled, [G, A]; None if the model reads none."""


class RoundContext(NamedTuple):
    """Inputs of a round that are the same in all rounds."""

    batch: Batch
    """The graphs."""
    edges: Edges
    """Geometry of the edges."""
    attributes: Tensor | None
    """Attributes of the graphs, centred and scaled, [G, A]; None if the model reads none."""
    padding: Padding | None
    """Layout of the nodes as one padded block per graph; None without global attention."""


Round = Callable[[int, Tensor, Any, RoundContext], tuple[Tensor, Any]]
"""Signature of ``Trunk.run_round``, which runs one round."""


class Trunk(nn.Module):
    """Compute node features from elements and geometry, in rounds of message passing.

    Each round is ``scalars + conv(norm(scalars))``. A norm acts on one node or one graph, so that
    features depend neither on the number of ranks (Law 1) nor on the other graphs of a batch
    (Law 7).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        state_is_read: bool,
        degree: float = 12.0,
        stats: Mapping[str, Any] | None = None,
    ) -> None:
        """Build the layers; initial parameters are drawn from torch's global generator.

        Args:
            config: settings of the trunk.
            state_is_read: whether a head reads the state of the last conv.
            degree: mean number of neighbours within the cutoff in the training data.
            stats: ``StoreStats``, for attributes of the graphs and features of foundation models;
                None if unknown.

        Raises:
            ConfigError: a user's conv or kernels cannot be imported, or options are wrong.
        """
        super().__init__()
        self.kernels = check_kernels(config.kernels)
        features = config.features
        spec = describe_conv(config.conv)
        self.cutoff, self.has_vectors = config.cutoff, spec.vectors
        self.embedding = embed_elements(features)
        known = (stats or {}).get("features")
        frozen = config.embedding != ELEMENTS
        self.frozen = FrozenFeatures(config, known) if frozen else None
        basis = BASES[config.basis] if spec.edge_features else None
        self.basis = basis(config.basis_size, config.cutoff) if basis else None
        conv = find_conv(config.conv)
        options = options_of(config)
        self.norms = nn.ModuleList(build_norm(config.norm, features) for _ in range(config.layers))
        self.convs = nn.ModuleList(
            conv(dimensions, options) for dimensions in config.dimensions(state_is_read, degree)
        )
        encoding = ENCODINGS.get(config.encoding)
        self.encoding = encoding(config.encoding_size, features) if encoding else None
        self._build_conditioning(config, (stats or {}).get("attributes") or {})
        rounds = config.layers if config.attention == "gps" else 0
        self.rounds = nn.ModuleList(
            GlobalRound(features, config.attention_heads, build_norm(config.norm, features))
            for _ in range(rounds)
        )

    def _build_conditioning(self, config: ModelConfig, stats: Mapping[str, AttributeStats]) -> None:
        """Build the layers that condition the rounds on the attributes."""
        features = config.features
        count = len(config.attributes)
        self.known = GraphAttributes(config.attributes, stats) if count else None
        concatenates = count and config.conditioning == "concat"
        self.beside = ConcatConditioning(features, count) if concatenates else None
        # Without rounds the embedding is conditioned.
        films = max(config.layers, 1) if count and config.conditioning == "film" else 0
        self.films = nn.ModuleList(FiLM(features, count) for _ in range(films))

    def edges(self, batch: Batch) -> Edges:
        """Compute the geometry of a batch, which all layers share."""
        return measure_edges(batch, kernels=self.kernels, basis=self.basis, cutoff=self.cutoff)

    def forward(self, batch: Batch) -> TrunkFeatures:
        """Run all rounds on a batch."""
        edges = self.edges(batch)
        attributes = None if self.known is None else self.known(batch)
        scalars = self._embed(batch, edges, attributes)
        padding = Padding.of(batch) if len(self.rounds) else None
        state = None
        context = RoundContext(batch, edges, attributes, padding)
        if not len(self.convs) and attributes is not None and len(self.films):
            scalars = self.films[0](scalars, attributes, batch)
        for layer in range(len(self.convs)):
            scalars, state = self.apply_round(self.run_round, layer, scalars, state, context)
        return TrunkFeatures(scalars, self._vectors(scalars, state), state, edges, attributes)

    def apply_round(
        self, run: Round, layer: int, scalars: Tensor, state: Any, context: RoundContext
    ) -> tuple[Tensor, Any]:
        """Run a round; ``training.parallel.recompute_rounds`` replaces this method.

        Args:
            run: runs the round, as ``run_round`` does.
            layer: number of the round, from 0.
            scalars: features of the nodes, [N, F].
            state: state of the conv; None in the first round.
            context: inputs that are the same in all rounds.

        Returns:
            New scalars, [N, F], and the new state of the conv.
        """
        return run(layer, scalars, state, context)

    def run_round(
        self, layer: int, scalars: Tensor, state: Any, context: RoundContext
    ) -> tuple[Tensor, Any]:
        """Run one round of message passing: norm, attributes, conv, global attention.

        Args:
            layer: number of the round, from 0.
            scalars: features of the nodes, [N, F].
            state: state of the conv; None in the first round.
            context: inputs that are the same in all rounds.

        Returns:
            New scalars, [N, F], and the new state of the conv.
        """
        before = self.norms[layer](scalars, context.batch)
        if context.attributes is not None and len(self.films):
            before = self.films[layer](before, context.attributes, context.batch)
        change, state = self.convs[layer](before, state, context.edges)
        scalars = scalars + change
        if context.padding is not None:
            scalars = self.rounds[layer](scalars, before, context.padding, context.batch)
        return scalars, state

    def _embed(self, batch: Batch, edges: Edges, attributes: Tensor | None) -> Tensor:
        scalars: Tensor = self.embedding(batch.numbers)
        if self.frozen is not None:
            scalars = scalars + self.frozen(batch)
        if self.encoding is not None:
            scalars = scalars + self.encoding(batch, edges)
        if self.beside is not None and attributes is not None:
            scalars = self.beside(scalars, attributes, batch)
        return scalars

    def _vectors(self, scalars: Tensor, state: Any) -> Tensor:
        if self.has_vectors and state is not None:
            vectors: Tensor = state[:, :3]
            return vectors
        return scalars.new_zeros(()).expand(scalars.shape[0], 3, scalars.shape[1])


class TargetBaseline(nn.Module):
    """Convert a head's output to the target's unit: ``number * std + mean + elements``.

    The mean of a tensor is that of its diagonal, times the unit tensor. A dipole with a total
    charge Q about the centre of mass also has Q times the vector from there to the centre of
    geometry, about which heads predict it.

    ``elements`` has one value per chemical element. The values of a graph's nodes are averaged, as
    in a linear regression over the composition; for extensive targets they are summed, and ``mean``
    is 0 (but in nets that were trained before this was so). ``std``, ``mean`` (for a spectrum one
    of each value, [w]) and ``elements`` are in the target's unit.
    """

    mean: Tensor
    std: Tensor
    elements: Tensor

    def __init__(self, target: Target, head: HeadConfig) -> None:
        """Store the target's statistics as fp32 buffers; ``elements`` is 0 unless it is fitted."""
        super().__init__()
        self.level = target["level"]
        self.total = is_extensive(target)
        self.is_tensor = target["shape"] == "tensor"
        self.charge = target.get("charge") if target.get("origin") == "mass" else None
        fitted = target.get("elements") if head.baseline == "elements" else None
        own = target.get("atom_mean")
        each = own["mean"] if own and not fitted else 0.0
        by_number = fitted["by_number"] if fitted else [each] * (MAX_ELEMENT + 1)
        self.register_buffer("elements", torch.tensor(by_number, dtype=torch.float32))
        start = fitted or ({**own, "mean": 0.0} if own else target)
        self.register_buffer("mean", _centre(target, start))
        self.register_buffer("std", torch.tensor(float(start["std"]) or 1.0))

    def forward(self, numbers: Tensor, batch: Batch) -> Tensor:
        """Return the prediction in the target's unit, fp64, of the shape of ``numbers``.

        A sum over many atoms is so large that fp32 would lose digits of the head's small output.
        """
        shift = self.elements.double()[batch.numbers].unsqueeze(-1)
        if self.level == "graph":
            shift = (pool_sum if self.total else pool_mean)(shift, batch)
        mean = self.mean.double()
        if self.is_tensor:
            mean = mean * torch.eye(3, dtype=mean.dtype, device=mean.device).reshape(-1)
        if self.charge is not None:
            shift = shift + _charge_moment(batch, self.charge)
        return torch.addcmul(mean + shift, numbers.double(), self.std.double())


def _charge_moment(batch: Batch, charge: str) -> Tensor:
    """Return the dipole of a total charge at the centre of geometry about that of mass, [G, 3].

    Args:
        batch: the graphs.
        charge: name of the attribute with the total charge in e.
    """
    positions = batch.positions.double()
    masses = positions.new_tensor(atomic_masses[: MAX_ELEMENT + 1])[batch.numbers].unsqueeze(-1)
    heavy = pool_sum(masses * positions, batch) / pool_sum(masses, batch).clamp(min=1e-6)
    return batch.attributes[charge].double().unsqueeze(-1) * (pool_mean(positions, batch) - heavy)


def _centre(target: Target, start: Target) -> Tensor:
    """Return the mean of a target, a scalar, or [w] for a spectrum or frequencies of classes.

    Args:
        target: shape and statistics; without ``means`` those of a spectrum are loaded later.
        start: the statistics to take the mean from: of the target, or of its elements.
    """
    if target.get("shape") not in ("spectrum", "class"):
        return torch.tensor(float(start["mean"]))
    zeros = [0.0] * count_components(target)
    return torch.tensor(target.get("means") or zeros, dtype=torch.float32)


SMALLEST_FREQUENCY = 1e-4
"""Smallest frequency of a class from which its head starts."""


class ClassBaseline(TargetBaseline):
    """Convert a head's output to probabilities: softmax of ``number + log(frequency)``."""

    def __init__(self, target: Target, head: HeadConfig) -> None:
        """Store the logarithms of the frequencies in place of the mean; the scale is 1."""
        super().__init__(target, head)
        self.mean = self.mean.clamp(min=SMALLEST_FREQUENCY).log()
        self.std = torch.ones_like(self.std)

    def forward(self, numbers: Tensor, batch: Batch) -> Tensor:
        """Return the probability of each class, fp64, [R, w]."""
        return torch.softmax(super().forward(numbers, batch), dim=-1)


class SumConstraint(nn.Module):
    """Shift the values of a structure's atoms, all by the same amount, so that they sum to a total.

    This is the smallest change, in the sum of squares, that fulfils the constraint; it has no
    parameters, and is part of the net: losses and gradients are those of the shifted values. A
    weighted mean of members that fulfil it fulfils it, too. The variance that a head predicts is
    fitted to the errors of the shifted values, and needs no shift. Tensors sum to the total times
    the unit tensor, which is the same from every side.
    """

    def __init__(self, total: float | str) -> None:
        """Store the total: a number in the target's unit, or the name of an attribute."""
        super().__init__()
        self.total = total

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the shifted values in the target's unit, fp64, [N, 1] or [N, 9]."""
        sums = pool_sum(values, batch)
        counts = node_counts(values, batch)
        wanted: Tensor | float = 1.0
        if values.shape[1] > 1:
            wanted = torch.eye(3, dtype=values.dtype, device=values.device).reshape(1, 9)
        if isinstance(self.total, str):
            missing = batch.attributes[self.total].double().unsqueeze(-1) * wanted - sums
        else:
            missing = self.total * wanted - sums
        return values + (missing / counts).index_select(0, batch.graph_of_node)


SMALLEST_VARIANCE = 1e-6
"""Floor of a predicted variance, in squared units of the target's spread."""


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """Prediction of a head, in units of the target's spread."""

    mean: Tensor
    """The prediction, [R, w]."""
    variance: Tensor | None = None
    """Its variance, [R, 1], one for all components; None if not predicted."""


@dataclass(frozen=True)
class HeadPlan:
    """Inputs of the constructor of a head."""

    model: ModelConfig
    """Settings of the trunk."""
    head: HeadConfig
    """Settings of the head."""
    target: Target
    """Level, shape, size, origin and kind of energy of the target."""
    degree: float
    """Mean number of neighbours within the cutoff in the training data."""


def _split_output(
    numbers: Tensor, width: int = 1, *, batch: Batch | None = None, power: int = 0
) -> HeadOutput:
    """Split columns into prediction and variance, and sum contributions of nodes.

    The variance of a sum of independent contributions is the sum of their variances.

    Args:
        numbers: prediction, and logit of the variance if the head has one, [R, w] or [R, w + 1].
        width: components of the prediction, w.
        batch: batch of these nodes, whose rows are summed by graph; None to sum nothing.
        power: 1 to divide the sums by the number of nodes, 0 to leave them.
    """
    mean = numbers
    variance = None
    if numbers.shape[1] > width:
        mean = numbers[:, :width]
        variance = F.softplus(numbers[:, width:])
    if batch is not None:
        scale = node_counts(mean, batch) ** power
        mean = pool_sum(mean, batch) / scale
        variance = None if variance is None else pool_sum(variance, batch) / scale**2
    return HeadOutput(mean, None if variance is None else variance + SMALLEST_VARIANCE)


class GraphHead(nn.Module):
    """Predicts numbers per graph: an MLP of pooled features, or pooled outputs of an MLP."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the MLP."""
        super().__init__()
        model, head = plan.model, plan.head
        first, *rest = mlp_widths(model.features, head, plan.target)
        self.width = count_components(plan.target)
        self.fused = len(model.attributes) if model.conditioning == "fuse" else 0
        pool = pool_of(head, plan.target)
        is_sum = is_extensive(plan.target)
        self.contributes = pool == "contributions"
        self.power = 0 if is_sum else 1
        self.pool = (
            AttentionPool(model.features) if pool == "attention" else POOLS.get(pool, pool_mean)
        )
        maps = 0 if self.contributes else model.atom_layers
        self.atom_mlp = mlp([model.features] * (maps + 1))
        if maps:
            self.atom_mlp.append(nn.SiLU())
        self.mlp = mlp((first + self.fused, *rest))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict a number per graph and component, [G, w].

        Args:
            features: output of the trunk.
            batch: batch of these nodes.
            shared: layers that all heads of the branch share, [n, F] to [n, F].
        """
        if self.contributes:
            attributes = self._fused_attributes(features, batch.graph_of_node)
            numbers = apply_with_float32_output(
                self.mlp, self._concatenate(shared(features.scalars), attributes)
            )
            return _split_output(numbers, self.width, batch=batch, power=self.power)
        pooled = shared(self.pool(self.atom_mlp(features.scalars), batch))
        joined = self._concatenate(pooled, self._fused_attributes(features, None))
        return _split_output(apply_with_float32_output(self.mlp, joined), self.width)

    def _fused_attributes(self, features: TrunkFeatures, rows: Tensor | None) -> Tensor | None:
        if not self.fused or features.attributes is None:
            return None
        return features.attributes if rows is None else features.attributes.index_select(0, rows)

    @staticmethod
    def _concatenate(values: Tensor, attributes: Tensor | None) -> Tensor:
        return values if attributes is None else torch.cat((values, attributes), dim=-1)


class NodeHead(nn.Module):
    """Predicts numbers per node from its features, optionally after another conv."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the MLP, and the conv if the head has one."""
        super().__init__()
        model = plan.model
        self.conv = self.norm = None
        if plan.head.kind == "conv":
            place = head_conv_dimensions(model, plan.degree)
            self.conv = find_conv(model.conv)(place, options_of(model))
            self.norm = build_norm(model.norm, model.features)
        self.mlp = mlp(mlp_widths(model.features, plan.head, plan.target))
        self.width = count_components(plan.target)

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict a number per node and component, [N, w].

        Args:
            features: output of the trunk.
            batch: batch of these nodes.
            shared: not used; only graph heads share layers.
        """
        scalars = features.scalars
        if self.conv is not None and self.norm is not None:
            change, _ = self.conv(self.norm(scalars, batch), features.state, features.edges)
            scalars = scalars + change
        return _split_output(apply_with_float32_output(self.mlp, scalars), self.width)


class NodeVectorHead(nn.Module):
    """Predicts one vector per node that rotates with the structure: mixed channels times a gate."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the mix of channels and the gate."""
        super().__init__()
        features = plan.model.features
        self.mix = nn.Linear(features, 1, bias=False)
        self.gate = mlp((features, features, 2 if plan.head.has_variance else 1))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict one vector per node, [N, 3].

        Args:
            features: output of the trunk; its vectors rotate with the structure.
            batch: not used.
            shared: not used; only graph heads share layers.
        """
        gate = _split_output(apply_with_float32_output(self.gate, features.scalars))
        mixed = apply_without_autocast(self.mix, features.vectors).squeeze(-1)
        return HeadOutput(mixed * gate.mean, gate.variance)


def _center_positions(batch: Batch) -> Tensor:
    """Return positions from the centre of geometry of their graph, in angstrom, [N, 3]."""
    centres = pool_mean(batch.positions, batch).index_select(0, batch.graph_of_node)
    return batch.positions - centres


class GraphVectorHead(nn.Module):
    """Predicts one vector per graph: charges times positions, plus vectors of the nodes.

    Positions are measured from the centre of geometry, as if an equal part of their sum were taken
    from all charges. A trunk without vectors has charges alone; without an origin there are vectors
    alone, which are averaged over the nodes.

    Source: Schuett et al. (2021), arXiv:2102.03150, eq. 15.
    """

    def __init__(self, plan: HeadPlan) -> None:
        """Build the mix of channels, and the perceptron for charges and gates."""
        super().__init__()
        features = plan.model.features
        vectors = describe_conv(plan.model.conv).vectors
        self.positions = reads_positions(plan.target)
        self.channels = count_channels(plan.target, vectors)
        self.mix = nn.Linear(features, 1, bias=False) if vectors else None
        outputs = self.channels.weights + plan.head.has_variance
        self.mlp = mlp((features, features, outputs))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict one vector per graph, [G, 3].

        Args:
            features: output of the trunk; its vectors rotate with the structure.
            batch: batch of these nodes.
            shared: not used; only scalars of graphs share layers.
        """
        numbers = apply_with_float32_output(self.mlp, features.scalars)
        weights, logit = numbers.tensor_split((self.channels.weights,), dim=1)
        arrows = []
        if self.positions:
            arrows.append(_center_positions(batch).unsqueeze(-1))
        if self.mix is not None:
            arrows.append(apply_without_autocast(self.mix, features.vectors))
        moments = (torch.cat(arrows, dim=-1) * weights.unsqueeze(1)).sum(-1)
        power = 0 if self.positions else 1
        return _split_output(torch.cat((moments, logit), dim=1), 3, batch=batch, power=power)


class TensorHead(nn.Module):
    """Predicts a tensor per graph or node: products of two vectors, plus a multiple of the unit.

    Vectors are mixed channels of the trunk and, with an origin, positions from the centre of
    geometry in units of the cutoff; a trunk without vectors has these alone. Tensors of graphs are
    symmetric, their products have no trace, and they are summed over the nodes with an origin, else
    averaged.

    Source: Schuett et al. (2021), arXiv:2102.03150, eq. 16.
    """

    def __init__(self, plan: HeadPlan) -> None:
        """Build the mix of channels, and the perceptron for the weights of the products."""
        super().__init__()
        features = plan.model.features
        vectors = describe_conv(plan.model.conv).vectors
        self.per_graph = plan.target["level"] == "graph"
        self.cutoff = plan.model.cutoff
        self.positions = reads_positions(plan.target)
        self.channels = count_channels(plan.target, vectors)
        self.mix = nn.Linear(features, self.channels.mixed, bias=False) if vectors else None
        outputs = self.channels.weights + plan.head.has_variance
        self.mlp = mlp((features, features, outputs))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict one tensor per graph or node, row by row, [G, 9] or [N, 9].

        Args:
            features: output of the trunk; its vectors rotate with the structure.
            batch: batch of these nodes.
            shared: not used; only scalars of graphs share layers.
        """
        numbers = apply_with_float32_output(self.mlp, features.scalars)
        weights, logit = numbers.tensor_split((self.channels.weights,), dim=1)
        left, right = self._factors(features, batch)
        products = (left * weights[:, 1:].unsqueeze(1)) @ right.transpose(1, 2)
        unit = torch.eye(3, dtype=products.dtype, device=products.device)
        if self.per_graph:
            products = 0.5 * (products + products.transpose(1, 2))
            trace = products.diagonal(dim1=1, dim2=2).sum(-1)
            products = products - unit * (trace / 3.0).view(-1, 1, 1)
        tensors = (products + unit * weights[:, :1].unsqueeze(-1)).flatten(1)
        joined = torch.cat((tensors, logit), dim=1)
        if not self.per_graph:
            return _split_output(joined, 9)
        return _split_output(joined, 9, batch=batch, power=0 if self.positions else 1)

    def _factors(self, features: TrunkFeatures, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return both factors of the products, [N, 3, K] each."""
        left, right = [], []
        if self.mix is not None:
            mixed = apply_without_autocast(self.mix, features.vectors)
            left.append(mixed[..., :TENSOR_CHANNELS])
            right.append(mixed[..., TENSOR_CHANNELS:])
        if self.positions:
            arms = _center_positions(batch).unsqueeze(-1) / self.cutoff
            # With vectors, positions are multiplied by the last of them, and by themselves.
            left += [arms] * (1 if self.mix is None else 2)
            right.append(arms)
        return torch.cat(left, dim=-1), torch.cat(right, dim=-1)


HEADS: dict[tuple[str, str], type[nn.Module]] = {
    ("graph", "scalar"): GraphHead,
    ("graph", "spectrum"): GraphHead,
    ("graph", "class"): GraphHead,
    ("graph", "vector"): GraphVectorHead,
    ("graph", "tensor"): TensorHead,
    ("node", "scalar"): NodeHead,
    ("node", "spectrum"): NodeHead,
    ("node", "class"): NodeHead,
    ("node", "vector"): NodeVectorHead,
    ("node", "tensor"): TensorHead,
}
"""Heads by level and shape of the target."""


def build_branch_mlps(model: ModelConfig, heads: Mapping[str, HeadConfig]) -> nn.ModuleDict:
    """Build the MLP that the graph heads of each branch share; it ends in an activation."""
    if not model.shared_layers:
        return nn.ModuleDict()
    chain = (model.features,) * (model.shared_layers + 1)
    branches = dict.fromkeys(branch_key(head) for head in heads.values())
    return nn.ModuleDict({name: nn.Sequential(*mlp(chain), nn.SiLU()) for name in branches})


def branch_key(head: HeadConfig) -> str:
    """Return the module name of a branch's shared layers; torch rejects an empty name."""
    return f"branch_{head.branch}"


Targets = Mapping[str, Target]
"""Statistics of targets by name: ``TargetStats`` of a store, or the part of it that an ensemble
stores (without baselines per element, which are among its weights)."""


def variance_key(name: str) -> str:
    """Return the key of a head's predicted variance among the predictions."""
    return f"{name}:variance"


class MultiHeadGNN(nn.Module):
    """One trunk, one head per target.

    Outputs are in the targets' own units. Each head predicts the difference from a baseline (the
    mean, and by default one number per element), in units of the standard deviation of that
    difference. Baseline and standard deviation are fitted on the training split and stored as
    buffers. Forces and stress are derivatives of the predicted energy.
    """

    def __init__(
        self,
        model: ModelConfig,
        heads: Mapping[str, HeadConfig],
        targets: Targets,
        *,
        stats: Mapping[str, Any] | None = None,
        learn_weights: bool = False,
    ) -> None:
        """Build the model; initial parameters are drawn from torch's global generator.

        Args:
            model: settings of the trunk.
            heads: settings of the heads by the name of their target.
            targets: statistics of the store's targets by name.
            stats: ``StoreStats``, for convs that scale by the degree, attributes and features of
                foundation models; None in a model that loads its weights from a file.
            learn_weights: whether each head has a learned weight in the loss.

        Raises:
            ConfigError: a target's name is that of an attribute of torch modules, or the conv
                lacks vectors or derivatives that a head needs.
        """
        super().__init__()
        self.fixed_shapes = has_fixed_shapes(model, heads)
        self.energies = _energies_of_derivatives(model, heads, targets)
        state = _is_state_read(model, heads, targets)
        degree = mean_degree(stats, model.cutoff) if stats and "degree" in stats else 12.0
        self.trunk = Trunk(model, state_is_read=state, degree=degree, stats=stats)
        graph = {n: h for n, h in heads.items() if is_graph_scalar(h, targets[n])}
        self.shared = build_branch_mlps(model, graph)
        self.whole = nn.Identity()
        self.branches = {name: branch_key(head) for name, head in graph.items()}
        self.heads, self.baselines, self.sums = (nn.ModuleDict() for _ in range(3))
        for name, head in heads.items():
            self._add_head(name, targets[name], head, model, degree)
        self.repulsion = ZBL() if model.repulsion == "zbl" else None
        self._sort_by_kind(heads, targets)
        self.log_variances = nn.Parameter(torch.zeros(len(heads))) if learn_weights else None

    def _sort_by_kind(self, heads: Mapping[str, HeadConfig], targets: Targets) -> None:
        """Store which heads predict energies, vectors or tensors of their own, and classes."""
        self.kinds = {name: str(targets[name].get("energy") or "") for name in heads}
        self.directed = frozenset(n for n, h in heads.items() if is_directed(h, targets[n]))
        self.classes = frozenset(n for n in heads if targets[n]["shape"] == "class")
        self.of_nodes = frozenset(n for n in heads if targets[n]["level"] == "node")
        self.tensors = frozenset(n for n in heads if targets[n]["shape"] == "tensor")

    def _add_head(
        self,
        name: str,
        target: Target,
        head: HeadConfig,
        model: ModelConfig,
        degree: float,
    ) -> None:
        """Build a target's baseline, and its head unless the target is a derivative."""
        _check_head_name(self.heads, name)
        is_class = target["shape"] == "class"
        self.baselines[name] = (ClassBaseline if is_class else TargetBaseline)(target, head)
        if target.get("sum") is not None:
            self.sums[name] = SumConstraint(target["sum"])
        if name not in self.energies:
            plan = HeadPlan(model, head, target, degree)
            self.heads[name] = HEADS[target["level"], target["shape"]](plan)

    def forward(self, batch: Batch, only: Collection[str] | None = None) -> dict[str, Tensor]:
        """Predict every target, or those in ``only``.

        Returns:
            Predictions by target, [G, w] or [N, w], in the target's unit: fp64, but forces and
            stress in the dtype of the positions. The width w is 1, 3 for vectors, 9 for tensors,
            the number of values of a spectrum, and that of classes, which have probabilities.
            The variance of a head that has one is under ``variance_key(target)``, [G, 1] or
            [N, 1], fp64, in the unit squared.
        """
        names = [n for n in self.baselines if only is None or n in only]
        derived = [name for name in names if name in self.energies]
        if not derived:
            return self._predict_direct(batch, names)
        direct = dict.fromkeys([n for n in names if n not in derived])
        energies = [self.energies[name] for name in derived]
        needed = dict.fromkeys([*direct, *energies])
        with torch.enable_grad():
            moved, positions, strain = attach_strain(batch)
            predictions = self._predict_direct(moved, list(needed))
            for energy in dict.fromkeys(energies):
                total = total_energy(predictions[energy], self.kinds[energy], batch)
                forces, stress = forces_and_stress(
                    total, positions, strain, batch, train=self.training
                )
                for name in derived:
                    if self.energies[name] == energy:
                        predictions[name] = stress if name in self.tensors else forces
        kept = {
            name: values
            for name, values in predictions.items()
            if name in names or name.partition(":")[0] in names
        }
        return kept if torch.is_grad_enabled() else {n: v.detach() for n, v in kept.items()}

    def _predict_direct(self, batch: Batch, names: Collection[str]) -> dict[str, Tensor]:
        """Predict targets that are not derivatives; return them as ``forward`` does."""
        features = self.trunk(batch)
        predictions = {}
        for name in names:
            branch = self.branches.get(name, "")
            shared = self.shared[branch] if branch in self.shared else self.whole  # noqa: SIM401
            output = self.heads[name](features, batch, shared)
            predictions[name] = self.baselines[name](output.mean, batch)
            if name in self.sums:
                predictions[name] = self.sums[name](predictions[name], batch)
            if self.repulsion is not None and self.kinds[name]:
                predictions[name] = predictions[name] + self._repulsion_energy(
                    name, features, batch
                )
            if output.variance is not None:
                scale = self.std(name).double() ** 2
                predictions[variance_key(name)] = output.variance.double() * scale
        return predictions

    def _repulsion_energy(self, name: str, features: TrunkFeatures, batch: Batch) -> Tensor:
        assert self.repulsion is not None
        gather = pool_sum if self.kinds[name] == "total" else pool_mean
        return gather(self.repulsion(batch, features.edges).double(), batch)

    def attribute_names(self, target: str) -> tuple[str, ...]:
        """List the attributes that a prediction of one target needs.

        Returns:
            Their names: those that the trunk reads, in its order, then that of the target's sum.
        """
        trunk = () if self.trunk.known is None else self.trunk.known.names
        total = self.sums[target].total if target in self.sums else None
        return tuple(dict.fromkeys((*trunk, total) if isinstance(total, str) else trunk))

    def std(self, name: str) -> Tensor:
        """Return a target's standard deviation around its baseline, in its own unit, a scalar."""
        baseline = self.baselines[name]
        assert isinstance(baseline, TargetBaseline)
        return baseline.std


def _is_state_read(model: ModelConfig, heads: Mapping[str, HeadConfig], targets: Targets) -> bool:
    vectors = describe_conv(model.conv).vectors
    return any(reads_state(head, targets[name], vectors) for name, head in heads.items())


def has_fixed_shapes(model: ModelConfig, heads: Mapping[str, HeadConfig]) -> bool:
    """Check whether the sizes of a batch determine the shapes of all tensors, and no value does.

    Angles, a user's conv, blocks of one graph's nodes and the groups of ``mfc`` depend on values.
    """
    blocks = model.attention != "none" or model.encoding == "random_walk"
    blocks = blocks or any(head.pool in ("max", "attention") for head in heads.values())
    if blocks or is_user_conv(model.conv):
        return False
    return bool(getattr(find_conv(model.conv), "exports", True))


def _energies_of_derivatives(
    model: ModelConfig, heads: Mapping[str, HeadConfig], targets: Targets
) -> dict[str, str]:
    """Return the energy target of each head that predicts a derivative, by name of the head.

    Raises:
        ConfigError: the conv has no vectors or derivatives for a head that needs them.
    """
    energies = {
        n: targets[n]["derived_from"] for n, h in heads.items() if is_by_gradient(h, targets[n])
    }
    vectors = [
        name
        for name, head in heads.items()
        if is_directed(head, targets[name]) and not reads_positions(targets[name])
    ]
    if vectors and not describe_conv(model.conv).vectors:
        target = targets[vectors[0]]
        raise ConfigError(
            f"head '{vectors[0]}' predicts a {target['shape']} per "
            f"{'atom' if target['level'] == 'node' else 'structure'} from vectors of atoms, conv "
            f"'{model.conv}' carries none: choose another conv, or drop the head."
        )
    if energies and not (describe_conv(model.conv).forces and model.layers):
        raise ConfigError(
            f"head '{next(iter(energies))}' is a derivative, {model.layers} rounds of conv "
            f"'{model.conv}' give none: choose another conv, let layers be at least 1, or drop the "
            "head."
        )
    return energies


def _check_head_name(modules: nn.ModuleDict, name: str) -> None:
    if hasattr(modules, name):
        raise ConfigError(
            f"head '{name}': torch keeps this name for itself; give the target another "
            f'name in the card, with key = "{name}" if the file calls it so.'
        )
