"""The ensemble file: one zip of configurations, weights, calibration and provenance; no code.

A file may come from an untrusted source: the name, size, kind and checksum of each entry are
checked before its content is used. Nothing is unpacked to disk and nothing is executed: weights are
safetensors, the rest is JSON, TOML and text. ``SHA256SUMS`` lists the checksum of every entry.
"""

import hashlib
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, Self, TypedDict, TypeVar, cast

import numpy as np
import torch
from annotated_types import Len
from ase.data import chemical_symbols
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.torch import load as load_tensors
from torch import Tensor

from hydragnn_hpo.config import (
    ELEMENTS,
    TRUNKS,
    AttributeConfig,
    CardConfig,
    Config,
    ModelConfig,
    TargetKind,
    TrialConfig,
    TrunkSpec,
    is_extensive,
    parse_config,
    parse_toml,
    targets_of,
)
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of
from hydragnn_hpo.config.data_config import (
    AGREE,
    MOST_VALUES_OF_SPECTRUM,
    SUMMED,
    Name,
    check_derivatives,
    check_kind,
)
from hydragnn_hpo.config.schema import Cutoff, check_plain
from hydragnn_hpo.config.trunk_specs import TrunkName
from hydragnn_hpo.data import expand_mean
from hydragnn_hpo.ensemble.descriptors import TrainingFeatures, features_from_arrays
from hydragnn_hpo.ensemble.local_descriptors import (
    FORMS,
    LocalModels,
    describe_basis,
    forms_of,
    unstack_models,
)
from hydragnn_hpo.ensemble.packed_trunk import PackedTrunk, trunk_files
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.file_records import TargetStats
from hydragnn_hpo.model import rename_weights
from hydragnn_hpo.sanitize import find_unprintable, quote
from hydragnn_hpo.uncertainty import Calibration, CalibrationData, Strata
from hydragnn_hpo.uncertainty.calibrate import groups_for
from hydragnn_hpo.uncertainty.calibration_data import from_arrays
from hydragnn_hpo.units import inside

C = TypeVar("C", bound=Config)
T = TypeVar("T")

FORMAT: Literal[4] = 4
"""Version of the file format; it rises when an older reader would misread a new file."""
READABLE = (2, 3, FORMAT)
"""Versions that are read: files of version 2 have no factors of sigma, those before 4 no features
of foundation models."""

TrialName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Element = Annotated[int, Field(ge=1, le=118)]
Symbol = Annotated[str, Field(pattern=f"^({'|'.join(chemical_symbols[1:])})$")]
Count = Annotated[int, Field(ge=0, le=10**6)]
Amount = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A value in its unit; data hold no larger ones, see ``data.structure``."""
Components = Annotated[tuple[Amount, ...], Len(1, MOST_VALUES_OF_SPECTRUM)]
"""A number, or one for each component of a vector, tensor or spectrum."""

MANIFEST, CARD, SUMS = "ensemble.json", "MODEL_CARD.md", "SHA256SUMS"
"""Entries with the manifest, the model card, and the checksum of every other entry."""
CALIBRATION = "calibration.safetensors"
"""Entry with the members' predictions for the calibration split; may be missing."""
FEATURES = "features.safetensors"
"""Entry with a sample of the training set in the features of a member, or of a
foundation model; may be missing."""
LOCAL = "local_descriptors.safetensors"
"""Entry with the predictions from local descriptors; may be missing."""
LOCAL_MEMBERS = "local_members.safetensors"
"""Entry with the regressions on local descriptors that are members; missing without any."""
LOCAL_MEMBER = "local_descriptors"
"""Name of these regressions among the members of a head; no trial may have it."""
STORED = ".safetensors"
"""Suffix of the entries that are not compressed."""

MAX_QUANTILE = 1e9
"""Most standard deviations in half an interval."""
MAX_TEXT = 64 * 2**20
"""Most bytes of text in all entries together."""
MAX_WEIGHTS = 8 * 2**30
"""Most bytes of one entry with weights."""
MAX_ENTRIES = 10_000
"""Most entries of the zip."""
MAX_LIST = 4 * 2**20
"""Most bytes of the zip's central directory, which lists its entries."""

_NAME = re.compile(
    r"ensemble\.json|MODEL_CARD\.md|SHA256SUMS|"
    r"(calibration|features|local_descriptors|local_members)\.safetensors"
    r"|data/[\w-]{1,100}\.toml|members/[\w-]{1,100}\.(toml|safetensors)"
    r"|trunks/[a-z0-9_]{1,40}\.(json|safetensors)",
    re.ASCII,
)
"""Names that an entry may have; the only folders are ``data``, ``members`` and ``trunks``."""
_LEVEL = re.compile(r"0\.[0-9]{0,3}[1-9]", re.ASCII)
"""A level of intervals, as a share: above 0, below 1."""
_SUM = re.compile(r"([0-9a-f]{64})  (\S+)")
"""A line of ``SHA256SUMS``."""
_DAMAGE = (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)
"""Errors that ``zipfile`` raises for a damaged or hostile file."""

