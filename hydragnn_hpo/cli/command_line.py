"""``hydragnn-hpo``: all commands, and the errors that a user sees.

A command has a file of its own, or shares one with its kin. Slow imports are inside functions, so
that ``--help`` is quick.
"""

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TextIO

import typer

from hydragnn_hpo import __version__
from hydragnn_hpo.cli import (
    batch_command,
    dataset_command,
    ensemble_command,
    machine_command,
    trunk_command,
)
from hydragnn_hpo.cli.check_layer_command import check_layer
from hydragnn_hpo.cli.control_commands import add_trials, cancel, pause, retry, stop
from hydragnn_hpo.cli.doctor_command import doctor
from hydragnn_hpo.cli.examples import show_examples
from hydragnn_hpo.cli.info_command import info
from hydragnn_hpo.cli.init_command import init
from hydragnn_hpo.cli.plan_command import plan
from hydragnn_hpo.cli.predict_command import predict
from hydragnn_hpo.cli.reference_command import reference
from hydragnn_hpo.cli.results_commands import (
    compare,
    dashboard,
    export,
    importance,
    leaderboard,
    report,
)
from hydragnn_hpo.cli.run_command import run
from hydragnn_hpo.cli.serve_command import serve
from hydragnn_hpo.cli.status_command import status
from hydragnn_hpo.cli.submit_command import pack, submit
from hydragnn_hpo.cli.trial_command import trial
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import ADVICE, limit_umask
from hydragnn_hpo.optional_packages import explain_import_error
from hydragnn_hpo.sanitize import escape_controls, shorten_words

COMMANDS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Start": (init, plan, run),
    "Use the result": (predict, serve),
    "Look at a campaign": (status, dashboard, leaderboard, report, importance, compare, export),
    "Steer a campaign": (stop, pause, retry, cancel, add_trials),
    "Machines": (doctor, submit, pack),
    "Develop, and get help": (trial, check_layer, reference, info),
}
"""Commands by the group in which ``--help`` shows them; each is named after its function."""

GROUPS = (
    ("ensemble", ensemble_command.app, "Build and inspect ensembles.", "Use the result"),
    ("dataset", dataset_command.app, "Build and inspect graph stores.", "Data"),
    ("machine", machine_command.app, "Inspect machine profiles.", "Machines"),
    ("trunk", trunk_command.app, "Convert foundation models of your own.", "Data"),
)
"""Name, commands, help, and panel of each group of commands."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From structures with properties to a trusted predictor.",
    epilog=(
        "First steps: hydragnn-hpo init my.extxyz, then hydragnn-hpo run my_search.toml. "
        "The help of each command ends with examples."
    ),
)
for _panel, _commands in COMMANDS.items():
    for _command in _commands:
        _name = _command.__name__.replace("_", "-")
        app.command(_name, rich_help_panel=_panel, epilog=show_examples(_name))(_command)
for _name, _app, _help, _panel in GROUPS:
    app.add_typer(_app, name=_name, help=_help, rich_help_panel=_panel)
app.add_typer(batch_command.app, name="batch", hidden=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hydragnn-hpo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors for a user are one sentence on stderr."""
    _open_closed_streams()
    limit_umask()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names in any letters, on any terminal
        sys.stdout.reconfigure(errors="backslashreplace")
    if not sys.warnoptions:  # warnings of libraries are for developers, who ask for them by -W
        warnings.showwarning = _drop_warning
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code or _report_os_error(error)
            _drop(stream)
    sys.exit(code)


def _run() -> int | str | None:
    """Run the command, and return its exit code; an answer that cannot be written is a failure."""
    try:
        app()
    except SystemExit as end:
        return end.code
    except HydraError as error:
        return _report(str(error), error.exit_code)
    except MemoryError:
        return _report("memory ran out; take less at a time, or free some.", 1)
    except OSError as error:
        return _report_os_error(error)
    except ModuleNotFoundError as error:
        if (missing := explain_import_error(error)) is None:
            raise
        return _report(str(missing), missing.exit_code)
    return 0


def _drop_warning(*_: object, **__: object) -> None:
    """Print nothing for a warning of a library: what a user can mend is checked for by itself."""


def _report_os_error(error: OSError) -> int:
    """Print what to do about an error of the operating system, and return the exit code.

    The reader of a pipe that has seen enough needs no sentence.
    """
    if isinstance(error, BrokenPipeError):
        return 1
    if error.errno == errno.ENOENT and not _has_working_folder():
        return _report("the working folder was removed; change to another one.", 2)
    if error.errno not in ADVICE:
        raise error
    lost = not error.filename and error.errno not in (errno.EMFILE, errno.ENFILE)
    where = "standard output" if lost else error.filename or "this process"
    return _report(f"{where}: {error.strerror}; {ADVICE[error.errno]}.", 1 if lost else 2)


def _report(sentence: str, code: int) -> int:
    """Print the sentence of an error if stderr can still be written to, and return its code."""
    with contextlib.suppress(OSError):
        typer.echo(f"error: {shorten_words(escape_controls(sentence))}", err=True)
    return code


def _open_closed_streams() -> None:
    """Open the null device in place of each standard stream that is closed, as under ``>&-``.

    Otherwise the next file that is opened would take the number of the stream, and what libraries
    print would be written into it.
    """
    names = ("stdin", "stdout", "stderr")
    for number, name in enumerate(names):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            os.set_inheritable(descriptor, True)  # as a standard stream is
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _drop(stream: TextIO) -> None:
    """Send the rest of a stream to nowhere: Python would retry it at its end and complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
