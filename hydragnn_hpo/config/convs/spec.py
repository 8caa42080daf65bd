"""What the controller knows about a conv, built-in or a user's, without building it.

A user's conv is named ``my_pkg.my_module:MyConv``; its package is imported, and its options and
capabilities are read, only when a model is built.

Shapes: N nodes, E edges, P pairs of edges, T triplets, F features, K radial functions.
"""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Annotated

from pydantic import ConfigDict, Field

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.search_config import ParameterConfig, Scalar

Width = Annotated[int, Field(gt=0, le=2**16)]
"""Channels of a layer: matrices of this width squared are about the largest that a GPU holds."""

MAX_LAYERS = 1000
"""Most layers of a trunk, of an MLP or of a block. A file with more is refused before anything of
that length, such as a list of widths, is built."""


@dataclass(frozen=True)
class Range:
    """Default search range of an option, given with its type; see ``ParameterConfig``."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: tuple[Scalar, ...] | None = None


@dataclass(frozen=True)
class Dimensions:
    """Dimensions that every conv is built from, in addition to its own options."""

    features: int
    """Channels per node, F."""
    basis_size: int
    """Radial functions, K."""
    cutoff: float = 5.0
    """Longest edge, in angstrom."""
    degree: float = 12.0
    """Mean number of neighbours in the training data, for convs that scale by it."""
    layer: int = 0
    """Index in the trunk; layer 0 receives no state."""
    state_is_read: bool = True
    """Whether a later layer or a vector head reads the state that this layer returns."""


@dataclass(frozen=True)
class GraphSizes:
    """Numbers of nodes, edges and triplets of one pass over a graph, a batch or an epoch."""

    nodes: float
    edges: float
    triplets: float = 0.0
    """Ordered pairs of different edges k -> j -> i, counted for convs that use angles."""

    @property
    def pairs(self) -> float:
        """Number of bonds: an edge and its reverse count once."""
        return self.edges / 2


Parameters = Callable[[Dimensions, Config], int]
"""Number of parameters of a layer, from its dimensions and the conv's options."""

Amount = Callable[[Dimensions, Config, GraphSizes], float]
"""Work or memory of one layer, from its dimensions, its options and the sizes of graphs."""


def _fits(dimensions: Dimensions, options: Config) -> None:
    """Accept any dimensions; the check of convs whose options fit all of them."""


@dataclass(frozen=True)
class ConvSpec:
    """One conv as the controller sees it."""

    options: type[Config]
    """Class of its options."""
    parameters: Parameters
    """Number of parameters of one layer."""
    flops: Amount
    """Floating point operations of matrix products in one forward layer."""
    kept: Amount
    """Values that one layer saves for the backward pass: 4 bytes each in fp32.

    The numbers in these formulas are counts over the layer's operations;
    ``tests/physics/test_formulas.py`` compares their results with what autograd saves."""
    edge_features: bool = True
    """Whether it reads lengths or directions of edges, beyond the envelope."""
    vectors: bool = False
    """Whether its state holds equivariant vectors, as node-level vector heads need."""
    forces: bool = True
    """Whether it is smooth enough in the positions for forces by differentiation."""
    angle_cutoff: Callable[[Config], float | None] | None = None
    """For convs that use angles: longest edge that takes part in one, in angstrom."""
    tried_first: int = 99
    """Place in the order in which a campaign of few trials takes convs: quick and good ones first;
    the same for those that come last."""
    check: Callable[[Dimensions, Config], None] = _fits
    """Raises ``ValueError`` with a sentence where the options do not fit the dimensions."""


def check_heads(conv: str, heads: int, features: int) -> None:
    """Check that the heads of an attention divide the features evenly.

    Args:
        conv: name of the conv, for the message.
        heads: number of attention heads.
        features: channels per node, F.

    Raises:
        ValueError: ``features`` is no multiple of ``heads``.
    """
    if features % heads:
        raise ValueError(
            f"options of conv '{conv}': heads is {heads}, which does not divide features "
            f"{features}: choose a divisor."
        )


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Count the parameters of a linear map.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        bias: whether one number is added to each output.
    """
    return inputs * outputs + (outputs if bias else 0)


def chain(*widths: int) -> int:
    """Count the parameters of linear maps with biases through ``widths``."""
    return sum(linear(a, b) for a, b in zip(widths, widths[1:], strict=False))


def products(*widths: int) -> float:
    """Count multiplications and additions of linear maps through ``widths``, for one row."""
    return 2.0 * sum(a * b for a, b in zip(widths, widths[1:], strict=False))


def search_ranges(options: type[Config]) -> dict[str, ParameterConfig]:
    """Collect the default search ranges of a conv's options.

    Returns:
        Range by name of the option; an option without a ``Range`` is left out.
    """
    return {
        name: ParameterConfig(**vars(noted))
        for name, field in options.model_fields.items()
        for noted in field.metadata
        if isinstance(noted, Range)
    }


_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class UserOptions(Config):
    """Options of a user's conv, unchecked: its own ``Options`` check them when it is built."""

    model_config = ConfigDict(extra="allow")


def is_user_conv(name: str) -> bool:
    """Check whether a conv's name is a module and a class."""
    return ":" in name


def check_name(name: str) -> None:
    """Check that a name is a module and a class.

    Raises:
        ValueError: the name has another form.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"conv '{name}' is no module and class: write it like my_pkg.my_module:MyConv."
        )


def check_installed(name: str) -> None:
    """Check that the package of a class is installed, without importing it.

    Raises:
        ValueError: its package is not installed.
    """
    package = package_of(name)
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"conv '{name}' is in package '{package}', which is not installed here: install it, "
            "or correct the name."
        )


def package_of(name: str) -> str:
    """Return the top-level package of a user's conv."""
    return re.split(r"[.:]", name, maxsplit=1)[0]


def version_of(name: str) -> str:
    """Return the version of the package of a user's conv; ``unknown`` if it was never installed."""
    distributions = packages_distributions().get(package_of(name), [])
    try:
        return version(distributions[0]) if distributions else "unknown"
    except PackageNotFoundError:
        return "unknown"


def _user_parameters(d: Dimensions, o: Config) -> int:
    return 0


def _user_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    """Estimate a perceptron on the edges and one on the nodes; measurements correct it later."""
    f = d.features
    return s.edges * products(d.basis_size, f, f) + s.nodes * products(2 * f, f, f)


def _user_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return d.features * (4.0 * s.edges + 6.0 * s.nodes)


USER_SPEC = ConvSpec(UserOptions, _user_parameters, _user_flops, _user_kept, vectors=True)
"""Most permissive assumptions about a user's conv, until its own properties are read."""