_UNSOUND = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Errors that ``safetensors`` and ``from_arrays`` raise for damaged or hostile content."""


class CreatedBy(Config):
    """The campaign that made an ensemble."""

    campaign: str
    """Name of the campaign."""

    seed: NonNegativeInt
    """Seed of the campaign."""

    method: Literal["greedy", "top"]
    """How the members were chosen."""

    folds: Annotated[int, Field(ge=2)] | None = None
    """Folds that the members were trained and calibrated on; None: on the splits of the data."""


class Provenance(Config):
    """The data that an ensemble was trained on."""

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
    """Names of the cards that the data was built from; stored as ``data/NAME.toml``."""

    splits: dict[str, NonNegativeInt] = {}
    """Number of structures in each split."""

    atoms: tuple[PositiveInt, PositiveInt] | None = None
    """Fewest and most atoms of a structure."""

    @property
    def card_files(self) -> dict[str, str]:
        """Names of the zip's entries that hold the cards.

        Returns:
            Entry by name of the card.
        """
        return {name: f"data/{name}.toml" for name in self.cards}


class Pruned(Config):
    """One removal of members: the ensemble before it, and the members removed."""

    parent: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the parent's ``SHA256SUMS``, and so of its whole content."""

    removed: Annotated[tuple[TrialName, ...], Len(1)]
    """Trials of the members that were removed."""


class MemberEntry(Config):
    """One member; its files are ``members/TRIAL.toml`` and ``members/TRIAL.safetensors``."""

    trial: TrialName
    """Name of the trial."""

    weights: Annotated[dict[Name, Annotated[float, Field(gt=0.0, le=1.0)]], Len(1)]
    """Weight in the mean, by head; heads without this member are missing."""

    objective: float
    """Validation objective, in standard deviations of the targets."""

    val_mae: dict[str, float]
    """Validation MAE by head, in the target's unit."""

    @property
    def weight(self) -> float:
        """The member's weight, averaged over the heads that it takes part in."""
        return sum(self.weights.values()) / len(self.weights)

    @property
    def config_file(self) -> str:
        """Name of the zip's entry with the trial's configuration."""
        return f"members/{self.trial}.toml"

    @property
    def weights_file(self) -> str:
        """Name of the zip's entry with the weights of the net."""
        return f"members/{self.trial}.safetensors"


class Alike(Config):
    """Similarity of the members' errors for one head on ``sel``, the split used to select them."""

    correlation: Annotated[float, Field(ge=-1.0, le=1.0)] | None
    """Correlation of two members' errors, averaged over all pairs; None for one member."""

    member_rmse: NonNegativeFloat
    """Root of the members' weighted mean square error, in the unit."""

    rmse: NonNegativeFloat
    """RMSE of the members' mix, in the unit; the more members differ, the further it lies below
    ``member_rmse``."""


class BaselineEntry(Config):
    """A linear model of the elements, which the ensemble is compared with.

    A structure has ``mean``, and for each of its atoms ``atoms`` of the element, and ``fractions``
    times the element's fraction; an atom has ``mean`` and ``atoms`` of its element.
    """

    mean: Components
    """Mean of the labels on the training split, by component, in the unit."""

    atoms: dict[Symbol, Components] = {}
    """Weight of one atom, by element symbol; elements that are missing have none."""

    fractions: dict[Symbol, Components] = {}
    """Weight of the element's fraction of a structure's atoms, by element symbol."""


