"""Message-passing layers, one per file; ``CONVS`` is a plain dict.

Each layer is built from ``Dimensions`` and its own options (``config.convs``) and maps
``(scalars [N, F], vectors [N, 3, F] | None, edges)`` to the change of the scalars and the
new vectors.
"""

from torch import nn

from hydragnn_hpo.model.convs.egnn import EGNNConv
from hydragnn_hpo.model.convs.painn import PaiNNConv
from hydragnn_hpo.model.convs.schnet import SchNetConv

CONVS: dict[str, type[nn.Module]] = {
    "schnet": SchNetConv,
    "egnn": EGNNConv,
    "painn": PaiNNConv,
}

__all__ = ["CONVS", "EGNNConv", "PaiNNConv", "SchNetConv"]
