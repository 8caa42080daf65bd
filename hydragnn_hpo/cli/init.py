"""``hydragnn-hpo init``: a first campaign for a card."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    card: Annotated[str, typer.Argument(help="A shipped card's name, or the path of one.")],
    conv: Annotated[
        list[str] | None, typer.Option(help="Search only this conv; repeatable.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Predict only this target; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; standard output if left out.")
    ] = None,
) -> None:
    """Write a starter campaign: the convs that fit a card's targets, with sensible ranges."""
    from hydragnn_hpo.campaign.loop.starter import starter
    from hydragnn_hpo.config.data import CardConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.files import write_text
    from hydragnn_hpo.shipped import find

    path = Path(card)
    named = str(path.resolve()) if path.is_file() else card
    text = starter(load(find(card, "graph_datasets"), CardConfig), named, conv, target)
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.exists():
        raise ConfigError(f"{out}: is there already; choose another name with --out.")
    write_text(out, text)
    typer.echo(f"wrote {out}; next: hydragnn-hpo run {out}")
