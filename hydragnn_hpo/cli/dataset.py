"""``hydragnn-hpo dataset``: build graph stores and look at them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption

app = typer.Typer(no_args_is_help=True)


@app.command()
def build(
    card: Annotated[str, typer.Argument(help="Card file, shipped name, or a structure file.")],
    card_option: Annotated[
        Path | None, typer.Option("--card", help="Card for a structure file given before.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Store to write; NAME.bp here if left out.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn structures and a card into a graph store."""
    from hydragnn_hpo.config.data import CardConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.shipped import find

    if card_option is None and Path(card).exists() and Path(card).suffix != ".toml":
        raise ConfigError(f"{card}: is no card (TOML): name the card of this data with --card.")
    path = card_option or find(card, "graph_datasets")
    config = load(path, CardConfig)
    target = out or Path(f"{config.name}.bp")
    files = [card] if card_option else [file.path for file in config.files]
    if dry_run:
        typer.echo(f"would read {', '.join(files)} and write {target}")
        return
    from rich.console import Console

    from hydragnn_hpo.data.build import build_store

    given = [Path(card)] if card_option else None
    with Console(stderr=True).status("reading structures") as line:
        stats = build_store(
            path, target, lambda done: line.update(f"{done} structures read"), files=given
        )
    typer.echo(json.dumps(stats) if as_json else _sentence(target, stats))


@app.command()
def info(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    as_json: JsonOption = False,
) -> None:
    """Show what a graph store holds."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.data.store.index import read_stats
    from hydragnn_hpo.errors import DataError

    if store.suffix == ".toml":
        raise DataError(f"{store}: is a card; build it with: hydragnn-hpo dataset build {store}")
    stats = read_stats(store)
    if as_json:
        typer.echo(json.dumps(stats))
        return
    typer.echo(_sentence(store, stats))
    console().print(_targets(stats))


def _sentence(store: Path, stats: dict[str, Any]) -> str:
    splits = ", ".join(f"{name} {count}" for name, count in stats["splits"].items())
    return (
        f"{store}: {stats['num_graphs']} graphs, {stats['nodes']['mean']:.1f} atoms and "
        f"{stats['edges']['mean']:.1f} edges on average within {stats['cutoff']:g} angstrom, "
        f"{len(stats['elements'])} elements; {splits}"
    )


def _targets(stats: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="Targets (mean and spread on the training split)", title_justify="left")
    for name in ("target", "level", "shape", "unit", "values", "mean", "std", "min", "max"):
        table.add_column(name, justify="left" if name in ("target", "level") else "right")
    for name, target in stats["targets"].items():
        numbers = [f"{target[key]:.4g}" for key in ("mean", "std", "min", "max")]
        table.add_row(
            name, target["level"], target["shape"], target["unit"], str(target["count"]), *numbers
        )
    return table
