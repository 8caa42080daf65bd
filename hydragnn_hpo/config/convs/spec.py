"""What the controller knows about a conv, a user's own included, without building it.

A user's conv is named ``my_pkg.my_module:MyConv``; its package is only asked for options and
capabilities when a model is built.

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
"""Most layers of a trunk, of an MLP or of a block: a file that asks for more is refused before
anything that is as long as they are many is made, such as a list of widths."""


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
    """Place in the trunk; only layer 0 gets no state."""
    state_is_read: bool = True
    """Whether a layer or a vector head comes after that reads the state this layer gives."""


@dataclass(frozen=True)
class GraphSizes:
    """Numbers of nodes, edges and triplets that one pass processes: a graph, a batch, an epoch."""

    nodes: float
    edges: float
    triplets: float = 0.0
    """Ordered pairs of different edges k -> j -> i, counted for convs that see angles."""

    @property
    def pairs(self) -> float:
        """Bonds: every edge and its reverse are one."""
        return self.edges / 2


Parameters = Callable[[Dimensions, Config], int]
"""Number of parameters of a layer, from its dimensions and the conv's options."""

Amount = Callable[[Dimensions, Config, GraphSizes], float]
"""An amount of work or memory of one layer for graphs of some sizes."""


def _fits(dimensions: Dimensions, options: Config) -> None:
    """Accept any widths: most options go with all."""


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
    """Whatever options a user's conv has; checked by its own ``Options`` when it is built."""

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
    """Check that the package of a class is installed; nothing of it is run.

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
    """Guess: one perceptron on the edges, one on the nodes; corrected by what is measured."""
    f = d.features
    return s.edges * products(d.basis_size, f, f) + s.nodes * products(2 * f, f, f)


def _user_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return d.features * (4.0 * s.edges + 6.0 * s.nodes)


USER_SPEC = ConvSpec(UserOptions, _user_parameters, _user_flops, _user_kept, vectors=True)
"""Assumptions for a user's conv, the widest; its own properties are known when it is built."""
