"""Foundation models whose frozen features an embedding may begin from, without torch.

``model.trunks`` holds their networks and weights.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ase.data import chemical_symbols


class TrunkSpec(NamedTuple):
    """What settings, prices and checks need to know of a foundation model."""

    title: str
    """Name and version, as its authors give them."""
    blocks: int
    """Blocks of features of each atom: one of the element, one after each interaction layer."""
    width: int
    """Invariant numbers of a block."""
    elements: frozenset[int]
    """Atomic numbers it was trained on."""
    trained_on: str
    """Its training data, as a phrase."""
    atom_seconds: float
    """CPU-seconds of one atom's features: what a forecast starts from."""


_NOT_IN_MPTRJ = frozenset({84, 85, 86, 87, 88})
"""Po, At, Rn, Fr and Ra. Source: Deng et al. (2023), Nat. Mach. Intell. 5, 1031, figure 3."""

TRUNKS: dict[str, TrunkSpec] = {
    "chgnet": TrunkSpec(
        title="CHGNet 0.3.0",
        blocks=5,
        width=64,
        elements=frozenset(range(1, 95)) - _NOT_IN_MPTRJ,
        trained_on="relaxations of inorganic crystals of the Materials Project (MPtrj)",
        atom_seconds=2e-3,
    ),
    "sevennet": TrunkSpec(
        title="SevenNet-0 (11 July 2024)",
        blocks=6,
        width=128,
        elements=frozenset(range(1, 95)) - _NOT_IN_MPTRJ,
        trained_on="relaxations of inorganic crystals of the Materials Project (MPtrj)",
        atom_seconds=2e-3,
    ),
}
"""By the name that ``model.embedding`` has for them, the first to propose first."""

ELEMENTS = "elements"
"""The embedding that begins from the element alone."""


def find_unseen(name: str, numbers: Iterable[int]) -> str:
    """Return the elements on which a foundation model was not trained, as ``Po, At``; often empty.

    Args:
        name: key of ``TRUNKS``.
        numbers: atomic numbers.
    """
    unseen = sorted(set(numbers) - TRUNKS[name].elements)
    return ", ".join(chemical_symbols[number] for number in unseen)


def check_elements(name: str, numbers: Iterable[int]) -> None:
    """Check that a foundation model was trained on all elements of the data.

    Args:
        name: key of ``TRUNKS``.
        numbers: atomic numbers in the data.

    Raises:
        ValueError: it was not.
    """
    if unseen := find_unseen(name, numbers):
        raise ValueError(
            f"{TRUNKS[name].title} was not trained on {unseen}, which the data have: use "
            f'model.embedding = "{ELEMENTS}", or remove structures with it.'
        )


def feature_columns(name: str, layers: str) -> slice:
    """Return which columns of a trunk's features an embedding reads.

    Args:
        name: key of ``TRUNKS``.
        layers: ``all``, ``early`` (the first half of the blocks, the middle one included) or
            ``late`` (the last half, the middle one included).
    """
    spec = TRUNKS[name]
    half = (spec.blocks + 1) // 2
    first = spec.blocks - half if layers == "late" else 0
    last = half if layers == "early" else spec.blocks
    return slice(first * spec.width, last * spec.width)


def count_features(name: str, layers: str) -> int:
    """Return how many numbers of each atom an embedding reads; 0 for ``elements``."""
    if name == ELEMENTS:
        return 0
    chosen = feature_columns(name, layers)
    return int(chosen.stop - chosen.start)
