"""Show a running campaign: live on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TYPE_CHECKING, Self

from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.state import State, Trial

if TYPE_CHECKING:
    from rich.console import Group

REFRESH_SECONDS = 0.5


def describe(trial: Trial) -> str:
    """Name the values that matter most for a person."""
    keys = ("model.conv", "model.features", "model.layers", "training.learning_rate")
    shown = [trial.values[key] for key in keys if key in trial.values]
    return " ".join(f"{v:.2g}" if isinstance(v, float) else str(v) for v in shown)


class Display:
    """Follows a campaign's state; use it in a ``with``."""

    def __init__(self, trials: int, quiet: bool = False) -> None:
        """Choose between a live table and lines.

        Args:
            trials: trials of the campaign.
            quiet: show nothing.
        """
        from rich.console import Console
        from rich.live import Live

        self.trials, self.quiet = trials, quiet
        self.console = Console(stderr=False)
        self.live: Live | None = None
        if sys.stdout.isatty() and not quiet:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self._shown = 0.0
        self._seen: dict[str, tuple[str, int]] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Start the live table."""
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Clear it."""
        if self.live:
            self.live.stop()

    def begin(self, state: State) -> None:
        """Say what is about to happen."""
        if self.quiet:
            return
        ended = len(state.with_status("stopped", "completed", "failed", "cancelled"))
        going_on = f"going on, {ended} of {self.trials} trials at rest; " if state.trials else ""
        print(f"{going_on}preparing data and a warm process", flush=True)

    def __call__(self, state: State, controller: Controller) -> None:
        """Take in the state after one turn."""
        if self.quiet:
            return
        if self.live is None:
            self._lines(state)
        elif time.monotonic() - self._shown >= REFRESH_SECONDS:
            self._shown = time.monotonic()
            self.live.update(self._table(state, controller), refresh=True)

    def _lines(self, state: State) -> None:
        for trial in state.trials.values():
            now = (trial.status, trial.attempt)
            if self._seen.get(trial.name) == now or trial.status == "queued":
                continue
            self._seen[trial.name] = now
            ranks = f"{trial.width} rank{'s' if trial.width > 1 else ''}"
            what = f"{trial.name} {trial.status:9} {describe(trial)}"
            if trial.status == "running":
                what += f" ({ranks}, to epoch {trial.until})"
            elif trial.objective is not None:
                what += f" (epoch {trial.epoch}, objective {trial.objective:.4f})"
            else:
                what += f" ({trial.reason})"
            print(f"{time.monotonic() - self._started:6.1f} s  {what}", flush=True)

    def _table(self, state: State, controller: Controller) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(title_justify="left", expand=False)
        for name in ("trial", "configuration", "ranks", "epoch", "", "objective"):
            table.add_column(name)
        for trial in state.with_status("running"):
            table.add_row(
                trial.name,
                describe(trial),
                str(trial.width),
                f"{trial.epoch}/{trial.until}",
                ProgressBar(total=trial.until, completed=trial.epoch, width=24),
                "" if trial.objective is None else f"{trial.objective:.4f}",
            )
        best = state.ranked()
        ended = len(state.with_status("stopped", "completed", "failed", "cancelled"))
        headline = (
            f"{time.monotonic() - self._started:.0f} s  "
            f"{'training the finalists on' if state.promoted else 'searching'}: "
            f"{ended} of {self.trials} trials at rest, "
            f"{len(state.with_status('queued'))} waiting, {len(controller.slots)} slots"
        )
        if not controller.ready:
            headline += "  (preparing data and a warm process)"
        lines = [f"best so far: {b.name} {b.objective:.4f} ({describe(b)})" for b in best[:1]]
        return Group(headline, table, *lines)
