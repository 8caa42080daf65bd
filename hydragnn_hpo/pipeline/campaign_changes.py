"""A campaign file with changes: settings from a command line, and a search that fits a time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from hydragnn_hpo.campaign.setup import settle
from hydragnn_hpo.config import (
    CampaignConfig,
    load_config,
    parse_config,
    parse_toml,
    read_toml,
    resolve_machine,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import Slot, detect_slots, find_backend, layout_of, site_of
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline.estimate_stats import data_of_campaign
from hydragnn_hpo.pipeline.feature_prices import price_features
from hydragnn_hpo.pipeline.machine_speed import count_seconds, explain_late, measure_machine
from hydragnn_hpo.planning import SearchBudget, fit_budget
from hydragnn_hpo.sanitize import escape_line

Changes = Mapping[str, JsonValue]
"""Values in place of a campaign file's, table by table."""

SIZES = {"search": ("trials", "initial", "rungs", "finalists"), "ensemble": ("members",)}
"""Keys of each table that say how much a campaign searches, and that a time decides."""

NOT_SIZED = (
    "--minutes sizes a search of one data set on this computer: set its size with --trials, and "
    "see 'hydragnn-hpo plan'."
)


def load_campaign(
    source: Path, changes: Changes | None = None, /, **machine: str | int | None
) -> CampaignConfig:
    """Read a campaign, with changes.

    Args:
        source: its file.
        changes: values in place of the file's; a table changes those of its keys that it has.
        machine: keys of ``[machine]``; None keeps the file's value.

    Raises:
        ConfigError: the file or a change is wrong.
    """
    values = merge_tables(read_toml(source), changes or {})
    where = str(source)
    where += f", changed in {', '.join(changes)}" if changes else ""
    config = settle(parse_config(values, CampaignConfig, where=where), source)
    resolved = resolve_machine(config.machine, machine, source.parent)
    return config.model_copy(update={"machine": resolved})


def merge_tables(values: Changes, changes: Changes) -> dict[str, JsonValue]:
    """Return values with changes, table by table.

    Returns:
        New tables.
    """
    merged = dict(values)
    for key, change in changes.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(change, dict):
            merged[key] = merge_tables(before, change)
        else:
            merged[key] = change
    return merged


def parse_settings(
    options: Sequence[str], trials: int | None = None, seed: int | None = None
) -> dict[str, JsonValue]:
    """Parse settings of the form ``KEY=VALUE``: a dotted key, and a value of TOML or a bare word.

    Args:
        options: the settings.
        trials: number of trials; None for no change.
        seed: seed of the campaign; None for no change.

    Returns:
        Nested tables, as a campaign file gives them.

    Raises:
        ConfigError: one is not of this form, or a key is given twice.
    """
    short = {"search.trials": trials, "seed": seed}
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
    settings: dict[str, JsonValue] = {}
    keys: set[str] = set()
    for option in (*options, *given):
        key, sign, text = (part.strip() for part in option.partition("="))
        path = _parse_path(key)
        value = _parse_value(text)
        if not sign or not path or value is None or not option.isprintable():
            raise ConfigError(
                f"--set {escape_line(option)}: write it as KEY=VALUE, such as search.brain=random "
                "or search.rungs=[4,16]."
            )
        if key in keys:
            raise ConfigError(f"'{key}' is given twice: leave one of the options out.")
        keys.add(key)
        for part in reversed(path):
            value = {part: value}
        settings = merge_tables(settings, value if isinstance(value, dict) else {})
    return settings


def _parse_path(key: str) -> tuple[str, ...]:
    """Return the parts of a dotted key, some of which may be quoted; none if it is no key."""
    try:
        tables = parse_toml(f"{key} = 0")
    except ValueError:  # what tomllib raises is one, too
        return ()
    path = []
    while isinstance(tables, dict) and len(tables) == 1:
        ((part, tables),) = tables.items()
        path.append(part)
    return tuple(path)


