"""Open a run directory for a campaign, and refuse a bad one before anything starts."""

import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

from hydragnn_hpo import __version__
from hydragnn_hpo.config import (
    STORE_VERSION,
    CampaignConfig,
    CardConfig,
    Scalar,
    TrialConfig,
    TrialHeads,
    compute_epoch_size,
    dump_config,
    fill_arguments,
    load_config,
    parse_config,
)
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.file_records import StoreStats, TargetStats
from hydragnn_hpo.files import PART, read_json, remove, remove_partial_files, storage, write_text
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import RunDir, derive_seed
from hydragnn_hpo.resources import find_resource
from hydragnn_hpo.search import (
    PARTS,
    Constraint,
    apply_values,
    check_feasible_share,
    check_objective,
    check_space,
    complete_configuration,
    read_constraints,
)

MAY_CHANGE = ("machine",)
"""Parts of a campaign that may differ when it goes on: they never change a result. So may
``ensemble.reseed``, which adds trials after the last."""


def open_run(config: CampaignConfig, path: Path) -> RunDir:
    """Make or reopen the directory of a campaign, mode 0700; several may do so at the same time.

    Raises:
        RunError: the directory holds another campaign, or something else.
    """
    run = RunDir(path)
    if run.campaign.exists():
        _same_campaign(config, run)
        return run
    if path.exists() and (not path.is_dir() or any(_foreign(run, p) for p in path.iterdir())):
        raise RunError(
            f"{path}: is not empty and holds no campaign; choose another directory with --run."
        )
    with storage(path):
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_text(run.campaign, dump_config(config))
    return run


def _foreign(run: RunDir, path: Path) -> bool:
    """Check whether a file is foreign: not one that a process opening this run writes."""
    return path not in (run.excluded, run.campaign) and not path.name.endswith(PART)


def tidy(run: RunDir, *, trials_may_live: bool) -> None:
    """Remove what a killed process left unfinished.

    Args:
        run: the run directory.
        trials_may_live: whether trials may still be writing in their folders; they tidy them up
            themselves when they start.
    """
    if not trials_may_live:
        remove_partial_files(run.path)
        return
    for path in run.path.iterdir():
        if path.name.startswith(".") and path.name.endswith(PART):
            remove(path)
        elif path.is_dir() and path not in (run.trials, run.jobs):
            remove_partial_files(path)


def _same_campaign(config: CampaignConfig, run: RunDir) -> None:
    there = load_config(run.campaign, CampaignConfig).model_dump(mode="json")
    ours = config.model_dump(mode="json")
    for part in MAY_CHANGE:
        there.pop(part), ours.pop(part)
    there["ensemble"].pop("reseed"), ours["ensemble"].pop("reseed")
    for entry in (*there["data"], *ours["data"]):  # a campaign may move together with its cards
        entry["card"] = Path(entry["card"]).name
    difference = next(_differences(there, ours, ()), None)
    if difference:
        key, old, new = difference
        raise RunError(
            f"{run.path}: holds campaign '{there['name']}' with {key} = {old!r}, asked was "
            f"{new!r}; choose another directory with --run, or undo the change."
        )


def check_stores(run: RunDir, names: Iterable[str]) -> None:
    """Check that this program reads the stores that the run directory holds already.

    Args:
        run: the run directory.
        names: of the cards, and so of the stores.

    Raises:
        RunError: one is of another version: every trial would fail on it.
        StorageError: what one says about itself cannot be read.
    """
    for store in map(run.store, names):
        if not (store / "index.json").exists():
            continue
        content = read_json(store / "index.json")
        version = content.get("version") if isinstance(content, dict) else None
        if version != STORE_VERSION:
            raise RunError(
                f"{store}: is a graph store of version {version}, this program reads "
                f"{STORE_VERSION}: finish the run with the hydragnn-hpo that began it, or choose "
                "another directory with --run."
            )


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), (*path, key))
    elif old != new:
        yield ".".join(path), old, new


def find_cards(config: CampaignConfig, source: Path) -> dict[Path, CardConfig]:
    """Find the cards of a campaign: paths beside the campaign file, or shipped names.

    Returns:
        Cards by their resolved path, in the order of ``[[data]]``.

    Raises:
        ConfigError: one is missing or wrong, or two have the same name.
    """
    cards: dict[Path, CardConfig] = {}
    for entry in config.data:
        near = source.parent / entry.card
        path = near if near.is_file() else find_resource(entry.card, "graph_datasets")
        card = load_config(path, CardConfig)
        if card.name in {other.name for other in cards.values()}:
            raise ConfigError(
                f"two cards of the campaign are named '{card.name}': name one differently, or drop "
                "one."
            )
        cards[path.resolve()] = card
    return cards


class StoreEntry(TypedDict):
    """A ``[[data]]`` entry of ``trial.toml``."""

    store: str
    """Path of the graph store, relative to the trial's folder."""
    prefix: str
    """Put before the names of its targets."""
    ratio: float | None
    """Share of the graphs that are drawn from it; None for every graph once per epoch."""


