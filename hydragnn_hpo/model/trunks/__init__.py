"""Pretrained trunks: frozen features of atoms from networks that others trained."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.model.trunks.frozen_trunk import (
        FrozenTrunk,
        find_trunk,
        load_trunk,
        open_trunk,
        read_card,
    )

__all__ = ["FrozenTrunk", "find_trunk", "load_trunk", "open_trunk", "read_card"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
