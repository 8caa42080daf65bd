"""``hydragnn-hpo trial``: one trial, as a rank of whatever launched it."""

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hydragnn_hpo.cli.arguments import DryRunOption
from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:
    from hydragnn_hpo.config.trial import TrialConfig
    from hydragnn_hpo.layout import TrialDir
    from hydragnn_hpo.training.watching.profiling import ProfilePlan


class Io(Enum):
    """How batches come about while they are measured."""

    real = "real"
    cached = "cached"
    synthetic = "synthetic"


IoOption = Annotated[
    Io | None,
    typer.Option(
        "--io",
        help="Train nothing: measure whether reading, feeding or computing is the bottleneck.",
    ),
]
ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Write a trace of rank 0 in the second epoch.")
]
RanksOption = Annotated[str | None, typer.Option("--profile-ranks", help="Trace these ranks: 0,3.")]
EpochsOption = Annotated[
    str | None, typer.Option("--profile-epochs", help="Trace these epochs, from 1: 2,5.")
]


def trial(
    directory: Annotated[Path, typer.Argument(help="Trial directory with a trial.toml.")],
    dry_run: DryRunOption = False,
    profile: ProfileOption = False,
    profile_ranks: RanksOption = None,
    profile_epochs: EpochsOption = None,
    io: IoOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --io: print JSON.")] = False,
) -> None:
    """Train one trial to its full budget, alone or under torchrun, srun or mpiexec."""
    from hydragnn_hpo.config.loading import dump, load
    from hydragnn_hpo.config.trial import TrialConfig
    from hydragnn_hpo.layout import TrialDir

    place = TrialDir(directory)
    config = load(place.config, TrialConfig)
    if dry_run:
        typer.echo(dump(config), nl=False)
        return
    if as_json and io is None:
        raise ConfigError("--json goes with --io: add --io real, or drop it.")
    from hydragnn_hpo.launching.ranks.started import find_ranks
    from hydragnn_hpo.training.ranks.mpi import adopt_ranks

    adopt_ranks()
    os.environ.update(find_ranks(os.environ, parent=os.getppid()))
    if io is not None:
        _measure(place, io, as_json=as_json)
    wanted = profile or profile_ranks is not None or profile_epochs is not None
    plan = _plan(config, profile_ranks, profile_epochs) if wanted else None
    _train(place, plan)


def _plan(config: "TrialConfig", ranks: str | None, epochs: str | None) -> "ProfilePlan":
    from hydragnn_hpo.training.watching.profiling import ProfilePlan

    world = int(os.environ.get("WORLD_SIZE", "1"))
    return ProfilePlan.of(ranks, epochs, world=world, last=config.training.epochs)


def _train(place: "TrialDir", plan: "ProfilePlan | None") -> NoReturn:
    from hydragnn_hpo.config.trial import INTERRUPTED
    from hydragnn_hpo.training.trial import run_by_hand

    code, sentence = run_by_hand(place, plan)
    if sentence:
        typer.echo(sentence, err=code != 0)
    _leave(code, in_order=code in (0, INTERRUPTED))


def _measure(place: "TrialDir", io: Io, *, as_json: bool) -> NoReturn:
    """Print on rank 0 what ``--io`` measured."""
    import json

    from hydragnn_hpo.cli.tables import console, feeding_table
    from hydragnn_hpo.training.watching.feeding import measure

    found = measure(place, io.value)
    if found and as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    elif found:
        console().print(feeding_table(found))
        typer.echo(found.sentence)
    _leave(0, in_order=True)


def _leave(code: int, *, in_order: bool) -> NoReturn:
    """End this rank.

    Who failed must not wait for the others (mpiexec ends them), and a process group must not be
    taken down, see ``training.ranks.ddp``.
    """
    from hydragnn_hpo.training.ranks.mpi import leave_ranks

    sys.stdout.flush()
    sys.stderr.flush()
    if in_order:
        leave_ranks()
    os._exit(code)
