"""``hydragnn-hpo ensemble``: build an ensemble of a run, look at one, work with one."""

import typer

from hydragnn_hpo.cli.artefact.diff import diff
from hydragnn_hpo.cli.artefact.info import info
from hydragnn_hpo.cli.artefact.prune import prune
from hydragnn_hpo.cli.ensemble_build import build
from hydragnn_hpo.cli.evaluate import evaluate
from hydragnn_hpo.cli.export import export
from hydragnn_hpo.cli.pick import pick

app = typer.Typer(no_args_is_help=True)
app.command()(build)
app.command()(evaluate)
app.command()(info)
app.command()(diff)
app.command()(prune)
app.command()(pick)
app.command()(export)
