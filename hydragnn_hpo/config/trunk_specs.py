"""Foundation models whose frozen features an embedding may begin from, without torch.

``model.trunks`` holds their networks and the weights of those that ship.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ase.data import chemical_symbols
from pydantic import Field

from hydragnn_hpo.config.schema import Config, parse_config
from hydragnn_hpo.errors import ConfigError

Title = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]
NAME_PATTERN = r"[a-z0-9_]{1,40}"

TrunkName = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]

ADAPTER = 1
"""Version of the code between structures and features; raise it when features change."""

MOST_CARD_BYTES = 2**20
"""Most bytes of the card of a foundation model."""


class TrunkSpec(Config):
    """What settings, prices and checks need to know of a foundation model."""

    title: Title
    """Name and version, as its authors give them."""

    blocks: Annotated[int, Field(gt=0, le=64)]
    """Blocks of features of each atom: one of the element, one after each interaction layer."""

    width: Annotated[int, Field(gt=0, le=1024)]
    """Invariant numbers of a block."""

    elements: tuple[Annotated[int, Field(gt=0, le=118)], ...]
    """Atomic numbers it was trained on."""

    trained_on: Title
    """Its training data, as a phrase."""

    atom_seconds: Annotated[float, Field(gt=0, le=3600)] = 2e-3
    """CPU-seconds of one atom's features, for forecasts that cannot measure them."""

    checksum: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the card of a user's model, which holds that of its weights; empty for those that
    ship."""

    @property
    def count(self) -> int:
        """Numbers of an atom in all blocks."""
        return self.blocks * self.width


class TrunkFile(Config):
    """A foundation model of the user's, see ``trunk convert``. Read by ``model.trunks``."""

    file: str
    """Its card, ``NAME.json`` (relative to the campaign file), with ``NAME.safetensors`` beside
    it."""

    spec: TrunkSpec | None = None
    """What the card says; filled in when a campaign is read."""


_NOT_IN_MPTRJ = frozenset({84, 85, 86, 87, 88})
"""Po, At, Rn, Fr and Ra. Source: Deng et al. (2023), Nat. Mach. Intell. 5, 1031, figure 3."""

_IN_MPTRJ = tuple(sorted(set(range(1, 95)) - _NOT_IN_MPTRJ))

TRUNKS: dict[str, TrunkSpec] = {
    "chgnet": TrunkSpec(
        title="CHGNet 0.3.0",
        blocks=5,
        width=64,
        elements=_IN_MPTRJ,
        trained_on="relaxations of inorganic crystals of the Materials Project (MPtrj)",
    ),
    "sevennet": TrunkSpec(
        title="SevenNet-0 (11 July 2024)",
        blocks=6,
        width=128,
        elements=_IN_MPTRJ,
        trained_on="relaxations of inorganic crystals of the Materials Project (MPtrj)",
    ),
}
"""By the name that ``model.embedding`` has for them, the first to propose first."""

ELEMENTS = "elements"
"""The embedding that begins from the element alone."""


_ATOM_SECONDS = {"mace": 1e-2}
"""Measured with 128 scalars and vectors, two interactions, 64 neighbours, on one core; others take
2 ms."""


def check_own_name(name: str) -> None:
    """Check that a user's foundation model has a name that no shipped one has.

    Raises:
        ValueError: it has none.
    """
    if name in (ELEMENTS, *TRUNKS):
        raise ValueError(f"'{name}' is a name of this program's own: choose another by --name.")
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"{name!a} is no name for a model: choose one of up to 40 letters a to z, digits and _ "
            "by --name."
        )


def hash_card(record: object) -> str:
    """Return the checksum of what a card says, and of the version of the code that reads it."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{ADAPTER} {text}".encode()).hexdigest()


class TrunkFacts(NamedTuple):
    """What the card of a user's foundation model says."""

    name: str
    """Name in settings."""
    spec: TrunkSpec
    """What else settings need."""
    weights: str
    """SHA-256 of its weights."""


def read_facts(record: Any, where: str) -> TrunkFacts:
    """Return what the card of a user's foundation model says; its sizes are checked elsewhere.

    Args:
        record: content of its JSON file.
        where: the file, for errors.

    Raises:
        ConfigError: it is no such card.
    """
    try:
        name = str(record["name"])
        sizes = record["config"]
        values = {
            "title": f"{name} ({record['version']})",
            "blocks": sizes["convolutions"] + 1,
            "width": sizes["features"],
            "elements": record["elements"],
            "trained_on": record["trained_on"],
            "atom_seconds": _ATOM_SECONDS.get(record.get("architecture", ""), 2e-3),
            "checksum": hash_card(record),
        }
        weights = str(record["sha256"])
        check_own_name(name)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: is no card of a foundation model ({str(error)[:100]}); make it by "
            "'hydragnn-hpo trunk convert'."
        ) from error
    return TrunkFacts(name, parse_config(values, TrunkSpec, where=where), weights)


def read_trunk_file(path: Path) -> TrunkFacts:
    """Read the card of a user's foundation model, and check its weights by their checksum.

    Args:
        path: ``NAME.json``.

    Raises:
        ConfigError: a file is missing, is no such card, or the weights were changed.
    """
    weights = path.with_suffix(".safetensors")
    try:
        with path.open("rb") as stream:
            record = json.loads(stream.read(MOST_CARD_BYTES))
        facts = read_facts(record, str(path))
        with weights.open("rb") as stream:
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: a foundation model cannot be read ({error.strerror}): correct "
            "'file' in [trunks], or make it by 'hydragnn-hpo trunk convert'."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is no card of a foundation model, as it is not JSON; make it by "
            "'hydragnn-hpo trunk convert'."
        ) from error
    if checksum != facts.weights:
        raise ConfigError(
            f"{weights}: has the checksum {checksum[:16]} in place of {facts.weights[:16]}, which "
            "its card names: get both files again, or convert it again."
        )
    return facts


def find_unseen(spec: TrunkSpec, numbers: Iterable[int]) -> str:
    """Return the elements on which a foundation model was not trained, as ``Po, At``; often empty.

    Args:
        spec: the model.
        numbers: atomic numbers.
    """
    unseen = sorted(set(numbers) - set(spec.elements))
    return ", ".join(chemical_symbols[number] for number in unseen)


def check_elements(spec: TrunkSpec, numbers: Iterable[int]) -> None:
    """Check that a foundation model was trained on all elements of the data.

    Args:
        spec: the model.
        numbers: atomic numbers in the data.

    Raises:
        ValueError: it was not.
    """
    if unseen := find_unseen(spec, numbers):
        raise ValueError(
            f"{spec.title} was not trained on {unseen}, which the data have: use "
            f'model.embedding = "{ELEMENTS}", or remove structures with it.'
        )


def feature_columns(spec: TrunkSpec, layers: str) -> slice:
    """Return which columns of a trunk's features an embedding reads.

    Args:
        spec: the model.
        layers: ``all``, ``early`` (the first half of the blocks, the middle one included) or
            ``late`` (the last half, the middle one included).
    """
    half = (spec.blocks + 1) // 2
    first = spec.blocks - half if layers == "late" else 0
    last = half if layers == "early" else spec.blocks
    return slice(first * spec.width, last * spec.width)


def count_features(spec: TrunkSpec | None, layers: str) -> int:
    """Return how many numbers of each atom an embedding reads; 0 without a foundation model."""
    if spec is None:
        return 0
    chosen = feature_columns(spec, layers)
    return int(chosen.stop - chosen.start)