def _parse_value(text: str) -> JsonValue:
    """Return a value as TOML has it; a bare word is a text, and None stands for neither."""
    try:
        (value,) = parse_toml(f"value = {text}").values()
        return value  # type: ignore[no-any-return]
    except ValueError:
        return text if text and all(c.isalnum() or c in "_-./:+" for c in text) else None


def fit_to_time(
    source: Path,
    changes: Changes,
    minutes: float,
    run: RunDir | None = None,
    **machine: str | int | None,
) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Size the search of a campaign for a time on this computer, by the rule of ``init``.

    A run that exists keeps its sizes, so that the same command goes on with it.

    Args:
        source: the campaign file.
        changes: other changes.
        minutes: time for the whole campaign.
        run: its run directory; ``runs/NAME`` if left out.
        machine: as for ``load_campaign``.

    Returns:
        All changes, those of ``SIZES`` too, and sentences that say why so much is searched.

    Raises:
        ConfigError: a size is given, too, or the campaign cannot be priced for this computer.
    """
    _check_sizes_free(changes)
    config = load_campaign(source, changes, **machine)
    if not find_backend(config.machine.backend).tethered or len(config.data) != 1:
        raise ConfigError(f"{source}: {NOT_SIZED}")
    run = run or RunDir(Path("runs") / config.name)
    if run.campaign.exists():
        kept = f"{run.path}: keeps the size that it began with."
        return merge_tables(changes, _read_sizes(run)), (kept,)

    def make(budget: SearchBudget) -> CampaignConfig:
        return load_campaign(source, merge_tables(changes, sizes_of(budget)), **machine)

    data = data_of_campaign(config, source, run, None)
    assert data.stats is not None  # only a campaign whose trials are a command has none
    first = sum(price.seconds for price in price_features(config, data, here=True))
    seconds = 60.0 * minutes - min(first, 30.0 * minutes)
    here, slowness = measure_machine(_find_slots(config))
    budget, forecast = fit_budget(make, here, data.stats, (), seconds)
    late = explain_late(count_seconds(forecast) + first, minutes)
    why = (*budget.why, *slowness, *((late,) if late else ()))
    return merge_tables(changes, sizes_of(budget)), why


def _find_slots(config: CampaignConfig) -> tuple[Slot, ...]:
    """Return the slots of this computer that a campaign uses."""
    machine = config.machine
    layout = layout_of(site_of(config.machine))
    return detect_slots(machine.slots, lanes=machine.lanes, layout=layout)


def _check_sizes_free(changes: Changes) -> None:
    """Check that no size that a time decides is given.

    Raises:
        ConfigError: one is.
    """
    for table, keys in SIZES.items():
        given = changes.get(table)
        for key in keys:
            if isinstance(given, dict) and key in given:
                raise ConfigError(
                    f"--minutes chooses {table}.{key}, which is given, too: leave one of them out."
                )


def _read_sizes(run: RunDir) -> dict[str, JsonValue]:
    """Return what ``sizes_of`` returned when a run began."""
    before = load_config(run.campaign, CampaignConfig).model_dump(mode="json")
    sizes = {table: {key: before[table][key] for key in keys} for table, keys in SIZES.items()}
    steps = before["trial"].get("training", {}).get("steps_per_epoch")
    return {**sizes, "trial": {"training": {"steps_per_epoch": steps}}} if steps else {**sizes}


def sizes_of(budget: SearchBudget) -> dict[str, JsonValue]:
    """Return how much a budget searches, as values of a campaign file.

    Returns:
        Tables with the keys of ``SIZES``, and the steps of an epoch where the budget has them.
    """
    search: dict[str, JsonValue] = {
        "trials": budget.trials,
        "initial": budget.initial,
        "rungs": [*budget.rungs],
        "finalists": budget.finalists,
    }
    sizes: dict[str, JsonValue] = {"search": search, "ensemble": {"members": budget.members}}
    if budget.steps is not None:
        sizes["trial"] = {"training": {"steps_per_epoch": budget.steps}}
    return sizes
