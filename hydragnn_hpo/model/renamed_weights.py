"""Weights that had other names before: ensembles and checkpoints of then still open."""

import re
from collections.abc import Mapping

from torch import Tensor

from hydragnn_hpo.config.convs.spec import is_user_conv

RENAMED = {
    r"(trunk\.convs\.\d+)\.heard\.": r"\1.neighbors.",
    r"(trunk\.convs\.\d+\.update)\.talk\.": r"\1.context.",
}
"""Names of today by patterns of the names before."""


def rename_weights(tensors: Mapping[str, Tensor], conv: str) -> dict[str, Tensor]:
    """Return the tensors of a file by the names of today, in their order.

    Args:
        tensors: weights and buffers by the names in the file.
        conv: name of the net's conv; those of a conv of the user's keep their names.

    Returns:
        Weights and buffers by their names in today's net.
    """
    if is_user_conv(conv):
        return dict(tensors)
    renamed = {}
    for name, value in tensors.items():
        for before, today in RENAMED.items():
            name = re.sub(before, today, name)
        renamed[name] = value
    return renamed