def stores_of(config: CampaignConfig, names: Sequence[str]) -> list[StoreEntry]:
    """Return the ``[[data]]`` entries of a trial.

    Args:
        config: the campaign.
        names: of the cards, and so of the stores.
    """
    return [
        {"store": f"../../data/{name}.bp", "prefix": entry.prefix, "ratio": entry.ratio}
        for name, entry in zip(names, config.data, strict=True)
    ]


def trial_config(
    config: CampaignConfig, name: str, values: SearchedValues, stores: list[StoreEntry]
) -> TrialConfig:
    """Make a trial's whole configuration from the campaign's template and searched values.

    Args:
        config: the campaign.
        name: of the trial.
        values: searched values.
        stores: where the graphs are, see ``stores_of``.

    Raises:
        ConfigError: the values do not make a valid trial.
    """
    template = {key: config.trial[key] for key in config.trial}
    made = apply_values(template, dict(values))
    made["training"] = {**made.get("training", {}), "epochs": config.search.rungs[-1]}
    made |= {
        "trial": name,
        "seed": derive_seed(config.seed, name, "training"),
        "data": stores,
        "shared": config.shared,
    }
    return parse_config(made, TrialConfig, where=f"trial {name}")


def settle(config: CampaignConfig, source: Path) -> CampaignConfig:
    """Make a campaign independent of where its file lies, and so fit to be run from a copy.

    Raises:
        ConfigError: its space, constraints or objective make no sense by themselves.
    """
    if config.command is None:
        near = [source.parent.absolute() / entry.card for entry in config.data]
        cards = zip(config.data, near, strict=True)
        data = [e.model_copy(update={"card": str(p)}) if p.is_file() else e for e, p in cards]
        return config.model_copy(update={"data": tuple(data)})
    check_search(config, parts=None)
    here = {"here": source.parent.resolve()}
    command = config.command.model_copy(update={"argv": fill_arguments(config.command.argv, here)})
    return config.model_copy(update={"command": command})


def check_search(
    config: CampaignConfig, parts: Sequence[str] | None = PARTS
) -> tuple[Constraint, ...]:
    """Refuse a space that cannot be searched, or of which the constraints leave nothing.

    Args:
        config: the campaign.
        parts: tables of a trial that may be searched; any if None.

    Returns:
        The constraints.

    Raises:
        ConfigError: something is wrong with it.
    """
    check_space(config.space, config.trial, parts)
    rules = read_constraints(config.search.constraints, config.space, config.trial)
    check_feasible_share(config.space, rules)
    return rules


def check_corners(
    config: CampaignConfig,
    targets: Mapping[str, TargetStats],
    cutoff: float,
    stats: StoreStats | None = None,
) -> None:
    """Try the corners of a space before a trial is paid for.

    Every choice, every lowest and highest value is put into an otherwise ordinary trial.

    Args:
        config: the campaign.
        targets: target statistics of the store, or the card's targets.
        cutoff: longest edge of the store in angstrom.
        stats: the whole statistics, once there are any.

    Raises:
        ConfigError: some value cannot make a valid trial on this data.
    """
    rules = check_search(config)
    check_objective(config.search.objective, config.trial.get("heads", {}))
    plain = {key: _values(config, key)[0] for key in config.space}
    for key in config.space:
        for value in _values(config, key):
            wanted = _activate(config, {key: value}, key)
            chosen = complete_configuration(config.space, rules, wanted, plain)
            if chosen is None:  # the constraints leave no trial with this value
                continue
            entries = stores_of(config, [entry.card for entry in config.data])
            made = trial_config(config, f"with {key} = {value}", chosen, entries)
            fit = {"heads": made.heads, "targets": dict(targets), "model": made.model}
            fit["training"] = made.training
            parse_config(fit, TrialHeads, where=f"campaign '{config.name}', {key} = {value}")
            if made.model.cutoff > cutoff:
                raise ConfigError(
                    f"campaign '{config.name}': model.cutoff reaches {made.model.cutoff:g} "
                    f"angstrom, the card's edges end at {cutoff:g}: lower one or raise the other."
                )
            if stats is not None:
                compute_epoch_size(stats, made.training, [entry.ratio for entry in made.data])


def _values(config: CampaignConfig, key: str) -> list[Scalar]:
    parameter = config.space[key]
    if parameter.choices is not None:
        return list(parameter.choices)
    return [value for value in (parameter.low, parameter.high) if value is not None]


def _activate(config: CampaignConfig, values: dict[str, Scalar], key: str) -> dict[str, Scalar]:
    """Set the conditions that make a key active, and theirs in turn."""
    pending = [key]
    for _ in itertools.takewhile(lambda _: pending, range(len(config.space) + 1)):
        for name, wanted in config.space[pending.pop()].when.items():
            if name in config.space:
                values[name] = wanted[0] if isinstance(wanted, tuple) else wanted
                pending.append(name)
    return values


PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "adios2", "vesin", "deephyper", "optuna")
"""What may change a number, or the next proposal."""


def read_software_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages, without importing them.

    Returns:
        Version by name, ``python`` first; packages that are not installed are absent.
    """
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def controller_versions() -> dict[str, str]:
    """Return what the journal says of the controller's software and system.

    Returns:
        Version by name: this package, Python and packages; ``system`` is name, release and machine.
    """
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"hydragnn-hpo": __version__, **read_software_versions(), "system": system}
