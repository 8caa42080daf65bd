"""Convs without torch, one per file as in ``model.convs``; ``CONV_SPECS`` is a plain dict."""

from hydragnn_hpo.config.convs import (
    alignn,
    cgcnn,
    dimenetpp,
    egnn,
    et,
    gat,
    gin,
    mace,
    mfc,
    painn,
    pna,
    pnaeq,
    pnaplus,
    sage,
    schnet,
)
from hydragnn_hpo.config.convs.spec import ConvSpec, Dimensions, GraphSizes, search_ranges

CONV_SPECS: dict[str, ConvSpec] = {
    "gin": gin.SPEC,
    "sage": sage.SPEC,
    "gat": gat.SPEC,
    "mfc": mfc.SPEC,
    "cgcnn": cgcnn.SPEC,
    "pna": pna.SPEC,
    "pnaplus": pnaplus.SPEC,
    "schnet": schnet.SPEC,
    "dimenetpp": dimenetpp.SPEC,
    "egnn": egnn.SPEC,
    "painn": painn.SPEC,
    "pnaeq": pnaeq.SPEC,
    "mace": mace.SPEC,
    "et": et.SPEC,
    "alignn": alignn.SPEC,
}
"""Every conv that ships, by the name a campaign uses."""

__all__ = ["CONV_SPECS", "ConvSpec", "Dimensions", "GraphSizes", "search_ranges"]
