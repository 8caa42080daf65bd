"""A first look at files: how they are read, what they hold, and what a card should say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn_hpo.data.look.files import Opened, Stray, opened, plain
from hydragnn_hpo.data.look.grouping import FEWEST, Grouping, grouping
from hydragnn_hpo.data.look.kinds import slug, useless
from hydragnn_hpo.data.look.properties import Found, properties_of
from hydragnn_hpo.data.look.sample import Sample, sampled
from hydragnn_hpo.data.look.surroundings import Surroundings, surroundings_of
from hydragnn_hpo.data.look.targets import Judged, judged
from hydragnn_hpo.errors import ConfigError, DataError, unknown

FEW = 100
"""Structures below which nobody should believe a model."""

_IDS = ("material_id", "mp_id", "structure_id", "uid", "identifier", "jid", "id", "name")


@dataclass(frozen=True)
class Look:
    """What is known of a data set that nobody has described."""

    name: str
    files: tuple[Opened, ...]
    sample: Sample
    surroundings: Surroundings
    split: Grouping
    judged: Judged
    id_key: str | None
    warnings: tuple[str, ...]


def look(paths: Sequence[Path], units: Mapping[str, str] | None = None) -> Look:
    """Look at files or folders.

    Args:
        paths: they make one data set.
        units: of properties by their names in the file, as a person says.

    Raises:
        ConfigError: what was asked for makes no sense.
        DataError: they cannot be read, or hold nothing that can be learned.
    """
    files, strays = opened(paths)
    sample = sampled(files)
    strays += sample.strays
    files = tuple(one for one in files if one.path not in {path for path, _ in strays})
    _enough(paths[0], sample)
    found = properties_of(sample.structures)
    _known(units or {}, found)
    _filled(files, found)
    made = _judged(files, sample, found, units or {})
    _learnable(paths[0], made, found, files)
    around = surroundings_of(sample.structures, sample.names)
    everywhere = {k for k, n in found.text_counts.items() if n == len(sample.structures)}
    split = grouping(
        sample.total, len(sample.structures), around.compositions, found.texts, everywhere
    )
    id_key = _id_key(found, sample)
    told = {id_key, split.published, *(name for name, _ in made.left_out), *found.numbers}
    texts = [(name, "is text, a head predicts numbers") for name in found.texts if name not in told]
    warnings = [*_strays(strays), *_warnings(sample, around), *made.warnings]
    return Look(
        slug(_stem(paths), "data"),
        files,
        sample,
        around,
        split,
        replace(made, left_out=(*made.left_out, *texts)),
        id_key,
        (*warnings, *([split.warning] if split.warning else [])),
    )


def _enough(path: Path, sample: Sample) -> None:
    """Refuse what is too little for five splits."""
    if sample.exact and sample.total - sample.bad < FEWEST:
        raise DataError(
            f"{path}: holds {len(sample.structures)} usable structures; five splits need at "
            f"least {FEWEST}, a model worth believing {FEW} or more: add structures."
        )


def _learnable(path: Path, made: Judged, found: Found, files: Sequence[Opened]) -> None:
    """Refuse what has no target that varies."""
    if all(found.numbers[target.key].constant for target in made.targets):
        raise DataError(_no_target(path, made, found, files))


def _filled(files: Sequence[Opened], found: Found) -> None:
    """Refuse columns that have neither a name nor a number: a card could not leave them out."""
    for one in files:
        for key in one.keys:
            if key not in found.numbers or not found.numbers[key].known.any():
                raise DataError(
                    f"{one.path}: '{key}', a column without a name, holds no number: remove it, or "
                    "write a header that names the columns."
                )


def _judged(
    files: Sequence[Opened], sample: Sample, found: Found, units: Mapping[str, str]
) -> Judged:
    kinds = {one.name for one in files}
    return judged(
        sample.structures,
        found,
        reader=kinds.pop() if len(kinds) == 1 else "several",
        units=units,
        forced=[key for one in files for key in one.keys],
    )


def _stem(paths: Sequence[Path]) -> str:
    """Name a data set after its file, or the folder of its files."""
    path = paths[0].resolve()
    return path.name.split(".")[0] if len(paths) == 1 else path.parent.name


def _known(units: Mapping[str, str], found: Found) -> None:
    for name in units:
        if name not in found.numbers:
            raise ConfigError(f"--unit: {unknown('property', name, found.numbers)}")


def _no_target(path: Path, made: Judged, found: Found, files: Sequence[Opened]) -> str:
    """Say that there is nothing to learn."""
    forced = [(target.key, useless(found.numbers[target.key])) for target in made.targets]
    texts = [(name, "is text") for name in found.texts if name not in found.numbers]
    left = [*forced, *made.left_out, *texts]
    listed = "; ".join(f"{plain(name)[:60]} {why}" for name, why in left[:6])
    said = f"what there is: {listed}" if listed else "there are atoms and cells only"
    if len(files) > 1 and not listed:
        said += ", put an id_prop.csv beside the files (file name, value)"
    return (
        f"{path}: has no property that could be learned ({said}); add energies, gaps or what else "
        "is to be predicted."
    )


def _id_key(found: Found, sample: Sample) -> str | None:
    """Find what names structures: a text that all have and that no two share."""
    count = len(sample.structures)
    for key in _IDS:
        if found.text_counts.get(key) != count:
            continue
        values = [str(atoms.info.get(key, "")) for atoms in sample.structures]
        if len(set(values)) == count and all(values):
            return key
    return None


def _strays(strays: Sequence[Stray]) -> list[str]:
    """Say which files of a folder are no part of the data."""
    if not strays:
        return []
    path, reason = strays[0]
    if len(strays) == 1:
        return [f"{path.name} is left out, it holds no structure that could be read: {reason}"]
    return [
        f"{len(strays)} files are left out, they hold no structure that could be read, as "
        f"{path.name}: {reason}"
    ]


def _warnings(sample: Sample, around: Surroundings) -> list[str]:
    found = list(around.warnings)
    if sample.torn is not None:
        found.append(f"the file cannot be read to its end: {sample.torn}")
    tried = len(sample.structures) + sample.bad
    if sample.bad:
        found.append(
            f"{sample.bad} of {tried} structures cannot be read, as: {sample.reasons[0]} Up to "
            "1 % are set aside by themselves."
        )
    if around.bad:
        found.append(
            f"{len(around.bad)} of {around.tried} structures cannot become graphs, as: "
            f"{around.bad[0]} Up to 1 % are set aside by themselves."
        )
    if around.twins > 0.02 * len(sample.structures):
        found.append(
            f"{around.twins} of {len(sample.structures)} structures stand there twice; "
            "'dataset check' finds all."
        )
    if sample.exact and sample.total < FEW:
        found.append(f"{sample.total} structures are few: errors will be large and uncertain.")
    return found
