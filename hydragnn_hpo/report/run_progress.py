"""Show a running campaign: live on a terminal and in a notebook, plain lines elsewhere."""

import io
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from hydragnn_hpo.campaign import State, Status, Trial, build_status
from hydragnn_hpo.campaign.status import describe_trial
from hydragnn_hpo.report.status_view import Snapshot, StatusPage, summary_line
from hydragnn_hpo.words import count, fixed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hydragnn_hpo.campaign import Controller

REFRESH_SECONDS = 0.5
"""Shortest time between two refreshes of the live table."""

DISPLAY_SHARE = 0.02
"""Largest share of the controller's time spent on the display; a slow display refreshes less."""

SUMMARY_SECONDS = 60.0
"""Time between two summary lines if the output is not a terminal."""


NOTEBOOK_SIZE = (100, 40)
"""Columns and lines of the live table in a notebook."""

NOTEBOOK_TEXT = (
    '<pre style="line-height:normal;font-family:Menlo,Consolas,monospace"><code>{code}</code></pre>'
)
"""HTML around the live table in a notebook, see ``rich.console.Console.export_html``."""


def in_notebook() -> bool:
    """Check whether this process is the kernel of a notebook, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookLive:
    """A live table below a cell of a notebook, by IPython's own display: needs no widgets."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._handle: Any = None

    def start(self) -> None:
        """Open the place of the table."""
        from IPython.display import HTML, display

        self._handle = display(HTML(""), display_id=True)

    def update(self, page: "RenderableType", *, refresh: bool = True) -> None:
        """Replace the table."""
        from IPython.display import HTML
        from rich.console import Console

        width, height = NOTEBOOK_SIZE
        # in a notebook rich would also show it by itself, below the cell once more
        console = Console(
            file=io.StringIO(), record=True, force_jupyter=False, width=width, height=height
        )
        console.print(page)
        text = console.export_html(inline_styles=True, code_format=NOTEBOOK_TEXT)
        self._handle.update(HTML(text))

    def stop(self) -> None:
        """Leave the last table below the cell."""


class RunProgress:
    """Progress display of a running campaign; use it as a context manager."""

    def __init__(self, trials: int, quiet: bool = False) -> None:
        """Choose between a live table and lines.

        Args:
            trials: number of trials of the campaign.
            quiet: show nothing.
        """
        from rich.console import Console
        from rich.live import Live

        self.trials, self.quiet = trials, quiet
        self.live: Live | NotebookLive | None = None
        if in_notebook() and not quiet:
            self.live = NotebookLive()
        elif sys.stdout.isatty() and not quiet:
            self.live = Live(console=Console(), auto_refresh=False, transient=True)
        self._due = 0.0
        self._seen: dict[str, tuple[str, int, int]] = {}
        self._started = time.monotonic()
        self._summed_up = self._started

    def __enter__(self) -> Self:
        """Start the live table."""
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the live table."""
        if self.live:
            self.live.stop()

    def begin(self, state: State) -> None:
        """Print the first line; results of an earlier controller are not printed again."""
        if self.quiet:
            return
        self._seen = {trial.name: _mark(trial) for trial in state.trials.values()}
        ended = state.count("stopped", "completed", "failed", "cancelled")
        going_on = f"going on, {ended} of {self.trials} trials at rest; " if state.trials else ""
        print(f"{going_on}preparing data and a warm process", flush=True)

    def __call__(self, state: State, controller: "Controller") -> None:
        """Show the state, at most once per refresh interval."""
        began = time.monotonic()
        if self.quiet or began < self._due:
            return
        if self.live is None:
            self._lines(state, controller)
        else:
            self.live.update(StatusPage(self._snapshot(state, controller)), refresh=True)
        spent = time.monotonic() - began
        self._due = began + max(REFRESH_SECONDS, spent / DISPLAY_SHARE)

    def _snapshot(self, state: State, controller: "Controller") -> Snapshot:
        return Snapshot(
            name=controller.config.name,
            status=self._status(state, controller),
            course="" if controller.ready else "preparing data and a warm process",
            best_so_far=controller.event_store.best_so_far,
            restarts=controller.event_store.restarts,
        )

    def _status(self, state: State, controller: "Controller") -> Status:
        return build_status(
            state,
            controller.event_store.ledger,
            trials=self.trials,
            rungs=controller.config.search.rungs,
            now=controller.event_store.clock(),
            ends_in=controller.ends_in,
        )

    def _lines(self, state: State, controller: "Controller") -> None:
        for trial in state.trials.values():
            for line in self._news(trial):
                self._print(line)
        if time.monotonic() - self._summed_up >= SUMMARY_SECONDS and state.trials:
            self._summed_up = time.monotonic()
            self._print(summary_line(self._status(state, controller)))

    def _news(self, trial: Trial) -> Iterator[str]:
        """Yield a line for each change of a trial since the last call.

        A trial that ended at a rung and has already been promoted still gets a line for that rung.
        """
        now = _mark(trial)
        was = self._seen.get(trial.name, ("", 0, 0))
        if now == was:
            return
        self._seen[trial.name] = now
        ended = len(trial.rung_scores) - (trial.status in ("stopped", "completed"))
        for rung in list(trial.rung_scores)[was[2] : ended]:
            yield _rested(trial, rung)
        if trial.status != "queued" and now[:2] != was[:2]:
            yield _changed(trial)

    def _print(self, what: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s  {what}", flush=True)


def _mark(trial: Trial) -> tuple[str, int, int]:
    """Return a value that differs whenever the trial has changed."""
    return trial.status, trial.attempt, len(trial.rung_scores)


def _rested(trial: Trial, rung: int) -> str:
    """Return a line with the result of a trial at a rung."""
    score = trial.rung_scores[rung]
    first = score[0] if isinstance(score, tuple) else score
    return f"{trial.name} rested    {describe_trial(trial)} (epoch {rung}, best {fixed(first)})"


def _changed(trial: Trial) -> str:
    """Return a line with the new status of a trial."""
    what = f"{trial.name} {trial.status:9} {describe_trial(trial)}"
    if trial.status == "running":
        return f"{what} ({count(trial.width, 'rank')}, to epoch {trial.until})"
    if trial.objective is not None:
        at = "" if trial.best_epoch is None else f" at epoch {trial.best_epoch}"
        return f"{what} (epoch {trial.epoch}, best {fixed(trial.objective)}{at})"
    return f"{what} ({trial.reason})"
