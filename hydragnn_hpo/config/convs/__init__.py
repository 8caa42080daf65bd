"""Options and costs of convs, without torch, grouped by the content of a conv's state."""

from hydragnn_hpo.config.convs import angular, scalar, vector
from hydragnn_hpo.config.convs.spec import ConvSpec, Dimensions, GraphSizes, search_ranges

CONV_SPECS: dict[str, ConvSpec] = {
    "gin": scalar.GIN,
    "sage": scalar.SAGE,
    "gat": scalar.GAT,
    "mfc": scalar.MFC,
    "cgcnn": scalar.CGCNN,
    "pna": scalar.PNA,
    "pnaplus": scalar.PNAPLUS,
    "schnet": scalar.SCHNET,
    "dimenetpp": angular.DIMENETPP,
    "egnn": scalar.EGNN,
    "painn": vector.PAINN,
    "pnaeq": vector.PNAEQ,
    "mace": vector.MACE,
    "et": vector.ET,
    "alignn": angular.ALIGNN,
    "tensornet": vector.TENSORNET,
}
"""Every built-in conv, by its name in a campaign file."""

__all__ = ["CONV_SPECS", "ConvSpec", "Dimensions", "GraphSizes", "search_ranges"]
