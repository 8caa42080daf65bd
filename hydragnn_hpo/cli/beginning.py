"""The work behind ``init``: a look, a card, a scope that fits the time, a campaign."""

import contextlib
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.beginning.budget import fitting_scope
from hydragnn_hpo.campaign.beginning.scope import Scope
from hydragnn_hpo.campaign.beginning.starter import Known, able_convs, heads_of, starter
from hydragnn_hpo.campaign.forecast import Forecast, ForecastMachine
from hydragnn_hpo.cli.estimate_stats import estimate_stats, scale_stats
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import load, parse
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.data.look.card import card_text
from hydragnn_hpo.data.look.look import Look, look
from hydragnn_hpo.data.look.units import UNKNOWN
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.launching.host.slots import detect_slots
from hydragnn_hpo.shipped import find, shipped

MINUTES = 10.0
"""For the campaign of a data file."""


@dataclass(frozen=True)
class Wish:
    """What a person asked for."""

    convs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    minutes: float | None = None


@dataclass(frozen=True)
class Made:
    """Two files, and what they are from."""

    seen: Look
    card: Path
    card_text: str
    campaign: Path
    campaign_text: str
    heads: tuple[str, ...]
    scope: Scope
    seconds: float
    """What the search takes by the simulation."""
    minutes: float
    """What it may take."""


def is_card(arguments: Sequence[str]) -> bool:
    """Tell whether a card is meant: a TOML file, or the name of a shipped one."""
    if len(arguments) != 1 or Path(arguments[0]).exists():
        return len(arguments) == 1 and Path(arguments[0]).suffix.lower() == ".toml"
    path = Path(arguments[0])
    known = {entry.stem for entry in shipped("graph_datasets").glob("*.toml")}
    return path.suffix == ".toml" or arguments[0] in known or path.parts[:1] == ("graph_datasets",)


def units_of(said: Sequence[str]) -> dict[str, str]:
    """Read units as a person gives them, ``NAME=UNIT``.

    Raises:
        ConfigError: one is not of this form.
    """
    found = {}
    for each in said:
        name, sign, unit = each.rpartition("=")
        if not sign or not name or not unit:
            raise ConfigError(f"--unit {each}: is not of the form NAME=UNIT, as energy=Hartree.")
        found[name.strip()] = unit.strip()
    return found


def of_card(named: str, wish: Wish) -> tuple[str, Forecast | None]:
    """Write a campaign for a card; with a time it fits into that."""
    path = find(named, "graph_datasets")
    given = str(Path(named).resolve()) if Path(named).is_file() else named
    card = load(path, CardConfig)
    if wish.minutes is None:
        return starter(card, given, wish.convs, wish.targets), None
    stats = estimate_stats(path, [Path(f"{card.name}.bp")], None).stats
    return _timed(card, given, stats, wish, Known())[:2]


def of_files(paths: Sequence[Path], wish: Wish, units: Mapping[str, str], folder: Path) -> Made:
    """Look at data and write card and campaign, as text.

    Raises:
        ConfigError: what was asked for makes no sense, or the files are there already.
        DataError: the data cannot be read, or hold nothing to learn.
    """
    if folder.suffix.lower() == ".toml":
        raise ConfigError(f"--out {folder}: data files get a card and a campaign: name a folder.")
    with _patience("reading structures"):
        seen = look(paths, units)
    card_path, campaign_path = folder / f"{seen.name}.toml", folder / f"{seen.name}_search.toml"
    for path in (card_path, campaign_path):
        _is_free(path)
    text = card_text(seen, folder)
    card = _card_of(text, card_path)
    known = _known(seen)
    _check_targets(seen, wish)
    stats = scale_stats(seen.surroundings.stats, seen.sample.total, card)
    minutes = wish.minutes or MINUTES
    timed = Wish(wish.convs, wish.targets, minutes)
    with _patience("pricing trials"):
        campaign, forecast, scope = _timed(card, card_path.name, stats, timed, known)
    return Made(
        *(seen, card_path, text, campaign_path, campaign),
        heads=heads_of(card, wish.targets, known),
        scope=scope,
        seconds=forecast.simulated.makespan,
        minutes=minutes,
    )


def write(texts: Mapping[Path, str]) -> None:
    """Write all files or none; none that is there already.

    Raises:
        ConfigError: one is there.
        StorageError: one cannot be written.
    """
    for path in texts:
        _is_free(path)
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


def _is_free(path: Path) -> None:
    if path.exists():
        raise ConfigError(
            f"{path}: is there already; remove it, or choose another place with --out."
        )


def _card_of(text: str, path: Path) -> CardConfig:
    """Read our own card; a unit that only the user knows does not keep us from pricing."""
    values: dict[str, Any] = tomllib.loads(text)
    for target in values["targets"].values():
        target["unit"] = "eV" if target["unit"] == UNKNOWN else target["unit"]
    return parse(values, CardConfig, where=str(path))


def _known(seen: Look) -> Known:
    targets = seen.judged.targets
    reasons = {t.name: t.why[-1] if t.why else "left to you" for t in targets if not t.head}
    return Known(frozenset(t.name for t in targets if t.extensive), reasons)


def _check_targets(seen: Look, wish: Wish) -> None:
    names = [target.name for target in seen.judged.targets]
    for name in wish.targets:
        if name not in names:
            raise ConfigError(unknown("target", name, names))


def _timed(
    card: CardConfig, named: str, stats: Mapping[str, Any], wish: Wish, known: Known
) -> tuple[str, Forecast, Scope]:
    """Write a campaign that fits into a time on this machine."""
    able = able_convs(card, heads_of(card, wish.targets, known), wish.convs)

    def text_of(scope: Scope) -> str:
        return starter(card, named, wish.convs, wish.targets, scope=scope, known=known)

    def made(scope: Scope) -> CampaignConfig:
        return parse(tomllib.loads(text_of(scope)), CampaignConfig, where="first campaign")

    machine = ForecastMachine(find_profile(None), 1, len(detect_slots()))
    seconds = 60.0 * (wish.minutes or MINUTES)
    scope, forecast = fitting_scope(made, machine, stats, able, seconds)
    return text_of(scope), forecast, scope


@contextlib.contextmanager
def _patience(what: str) -> Iterator[None]:
    """Show on a terminal that something is being done."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.console import Console

    with Console().status(what):
        yield
