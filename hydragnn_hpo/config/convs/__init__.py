"""Convs without torch, one per file as in ``model.convs``; ``CONV_SPECS`` is a plain dict."""

from hydragnn_hpo.config.convs import dimenetpp, egnn, mace, painn, pna, pnaeq, pnaplus, schnet
from hydragnn_hpo.config.convs.spec import ConvSpec, Dimensions, GraphSizes, search_ranges

CONV_SPECS: dict[str, ConvSpec] = {
    "pna": pna.SPEC,
    "pnaplus": pnaplus.SPEC,
    "schnet": schnet.SPEC,
    "dimenetpp": dimenetpp.SPEC,
    "egnn": egnn.SPEC,
    "painn": painn.SPEC,
    "pnaeq": pnaeq.SPEC,
    "mace": mace.SPEC,
}
"""Every conv that ships, by the name a campaign uses."""

__all__ = ["CONV_SPECS", "ConvSpec", "Dimensions", "GraphSizes", "search_ranges"]
