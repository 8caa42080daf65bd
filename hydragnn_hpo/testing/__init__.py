"""The physics suite as a library: check symmetries and derivatives of a conv, on a CPU."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.testing.conv_suite import check_conv

__all__ = [
    "check_conv",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
