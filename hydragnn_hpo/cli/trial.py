"""``hydragnn-hpo trial``: one trial, as a rank of whatever launched it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import DryRunOption


def trial(
    directory: Annotated[Path, typer.Argument(help="Trial directory with a trial.toml.")],
    dry_run: DryRunOption = False,
) -> None:
    """Train one trial to its full budget, alone or under torchrun, srun or mpiexec."""
    from hydragnn_hpo.config.loading import dump, load
    from hydragnn_hpo.config.trial import INTERRUPTED, TrialConfig
    from hydragnn_hpo.layout import TrialDir

    place = TrialDir(directory)
    config = load(place.config, TrialConfig)
    if dry_run:
        typer.echo(dump(config), nl=False)
        return
    from hydragnn_hpo.training.mpi import adopt_ranks, leave_ranks
    from hydragnn_hpo.training.trial import run_by_hand

    adopt_ranks()
    code, sentence = run_by_hand(place)
    if sentence:
        typer.echo(sentence, err=code != 0)
    sys.stdout.flush()
    sys.stderr.flush()
    if code in (0, INTERRUPTED):  # who failed must not wait for the others: mpiexec ends them
        leave_ranks()
    os._exit(code)  # a process group must not be taken down, see training.ddp
