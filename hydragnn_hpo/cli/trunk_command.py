"""``hydragnn-hpo trunk``: foundation models from files of the user's."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.cli.examples import show_examples

app = typer.Typer(no_args_is_help=True)


@app.callback()
def trunk() -> None:
    """Foundation models of your own."""


@app.command(epilog=show_examples("trunk convert"))
def convert(
    file: Annotated[Path, typer.Argument(help="Checkpoint of a CHGNet, or a pickled MACE.")],
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="Open a pickled module, which may run any command: only if you trust its maker.",
        ),
    ] = False,
    name: Annotated[
        str, typer.Option(help="Name in model.embedding; that of the file if left out.")
    ] = "",
    licence: Annotated[
        str, typer.Option(help="SPDX identifier of the weights' licence, such as MIT.")
    ] = "",
    trained_on: Annotated[str, typer.Option(help="Its training data, as a phrase.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the two files.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Turn a foundation model into weights and a card that hold no code."""
    from hydragnn_hpo.model.trunks.convert import NOT_NAMED, ConvertRequest, convert_trunk

    made = convert_trunk(
        ConvertRequest(file, out, name, licence, trained_on or NOT_NAMED, trusted=trusted)
    )
    card = out / f"{made.name}.json"
    if as_json:
        typer.echo(json.dumps({"path": str(card), "name": made.name, "sha256": made.source.sha256}))
        return
    carried = (
        "ensembles carry it"
        if made.may_travel
        else "its licence is not one that lets ensembles carry it (--licence): they name it alone"
    )
    typer.echo(
        f"{card} and {made.name}.safetensors: {made.architecture} of {len(made.elements)} "
        f"elements, cutoff {made.cutoff:g} angstrom, {made.layers} x {made.width} numbers for each "
        "atom\n"
        f"made from {file} (sha256 {made.source.sha256}); {carried}\n"
        f'a campaign names it by [trunks.{made.name}] file = "{card}" and searches '
        f'"model.embedding" = ["elements", "{made.name}"]'
    )
