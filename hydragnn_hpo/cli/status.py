"""``hydragnn-hpo status``: how a campaign stands."""

import json
from pathlib import Path

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument


def status(run_dir: RunArgument, as_json: JsonOption = False) -> None:
    """Show how a campaign stands: trials by state, the best so far, its figures."""
    from hydragnn_hpo.campaign.journal import read
    from hydragnn_hpo.campaign.leaderboard import read_state
    from hydragnn_hpo.campaign.lease import alive
    from hydragnn_hpo.campaign.summary import summarize
    from hydragnn_hpo.layout import RunDir

    run = RunDir(Path(run_dir))
    state = read_state(run)
    holder = alive(run.path)
    best = state.ranked()
    plain = {
        "run": str(run.path),
        "controller": holder,
        "finished": state.finished,
        "ensemble": str(run.ensemble) if run.ensemble.exists() else None,
        "best": best[0].name if best else None,
        "objective": best[0].objective if best else None,
        "running": {
            t.name: {"epoch": t.epoch, "until": t.until, "slots": list(t.slots)}
            for t in state.with_status("running")
        },
        **summarize(list(read(run.journal))),
    }
    if as_json:
        typer.echo(json.dumps(plain))
        return
    course = "finished" if state.finished else f"run by {holder}" if holder else "not running"
    typer.echo(f"{run.path}: {course}")
    counts = {
        s: len(state.with_status(s)) for s in sorted({t.status for t in state.trials.values()})
    }
    typer.echo(", ".join(f"{number} {name}" for name, number in counts.items()) or "no trials yet")
    for trial in state.with_status("running"):
        typer.echo(f"  {trial.name} epoch {trial.epoch}/{trial.until} on {', '.join(trial.slots)}")
    if best:
        typer.echo(f"best so far: {best[0].name}, objective {best[0].objective:.4f}")
