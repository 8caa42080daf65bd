"""Where an ensemble comes from: the data's cards, and the software that made it."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.ensemble.artefact.manifest import Provenance

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "safetensors", "ase", "vesin")
"""What may change a number in its last digits."""

_ROOT = Path(__file__).parents[3]
_SECONDS = 10


def provenance(cards: Sequence[CardConfig], stats: Mapping[str, Any]) -> Provenance:
    """Tell an ensemble's data from its cards and the statistics of the store."""
    said = ("name", "title", "origin", "licence", "cite")
    nodes = stats.get("nodes") or {}
    atoms = (int(nodes["min"]), int(nodes["max"])) if {"min", "max"} <= set(nodes) else None
    return Provenance(
        **{key: together([getattr(card, key) for card in cards]) for key in said},
        checksum=str(stats["checksum"]),
        files={Path(f.path).name: f.sha256 or "" for card in cards for f in card.files},
        cards=tuple(dict.fromkeys(card.name for card in cards)),
        splits={name: int(count) for name, count in (stats.get("splits") or {}).items()},
        atoms=atoms,
    )


def public(card: CardConfig) -> CardConfig:
    """Give a card whose files are names: where they lay is nobody's business."""
    files = [file.model_copy(update={"path": Path(file.path).name}) for file in card.files]
    return card.model_copy(update={"files": tuple(files)})


def together(said: Sequence[str]) -> str:
    """Name what several cards say, each thing once."""
    return "; ".join(dict.fromkeys(filter(None, said)))


def commit(root: Path = _ROOT) -> str:
    """Give the commit of a checkout, ``-dirty`` where files were changed; empty elsewhere.

    Args:
        root: the folder that holds the package.
    """
    if not (root / ".git").exists():
        return ""
    argv = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
