"""``hydragnn-hpo dataset``: build graph stores and look at them."""

import json
from collections.abc import Sequence
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
    processes: Annotated[
        int | None, typer.Option(help="Processes that convert; one per core if left out.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn structures and a card into a graph store."""
    from hydragnn_hpo.cli import building

    comm = building.ranks()
    stats = None
    with building.one_voice(comm):
        path, target, files = building.at_first(comm, lambda: _asked(card, card_option, out))
        if not dry_run:
            given = [Path(card)] if card_option else None
            stats = building.build(comm, path, target, files=given, processes=processes)
    if comm is not None and comm.rank > 0:
        return
    if stats is None:
        typer.echo(f"would read {', '.join(files)} and write {target}")
        return
    typer.echo(json.dumps(stats) if as_json else _sentence(target, stats))
    if not as_json and (aside := building.quarantine_sentence(target, stats)):
        typer.echo(aside)


def _asked(card: str, card_option: Path | None, out: Path | None) -> tuple[Path, Path, list[str]]:
    """Give the card, the store to write, and the files to read."""
    from hydragnn_hpo.config import CardConfig, load_config
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.resources import find_resource

    if card_option is None and Path(card).exists() and Path(card).suffix != ".toml":
        raise ConfigError(
            f"{card}: is no card (TOML): name the card of this data with --card; "
            f"'hydragnn-hpo init {card}' writes one."
        )
    path = card_option or find_resource(card, "graph_datasets")
    config = load_config(path, CardConfig)
    files = [card] if card_option else [file.path for file in config.files]
    return path, out or Path(f"{config.name}.bp"), files


FigureOption = Annotated[Path | None, typer.Option("--figure", help="PNG to draw, too.")]


@app.command()
def info(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a graph store holds: sizes, elements, neighbours, targets by split."""
    from hydragnn_hpo.cli.dataset_tables import overview_blocks
    from hydragnn_hpo.data import describe_store

    _refuse_card(store)
    found = describe_store(store)
    if figure is not None:
        from hydragnn_hpo.report import draw_dataset

        draw_dataset(figure, found)
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(_sentence(store, found))
    _show(overview_blocks(found))


@app.command()
def check(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    figure: FigureOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Most findings named of each kind.")] = 5,
    tolerance: Annotated[
        float,
        typer.Option(min=1e-6, max=10.0, help="Structures this near are duplicates (angstrom)."),
    ] = 0.01,
    z_limit: Annotated[
        float, typer.Option("--z", min=1.0, max=1e6, help="Robust z-score of an outlier.")
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Look for damage, duplicates, leakage and outliers; exit 1 for damage or leakage."""
    from rich.console import Console

    from hydragnn_hpo.cli.dataset_tables import findings_blocks
    from hydragnn_hpo.data import check_store

    _refuse_card(store)
    with Console(stderr=True).status("reading") as line:
        found = check_store(store, tolerance=tolerance, z_limit=z_limit, progress=line.update)
    if figure is not None and found.scan is not None:
        from hydragnn_hpo.data import describe_store
        from hydragnn_hpo.report import draw_dataset

        draw_dataset(figure, describe_store(store), found.report)
    if as_json:
        typer.echo(json.dumps(found.report))
    else:
        _show(findings_blocks(found.report, limit))
    if found.serious:
        raise typer.Exit(1)


def _refuse_card(store: Path) -> None:
    from hydragnn_hpo.errors import DataError

    if store.suffix == ".toml":
        raise DataError(f"{store}: is a card; build it with: hydragnn-hpo dataset build {store}")


def _show(blocks: Sequence[Any]) -> None:
    """Print tables and lines; brackets in names are no markup."""
    from hydragnn_hpo.cli.tables import console

    out = console()
    for block in blocks:
        out.print(block, markup=False, highlight=False)


def _sentence(store: Path, stats: dict[str, Any]) -> str:
    splits = ", ".join(f"{name} {count}" for name, count in stats["splits"].items())
    return (
        f"{store}: {stats['num_graphs']} graphs, {stats['nodes']['mean']:.1f} atoms and "
        f"{stats['edges']['mean']:.1f} edges on average within {stats['cutoff']:g} angstrom, "
        f"{len(stats['elements'])} elements; {splits}"
    )