class LocalShare(Config):
    """The regressions on local descriptors, or features, that are members of a head.

    Their weights are in ``local_members.safetensors``; see ``local_members``.
    """

    weight: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Weight of all together in the mean; the nets share the rest."""

    elements: Annotated[tuple[BaselineEntry, ...], Len(1, 100)]
    """Prediction from the elements alone that each of them corrects; zeros where there is none."""

    trunk: TrunkName | None = None
    """Foundation model whose features they read; None for local descriptors."""

    @property
    def title(self) -> str:
        """What they describe atoms by, as a phrase."""
        return describe_basis(self.trunk)


class HeadEntry(TargetKind):
    """One predicted target, with the unit of predictions and errors."""

    mean: Amount
    """Mean on the training split, in the unit; of a tensor's diagonal, 0 for vectors and stress."""

    means: Components | None = None
    """Mean of each value of a spectrum on the training split, in the unit, or frequency of each
    class; None for other shapes."""

    std: Annotated[float, Field(ge=0.0, le=1e30)]
    """Standard deviation on the training split, in the unit."""

    lowest: Amount | None = None
    """Smallest value on the training split, in the unit, over all components."""

    highest: Amount | None = None
    """Largest value on the training split, in the unit, over all components."""

    bounds: tuple[Amount | None, Amount | None] | None = None
    """Smallest and largest possible value, in the unit: means and intervals end there. None, or
    None for one of them, where the card sets none."""

    sum: Amount | Name | None = None
    """What the values of a structure's atoms sum to: a number in the unit, or the name of an
    attribute; None where the card sets none, and in files of earlier versions."""

    calibration: Calibration
    """Converts the members' spread to sigma and intervals."""

    elements: tuple[Element, ...] | None = None
    """Atomic numbers with a label in training: of labelled atoms, or in labelled structures;
    predictions for others are missing. None in files of earlier versions, which predict all."""

    baseline: BaselineEntry | None = None
    """Prediction from the elements alone, see ``baselines``; None for vectors per atom, and in
    files of earlier versions."""

    local: LocalShare | None = None
    """Regressions on local descriptors that are members; None where the nets are alone, and in
    files of earlier versions."""

    @property
    def is_sum(self) -> bool:
        """Whether the target is a sum over the atoms of a structure."""
        return is_extensive({"energy": self.energy, "extensive": self.extensive})

    @property
    def center(self) -> np.ndarray:
        """Mean on the training split by component, in the unit, [w] or [1]."""
        return expand_mean(self.mean, self.shape, self.means)

    @model_validator(mode="after")
    def _spectrum_has_means(self) -> Self:
        if self.shape == "spectrum":
            if self.size is None or self.means is None or len(self.means) != self.size:
                raise ValueError("a spectrum needs 'size' and as many 'means'; get it again.")
        elif self.size is not None or self.axis is not None:
            raise ValueError("'size' and 'axis' are of spectra; get it again.")
        elif self.shape == "class":
            known = len(self.means or ())
            tempered = self.calibration.temperature is not None
            if self.classes is None or known != len(self.classes) or not tempered:
                raise ValueError(
                    "a class needs 'classes', as many 'means', and a temperature; get it again."
                )
        elif self.classes is not None or self.means is not None:
            raise ValueError("'classes' and 'means' are of other shapes; get it again.")
        return self

    @field_validator("unit")
    @classmethod
    def _unit_is_internal(cls, value: str) -> str:
        try:
            factor, name = inside(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if (factor, name) != (1.0, value):
            raise ValueError(f"predictions are in {name}, not in {value}: mend the unit.")
        return value

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        low, high = self.bounds or (None, None)
        bounded = self.shape in ("scalar", "spectrum") and self.energy is None
        if self.bounds is not None and not bounded:
            raise ValueError(
                "'bounds' are of spectra, and of scalars that are no energies; get it again."
            )
        if low is not None and high is not None and low >= high:
            raise ValueError(f"'bounds' are {low:g} and {high:g}, not in order; get it again.")
        return self

    @model_validator(mode="after")
    def _sum_fits(self) -> Self:
        may = self.level == "node" and self.shape in SUMMED and self.bounds is None
        if self.sum is not None and (not may or self.derived_from is not None):
            raise ValueError(
                "'sum' is of scalars and tensors of atoms without 'bounds'; get it again."
            )
        return self

    @model_validator(mode="after")
    def _baselines_fit(self) -> Self:
        shared = () if self.local is None else self.local.elements
        for baseline in (*([] if self.baseline is None else [self.baseline]), *shared):
            weights = (*baseline.atoms.values(), *baseline.fractions.values())
            if {len(weight) for weight in (baseline.mean, *weights)} != {self.width}:
                raise ValueError(f"the baseline needs {self.width} components; get it again.")
            if self.level == "node" and baseline.fractions:
                raise ValueError("the baseline of an atom has no 'fractions'; get it again.")
        if shared and self.derived_from:
            raise ValueError("'local' is not of derivatives; get it again.")
        return self

    @model_validator(mode="after")
    def _calibration_is_sound(self) -> Self:
        check_kind(self)
        fit = self.calibration
        if (fit.temperature is not None) != (self.shape == "class"):
            raise ValueError("a temperature is of classes alone; get it again.")
        if fit.temperature is not None and not 0.0 < fit.temperature <= 1e3:
            raise ValueError("the temperature is not between 0 and 1000; get it again.")
        if not (0 < fit.b <= 1e60 and all(0 <= v <= 1e60 for v in (fit.a, fit.c, fit.spread99))):
            raise ValueError(
                "the calibration needs 0 < b, no other number below 0 or endless; get it again."
            )
        if fit.factors is not None and not fit.factors.are_sound:
            raise ValueError("the factors of sigma are not sound; get it again.")
        for table in (fit.quantiles, *fit.tables.values()):
            if "0.9" not in table or set(table) != set(fit.quantiles):
                raise ValueError("the calibration needs '0.9' and equal levels; get it again.")
            if not all(_LEVEL.fullmatch(level) for level in table):
                raise ValueError("levels must be between 0 and 1, as '0.9'; get it again.")
            rising = [table[level] for level in sorted(table, key=float)]
            if rising != sorted(rising) or not 0 <= rising[0] <= rising[-1] <= MAX_QUANTILE:
                raise ValueError(
                    "the calibration's quantiles must rise with the level, up to "
                    f"{MAX_QUANTILE:g}; get it again."
                )
        return self


@dataclass(frozen=True)
class Coordination:
    """Range of the number of neighbours of each element in the training structures."""

    cutoff: Cutoff
    """Neighbours are within this distance, in angstrom."""
    ranges: dict[Symbol, tuple[Count, Count]] = field(default_factory=dict)
    """Fewest and most neighbours of an atom, by element symbol."""


Scores = dict[str, float | int | str | None]
"""Scores of a head by name, None where there is none, and its ``unit``."""


class Manifest(Config):
    """The content of ``ensemble.json`` in an ensemble file."""

    format: Literal[2, 3, 4] = FORMAT
    """Version of the file format."""

    package: str
    """Version of hydragnn-hpo that wrote the file."""

    created_by: CreatedBy
    """Campaign, seed and selection method."""

    data: Provenance
    """The data that the members were trained on."""

    elements: tuple[Element, ...]
    """Atomic numbers in the data, ascending."""

    cutoff: Cutoff
    """Longest cutoff of any member, in angstrom; graphs need all edges up to it."""

    members: Annotated[tuple[MemberEntry, ...], Len(1)]
    """The members, each named by its trial."""

    heads: Annotated[dict[Name, HeadEntry], Len(1)]
    """Predicted targets by name."""

    evaluation: dict[str, Scores] = {}
    """Scores on the test split, by head; empty if the ensemble was not evaluated on it."""

    diversity: dict[Name, Alike] = {}
    """Similarity of the members' errors, by head."""

    attributes: dict[Name, AttributeConfig] = {}
    """Known properties of structures that members read, as in the card."""

    laplacian: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of Laplacian encodings that members read."""

    trunks: tuple[TrunkName, ...] = ()
    """Foundation models whose features members read, each an entry of the file."""

    own_trunks: dict[TrunkName, TrunkSpec] = {}
    """What is known of those that a user's file brought."""

    packages: dict[str, str] = {}
    """Version of each package with a user's conv; building the members runs its code."""

    strata: Strata = Strata()
    """Rule that assigns structures to kinds; each kind may have its own intervals."""

    coordination: Coordination | None = None
    """Range of the number of neighbours in training, by element."""

    sizes: tuple[Count, Count] | None = None
    """Fewest and most atoms of a training structure; None in files of earlier versions."""

    software: dict[str, str] = {}
    """Versions of Python, torch and other packages that built the ensemble."""

    commit: str = ""
    """Commit of hydragnn-hpo if it ran from a checkout; ends in ``-dirty`` if files differ."""

    licence: str = ""
    """Licence of the ensemble; ``data`` holds that of the data."""

    pruned: tuple[Pruned, ...] = ()
    """Removals of members since the ensemble was built, oldest first."""

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        for name in self.heads:
            total = sum(member.weights.get(name, 0.0) for member in self.members)
            if abs(total - 1.0) > 1e-6:
                raise ValueError(
                    f"the members' weights of '{name}' sum to {total:g}, not to 1; get it again."
                )
        extra = {name for member in self.members for name in member.weights} - set(self.heads)
        if extra:
            raise ValueError(f"members weigh '{min(extra)}', which is no head; get it again.")
        trials = {LOCAL_MEMBER, *(member.trial for member in self.members)}
        if len(trials) <= len(self.members):
            raise ValueError("a trial is named twice among the members; get it again.")
        if len({len(h.local.elements) for h in self.heads.values() if h.local is not None}) > 1:
            raise ValueError("heads have regressions of different numbers; get it again.")
        check_derivatives(self.heads)
        for name, head in self.heads.items():
            if head.derived_from and self.heads[head.derived_from].local is not None:
                raise ValueError(
                    f"'local' is not of energies that have derivatives, as '{name}'; get it again."
                )
        return self

    @model_validator(mode="after")
    def _heads_have_their_attributes(self) -> Self:
        for name, head in self.heads.items():
            for key, named in (("sum", head.sum), ("charge", head.charge)):
                if isinstance(named, str) and named not in self.attributes:
                    raise ValueError(
                        f"'heads.{name}.{key}' names {quote(named)}, which is no attribute of the "
                        "file; get it again."
                    )
        return self

    @model_validator(mode="after")
    def _lists_ascend(self) -> Self:
        lists = {"elements": self.elements, "data.atoms": self.data.atoms or (1, 1)}
        own = {f"heads.{name}.elements": head.elements for name, head in self.heads.items()}
        lists |= {name: elements for name, elements in own.items() if elements is not None}
        if self.coordination is not None:
            ranges = self.coordination.ranges.items()
            lists |= {f"coordination.ranges.{symbol}": limits for symbol, limits in ranges}
        for name, values in lists.items():
            if not values or list(values) != sorted(values):
                shown = quote(str(list(values)))
                raise ValueError(f"'{name}' holds {shown}, not in order; get the file again.")
        if len(set(self.elements)) < len(self.elements):
            raise ValueError("'elements' names an element twice: name each once.")
        return self

    @field_validator("evaluation")
    @classmethod
    def _scores_are_numbers(cls, value: dict[str, Scores]) -> dict[str, Scores]:
        for head, scores in value.items():
            for name, score in scores.items():
                if isinstance(score, str) != (name == "unit"):
                    wanted = "text" if name == "unit" else "a number"
                    raise ValueError(f"'{head}.{name}' is {score!a:.60}: write {wanted}.")
        return value

    def targets(self) -> dict[str, TargetStats]:
        """Return the statistics of the targets that a net's constructor needs.

        Returns:
            By head, what a net computes and its unit, mean and spread.
        """
        return {
            name: cast("TargetStats", head.model_dump(include={*AGREE, "mean", "std"}))
            for name, head in self.heads.items()
        }

    def trunk_spec(self, name: str) -> TrunkSpec:
        """Return what is known of one of its foundation models."""
        return TRUNKS.get(name) or self.own_trunks[name]

    @property
    def local_trunks(self) -> set[str]:
        """Foundation models whose features regressions read that are members."""
        shares = (head.local for head in self.heads.values())
        return {share.trunk for share in shares if share is not None and share.trunk}

    def shares(self, head: str) -> dict[str, float]:
        """Return the weights of the members that take part in a head.

        Returns:
            Weights by trial, > 0, which sum to 1; that of all regressions on local descriptors
            under ``LOCAL_MEMBER``.
        """
        local = self.heads[head].local
        own = {} if local is None else {LOCAL_MEMBER: local.weight}
        rest = 1.0 - sum(own.values())
        return own | {m.trial: rest * m.weights[head] for m in self.members if head in m.weights}

    def unguaranteed(self, levels: Iterable[int], heads: Container[str] | None = None) -> list[str]:
        """Return a sentence for each head that had too few groups for the intervals of a level.

        Args:
            levels: levels that are shown, in percent.
            heads: names of the heads that are shown; None for all.
        """
        sentences = []
        shown = sorted(set(levels))
        for name, head in self.heads.items():
            if heads is not None and name not in heads:
                continue
            few = [level for level in shown if not head.calibration.guaranteed(level / 100)]
            if few:
                named = (
                    f"{level} % interval (it takes {groups_for(level / 100)})" for level in few
                )
                sentences.append(
                    f"head '{name}' was calibrated on {head.calibration.groups} groups, too few "
                    f"for a guaranteed {' or '.join(named)}: raise the share of cal."
                )
        return sentences

    def units(self) -> dict[str, str]:
        """Return the units of all heads as they are shown.

        Returns:
            Unit by head.
        """
        return {name: head.shown_unit for name, head in self.heads.items()}


class MemberNeeds(TypedDict):
    """The fields of a ``Manifest`` that follow from the choice of members."""

    cutoff: float
    """Longest cutoff of any member, in angstrom."""
    attributes: dict[str, AttributeConfig]
    """Known properties of structures that members read, by name."""
    laplacian: int
    """Number of Laplacian encodings that members read."""
    trunks: tuple[str, ...]
    """Foundation models whose features members read."""
    own_trunks: dict[str, TrunkSpec]
    """What is known of those that a user's file brought, by name."""
    packages: dict[str, str]
    """Version of each package that holds a member's conv, by name."""


NO_TRUNKS: Mapping[str, TrunkSpec] = MappingProxyType({})


def find_own_trunks(models: Iterable[ModelConfig]) -> dict[str, TrunkSpec]:
    """Return what models know of foundation models of the user's.

    Returns:
        Their facts, by name.
    """
    return {
        model.embedding: model.embedding_trunk
        for model in models
        if model.embedding_trunk is not None
    }


def describe_needs(
    models: Sequence[ModelConfig],
    sums: Iterable[float | str | None],
    *,
    attributes: Mapping[str, AttributeConfig],
    packages: Mapping[str, str],
    local_trunks: Collection[str] = (),
    own_trunks: Mapping[str, TrunkSpec] = NO_TRUNKS,
) -> MemberNeeds:
    """Return the fields of a manifest that follow from the choice of members.

    Args:
        models: configurations of the members' nets, at least one.
        sums: what values of targets sum to, see ``HeadEntry.sum``; names are of attributes.
        attributes: all known properties in the data, by name.
        packages: versions of packages with users' convs, by name; extra ones are ignored.
        local_trunks: foundation models whose features regressions read that are members.
        own_trunks: what is known of foundation models of the user's, beside those of the members.
    """
    trunks = {model.embedding for model in models} - {ELEMENTS} | set(local_trunks)
    known = {**own_trunks, **find_own_trunks(models)}
    names = {name for model in models for name in model.attributes}
    names |= {total for total in sums if isinstance(total, str)}
    codes = [model.encoding_size for model in models if model.encoding == "laplacian"]
    own = {package_of(model.conv) for model in models if is_user_conv(model.conv)}
    return {
        "cutoff": max(model.cutoff for model in models),
        "attributes": {name: attributes[name] for name in sorted(names)},
        "laplacian": max(codes, default=0),
        "trunks": tuple(sorted(trunks)),
        "own_trunks": {name: known[name] for name in sorted(trunks & known.keys())},
        "packages": {name: version for name, version in packages.items() if name in own},
    }


@dataclass(frozen=True)
class ArtefactContent:
    """Content of an ensemble file, either read or about to be written."""

    manifest: Manifest
    """The content of ``ensemble.json``."""
    configs: dict[str, TrialConfig]
    """Configuration of each member, by trial."""
    weights: dict[str, dict[str, Tensor]]
    """Weights and buffers of each member, by trial, then by name."""
    cards: dict[str, CardConfig] = field(default_factory=dict)
    """Cards of the data, by name; empty if the file was read only to predict."""
    calibration_data: CalibrationData | None = None
    """Predictions of the members for the calibration split, which pruning needs. None if the file
    holds none or was read only to predict."""
    features: TrainingFeatures | None = None
    """Sample of the training set; None if the file holds none, as older ones do."""
    local: LocalModels | None = None
    """Predictions from local descriptors, for comparison; None if the file holds none, or if they
    are from features of a foundation model that no member reads."""
    local_members: tuple[LocalModels, ...] = ()
    """Those that are members, of the heads that have a ``local``; empty without any."""
    trunks: dict[str, PackedTrunk] = field(default_factory=dict)
    """Foundation models whose features members read, by name."""
    identity: str = ""
    """SHA-256 of ``SHA256SUMS``, equal for equal content; empty if not read from a file."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each entry; empty if not read from a file."""
    sums: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each entry; empty if not read from a file."""


def find_constants(
    manifest: Manifest, weights: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, float]:
    """Find sums over atoms that have a constant of each structure, as in nets of earlier versions.

    Args:
        manifest: of the ensemble.
        weights: weights and buffers of each member, by trial, then by name.

    Returns:
        The constant in the unit of the head, by name; empty where all are extensive.
    """
    constants = {}
    for name, head in manifest.heads.items():
        if head.is_sum:
            parts = (
                share * float(weights[member.trial][f"baselines.{name}.mean"])
                for member in manifest.members
                if (share := member.weights.get(name))
            )
            constants[name] = math.fsum(parts)
    return {name: constant for name, constant in constants.items() if constant}


def reject(path: Path, what: str, cause: BaseException | None = None) -> NoReturn:
    """Raise the error for an unusable ensemble file.

    Args:
        path: the file, which begins the message.
        what: what is wrong with the file: a predicate without a full stop.
        cause: the error that revealed it, if any.

    Raises:
        DataError: always.
    """
    raise DataError(f"{path}: {what}; get the ensemble again or build it again.") from cause


class SafeZip:
    """The entries of an open ensemble file; reading an entry verifies its checksum."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        """Check all names and sizes, and read the checksums.

        Raises:
            DataError: an entry has a name, size or kind that is not allowed, or the entries differ
                from those that ``SHA256SUMS`` lists.
        """
        self.path = path
        self._file = file
        infos = file.infolist()
        _check_infos(path, infos)
        self.sizes = {info.filename: info.file_size for info in infos}
        if SUMS not in self.sizes:
            reject(path, f"lacks '{SUMS}'")
        sums = file.read(SUMS)
        self.identity = hashlib.sha256(sums).hexdigest()
        lines = _SUM.findall(sums.decode("ascii", errors="replace"))
        self.sums: dict[str, str] = {name: value for value, name in lines}
        for name in self.sizes:
            if name not in self.sums and name != SUMS:
                reject(path, f"holds '{name}', which {SUMS} does not name")
        for name in self.sums:
            if name not in self.sizes:
                reject(path, f"lacks '{name[:200]}'")

    def read(self, name: str) -> bytes:
        """Read a whole entry, and verify its checksum.

        Raises:
            DataError: the entry is missing or damaged.
        """
        if name not in self.sizes:
            reject(self.path, f"lacks '{name}'")
        with translate_damage(self.path):
            data = self._file.read(name)
        self._check(name, hashlib.sha256(data).hexdigest())
        return data

    def check(self, name: str) -> None:
        """Verify the checksum of an entry, which may be missing, without holding it in memory.

        Raises:
            DataError: the entry is damaged.
        """
        if name not in self.sizes:
            return
        with translate_damage(self.path), self._file.open(name) as stream:
            digest = hashlib.file_digest(cast("io.BufferedIOBase", stream), "sha256")
        self._check(name, digest.hexdigest())

    def refuse_others(self, wanted: set[str]) -> None:
        """Reject the file if it holds entries other than those in ``wanted``.

        Raises:
            DataError: the file holds another entry.
        """
        for name in sorted(set(self.sizes) - wanted):
            reject(self.path, f"holds '{name}', which belongs to no member")

    def _check(self, name: str, checksum: str) -> None:
        if checksum != self.sums[name]:
            reject(self.path, f"'{name}' does not have the checksum that {SUMS} gives")


@contextmanager
def open_safe_zip(path: Path) -> Iterator[SafeZip]:
    """Open an ensemble file for reading.

    Raises:
        DataError: the file is missing, is no plain file, or is damaged or hostile.
    """
    if not path.exists():
        raise DataError(f"{path}: no such ensemble; give the path of an ensemble.zip.")
    if not path.is_file():
        raise DataError(f"{path}: is no such ensemble but a folder or a device; give a file.")
    with translate_damage(path):
        source = _Source(path)
    with source:
        with translate_damage(path):
            file = zipfile.ZipFile(source)  # reads the central directory in one block
        source.most = None  # only now, since entries may be larger than the directory
        with file:
            with translate_damage(path):
                entries = SafeZip(path, file)
            yield entries


@contextmanager
def translate_damage(path: Path) -> Iterator[None]:
    """Turn any error of a damaged zip into a ``DataError``.

    Raises:
        DataError: the block raised such an error.
    """
    try:
        yield
    except _DAMAGE as error:
        reason = str(getattr(error, "strerror", None) or error).strip().rstrip(".")
        reason = reason[:200] if reason.isprintable() and reason else type(error).__name__
        reject(path, f"cannot be read as a zip ({reason})", error)


class _Source(io.FileIO):
    """A file that limits one read, so that a huge central directory cannot fill the memory."""

    most: int | None = MAX_LIST
    """Most bytes of one read; None for no limit."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes; raise ``BadZipFile`` if ``size`` exceeds ``most``."""
        if self.most is not None and size is not None and size > self.most:
            raise zipfile.BadZipFile(f"its list of entries has more than {self.most} bytes")
        return super().read(-1 if size is None else size) or b""


def _check_infos(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Reject names, sizes and kinds of entries that are not allowed, before any is read."""
    if len(infos) > MAX_ENTRIES:
        reject(path, f"holds {len(infos)} entries, more than {MAX_ENTRIES}")
    seen: set[str] = set()
    text = packed = 0
    for info in infos:
        name = info.filename
        if not _NAME.fullmatch(name):
            reject(path, f"holds {name[:200]!a}, which has no place in an ensemble")
        if name in seen:
            reject(path, f"holds '{name}' twice")
        if info.flag_bits & 0x1:
            reject(path, f"'{name}' is encrypted")
        seen.add(name)
        packed += info.compress_size
        if not name.endswith(STORED):
            text += info.file_size
        elif info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_WEIGHTS:
            reject(path, f"'{name}' is compressed or larger than {MAX_WEIGHTS} bytes")
        elif info.file_size != info.compress_size:
            reject(path, f"'{name}' claims {info.file_size} bytes and holds {info.compress_size}")
    if text > MAX_TEXT:
        reject(path, f"claims {text} bytes of text, more than {MAX_TEXT}")
    if packed > path.stat().st_size:
        reject(path, f"claims {packed} bytes in a file of {path.stat().st_size}")


def read_artefact(path: Path, *, to_predict: bool = False) -> ArtefactContent:
    """Read an ensemble file that may come from an untrusted source.

    Args:
        path: the ``ensemble.zip``.
        to_predict: True leaves out the cards, and the calibration data, of which it verifies only
            the checksum.

    Raises:
        DataError: the file is missing, damaged, hostile, or of another format.
    """
    with open_safe_zip(path) as entries:
        manifest = _read_manifest(entries)
        entries.check(CARD)
        configs = {m.trial: _read_config(entries, m, manifest) for m in manifest.members}
        files = manifest.data.card_files.items()
        cards = {name: _read_toml(entries, file, CardConfig) for name, file in files}
        _check_against_cards(path, manifest, configs, cards)
        if to_predict:
            entries.check(CALIBRATION)
        known = None if to_predict else _read_calibration(entries, manifest)
        trunks = {config.model.embedding for config in configs.values()} - {ELEMENTS}
        trunks |= manifest.local_trunks
        if trunks != set(manifest.trunks):
            reject(path, f"names the foundation models {manifest.trunks}, its members read others")
        own = find_own_trunks(config.model for config in configs.values())
        named = manifest.own_trunks
        if {**named, **own} != named or named.keys() != trunks - TRUNKS.keys():
            reject(path, "describes its foundation models otherwise than its members do")
        if manifest.cutoff != (longest := max(c.model.cutoff for c in configs.values())):
            reject(path, f"claims a cutoff of {manifest.cutoff:g}, its members have {longest:g}")
        weights = {m.trial: _read_tensors(entries, m, configs[m.trial]) for m in manifest.members}
        return ArtefactContent(
            manifest,
            configs,
            weights,
            {} if to_predict else cards,
            known,
            _read_features(entries, configs, manifest),
            _read_local(entries, manifest),
            _read_local_members(entries, manifest),
            _read_trunks(entries, manifest),
            entries.identity,
            sizes=entries.sizes,
            sums=entries.sums,
        )


def _check_against_cards(
    path: Path,
    manifest: Manifest,
    configs: Mapping[str, TrialConfig],
    cards: Mapping[str, CardConfig],
) -> None:
    """Reject a manifest whose heads are not what the cards in the same file say about them.

    Args:
        path: the file.
        manifest: content of ``ensemble.json``.
        configs: configuration of each member, by trial.
        cards: cards of the data, by name; none if the ensemble is not from a campaign.

    Raises:
        DataError: a head differs from its target in the cards.
    """
    prefixes = {entry.prefix for config in configs.values() for entry in config.data}
    targets = [
        (prefix, prefix + name, target)
        for card in cards.values()
        for prefix in prefixes
        for name, target in targets_of(card).items()
    ]
    for name, head in manifest.heads.items() if cards else ():
        differs = f"head '{name}' of '{MANIFEST}' is no target of its cards"
        for prefix, full, target in targets:
            if full != name:
                continue
            derived = target["derived_from"]
            expected = {**target, "derived_from": derived and prefix + derived}
            wrong = [key for key in AGREE if getattr(head, key) != expected.get(key)]
            if not wrong:
                break
            differs = (
                f"head '{name}' has {wrong[0]} '{getattr(head, wrong[0])}' in '{MANIFEST}', but "
                f"'{expected.get(wrong[0])}' in its card"
            )
        else:
            reject(path, differs)


def _read_manifest(entries: SafeZip) -> Manifest:
    """Read the manifest, and reject entries of the zip that it does not name.

    The format is checked before the schema, so that another version gets its own message.
    """
    path = entries.path

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}")

    try:
        values: Any = json.loads(entries.read(MANIFEST), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reject(path, f"'{MANIFEST}' is not JSON ({str(error)[:200]})", error)
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        reject(path, f"'{MANIFEST}' does not say its format")
    if version not in READABLE:
        maker = values.get("package")
        known = isinstance(maker, str) and re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", maker)
        cure = f"install hydragnn-hpo {maker}, which wrote it" if known else "install another one"
        if version < READABLE[0]:
            cure += ", or build it again from its run (hydragnn-hpo ensemble build RUN)"
        raise DataError(
            f"{path}: has format {version}, this version of hydragnn-hpo reads formats "
            f"{READABLE[0]} to {FORMAT}: "
            f"{cure}."
        )
    manifest = _validate(entries, MANIFEST, values, Manifest)
    wanted = {MANIFEST, CARD, SUMS, CALIBRATION, FEATURES, LOCAL}
    wanted |= {*manifest.data.card_files.values()}
    if any(head.local is not None for head in manifest.heads.values()):
        wanted.add(LOCAL_MEMBERS)
    wanted |= {file for name in manifest.trunks for file in trunk_files(name)}
    for member in manifest.members:
        wanted |= {member.config_file, member.weights_file}
    entries.refuse_others(wanted)
    return manifest


def _read_toml(entries: SafeZip, name: str, schema: type[C]) -> C:
    try:
        values = parse_toml(entries.read(name).decode())
    except ValueError as error:
        reject(entries.path, f"'{name}' is not TOML ({str(error)[:200]})", error)
    return _validate(entries, name, values, schema)


def _validate(entries: SafeZip, name: str, values: Any, schema: type[C]) -> C:
    """Check values against a schema, and reject text with terminal control characters."""
    try:
        check_plain(values)
    except ValueError as error:
        reject(entries.path, f"'{name}' cannot be used: {error}", error)
    text = find_unprintable(values)
    if text is not None:
        reject(entries.path, f"'{name}' holds text with control characters ({text[:60]!a})")
    try:
        return parse_config(values, schema, where=f"{entries.path}: {name}")
    except ConfigError as error:
        what = str(error).rstrip(".")
        raise DataError(f"{what}; get the ensemble again or build it again.") from error


def _read_config(entries: SafeZip, member: MemberEntry, manifest: Manifest) -> TrialConfig:
    path, trial = entries.path, member.trial
    config = _read_toml(entries, member.config_file, TrialConfig)
    if config.trial != trial:
        reject(path, f"the configuration of member '{trial}' is about trial '{config.trial}'")
    if set(config.heads) != set(manifest.heads):
        heads = ", ".join(sorted(config.heads))
        reject(path, f"member '{trial}' predicts {heads}; the ensemble {', '.join(manifest.heads)}")
    if config.model.cutoff > manifest.cutoff:
        reject(path, f"member '{trial}' needs edges beyond the ensemble's cutoff")
    return config


def _read_tensors(entries: SafeZip, member: MemberEntry, config: TrialConfig) -> dict[str, Tensor]:
    name = member.weights_file
    try:
        tensors = rename_weights(load_tensors(entries.read(name)), config.model.conv)
    except _UNSOUND as error:
        reject(entries.path, f"'{name}' is not a safetensors file ({str(error)[:200]})", error)
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        reject(entries.path, f"'{name}' holds weights that are not finite")
    count = sum(value.numel() for value in tensors.values())
    if (size := _largest_size(config)) > count:
        reject(
            entries.path,
            f"'{member.config_file}' asks for {size} of something, its net has {count} weights",
        )
    return tensors


def _largest_size(config: TrialConfig) -> int:
    """Return the largest number of layers, features and so on in a configuration.

    A net has at least as many weights as any of these numbers. Without this check, a few bytes of
    text could request a net that fills the memory.
    """
    model = config.model.model_dump(exclude={"max_neighbors"})
    if is_user_conv(config.model.conv):
        model["options"] = {}
    heads = [head.model_dump() for head in config.heads.values()]
    return max(_whole_numbers([model, heads]), default=0)


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(part)


def _read_calibration(entries: SafeZip, manifest: Manifest) -> CalibrationData | None:
    weights = {name: manifest.shares(name) for name in manifest.heads}
    widths = {name: head.width for name, head in manifest.heads.items()}
    return _read_arrays(entries, CALIBRATION, lambda arrays: from_arrays(arrays, weights, widths))


def _read_features(
    entries: SafeZip, configs: Mapping[str, TrialConfig], manifest: Manifest
) -> TrainingFeatures | None:
    widths = {trial: config.model.features for trial, config in configs.items()}
    widths |= {name: manifest.trunk_spec(name).width for name in manifest.trunks}
    return _read_arrays(entries, FEATURES, lambda arrays: features_from_arrays(arrays, widths))


def _read_local(entries: SafeZip, manifest: Manifest) -> LocalModels | None:
    models = _read_arrays(entries, LOCAL, LocalModels.from_arrays)
    if models is not None:
        _check_local(entries.path, LOCAL, models, manifest)
        if models.basis.trunk not in ("", *manifest.trunks):
            reject(entries.path, f"'{LOCAL}' reads a foundation model that no member reads")
    return models


def _read_trunks(entries: SafeZip, manifest: Manifest) -> dict[str, PackedTrunk]:
    """Read the foundation models; ``unpack_trunk`` checks what they hold."""
    packed = {}
    for name in manifest.trunks:
        about, weights = trunk_files(name)
        try:
            record = json.loads(entries.read(about))
            tensors = load_tensors(entries.read(weights))
        except (*_UNSOUND, RecursionError) as error:
            reject(
                entries.path, f"'{about}' or its weights cannot be used ({str(error)[:200]})", error
            )
        if not isinstance(record, dict) or find_unprintable(record) is not None:
            reject(entries.path, f"'{about}' is no record of a foundation model")
        packed[name] = PackedTrunk(record, tensors)
    return packed


def _read_local_members(entries: SafeZip, manifest: Manifest) -> tuple[LocalModels, ...]:
    """Read the regressions on local descriptors that are members of heads."""
    shares = {name: head.local for name, head in manifest.heads.items() if head.local is not None}
    if not shares:
        return ()
    count = max(len(share.elements) for share in shares.values())
    models = _read_arrays(entries, LOCAL_MEMBERS, unstack_models)
    if models is None:
        reject(entries.path, f"lacks '{LOCAL_MEMBERS}'")
    for one in models:
        _check_local(entries.path, LOCAL_MEMBERS, one, manifest)
    read = {(name, one.find_trunk(name)) for one in models for name in one.heads}
    if len(models) != count or read != {(name, share.trunk) for name, share in shares.items()}:
        reject(entries.path, f"'{LOCAL_MEMBERS}' is about other heads than '{MANIFEST}'")
    return models


def _read_arrays(
    entries: SafeZip, name: str, parse: Callable[[dict[str, np.ndarray]], T]
) -> T | None:
    """Read an entry of arrays, None if it is missing; reject the file if they are not sound."""
    if name not in entries.sizes:
        return None
    data = entries.read(name)
    try:
        return parse(load_arrays(data))
    except _UNSOUND as error:
        reject(entries.path, f"'{name}' cannot be used ({str(error)[:200]})", error)


def _check_local(path: Path, entry: str, models: LocalModels, manifest: Manifest) -> None:
    """Reject regressions on local descriptors that do not fit the heads of the manifest."""
    for name, parts in models.heads.items():
        head = manifest.heads.get(name)
        wanted = None if head is None else (FORMS[head.shape], head.level == "node", head.width)
        part = parts[0]
        if (forms_of(parts), part.pool == "none", part.width) != wanted:
            reject(path, f"'{entry}' predicts {quote(name)}, which is no such head")
    trunk = models.basis.trunk
    if trunk in manifest.trunks and len(models.basis.mean) != manifest.trunk_spec(trunk).count:
        reject(path, f"'{entry}' reads other features than '{trunk}' has")
    if models.basis.cutoff > manifest.cutoff:
        reject(path, f"'{entry}' has a longer cutoff than all members")
