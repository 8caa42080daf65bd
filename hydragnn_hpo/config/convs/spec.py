"""What the controller knows about a conv without building it: options, capabilities, cost.

Shapes: N nodes, E edges, P pairs of edges, T triplets, F features, K radial functions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.search_config import ParameterConfig, Scalar


@dataclass(frozen=True)
class Range:
    """Sensible search range of an option, noted beside its type; see ``ParameterConfig``."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: tuple[Scalar, ...] | None = None


@dataclass(frozen=True)
class Dimensions:
    """What every conv is built from, beside its own options."""

    features: int
    """Channels per node, F."""
    basis_size: int
    """Radial functions, K."""
    cutoff: float = 5.0
    """Longest edge, in angstrom."""
    degree: float = 12.0
    """Mean number of neighbours in the training data, for convs that scale by it."""
    layer: int = 0
    """Place in the trunk; only layer 0 gets no state."""
    state_is_read: bool = True
    """Whether a layer or a vector head comes after that reads the state this layer gives."""


@dataclass(frozen=True)
class GraphSizes:
    """How much a pass goes through: one graph, a batch or an epoch."""

    nodes: float
    edges: float
    triplets: float = 0.0
    """Ordered pairs of different edges k -> j -> i, counted for convs that see angles."""

    @property
    def pairs(self) -> float:
        """Bonds: every edge and its reverse are one."""
        return self.edges / 2


Parameters = Callable[[Dimensions, Config], int]
Amount = Callable[[Dimensions, Config, GraphSizes], float]


def _fits(dimensions: Dimensions, options: Config) -> None:
    """Accept: most options go with any width."""


@dataclass(frozen=True)
class ConvSpec:
    """One conv as the controller sees it."""

    options: type[Config]
    """Its options."""
    parameters: Parameters
    """Number of parameters of one layer."""
    flops: Amount
    """Floating point operations of matrix products in one forward layer."""
    kept: Amount
    """Numbers that one layer keeps for the backward pass: 4 bytes each in fp32."""
    edge_features: bool = True
    """Looks at the lengths of edges beyond their envelope."""
    vectors: bool = False
    """Carries equivariant vectors, so that node-level vector heads are possible."""
    forces: bool = True
    """Smooth enough in the positions for forces by differentiation to mean something."""
    angle_cutoff: Callable[[Config], float | None] | None = None
    """For convs that see angles: longest edge that takes part in one, in angstrom."""
    check: Callable[[Dimensions, Config], None] = _fits
    """Raises ``ValueError`` with a sentence where the options do not go with the widths."""


def check_heads(conv: str, heads: int, features: int) -> None:
    """Raise ``ValueError`` where heads of an attention cannot share the features out."""
    if features % heads:
        raise ValueError(
            f"options of conv '{conv}': heads is {heads}, which does not divide features "
            f"{features}: choose a divisor."
        )


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Count the parameters of a linear map."""
    return inputs * outputs + (outputs if bias else 0)


def chain(*widths: int) -> int:
    """Count the parameters of linear maps with biases through ``widths``."""
    return sum(linear(a, b) for a, b in zip(widths, widths[1:], strict=False))


def products(*widths: int) -> float:
    """Count multiplications and additions of linear maps through ``widths``, for one row."""
    return 2.0 * sum(a * b for a, b in zip(widths, widths[1:], strict=False))


def search_ranges(options: type[Config]) -> dict[str, ParameterConfig]:
    """Give the sensible search range of each option that has one, by the option's name."""
    return {
        name: ParameterConfig(**vars(noted))
        for name, field in options.model_fields.items()
        for noted in field.metadata
        if isinstance(noted, Range)
    }
