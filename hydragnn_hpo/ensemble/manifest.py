"""Schema of ``ensemble.json``: everything about an ensemble but its weights."""

from math import inf
from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from hydragnn_hpo.config import AttributeConfig, Config, Name
from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.coordination import Coordination
from hydragnn_hpo.ensemble.strata import Strata
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.units import inside

FORMAT: Literal[2] = 2
"""Version of the artefact; rises when an older reader would misunderstand it."""

TrialName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Element = Annotated[int, Field(ge=1, le=118)]


class CreatedBy(Config):
    """The campaign that made an ensemble."""

    campaign: str
    """Name of the campaign."""

    seed: NonNegativeInt
    """Seed of the campaign."""

    method: Literal["greedy", "top"]
    """How the members were chosen."""


class Provenance(Config):
    """The data that an ensemble learned from."""

    name: str
    """Name of the card."""

    title: str = ""
    """One line about the data."""

    origin: str = ""
    """Where the data came from."""

    licence: str = ""
    """Licence or terms of the data."""

    cite: str = ""
    """The work to cite."""

    checksum: str = ""
    """Checksum of the graph store."""

    files: dict[str, str] = {}
    """SHA-256 of each source file by its name; empty where the card gives none."""

    cards: tuple[Name, ...] = ()
    """Cards that the data was built from; ``data/NAME.toml`` in the zip."""

    splits: dict[str, NonNegativeInt] = {}
    """Structures in each split."""

    atoms: tuple[PositiveInt, PositiveInt] | None = None
    """Fewest and most atoms of a structure."""


class Pruned(Config):
    """What an ensemble was before members were taken out."""

    parent: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the parent's ``SHA256SUMS``, which names all that it held."""

    removed: Annotated[tuple[TrialName, ...], Len(1)]
    """Members that were taken out."""


class MemberEntry(Config):
    """One member; its files are ``members/TRIAL.toml`` and ``members/TRIAL.safetensors``."""

    trial: TrialName
    """Name of the trial."""

    weights: Annotated[dict[Name, Annotated[float, Field(gt=0.0, le=1.0)]], Len(1)]
    """Share in the mean of each head that it takes part in."""

    objective: float
    """Validation objective, in standard deviations of the targets."""

    val_mae: dict[str, float]
    """Validation MAE by head, in the target's unit."""

    @property
    def weight(self) -> float:
        """Return its share in the mean, averaged over the heads that it takes part in."""
        return sum(self.weights.values()) / len(self.weights)

    @property
    def config_file(self) -> str:
        """Return the entry that holds the trial's configuration."""
        return f"members/{self.trial}.toml"

    @property
    def weights_file(self) -> str:
        """Return the entry that holds the weights."""
        return f"members/{self.trial}.safetensors"


class Alike(Config):
    """How alike the members of a head err, on the structures that they were chosen on."""

    correlation: Annotated[float, Field(ge=-1.0, le=1.0)] | None
    """Of two members' errors, in the mean; None for one member."""

    member_rmse: NonNegativeFloat
    """Of a member, in the unit: root of the weighted mean square."""

    rmse: NonNegativeFloat
    """Of their mix, in the unit; smaller the more they differ."""


class HeadEntry(Config):
    """One predicted target."""

    level: Literal["graph", "node"]
    """One value per structure, or one per atom."""

    shape: Literal["scalar", "vector", "tensor"]
    """A number, three components, or the nine of a stress."""

    unit: str
    """Unit of predictions and errors."""

    energy: Literal["total", "per_atom"] | None = None
    """Set for energies, from which forces can be derived."""

    derived_from: str | None = None
    """The energy whose derivative this is: forces, stress."""

    description: str = ""
    """What the property is."""

    mean: float
    """Mean on the training split, in the unit."""

    std: NonNegativeFloat
    """Standard deviation on the training split, in the unit."""

    lowest: float | None = None
    """Smallest value on the training split, in the unit; of a vector its components."""

    highest: float | None = None
    """Largest value on the training split, in the unit."""

    calibration: Calibration
    """How the members' spread becomes sigma and intervals."""

    @field_validator("unit")
    @classmethod
    def _unit_is_ours(cls, value: str) -> str:
        try:
            factor, name = inside(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if (factor, name) != (1.0, value):
            raise ValueError(f"predictions are in {name}, not in {value}: mend the unit.")
        return value

    @model_validator(mode="after")
    def _calibration_is_sound(self) -> Self:
        known = self.calibration
        numbers = (known.a, known.c, known.spread99, *known.quantiles.values())
        tables = [v for table in known.tables.values() for v in table.values()]
        if not (0 < known.b < inf and all(0 <= v < inf for v in (*numbers, *tables))):
            raise ValueError("the calibration needs b > 0, and no other number below 0.")
        for table in (known.quantiles, *known.tables.values()):
            if "0.9" not in table or set(table) != set(known.quantiles):
                raise ValueError("the calibration needs a quantile '0.9', and equal levels.")
        return self


class Manifest(Config):
    """The whole of ``ensemble.json``."""

    format: Literal[2] = FORMAT
    """Version of the artefact."""

    package: str
    """Version of hydragnn-hpo that wrote it."""

    created_by: CreatedBy
    """Campaign, seed, method."""

    data: Provenance
    """What it learned from."""

    elements: tuple[Element, ...]
    """Atomic numbers in the data, rising."""

    cutoff: PositiveFloat
    """Longest edge that any member needs, in angstrom; graphs are built with it."""

    members: Annotated[tuple[MemberEntry, ...], Len(1)]
    """Members, by name of their trial."""

    heads: Annotated[dict[Name, HeadEntry], Len(1)]
    """Predicted targets by name."""

    evaluation: dict[str, dict[str, Any]] = {}
    """Scores on the test split, by head."""

    diversity: dict[Name, Alike] = {}
    """How alike the members err, by head."""

    attributes: dict[Name, AttributeConfig] = {}
    """Known properties of structures that members read, as the card describes them."""

    laplacian: NonNegativeInt = 0
    """Laplacian encodings that members read."""

    packages: dict[str, str] = {}
    """Version of each package that holds a user's conv: its code runs where members are built."""

    strata: Strata = Strata()
    """What tells apart the kinds of structures that have intervals of their own."""

    coordination: Coordination | None = None
    """Numbers of neighbours in training, by element."""

    software: dict[str, str] = {}
    """Versions of Python, torch and others that it was made with."""

    commit: str = ""
    """Commit of hydragnn-hpo, where it ran from a checkout; ``-dirty`` behind it: and changes."""

    licence: str = ""
    """Licence of the ensemble itself; the data's is in ``data``."""

    pruned: tuple[Pruned, ...] = ()
    """How it came from a larger ensemble, the last step last."""

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        for name in self.heads:
            total = sum(member.weights.get(name, 0.0) for member in self.members)
            if abs(total - 1.0) > 1e-6:
                raise ValueError(f"the members' weights of '{name}' sum to {total:g}, not to 1.")
        extra = {name for member in self.members for name in member.weights} - set(self.heads)
        if extra:
            raise ValueError(f"members weigh '{min(extra)}', which is no head.")
        if len({member.trial for member in self.members}) < len(self.members):
            raise ValueError("a trial is named twice among the members.")
        return self

    def targets(self) -> dict[str, dict[str, Any]]:
        """Return the target statistics as the model's constructor wants them."""
        return {
            name: head.model_dump(
                include={"level", "shape", "energy", "derived_from", "mean", "std"}
            )
            for name, head in self.heads.items()
        }

    def units(self) -> dict[str, str]:
        """Return each head's unit."""
        return {name: head.unit for name, head in self.heads.items()}
