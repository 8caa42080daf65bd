"""``hydragnn-hpo pack``: the running environment as one archive for the hosts' own disks."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption

OutOption = Annotated[
    Path, typer.Option("--out", help="NAME.tar.gz, or NAME.tar.zst where zstd is at hand.")
]


def pack(out: OutOption = Path("environment.tar.gz"), as_json: JsonOption = False) -> None:
    """Pack the environment that this program runs in, for run and submit --pack."""
    from dataclasses import asdict

    from hydragnn_hpo.launching import pack_environment

    made = pack_environment(out)
    if as_json:
        typer.echo(json.dumps(asdict(made) | {"path": str(made.path)}))
        return
    typer.echo(f"{made.path}: {made.size / 1e6:.0f} MB, SHA-256 {made.checksum}")
    typer.echo(f"what it holds: {made.path}.json")
    typer.echo(f"use it: hydragnn-hpo submit CAMPAIGN --machine NAME --pack {made.path}")
