"""Message-passing layers, one per file; ``CONVS`` is a plain dict.

Each layer is built from ``Dimensions`` and its own options (``config.convs``) and maps
``(scalars [N, F], state, edges)`` to the change of the scalars, [N, F], and the new state.

The state is everything else that a conv carries from layer to layer: vectors, messages of edges,
or None. The first layer receives None; ``dimensions.state_is_read`` tells whether anything reads
the state that a layer returns. Where the spec says ``vectors``, it is a tensor [N, C, F] whose
first three components are x, y and z of vectors that rotate with the structure.
"""

from torch import nn

from hydragnn_hpo.model.convs.alignn import AlignnConv
from hydragnn_hpo.model.convs.cgcnn import CGCNNConv
from hydragnn_hpo.model.convs.dimenetpp import DimeNetPPConv
from hydragnn_hpo.model.convs.egnn import EGNNConv
from hydragnn_hpo.model.convs.et import ETConv
from hydragnn_hpo.model.convs.gat import GATConv
from hydragnn_hpo.model.convs.gin import GINConv
from hydragnn_hpo.model.convs.mace import MACEConv
from hydragnn_hpo.model.convs.mfc import MFCConv
from hydragnn_hpo.model.convs.painn import PaiNNConv
from hydragnn_hpo.model.convs.pna import PNAConv
from hydragnn_hpo.model.convs.pnaeq import PNAEqConv
from hydragnn_hpo.model.convs.pnaplus import PNAPlusConv
from hydragnn_hpo.model.convs.sage import SAGEConv
from hydragnn_hpo.model.convs.schnet import SchNetConv
from hydragnn_hpo.model.convs.tensornet import TensorNetConv

CONVS: dict[str, type[nn.Module]] = {
    "gin": GINConv,
    "sage": SAGEConv,
    "gat": GATConv,
    "mfc": MFCConv,
    "cgcnn": CGCNNConv,
    "pna": PNAConv,
    "pnaplus": PNAPlusConv,
    "schnet": SchNetConv,
    "dimenetpp": DimeNetPPConv,
    "egnn": EGNNConv,
    "painn": PaiNNConv,
    "pnaeq": PNAEqConv,
    "mace": MACEConv,
    "et": ETConv,
    "alignn": AlignnConv,
    "tensornet": TensorNetConv,
}

__all__ = ["CONVS"]
