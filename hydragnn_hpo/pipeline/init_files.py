"""The work of ``init``: inspect data, write a card and a campaign that fits the time, explain them.

Nothing is printed here: the command line and notebooks show what ``InitResult`` holds.
"""

import contextlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import (
    TRUNKS,
    CampaignConfig,
    CardConfig,
    find_unseen,
    load_config,
    parse_config,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.inspection import UNKNOWN, inspect_files
from hydragnn_hpo.inspection.file_inspection import Inspection, describe_periodicity
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.pipeline.estimate_stats import estimate_stats, scale_stats
from hydragnn_hpo.pipeline.feature_prices import (
    Structure,
    measure_prices,
    price_trunk,
    read_structures,
)
from hydragnn_hpo.pipeline.init_templates import (
    HeadHints,
    choose_convs,
    choose_heads,
    count_structures,
    describe_geometry,
    name_weight,
    render_campaign,
    render_card,
)
from hydragnn_hpo.pipeline.machine_speed import count_seconds, explain_late, measure_machine
from hydragnn_hpo.planning import FeaturesPrice, Forecast, SearchBudget, fit_budget
from hydragnn_hpo.resources import find_resource, resource_path
from hydragnn_hpo.sanitize import escape_line

MINUTES = 10.0
"""Default time for the campaign of a data file."""

Activity = Callable[[str], contextlib.AbstractContextManager[object]]
"""Shows, while its ``with`` block runs, what is being done."""


@dataclass(frozen=True)
class InitRequest:
    """Restrictions of the search that the user gave; empty ones restrict nothing."""

    convs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    minutes: float | None = None
    trunks: bool = True
    """Whether the search may begin from features of foundation models."""
    weight: str = ""
    """Property of the data files, or attribute of the card, that weighs structures in training."""


@dataclass(frozen=True)
class InitResult:
    """A card and a campaign, and what they are made from."""

    inspection: Inspection
    card: Path
    card_text: str
    campaign: Path
    campaign_text: str
    heads: tuple[str, ...]
    budget: SearchBudget
    seconds: float
    """Predicted time of the whole campaign."""
    minutes: float
    """Time that it may take."""


def is_card(arguments: Sequence[str]) -> bool:
    """Check whether the arguments name a card: a TOML file, or a shipped one."""
    if len(arguments) != 1:
        return False
    path = Path(arguments[0])
    if path.exists():
        return path.suffix.lower() == ".toml"
    known = {entry.stem for entry in resource_path("graph_datasets").glob("*.toml")}
    return path.suffix == ".toml" or arguments[0] in known or path.parts[:1] == ("graph_datasets",)


def parse_units(options: Sequence[str]) -> dict[str, str]:
    """Parse units of the form ``NAME=UNIT``.

    Returns:
        Unit by name of a property in the data file.

    Raises:
        ConfigError: one is not of this form.
    """
    units = {}
    for option in options:
        name, sign, unit = option.rpartition("=")
        if not sign or not name or not unit:
            raise ConfigError(f"--unit {option}: write it as NAME=UNIT, such as energy=Hartree.")
        units[name.strip()] = unit.strip()
    return units


def init_from_card(name: str, request: InitRequest) -> str:
    """Render a campaign for a card; with a time it fits into that."""
    path = find_resource(name, "graph_datasets")
    card_path = str(Path(name).resolve()) if Path(name).is_file() else name
    card = load_config(path, CardConfig)
    if request.weight and request.weight not in card.attributes:
        raise ConfigError(
            f"--weight-column {escape_line(request.weight)}: is no attribute of {name}; name one: "
            f"{', '.join(card.attributes) or 'there is none, add it to the card'}."
        )
    hints = HeadHints(weight=request.weight)
    if request.minutes is None:
        return render_campaign(card, card_path, request.convs, request.targets, hints=hints)
    known = estimate_stats(path, [Path(f"{card.name}.bp")], None)
    hints = replace(hints, needs_rounds=not known.crystals)
    hints = _propose_trunks(hints, card, known.stats, request, read_structures([path]))
    return _fit_campaign(card, card_path, known.stats, request, hints)[0]


def init_from_files(
    paths: Sequence[Path],
    request: InitRequest,
    units: Mapping[str, str],
    folder: Path,
    activity: Activity = contextlib.nullcontext,
) -> InitResult:
    """Inspect data, and render a card and a campaign.

    Args:
        paths: of data files or folders.
        request: what the user wants searched.
        units: unit by property, as given by the user.
        folder: folder of the new card and campaign.
        activity: shows what is being done; nothing is shown if left out.

    Raises:
        ConfigError: an option makes no sense, or the files exist.
        DataError: the data cannot be read, or hold nothing to learn.
    """
    if folder.suffix.lower() == ".toml":
        raise ConfigError(f"--out {folder}: data files get a card and a campaign: name a folder.")
    with activity("reading structures"):
        inspection = inspect_files(paths, units, request.targets, request.weight)
    places = [folder / f"{inspection.name}{end}.toml" for end in ("", "_search")]
    card_path, campaign_path = places
    text = render_card(inspection, folder)
    check_free({card_path: text, campaign_path: ""})
    card = _parse_card(text, card_path, inspection)
    hints = _make_hints(inspection)
    heads = choose_heads(card, request.targets, hints)
    usable = _count_usable(inspection)
    sizes = inspection.geometry.stats
    stats = scale_stats(sizes, usable, card, inspection.split.test_share)
    minutes = request.minutes or MINUTES
    crystals = inspection.geometry.periodic == describe_periodicity([3])
    hints = replace(hints, needs_rounds=not crystals)
    with activity("pricing foundation models"):
        hints = _propose_trunks(hints, card, stats, request, inspection.sample.structures)
    with activity("pricing trials"):
        campaign, forecast, budget = _fit_campaign(card, card_path.name, stats, request, hints)
    seconds = count_seconds(forecast)
    return InitResult(
        inspection, card_path, text, campaign_path, campaign, heads, budget, seconds, minutes
    )


def write_files(texts: Mapping[Path, str]) -> None:
    """Write all files or none; overwrite none but what a killed process left of the same files.

    Raises:
        ConfigError: one exists, see ``check_free``.
        StorageError: one cannot be written.
    """
    check_free(texts)
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with storage(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def check_free(texts: Mapping[Path, str]) -> None:
    """Check that files can be written without loss.

    A process that is killed leaves the first of its files without the last one. The same command
    then goes on: these files may be there if they hold just what is to be written.

    Args:
        texts: content by path, in the order of writing.

    Raises:
        ConfigError: the last file exists, or another one with other content.
    """
    last = list(texts)[-1]
    for path, text in texts.items():
        if path.exists() and (path == last or not _holds(path, text)):
            raise ConfigError(
                f"{path}: is there already; remove it, or choose another place with --out."
            )


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _parse_card(text: str, path: Path, inspection: Inspection) -> CardConfig:
    """Parse the rendered card, for the prices with any unit where only the user knows it.

    Args:
        text: the card.
        path: its file.
        inspection: what it was rendered from.
    """
    values: dict[str, Any] = tomllib.loads(text)
    for target in inspection.proposals.targets:
        if target.unit.name == UNKNOWN:
            values["targets"][target.name]["unit"] = target.unit.choices[0]
    return parse_config(values, CardConfig, where=str(path))


def _count_usable(inspection: Inspection) -> int:
    """Return the number of structures that the store will hold, estimated from those read."""
    sample = inspection.sample
    usable = len(sample.structures) - len(inspection.set_aside)
    return max(usable, round(sample.total * usable / (len(sample.structures) + sample.bad)))


def _make_hints(inspection: Inspection) -> HeadHints:
    targets = inspection.proposals.targets
    return HeadHints(
        {t.name: t.why[-1] if t.why else "left to you" for t in targets if not t.head},
        frozenset(t.name for t in targets if t.heavy_tailed),
        weight=name_weight(inspection),
    )


MOST_FOR_FEATURES = 0.3
"""Share of a campaign's time up to which features of a foundation model are computed for it."""

MOST_FOR_MORE_FEATURES = 0.1
"""The same for each further foundation model, as it divides the search."""


def _propose_trunks(
    hints: HeadHints,
    card: CardConfig,
    stats: StoreStats,
    request: InitRequest,
    structures: Iterable[Structure],
) -> HeadHints:
    """Add foundation models that know the elements and do not take too much time.

    Forces are derivatives by positions, which features do not have.

    Args:
        hints: knowledge of the targets.
        card: the data set.
        stats: of the data.
        request: what the user wants searched.
        structures: those that were read, to measure the time.
    """
    heads = choose_heads(card, request.targets, hints)
    if not request.trunks or any(card.targets[name].derived_from for name in heads):
        return hints
    specs = {n: spec for n, spec in TRUNKS.items() if not find_unseen(spec, stats["elements"])}
    measured = measure_prices({name: name for name in specs}, structures)
    limit = 60.0 * (request.minutes or MINUTES)
    able: dict[str, FeaturesPrice] = {}
    for name, spec in specs.items():
        share = MOST_FOR_MORE_FEATURES if able else MOST_FOR_FEATURES
        price = price_trunk(spec, stats, measured.get(name))
        if price.seconds <= share * limit:
            able[name] = price
    return replace(hints, trunks=tuple(able), prices=tuple(able.values()))


def _fit_campaign(
    card: CardConfig,
    card_path: str,
    stats: StoreStats,
    request: InitRequest,
    hints: HeadHints,
) -> tuple[str, Forecast, SearchBudget]:
    """Render a campaign that fits into a time on this machine."""
    able = choose_convs(card, choose_heads(card, request.targets, hints), request.convs)

    def render(budget: SearchBudget) -> str:
        return render_campaign(
            card, card_path, request.convs, request.targets, budget=budget, hints=hints
        )

    def make(budget: SearchBudget) -> CampaignConfig:
        return parse_config(tomllib.loads(render(budget)), CampaignConfig, where="first campaign")

    machine, slowness = measure_machine(detect_slots())
    first = sum(price.seconds for price in hints.prices)
    seconds = 60.0 * (request.minutes or MINUTES) - first
    budget, forecast = fit_budget(make, machine, stats, able, seconds)
    budget = replace(budget, why=(*budget.why, *slowness))
    if hints.prices:
        models = " and ".join(
            f"{title} (about {seconds:.0f} s, {origin}; {size / 1e6:,.3g} MB on disk)"
            for title, seconds, size, origin in hints.prices
        )
        why = f"Features of {models} are computed once: few labels teach more on top of them."
        budget = replace(budget, why=(*budget.why, why))
        if hints.may_lack_rounds:
            budget = replace(budget, layers=(0, min(budget.layers[1], 3)))
    return render(budget), forecast, budget


def describe_data(inspection: Inspection) -> Iterator[str]:
    """Yield what the files hold: structures, sizes, elements, neighbours."""
    geometry = inspection.geometry
    more = f" and {len(inspection.files) - 1} more" if len(inspection.files) > 1 else ""
    yield f"{inspection.files[0].path}{more}: {count_structures(inspection)}"
    near = f"{geometry.degree:.0f} neighbours within {geometry.cutoff:g} angstrom"
    yield f"{describe_geometry(inspection)}; {near}"
    yield from inspection.findings


def describe_split(inspection: Inspection) -> Iterator[str]:
    """Yield how structures are split, and why properties are no targets."""
    split = inspection.split
    yield f"split: {'; '.join(filter(None, (split.published_why, split.why)))}"
    for name, why in inspection.proposals.left_out:
        yield f"left out: {escape_line(name)[:60]} {why}"


def explain_units(result: InitResult) -> Iterator[str]:
    """Yield which units were guessed or are not known, and how to correct them."""
    targets = result.inspection.proposals.targets
    heads = {*result.heads} | {t.config.derived_from for t in targets if t.name in result.heads}
    guessed = [t for t in targets if t.unit.sure == "guessed" and t.name in heads]
    if guessed:
        listed = ", ".join(f"{target.name} in {target.unit.name}" for target in guessed)
        yield (
            f"UNITS GUESSED: {listed}. If one is wrong, correct {result.card.name}, or remove both "
            f"files and give --unit '{escape_line(guessed[0].key)}=UNIT'; if it is right, remove "
            "unit_guessed there: until then every number says 'guessed'."
        )
    without_unit = [target for target in targets if target.unit.name == UNKNOWN]
    bare = [t.name for t in targets if t.unit.sure == "unknown" and t.unit.name != UNKNOWN]
    if bare:
        yield f"No unit is known for {', '.join(bare)}: numbers stay as in the file."
    for target in without_unit:
        choices = ", ".join(target.unit.choices)
        yield (
            f"STOP: the unit of {target.name} is not known, and what comes out would be wrong by "
            f"it ({target.unit.why}). It is one of {choices}."
        )
    if without_unit:
        yield (
            f'Write them in {result.card} in place of "?", then: hydragnn-hpo run {result.campaign}'
        )


def describe_search(result: InitResult) -> Iterator[str]:
    """Yield what is searched, why so much, and a warning if that does not fit the time."""
    budget = result.budget
    yield (
        f"search: {budget.trials} trials of {', '.join(budget.convs or ())}; "
        f"{min(budget.features)} to {max(budget.features)} features, {budget.layers[0]} to "
        f"{budget.layers[1]} layers; {budget.rungs[0]} epochs, the best {budget.rungs[-1]}; an "
        f"ensemble of {budget.members}"
    )
    yield from budget.why
    if late := explain_late(result.seconds, result.minutes):
        yield late
