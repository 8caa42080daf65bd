"""A user's own conv, named ``my_pkg.my_module:MyConv``: what can be known without importing it.

Built by ``model.convs``. Its package is asked for options and vectors when a model is built.
"""

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from pydantic import ConfigDict

from hydragnn_hpo.config.convs.spec import ConvSpec, Dimensions, GraphSizes, products
from hydragnn_hpo.config.schema import Config

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class UserOptions(Config):
    """Whatever options a user's conv has; checked by its own ``Options`` when it is built."""

    model_config = ConfigDict(extra="allow")


def is_user_conv(name: str) -> bool:
    """Tell whether a conv's name is a module and a class."""
    return ":" in name


def check_name(name: str) -> None:
    """Refuse what is no name of a class.

    Raises:
        ValueError: the name has another form.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"conv '{name}' is no module and class: write it like my_pkg.my_module:MyConv."
        )


def check_installed(name: str) -> None:
    """Refuse a class whose package is not here; nothing of the package is run.

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
    """Give the top-level package of a user's conv."""
    return re.split(r"[.:]", name, maxsplit=1)[0]


def version_of(name: str) -> str:
    """Give the version of the package of a user's conv; ``unknown`` if it was never installed."""
    distributions = packages_distributions().get(package_of(name), [])
    try:
        return version(distributions[0]) if distributions else "unknown"
    except PackageNotFoundError:
        return "unknown"


def _parameters(d: Dimensions, o: Config) -> int:
    return 0


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    """Guess: one perceptron on the edges, one on the nodes; corrected by what is measured."""
    f = d.features
    return s.edges * products(d.basis_size, f, f) + s.nodes * products(2 * f, f, f)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return d.features * (4.0 * s.edges + 6.0 * s.nodes)


SPEC = ConvSpec(UserOptions, _parameters, _flops, _kept, vectors=True)
"""The most that a user's conv may be; what it is not, it says when it is built."""
