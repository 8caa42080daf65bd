"""``hydragnn-hpo trial``: one trial, as a rank of whatever launched it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hydragnn_hpo.cli.arguments import DryRunOption
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.layout import TrialDir

if TYPE_CHECKING:
    from hydragnn_hpo.config import TrialConfig
    from hydragnn_hpo.training.profiler import ProfilePlan

ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Write a trace of rank 0 in the second epoch.")
]
RanksOption = Annotated[str | None, typer.Option("--profile-ranks", help="Trace these ranks: 0,3.")]
EpochsOption = Annotated[
    str | None, typer.Option("--profile-epochs", help="Trace these epochs, from 1: 2,5.")
]

AttemptOption = Annotated[
    int | None,
    typer.Option("--attempt", min=1, hidden=True, help="Run the attempt that a campaign placed."),
]


def trial(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory with a trial.toml; or a NAME.toml, which trains in NAME/ beside it."
        ),
    ],
    dry_run: DryRunOption = False,
    profile: ProfileOption = False,
    profile_ranks: RanksOption = None,
    profile_epochs: EpochsOption = None,
    attempt: AttemptOption = None,
) -> None:
    """Train one trial to its full budget, alone or under torchrun, srun or mpiexec."""
    from hydragnn_hpo.config import TrialConfig, dump_config, load_config

    alone = directory.is_file() and directory.name != "trial.toml"
    place = TrialDir(directory.parent if directory.is_file() and not alone else directory)
    config = _load_relocated(directory) if alone else load_config(place.config, TrialConfig)
    if dry_run:
        typer.echo(dump_config(config), nl=False)
        return
    if alone:
        place = _make_trial_directory(directory, config)
    from hydragnn_hpo.launching.rank_environment import torchrun_environment
    from hydragnn_hpo.training.ddp import adopt_mpi_environment

    adopt_mpi_environment()
    os.environ.update(torchrun_environment(os.environ, parent=os.getppid()))
    wanted = profile or profile_ranks is not None or profile_epochs is not None
    plan = _plan(config, profile_ranks, profile_epochs) if wanted else None
    _train(place, plan, attempt)


def _load_relocated(file: Path) -> "TrialConfig":
    """Read a configuration whose paths are relative to its own folder."""
    from hydragnn_hpo.config import TrialConfig, load_config
    from hydragnn_hpo.report.best_config import make_paths_absolute

    return make_paths_absolute(load_config(file, TrialConfig), file.parent)


def _make_trial_directory(file: Path, config: "TrialConfig") -> TrialDir:
    """Make a trial directory for a configuration, or find the one that was made for it.

    All ranks of a trial may do so at the same time: they write the same.

    Raises:
        ConfigError: the directory's name is taken by something else.
    """
    from hydragnn_hpo.config import TrialConfig, dump_config, load_config

    place = TrialDir(file.with_suffix(""))
    if not file.suffix or (place.path.exists() and not place.path.is_dir()):
        raise ConfigError(f"{file}: trains in a directory beside it: name it NAME.toml.")
    if not place.config.exists():
        with storage(place.path):
            place.path.mkdir(exist_ok=True)
        write_text(place.config, dump_config(config))
    elif load_config(place.config, TrialConfig) != config:
        raise ConfigError(
            f"{place.path}: holds another trial than {file}: rename the file, or remove the "
            "directory."
        )
    return place


def _plan(config: "TrialConfig", ranks: str | None, epochs: str | None) -> "ProfilePlan":
    from hydragnn_hpo.training.profiler import ProfilePlan

    world = int(os.environ.get("WORLD_SIZE", "1"))
    return ProfilePlan.of(ranks, epochs, world=world, last=config.training.epochs)


def _train(place: TrialDir, plan: "ProfilePlan | None", attempt: int | None) -> NoReturn:
    from hydragnn_hpo.config import INTERRUPTED
    from hydragnn_hpo.training import run_by_hand, run_placed

    code, sentence = (
        run_by_hand(place, plan) if attempt is None else (run_placed(place, attempt), "")
    )
    if sentence:
        typer.echo(sentence, err=code != 0)
    _leave(code, in_order=code in (0, INTERRUPTED))


def _leave(code: int, *, in_order: bool) -> NoReturn:
    """End this rank.

    Who failed must not wait for the others (mpiexec ends them), and a process group must not be
    taken down, see ``training.ddp``.
    """
    from hydragnn_hpo.training.ddp import finalize_mpi

    sys.stdout.flush()
    sys.stderr.flush()
    if in_order:
        finalize_mpi()
    os._exit(code)
