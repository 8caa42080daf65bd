"""Cards of data sets: origin, targets, splits, graphs. Built into stores by ``data.build``."""

from typing import Annotated, Literal, Self

from annotated_types import Len
from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator, model_validator

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.units import inside

SPLITS = ("train", "val", "sel", "cal", "test")
"""Train, search, ensemble selection, calibration, test: Law 6."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


class FileConfig(Config):
    """One file a data set is built from. Read by ``data.build``."""

    path: str
    """Path of the file: absolute, relative to the card, or to ``HYDRAGNN_HPO_DATA``."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum of the file; checked before it is read when given."""

    published: Name | None = None
    """The published split that all structures of this file belong to."""


class TargetConfig(Config):
    """One property to learn. Read by ``data.build`` and by the heads."""

    key: str | None = None
    """Name in the file (``atoms.info`` or ``atoms.arrays``); the target's own name if left out."""

    level: Literal["graph", "node"]
    """One value per structure, or one per atom."""

    shape: Literal["scalar", "vector"] = "scalar"
    """A number, or three components that turn with the structure."""

    unit: str
    """Unit in the file; converted to eV, angstrom, e, muB at the door."""

    energy: Literal["total", "per_atom"] | None = None
    """Set for energies: an ASE calculator multiplies ``per_atom`` by the number of atoms."""

    optional: bool = False
    """Structures (or atoms) may lack it: absent, an empty cell or NaN; they do not count for it."""

    description: str = ""
    """What the property is, for tables and model cards."""

    @field_validator("unit")
    @classmethod
    def _unit_is_known(cls, value: str) -> str:
        try:
            inside(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def width(self) -> int:
        """Number of components."""
        return 3 if self.shape == "vector" else 1


class SplitConfig(Config):
    """How structures are shared out. Read by ``data.split``."""

    seed: NonNegativeInt = 0
    """Seed of the shuffle of groups."""

    shares: Annotated[tuple[PositiveFloat, ...], Len(5, 5)] = (0.6, 0.1, 0.1, 0.1, 0.1)
    """Shares of train, val, sel, cal and test; they sum to 1."""

    group: str = "composition"
    """Keep together what has the same ``composition``, or the same value of a key of
    ``atoms.info``; ``structure`` lets every structure stand for itself."""

    published: str | None = None
    """Key of ``atoms.info`` that fixes the test split; the rest is cut by group."""

    published_test: str = "test"
    """The value of the published key that stands for the test split."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        if abs(sum(self.shares) - 1.0) > 1e-9:
            raise ValueError(f"split.shares sum to {sum(self.shares):g}: let them sum to 1.")
        return self


class GraphConfig(Config):
    """How atoms become graphs. Read by ``data.neighbors``."""

    cutoff: PositiveFloat = 5.0
    """Largest edge length in angstrom; a trial may use a smaller one."""

    min_distance: PositiveFloat = 0.1
    """Two atoms closer than this (angstrom) are at one place: an error in the data."""


class CardConfig(Config):
    """A data set: where it comes from and what it holds. Read by ``data.build``."""

    name: Name
    """Name of the data set and of its store."""

    title: str = ""
    """One line for tables and model cards."""

    origin: str = ""
    """Where the data came from, so that a stranger can get it again."""

    licence: str = ""
    """Licence or terms of the data."""

    cite: str = ""
    """The work to cite."""

    files: Annotated[tuple[FileConfig, ...], Len(1)]
    """Files to read, in order."""

    structure_column: str | None = None
    """For CSV files: the column with a structure's text (CIF) or file name."""

    id_key: str | None = None
    """Key of ``atoms.info`` that names a structure; file name and number if left out."""

    targets: Annotated[dict[Name, TargetConfig], Len(1)]
    """Properties by name."""

    graphs: GraphConfig = GraphConfig()
    """Cutoff and sanity limits."""

    split: SplitConfig = SplitConfig()
    """Shares, seed and groups."""
