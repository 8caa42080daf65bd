"""``hydragnn-hpo ensemble export``: one target as a program that needs torch alone."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import EnsembleArgument, JsonOption, TrustOption, ensemble_file


class Precision(StrEnum):
    """Floating point types of a program."""

    fp32 = "fp32"
    fp64 = "fp64"


def export(
    path: EnsembleArgument,
    target: Annotated[str, typer.Option(help="The head; energies come with forces and stress.")],
    out: Annotated[Path, typer.Option(help="NAME.pt2; NAME.json beside it says how to use it.")],
    aot: Annotated[
        bool, typer.Option("--aot", help="Compile it for this kind of processor: quicker.")
    ] = False,
    precision: Annotated[
        Precision | None, typer.Option(help="Of all members; each its own if left out.")
    ] = None,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one target as a program that gives mean and spread without this package.

    Trials and epochs of a campaign for other programs: hydragnn-hpo export.
    """
    from hydragnn_hpo.ensemble.export.write import export as write
    from hydragnn_hpo.ensemble.inference import Ensemble

    ensemble = Ensemble.load(ensemble_file(path), precision=precision, trust=trust or ())
    page = write(ensemble, target, out, aot=aot)
    if as_json:
        typer.echo(json.dumps(page))
        return
    typer.echo(f"wrote {out} ({len(page['members'])} members) and {out.with_suffix('.json')}")
    typer.echo(page["python"])
