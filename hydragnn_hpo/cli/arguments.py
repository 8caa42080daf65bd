"""Arguments that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="Run directory of a campaign.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be started; start nothing.")
]
