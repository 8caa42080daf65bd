"""What ``ensemble.json`` says: everything about an ensemble but its weights."""

from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from hydragnn_hpo.config.data import AttributeConfig, Name
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.ensemble.calibrate import Calibration

FORMAT: Literal[1] = 1
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


class MemberEntry(Config):
    """One member; its files are ``members/TRIAL.toml`` and ``members/TRIAL.safetensors``."""

    trial: TrialName
    """Name of the trial."""

    weight: Annotated[float, Field(gt=0.0, le=1.0)]
    """Share in the mean."""

    objective: float
    """Validation objective, in standard deviations of the targets."""

    val_mae: dict[str, float]
    """Validation MAE by head, in the target's unit."""

    @property
    def config_file(self) -> str:
        """Give the entry that holds the trial's configuration."""
        return f"members/{self.trial}.toml"

    @property
    def weights_file(self) -> str:
        """Give the entry that holds the weights."""
        return f"members/{self.trial}.safetensors"


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

    calibration: Calibration
    """How the members' spread becomes sigma and intervals."""

    @model_validator(mode="after")
    def _calibration_is_sound(self) -> Self:
        known = self.calibration
        if not (known.a >= 0 and known.b > 0 and known.quantiles.get("0.9", -1.0) >= 0):
            raise ValueError("the calibration needs a >= 0, b > 0 and a quantile '0.9' >= 0.")
        return self


class Manifest(Config):
    """The whole of ``ensemble.json``."""

    format: Literal[1] = FORMAT
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

    attributes: dict[Name, AttributeConfig] = {}
    """Known properties of structures that members are told, as the card describes them."""

    laplacian: NonNegativeInt = 0
    """Laplacian encodings that members read."""

    packages: dict[str, str] = {}
    """Version of each package that holds a user's conv: its code runs where members are built."""

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        total = sum(member.weight for member in self.members)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"the weights of the members sum to {total:g}, not to 1.")
        if len({member.trial for member in self.members}) < len(self.members):
            raise ValueError("a trial is named twice among the members.")
        return self

    def targets(self) -> dict[str, dict[str, Any]]:
        """Give the target statistics as the model's constructor wants them."""
        return {
            name: head.model_dump(
                include={"level", "shape", "energy", "derived_from", "mean", "std"}
            )
            for name, head in self.heads.items()
        }

    def units(self) -> dict[str, str]:
        """Give each head's unit."""
        return {name: head.unit for name, head in self.heads.items()}
