"""Cards of data sets: origin, targets, splits, graphs; and the union of several data sets.

Built into stores by ``data.build_plan``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from annotated_types import Len
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
    model_validator,
)

from hydragnn_hpo.config.schema import Config, Cutoff, parse_config
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.units import inside, is_unit, mark_guess

if TYPE_CHECKING:
    from hydragnn_hpo.file_records import (
        AtomMean,
        AttributeStats,
        FeatureStats,
        SizeSummary,
        StoreStats,
        TargetStats,
    )

SPLITS = ("train", "val", "sel", "cal", "test")
"""Train, search, ensemble selection, calibration, test: Law 6."""

TRAJECTORY = "trajectory"
"""Value of ``split.group`` that keeps the frames of each run together."""

STORE_VERSION = 3
"""Version of the layout of graph stores; another one is refused."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Vector = tuple[float, float, float]
End = Annotated[float, Field(ge=-1e30, le=1e30)]
Bounds = tuple[float | None, float | None]
"""Smallest and largest possible value of a target, in its unit; None for an end without a bound."""


def _known_unit(value: str) -> str:
    if value == "?":
        raise ValueError(
            'is "?", which stands for a unit that only you know: write it there, as unit = "eV", '
            "or remove the card and give init --unit NAME=eV."
        )
    try:
        inside(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return value


class FileConfig(Config):
    """One file a data set is built from. Read by ``data.build_plan``."""

    path: str
    """Path of the file: absolute, relative to the card, or to ``HYDRAGNN_HPO_DATA``."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum of the file; checked before it is read when given."""

    published: Name | None = None
    """The published split that all structures of this file belong to."""

    reader: str | None = None
    """Reader, see ``READERS``; chosen by the path if left out."""

    format: str | None = None
    """ASE's name of the format; needed if the file's name and content do not show it."""

    cell: Annotated[tuple[Vector, ...], Len(3, 3)] | None = None
    """Lattice vectors in angstrom, for structures that have none; periodic in all three."""

    pbc: tuple[bool, bool, bool] | None = None
    """Periodic directions; they replace those of the file."""

    columns: dict[str, Annotated[int, Field(ge=0, le=10**6)]] = Field(default_factory=dict)
    """Columns of a text format by their content, counted from 0, see its reader."""

    length: Literal["angstrom", "bohr"] | None = None
    """Unit of positions and cell, of extended XYZ and of what ASE reads. If left out it is that of
    the format. n2p2's ``input.data`` is in bohr and Hartree or in angstrom and eV; if left out, the
    one in which atoms are about as far apart as their covalent radii add up to."""

    one_part: bool = False
    """Set aside SMILES of several parts (salts, hydrates, dimers). Otherwise their parts stand side
    by side, their van der Waals surfaces 1 angstrom apart."""


WIDTHS = {"scalar": 1, "vector": 3, "tensor": 9}
"""Components of a target, by its shape; spectra and classes differ, see ``count_components``."""

INVARIANT = ("scalar", "spectrum", "class")
"""Shapes whose values stay the same when the structure turns."""

MOST_VALUES_OF_SPECTRUM = 4096
"""Largest number of values of a spectrum."""


SUMMED = ("scalar", "tensor")
"""Shapes of values of atoms that may have a known ``sum``."""


def weigh_sum(width: int) -> tuple[float, ...]:
    """Return what a sum of 1 is in each component.

    Returns:
        1 for a scalar, the unit tensor for the 9 components of a tensor.
    """
    return (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0) if width > 1 else (1.0,)


def count_components(target: Mapping[str, object]) -> int:
    """Return the number of components of a target.

    Args:
        target: ``shape``, the ``size`` of a spectrum, and ``classes``, which have a probability
            each.
    """
    shape = str(target["shape"])
    if shape == "class":
        return len(cast("Sequence[str]", target["classes"]))
    return cast("int", target["size"]) if shape == "spectrum" else WIDTHS[shape]


def _name_class(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ClassName = Annotated[str, Field(pattern=r"^[ -~]{1,60}$"), BeforeValidator(_name_class)]
"""Name of a class: printable, up to 60 characters; whole numbers become text."""


class AxisConfig(Config):
    """Axis of a spectrum, for plots and tables. Read by ``report.sections``."""

    first: End
    """Position of the first value."""

    last: End
    """Position of the last value; the others lie between them at equal distances."""

    unit: Annotated[str, Field(pattern=r"^[ -~]{1,20}$")] = "1"
    """Unit of the positions, as text: it is shown and not converted."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.first == self.last:
            raise ValueError(f"axis starts and ends at {self.first:g}: correct first or last.")
        return self

    def points(self, size: int) -> list[float]:
        """Return the positions of all values of a spectrum of ``size`` values.

        Returns:
            Positions in the axis' unit.
        """
        step = (self.last - self.first) / max(size - 1, 1)
        return [self.first + step * place for place in range(size)]


class PublishedConfig(Config):
    """A published error of a target. Read by ``report.sections``."""

    mae: PositiveFloat
    """Mean absolute error in the target's unit."""

    by: str
    """Name of the model or method."""

    source: str
    """Where the number was published, and when it was looked up."""


class Shown:
    """Mark of a property of targets that nets do not depend on: it says how a target is shown."""


class TargetKind(Config):
    """What a target is, whatever file speaks of it: a card, a store, an ensemble.

    A new property of a target is declared here alone: what ``init`` proposes, cards, stores, nets
    and ensembles carry all fields and compare those not ``Shown``; ``kind_of`` reads a store's.
    """

    level: Literal["graph", "node"]
    """One value per structure, or one per atom."""

    shape: Literal["scalar", "vector", "tensor", "spectrum", "class"] = "scalar"
    """A number, three components that turn with the structure, a 3 x 3 tensor (symmetric for a
    structure: 3 x 3, 9 or, in ASE's order xx yy zz yz xz xy, 6 numbers; any for an atom), a
    spectrum (several numbers that do not turn, such as a density of states), or one of several
    classes."""

    size: Annotated[int, Field(ge=2, le=MOST_VALUES_OF_SPECTRUM)] | None = None
    """Number of values of a spectrum, the same in all structures."""

    axis: Annotated[AxisConfig | None, Shown] = None
    """Axis of a spectrum, for plots and tables."""

    classes: Annotated[tuple[ClassName, ...], Len(2, 100)] | None = None
    """Names of the classes as they stand in the file, text or whole numbers."""

    unit: Annotated[str, Shown]
    """Unit in the file; values are converted to eV, angstrom, e or muB when they are read. Classes
    have none."""

    unit_guessed: Annotated[bool, Shown] = False
    """Whether ``unit`` is a guess of ``init``: it is shown as guessed beside every number, until
    this line is removed."""

    energy: Literal["total", "per_atom"] | None = None
    """Set for energies: an ASE calculator multiplies ``per_atom`` by the number of atoms."""

    extensive: bool | None = None
    """Whether a number of structures is a sum over their atoms, as total energies always are:
    two molecules far apart then have the sum of both, and a supercell a multiple of its cell."""

    derived_from: str | None = None
    """The energy whose total this is a derivative of: forces (a vector per atom, minus the
    gradient) or stress (a tensor per structure, positive when tensile, as in ASE)."""

    origin: Literal["mass", "geometry", "none"] | None = None
    """For vectors and tensors of structures, as dipoles. The centre of ``mass`` (if left out) or of
    ``geometry`` is the point about which dipoles of charged structures are given; others do not
    depend on it. Heads read positions, so that structures must not be periodic. ``none``: heads
    read vectors of atoms alone, whose mean is predicted, not their sum."""

    charge: Name | None = None
    """Attribute with the total charge in e, for dipoles of charged structures; 0 if left out."""

    description: Annotated[str, Shown] = ""
    """What the property is, for tables and model cards."""

    @property
    def width(self) -> int:
        """Number of components."""
        return count_components({"shape": self.shape, "size": self.size, "classes": self.classes})

    @property
    def shown_unit(self) -> str:
        """Unit as it is shown beside numbers, which says whether it is a guess."""
        return mark_guess(self.unit, guessed=self.unit_guessed)


KIND = tuple(TargetKind.model_fields)
"""Names of these fields."""

COMPUTED = tuple(k for k, f in TargetKind.model_fields.items() if Shown not in f.metadata)
"""Those that say what a net computes; the others are ``Shown``."""

AGREE = (*(k for k in KIND if k == "unit" or k in COMPUTED), "bounds", "sum")
"""What must be the same where data sets share a target."""


def kind_of(target: "TargetStats") -> TargetKind:
    """Return what a target of a store is; ``unit`` is the one used inside."""
    return TargetKind.model_validate({key: value for key, value in target.items() if key in KIND})


_ENERGIES = {
    "total": ("eV", 'an energy, such as eV or kJ/mol; per atom it is energy = "per_atom"'),
    "per_atom": ("eV/atom", 'an energy per atom, such as eV/atom; else it is energy = "total"'),
}
"""Internal unit of each kind of energy, and the units that it may have in words."""


def check_kind(target: TargetKind) -> None:
    """Check that the unit of a target is one of its kind.

    Raises:
        ValueError: it is another one, such as eV/atom for a total energy, or eV for forces.
    """
    inner = inside(target.unit)[1]
    if target.energy is not None:
        if (target.level, target.shape) != ("graph", "scalar"):
            raise ValueError(
                f'energy = "{target.energy}" is for a number per structure, this is a '
                f"{target.shape} per {'atom' if target.level == 'node' else 'structure'}: drop it."
            )
        wanted, words = _ENERGIES[target.energy]
        if inner != wanted:
            raise ValueError(f'energy = "{target.energy}" has unit {target.unit}: write {words}.')
    if target.shape == "class" and inner != "1":
        raise ValueError(f"a class has no unit, found {target.unit}: drop it.")
    if target.shape == "vector" and inner in ("eV", "eV/atom") and target.derived_from is None:
        raise ValueError(
            f"a vector has no energy as its unit, found {target.unit}: write an energy per length, "
            "such as eV/angstrom, for forces."
        )


def check_derivatives(targets: Mapping[str, TargetKind]) -> None:
    """Check that targets with ``derived_from`` are forces or stress of an energy.

    Args:
        targets: by name; an energy that is absent is not checked.

    Raises:
        ValueError: one is of another kind, or what it names is no energy.
    """
    for name, target in targets.items():
        if target.derived_from is None:
            continue
        energy = targets.get(target.derived_from)
        if energy is not None and energy.energy is None:
            raise ValueError(
                f"targets.{name}.derived_from is '{target.derived_from}', which is no energy: "
                "correct the name, or set energy there."
            )
        kinds = {("node", "vector"): "eV/angstrom", ("graph", "tensor"): "eV/angstrom^3"}
        unit = kinds.get((target.level, target.shape))
        if unit is None or inside(target.unit)[1] != unit:
            raise ValueError(
                f"targets.{name} is neither forces (level node, shape vector, unit like "
                "eV/angstrom) nor stress (level graph, shape tensor, unit like eV/angstrom^3): "
                "correct them, or drop derived_from."
            )


def has_origin(level: str | None, shape: str | None, derived_from: str | None) -> bool:
    """Check whether a target is a vector or tensor of structures that is no derivative.

    Args:
        level: its level.
        shape: its shape.
        derived_from: the energy whose derivative it is.
    """
    return level == "graph" and shape in ("vector", "tensor") and not derived_from


def _check_origin(target: "TargetConfig") -> None:
    """Refuse an origin or a charge of targets that have none."""
    if target.origin is not None and not has_origin(
        target.level, target.shape, target.derived_from
    ):
        raise ValueError(
            "origin is for vectors and tensors of structures that are no derivatives: drop it."
        )
    if target.charge is None:
        return
    if target.shape != "vector" or target.origin in (None, "none"):
        raise ValueError(
            "charge is for dipoles, vectors of structures with an origin: drop it, or correct "
            "level, shape and origin."
        )
    if inside(target.unit)[1] != "e*angstrom":
        raise ValueError(
            f"charge is for dipoles in e*angstrom, e*bohr or debye, found {target.unit}: correct "
            "the unit, or drop charge."
        )


class TargetConfig(TargetKind):
    """One property to learn. Read by ``data.build_plan`` and by the heads."""

    key: str | None = None
    """Name in the file (``atoms.info`` or ``atoms.arrays``); the target's own name if left out."""

    columns: Annotated[tuple[str, ...], Len(2)] | None = None
    """Names in the file of the values of a spectrum that has a column for each, in place of
    ``key``."""

    extensive: bool = False
    """Whether a number of structures is a sum over their atoms, as total energies always are:
    two molecules far apart then have the sum of both, and a supercell a multiple of its cell."""

    per_atom: bool = False
    """Divide the file's value by the number of atoms; ``unit`` is that of the undivided value."""

    optional: bool = False
    """Whether structures (or atoms) may lack it: absent, an empty cell or NaN. They are ignored for
    this target."""

    min: End | None = None
    """Smallest possible value, in the file's unit (``per_atom``: of the quotient), as 0 for gaps:
    labels below it are refused; predictions and intervals end there. Not for vectors, energies.
    For a spectrum it bounds each value."""

    max: End | None = None
    """Largest possible value, likewise."""

    sum: End | Name | None = None
    """For a number or tensor per atom: what its values in a structure sum to, as a number in the
    file's unit (0 for partial charges of neutral molecules) or as the name of an attribute (the
    total charge); a tensor sums to so many unit tensors, as Born charges do by the acoustic sum
    rule. Predictions sum to it exactly."""

    sum_tolerance: PositiveFloat = 0.01
    """Most by which labels of a structure may miss their ``sum``, in the file's unit; those that do
    worse count as bad. Not checked where some labels of a structure are missing."""

    published: tuple[PublishedConfig, ...] = ()
    """Published errors for comparison, perhaps on other structures: see their source."""

    @field_validator("unit")
    @classmethod
    def _unit_is_known(cls, value: str) -> str:
        return _known_unit(value)

    @model_validator(mode="before")
    @classmethod
    def _origin_is_known(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("origin") is not None:
            return values
        if has_origin(values.get("level"), values.get("shape"), values.get("derived_from")):
            return {**values, "origin": "mass"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _classes_need_no_unit(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("shape") == "class":
            return {"unit": "1", **values}
        return values

    @model_validator(mode="after")
    def _classes_are_named(self) -> Self:
        if self.shape != "class":
            if self.classes is not None:
                raise ValueError(
                    f'classes belong to shape = "class", this is a {self.shape}: drop classes, or '
                    "correct shape."
                )
            return self
        if self.classes is None:
            raise ValueError("shape is 'class' without classes: add their names, classes.")
        twice = next((c for c in self.classes if self.classes.count(c) > 1), None)
        if twice is not None:
            raise ValueError(f"classes name '{twice}' twice: name each once.")
        if self.per_atom:
            raise ValueError("per_atom divides numbers, this is a class: drop per_atom.")
        return self

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.per_atom and (self.level != "graph" or self.energy is not None):
            raise ValueError(
                "per_atom divides graph-level values; energies say so by their own "
                'energy = "total" or "per_atom": drop one of the two.'
            )
        if self.extensive and not (
            self.level == "graph"
            and self.shape == "scalar"
            and not self.per_atom
            and self.energy != "per_atom"
        ):
            raise ValueError(
                "extensive is for a number per structure that is not divided by its atoms: drop "
                "extensive, or correct level, shape, energy and per_atom."
            )
        if self.per_atom and not is_unit(divided := f"{inside(self.unit)[1]}/atom"):
            raise ValueError(
                f"per_atom would make the unit {divided}, which is not known: drop it, or write "
                "the quotients into the file."
            )
        check_kind(self)
        _check_origin(self)
        return self

    @model_validator(mode="after")
    def _spectrum_has_a_size(self) -> Self:
        if self.shape == "spectrum" and self.size is None:
            raise ValueError("shape is 'spectrum' without a size: add its number of values, size.")
        if self.columns is not None and len(self.columns) != self.size:
            raise ValueError(
                f"columns names {len(self.columns)} values and size is {self.size}: correct one."
            )
        for key in ("size", "axis"):
            if self.shape != "spectrum" and getattr(self, key) is not None:
                raise ValueError(
                    f'{key} belongs to shape = "spectrum", this is a {self.shape}: drop {key}, or '
                    "correct shape."
                )
        return self

    @model_validator(mode="after")
    def _bounds_suit(self) -> Self:
        if self.bounds is None:
            return self
        if self.shape not in ("scalar", "spectrum") or self.energy is not None:
            raise ValueError(
                "min and max bound scalars that are no energies (an energy cut off has no forces), "
                "and spectra: drop them."
            )
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"min is {self.min:g} and max {self.max:g}: raise max above min.")
        return self

    @model_validator(mode="after")
    def _sum_suits(self) -> Self:
        if self.sum is None:
            return self
        if self.level != "node" or self.shape not in SUMMED:
            raise ValueError(
                f"sum is for a number or tensor per atom, this is a {self.shape} per "
                f"{'atom' if self.level == 'node' else 'structure'}: drop sum."
            )
        if self.bounds is not None:
            raise ValueError(
                "sum and min or max exclude each other, as values cut off at a bound no longer sum "
                "to it: drop one of the two."
            )
        return self

    @property
    def total(self) -> float | str | None:
        """The ``sum`` with a number in the unit used inside."""
        return self.sum * inside(self.unit)[0] if isinstance(self.sum, float) else self.sum

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest possible value in the unit used inside; None without either.

        Returns:
            Both, None for one that is not set.
        """
        factor = inside(self.unit)[0]
        low, high = (None if end is None else end * factor for end in (self.min, self.max))
        return None if low is None and high is None else (low, high)

    def in_store(self) -> "TargetStats":
        """Convert the target to the form in which a store has it, without statistics.

        Returns:
            Fields of ``KIND``, ``bounds`` and ``sum``, in the unit used inside.
        """
        unit = inside(self.unit)[1]
        known = {
            **self.model_dump(include={*KIND}),
            "unit": f"{unit}/atom" if self.per_atom else unit,
            "extensive": self.extensive or None,
            "bounds": self.bounds,
            "sum": self.total,
        }
        return cast("TargetStats", known)


def class_entropy(frequencies: Iterable[float]) -> float:
    """Return the log-loss in nats of always predicting the frequencies of the classes."""
    return -math.fsum(share * math.log(share) for share in frequencies if share > 0.0)


def find_published(targets: Iterable[TargetConfig]) -> PublishedConfig | None:
    """Return the smallest published error of one target of some cards, in the internal unit.

    Those of totals that are divided by the number of atoms (``per_atom``) are left out.
    """
    known = [
        one.model_copy(update={"mae": one.mae * inside(target.unit)[0]})
        for target in targets
        for one in target.published
        if not target.per_atom
    ]
    return min(known, key=lambda one: one.mae, default=None)


class AttributeConfig(Config):
    """A known property of whole structures: charge, spin. Read by ``data.structure``."""

    key: str | None = None
    """Name in the file (``atoms.info``); the attribute's own name if left out."""

    unit: str = "1"
    """Unit in the file."""

    default: float | None = None
    """Value of structures that lack it, in that unit; if left out, they count as bad."""

    numbers: dict[str, End] = Field(default_factory=dict)
    """Number, in that unit, of each text of the file, such as the weight of each ``config_type``;
    texts that are absent here have the ``default``."""

    weighs: bool = False
    """Whether it is the weight of structures in training, which ``init`` does not tell to nets;
    one attribute of a card may be."""

    @field_validator("unit")
    @classmethod
    def _unit_is_known(cls, value: str) -> str:
        return _known_unit(value)


class SplitConfig(Config):
    """How structures are divided into splits. Read by ``data.splits``."""

    seed: NonNegativeInt = 0
    """Seed of the shuffle of groups."""

    shares: Annotated[tuple[PositiveFloat, ...], Len(5, 5)] = (0.6, 0.1, 0.1, 0.1, 0.1)
    """Shares of train, val, sel, cal and test; they sum to 1."""

    group: str = "composition"
    """Structures that stay in one split: those of the same ``composition``, the frames of one
    ``trajectory`` (successive structures of the same atoms, moved by up to 0.5 angstrom), or those
    with the same value of a key of ``atoms.info``. With ``structure`` each is a group of its
    own."""

    published: str | None = None
    """Key of ``atoms.info`` that fixes the test split; the rest, with structures that lack it, is
    split by group."""

    published_test: str = "test"
    """Value of the published key that marks the test split."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        if abs(sum(self.shares) - 1.0) > 1e-9:
            raise ValueError(f"split.shares sum to {sum(self.shares):g}: let them sum to 1.")
        return self


class GraphConfig(Config):
    """How atoms become graphs. Read by ``data.structure``."""

    cutoff: Cutoff = 5.0
    """Largest edge length in angstrom; a trial may use a smaller one."""

    min_distance: Cutoff = 0.1
    """Distance in angstrom below which two atoms count as an error in the data."""

    laplacian: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of Laplacian positional encodings per node; 0: none."""


class CardConfig(Config):
    """A data set: its origin and content. Read by ``data.build_plan``."""

    name: Name
    """Name of the data set and of its store."""

    title: str = ""
    """One line for tables and model cards."""

    origin: str = ""
    """Where the data came from, so that anyone can download it again."""

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

    attributes: dict[Name, AttributeConfig] = Field(default_factory=dict)
    """Known properties of whole structures, by name."""

    max_bad: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Largest share of bad structures. They are left out and listed with their reasons in
    ``quarantine.jsonl`` of the store; if there are more, the build fails."""

    trust_forces: bool = False
    """Train with forces even if they contradict the energies that they are derived from: wrong
    sign, wrong unit, or another calculation. Without it such a campaign does not start."""

    graphs: GraphConfig = GraphConfig()
    """Cutoff and sanity limits."""

    split: SplitConfig = SplitConfig()
    """Shares, seed and groups."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_campaign(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and {"space", "search"} <= set(values):
            raise ValueError(
                "is a campaign, which says what is searched: name the card, which says what data "
                "are, or use 'hydragnn-hpo run' with this file."
            )
        return values

    @model_validator(mode="after")
    def _derivatives_have_an_energy(self) -> Self:
        for name, target in self.targets.items():
            if target.derived_from is not None and target.derived_from not in self.targets:
                raise ValueError(
                    f"targets.{name}.derived_from is '{target.derived_from}', which is no target: "
                    "correct the name, or add that energy."
                )
        check_derivatives(self.targets)
        for name, target in self.targets.items():
            if target.charge is not None and target.charge not in self.attributes:
                raise ValueError(
                    f"targets.{name}.charge is '{target.charge}', which is no attribute: add "
                    f"attributes.{target.charge}, or correct the name."
                )
        return self

    @model_validator(mode="after")
    def _one_attribute_weighs(self) -> Self:
        weights = [name for name, known in self.attributes.items() if known.weighs]
        if len(weights) > 1:
            raise ValueError(
                f"attributes {', '.join(weights)} all have weighs = true, and a structure has one "
                "weight: leave it at one of them."
            )
        return self

    @model_validator(mode="after")
    def _sums_have_their_attribute(self) -> Self:
        for name, target in self.targets.items():
            if not isinstance(target.sum, str):
                continue
            if target.sum not in self.attributes:
                raise ValueError(
                    f"targets.{name}.sum is '{target.sum}', which is no attribute of the card: add "
                    f"attributes.{target.sum}, or write a number."
                )
            unit = self.attributes[target.sum].unit
            if inside(unit)[1] != inside(target.unit)[1]:
                raise ValueError(
                    f"targets.{name}.sum is '{target.sum}', an attribute in {unit}, and the target "
                    f"is in {target.unit}: give attributes.{target.sum} a unit such as that."
                )
        return self


Access = Literal["auto", "stage", "windows", "distributed"]
"""How graphs are read: staged on a host, in windows from disk, or in the memory of all hosts."""


class MixedConfig(Config):
    """Role of a data set in a training. Read by ``data.batch_sampler``, ``data.mixture``."""

    ratio: PositiveFloat | None = None
    """Share of the graphs that are drawn from this set, relative to the others; every graph once
    per epoch if left out everywhere."""

    prefix: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9_]*)?$")] = ""
    """Put before the names of this set's targets."""

    access: Access = "auto"
    """How ranks read the graphs, which does not change results. ``stage``: from a copy on a disk of
    each host. ``windows``: in pieces, from the store itself. ``distributed``: from the memory of
    the trial's hosts, each of which holds a part; this needs MPI. ``auto``: as ``stage``, or as
    ``windows`` where there is no room."""


def mean_degree(stats: Mapping[str, Any], cutoff: float) -> float:
    """Return the mean number of neighbours at a cutoff in angstrom, interpolated as its cube."""
    known = sorted((float(r), float(d)) for r, d in stats["degree"].items())
    above = next(((r, d) for r, d in known if r >= cutoff - 1e-9), known[-1])
    return above[1] * min(1.0, cutoff / above[0]) ** 3


def unite_stats(
    stats: Sequence["StoreStats"], entries: Sequence[MixedConfig], shared: Sequence[str] = ()
) -> "StoreStats":
    """Return the statistics of several data sets as one.

    Args:
        stats: the content of each set's ``stats.json``.
        entries: how each takes part.
        shared: targets that sets have in common.

    Raises:
        ConfigError: two sets have a target of one name that is not declared as shared, or what
            they share differs in level, shape or unit.
    """
    if len(stats) == 1 and not entries[0].prefix:
        return stats[0]
    cutoff = min(each["cutoff"] for each in stats)
    united: StoreStats = {
        "name": "+".join(str(each.get("name", "")) for each in stats),
        "title": "; ".join(str(each.get("title", "")) for each in stats),
        "num_graphs": sum(each["num_graphs"] for each in stats),
        "cutoff": cutoff,
        "elements": sorted(set().union(*(each["elements"] for each in stats))),
        "splits": {s: sum(each["splits"][s] for each in stats) for s in SPLITS},
        "nodes": _sizes([each["nodes"] for each in stats], stats),
        "edges": _sizes([each["edges"] for each in stats], stats),
        "degree": _degrees(stats, cutoff),
        "attributes": _attributes(stats),
        "laplacian": min(each.get("laplacian", 0) for each in stats),
        "train_nodes": sum(each["train_nodes"] for each in stats),
        "train_edges": sum(each["train_edges"] for each in stats),
        "sets": [
            {"train": each["splits"]["train"], "train_nodes": each["train_nodes"]} for each in stats
        ],
        "targets": unite_targets([each["targets"] for each in stats], entries, shared),
        "checksum": "-".join(str(each.get("checksum", "")) for each in stats),
    }
    if features := _features(stats):
        united["features"] = features
    if all("groups" in each for each in stats):
        united["groups"] = sum(each["groups"] for each in stats)
    return united


def _attributes(stats: Sequence["StoreStats"]) -> dict[str, "AttributeStats"]:
    """Pool the statistics of the attributes that all sets have, over train splits."""
    known = [each.get("attributes", {}) for each in stats]
    counts = [each["splits"]["train"] for each in stats]
    pooled: dict[str, AttributeStats] = {}
    for name in sorted(set.intersection(*(set(each) for each in known))):
        moments = [(each[name]["mean"], each[name]["std"]) for each in known]
        mean, std = _pool_moments(counts, moments)
        pooled[name] = {"mean": mean, "std": std}
        if all("min" in each[name] for each in known):
            pooled[name]["min"] = min(each[name]["min"] for each in known)
    return pooled


def _features(stats: Sequence["StoreStats"]) -> dict[str, "FeatureStats"]:
    """Pool those of the foundation models that all sets have features of, over train splits."""
    known = [each.get("features", {}) for each in stats]
    counts = [each["train_nodes"] for each in stats]
    pooled: dict[str, FeatureStats] = {}
    for name in sorted(set.intersection(*(set(each) for each in known))):
        columns = zip(
            *(zip(each[name]["mean"], each[name]["std"], strict=True) for each in known),
            strict=True,
        )
        moments = [_pool_moments(counts, column) for column in columns]
        pooled[name] = {"mean": [mean for mean, _ in moments], "std": [std for _, std in moments]}
    return pooled


def _pool_moments(
    counts: Sequence[int], moments: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return mean and standard deviation of several sets as one.

    Args:
        counts: numbers of values.
        moments: mean and standard deviation of each set.

    Returns:
        The mean, and the standard deviation; 1 if all values are equal.
    """
    parts = [(count, *moment) for count, moment in zip(counts, moments, strict=True)]
    total = max(sum(counts), 1)
    mean = math.fsum(count * one for count, one, _ in parts) / total
    square = math.fsum(count * (std**2 + (one - mean) ** 2) for count, one, std in parts)
    return mean, math.sqrt(square / total) or 1.0


def _degrees(stats: Sequence["StoreStats"], cutoff: float) -> dict[str, float]:
    """Return the mean number of neighbours at every cutoff that some set names."""
    nodes = [each["nodes"]["total"] for each in stats]
    named = {float(r) for each in stats for r in each["degree"]} | {cutoff}
    return {
        str(r): math.fsum(n * mean_degree(each, r) for n, each in zip(nodes, stats, strict=True))
        / sum(nodes)
        for r in sorted(named)
        if r <= cutoff
    }


def targets_of(card: CardConfig) -> dict[str, "TargetStats"]:
    """Convert a card's targets to the form in which a store has them.

    Returns:
        Fields of ``TargetConfig`` by name of the target, with the unit used inside the package;
        statistics are absent.
    """
    return {name: each.in_store() for name, each in card.targets.items()}


def check_stored_targets(targets: Mapping[str, "TargetStats"], file: Path) -> None:
    """Refuse a unit that a card could have when a store was built, but cannot have now.

    Args:
        targets: of the store, by name.
        file: ``stats.json`` of the store.

    Raises:
        DataError: a target has a unit that is unknown, or not one of its kind.
    """
    for name, target in targets.items():
        kind = {
            key: value
            for key, value in target.items()
            if key in (*COMPUTED, "unit") and value is not None
        }
        if "unit" not in kind:
            continue
        try:
            parse_config(kind, TargetConfig, where=f"{file}: target '{name}'")
        except ConfigError as error:
            reason = str(error).rstrip(".")
            raise DataError(f"{reason}; correct the card, then build the store again.") from error


def read_stats(store: Path) -> "StoreStats":
    """Read what the campaign needs to know of a store; its checksum is compared elsewhere.

    Raises:
        DataError: see ``check_stored_targets``.
        StorageError: the file cannot be read.
    """
    file = store / "stats.json"
    stats = cast("StoreStats", read_json(file))
    check_stored_targets(stats.get("targets", {}), file)
    return stats


def unite_targets(
    targets: Sequence[Mapping[str, "TargetStats"]],
    entries: Sequence[MixedConfig],
    shared: Sequence[str] = (),
) -> dict[str, "TargetStats"]:
    """Combine the targets of several data sets under their names in the mixture.

    Args:
        targets: targets of each data set, by name.
        entries: how each data set takes part; its prefix goes before its names.
        shared: names, with prefix, of targets that several data sets have in common.

    Returns:
        Target by name, with prefix; statistics of a shared one are pooled.

    Raises:
        ConfigError: see ``unite_stats``.
    """
    united: dict[str, dict[int, TargetStats]] = {}
    for number, (own, entry) in enumerate(zip(targets, entries, strict=True)):
        for name, target in own.items():
            derived = target.get("derived_from")
            renamed: TargetStats = {**target, "derived_from": derived and entry.prefix + derived}
            united.setdefault(entry.prefix + name, {})[number] = renamed
    for name, by_set in united.items():
        if len(by_set) > 1:
            _check_shared(name, by_set, shared)
    unknown = sorted(set(shared) - {name for name, by_set in united.items() if len(by_set) > 1})
    if unknown:
        raise ConfigError(
            f"shared names '{unknown[0]}', which no two data sets have: correct or drop it."
        )
    return {name: _pooled([*by_set.values()]) for name, by_set in united.items()}


def _check_shared(name: str, by_set: Mapping[int, "TargetStats"], shared: Sequence[str]) -> None:
    if name not in shared:
        first, second, *_ = by_set
        raise ConfigError(
            f"data sets {first + 1} and {second + 1} both have a target '{name}': give one of "
            "them a prefix, or, if both mean the same quantity, name it in shared."
        )
    for key in AGREE:
        values = [str(target.get(key)) for target in by_set.values()]
        if len(set(values)) > 1:
            raise ConfigError(
                f"the shared target '{name}' has {key} {values[0]} in one data set and "
                f"{values[1]} in another: give one of them a prefix."
            )


def _pooled(several: Sequence["TargetStats"]) -> "TargetStats":
    """Pool centre and spread over the train splits; a baseline per element cannot be pooled."""
    first = several[0]
    if any(target.get("unit_guessed") for target in several):
        first = {**first, "unit_guessed": True}
    if len(several) == 1 or "mean" not in first:
        return first
    counts = [target["count"] for target in several]
    total: int = sum(counts)

    def mean_of(values: Sequence[float]) -> float:
        weighted: float = math.fsum(n * v for n, v in zip(counts, values, strict=True))
        return weighted / total

    mean = mean_of([target["mean"] for target in several])
    centres = [target.get("means") or [target["mean"]] for target in several]
    means = [mean_of(column) for column in zip(*centres, strict=True)]
    # The mean of a tensor belongs to three of its nine components.
    share = 1.0 / 3.0 if first["shape"] == "tensor" else 1.0
    squares = [
        target["std"] ** 2
        + share * math.fsum((a - b) ** 2 for a, b in zip(own, means, strict=True)) / len(own)
        for target, own in zip(several, centres, strict=True)
    ]
    if first.get("means"):
        first = {**first, "means": means}
    spread = math.sqrt(mean_of(squares))
    if first["shape"] == "class":
        spread = class_entropy(means)
    return {
        **_pool_details(first, several),
        "mean": mean,
        "std": spread or 1.0,
        "min": min(target["min"] for target in several),
        "max": max(target["max"] for target in several),
        "mad": mean_of([target["mad"] for target in several]),
        "count": total,
        "elements": None,
    }


def _pool_atom_means(several: Sequence["TargetStats"]) -> "AtomMean | None":
    """Pool the means per atom of an extensive target; None for others, and of older stores."""
    known = [target["atom_mean"] for target in several if "atom_mean" in target]
    if len(known) < len(several):
        return None
    counts = [target["count"] for target in several]
    atoms = sum(each["atoms"] for each in known)
    mean = math.fsum(each["mean"] * each["atoms"] for each in known) / atoms
    squares = [
        n * (each["std"] ** 2 + ((each["mean"] - mean) * each["atoms"] / n) ** 2)
        for n, each in zip(counts, known, strict=True)
    ]
    spread = math.sqrt(math.fsum(squares) / sum(counts))
    return {"mean": mean, "std": spread or 1.0, "atoms": atoms}


def _pool_details(first: "TargetStats", several: Sequence["TargetStats"]) -> "TargetStats":
    """Return the first of several, with the mean per atom and the splits without labels of all."""
    pooled = first.copy()
    pooled.pop("unseen", None)  # another set may have the class
    if (atom_mean := _pool_atom_means(several)) is not None:
        pooled["atom_mean"] = atom_mean
    if "unlabelled" not in first:
        return pooled
    return {
        **pooled,
        "unlabelled": _common([one.get("unlabelled", []) for one in several]),
        "empty": _common([one.get("empty", []) for one in several]),
    }


def _common(splits: Sequence[Sequence[str]]) -> list[str]:
    """Return the splits that all of several lists name."""
    return [split for split in SPLITS if all(split in some for some in splits)]


def _sizes(sizes: Sequence["SizeSummary"], stats: Sequence["StoreStats"]) -> "SizeSummary":
    total = sum(size["total"] for size in sizes)
    return {
        "mean": total / sum(each["num_graphs"] for each in stats),
        "min": min(size["min"] for size in sizes),
        "max": max(size["max"] for size in sizes),
        "total": total,
    }
