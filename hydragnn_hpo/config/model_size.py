"""Parameters, operations and bytes of a whole net, from its dimensions.

Read by ``placement.workload``, ``data.batch_sampler`` and ``ensemble.engine``; a test compares
these with built nets.
"""

from collections.abc import Mapping
from typing import Any

from hydragnn_hpo.config.compatibility import is_by_gradient, reads_state
from hydragnn_hpo.config.convs import Dimensions, GraphSizes
from hydragnn_hpo.config.convs.spec import chain, linear, products
from hydragnn_hpo.config.model_config import MAX_ELEMENT, HeadConfig, ModelConfig

Target = Mapping[str, Any]
_NORMS = {"layer": 2, "rms": 1, "graph": 3, "none": 0}
"""Parameters per channel of each norm."""


def mlp_widths(features: int, head: HeadConfig) -> tuple[int, ...]:
    """Return the widths of a head's own MLP, from its input to its output."""
    outputs = 2 if head.has_variance else 1
    return (features, *[head.hidden or features] * (head.layers - 1), outputs)


def head_parameters(model: ModelConfig, head: HeadConfig, target: Target) -> int:
    """Count the parameters that a head has of its own."""
    f = model.features
    if is_by_gradient(head, target):
        return 0
    if target["shape"] == "vector":
        gate = chain(f, f, 2 if head.has_variance else 1)
        return linear(f, 1, bias=False) + gate
    if target["level"] == "node":
        own = head_conv_dimensions(model)
        conv = model.spec.parameters(own, model.conv_options) if head.kind == "conv" else 0
        return conv + (norm_parameters(model) if conv else 0) + chain(*mlp_widths(f, head))
    fused = len(model.attributes) if model.conditioning == "fuse" else 0
    score = linear(f, 1) if head.pool == "attention" else 0
    first, *rest = mlp_widths(f, head)
    return score + chain(first + fused, *rest)


def head_conv_dimensions(model: ModelConfig, degree: float = 12.0) -> Dimensions:
    """Return what the conv of a node head is built from: one more layer, the last."""
    deeper = model.model_copy(update={"layers": model.layers + 1})
    return deeper.dimensions(False, degree)[-1]


def norm_parameters(model: ModelConfig) -> int:
    """Count the parameters of one norm."""
    return _NORMS[model.norm] * model.features


def trunk_parameters(model: ModelConfig, state_is_read: bool) -> int:
    """Count the parameters of embedding, encodings, rounds and conditioning."""
    f, told = model.features, len(model.attributes)
    dimensions = model.dimensions(state_is_read)
    convs = sum(model.spec.parameters(each, model.conv_options) for each in dimensions)
    total = (MAX_ELEMENT + 1) * f + convs + model.layers * norm_parameters(model)
    if model.attention == "gps":
        total += model.layers * (4 * linear(f, f) + chain(f, 2 * f, f) + norm_parameters(model))
    if model.encoding == "laplacian":
        total += chain(model.encoding_size, f, f)
    elif model.encoding == "random_walk":
        total += linear(model.encoding_size, f)
    if told and model.conditioning == "concat":
        total += linear(f + told, f)
    elif told and model.conditioning == "film":
        total += model.layers * chain(told, f, 2 * f)
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
    total = trunk_parameters(model, any(reads_state(*pair) for pair in pairs))
    graph = [head for head, target in pairs if is_graph_scalar(head, target)]
    branches = {head.branch for head in graph}
    shared = chain(*[model.features] * (model.shared_layers + 1))
    return total + len(branches) * shared + sum(head_parameters(model, *pair) for pair in pairs)


def is_graph_scalar(head: HeadConfig, target: Target) -> bool:
    """Check whether a head is a number per structure, so that it passes the shared MLP."""
    return bool(target["level"] == "graph") and not is_by_gradient(head, target)


def forward_flops(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate the floating point operations of one forward pass of the trunk.

    Attention of all nodes to all others is left out but for its linear maps: the rest grows with
    the square of a graph's nodes, and is small next to them below some hundred atoms.
    """
    sizes, options = GraphSizes(nodes, edges, triplets), model.conv_options
    convs = sum(model.spec.flops(each, options, sizes) for each in model.dimensions(False))
    if model.attention == "none":
        return convs
    f = model.features
    return convs + model.layers * nodes * (4 * products(f, f) + products(f, 2 * f, f))


def angle_cutoff(model: ModelConfig) -> float | None:
    """Return the longest edge that takes part in an angle, in angstrom; None without angles."""
    if model.spec.angle_cutoff is None:
        return None
    return min(model.spec.angle_cutoff(model.conv_options) or model.cutoff, model.cutoff)


def count_triplets(nodes: float, degree: float) -> float:
    """Estimate the triplets of nodes that have ``degree`` neighbours within the angle cutoff."""
    return nodes * degree * max(degree - 1.0, 0.0)


def differentiates(heads: Mapping[str, HeadConfig], targets: Mapping[str, Target]) -> bool:
    """Check whether forces or stress are trained by differentiating an energy."""
    return any(is_by_gradient(head, targets.get(name, {})) for name, head in heads.items())


def kept_bytes(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate what the trunk's layers keep for the backward pass, in bytes of fp32."""
    sizes, options = GraphSizes(nodes, edges, triplets), model.conv_options
    kept = sum(model.spec.kept(each, options, sizes) for each in model.dimensions(False))
    norms = model.layers * nodes * model.features
    return 4.0 * (kept + norms)
