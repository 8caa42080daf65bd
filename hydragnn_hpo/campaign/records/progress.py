"""How far a campaign has come, as one number that never falls."""

from hydragnn_hpo.campaign.records.journal import read
from hydragnn_hpo.layout import RunDir


def progress(run: RunDir) -> int:
    """Count what would be lost with the run directory: epochs, checkpoints, results, stores.

    Epochs that are trained once more after a loss do not count again.

    Raises:
        RunError: the journal is damaged.
    """
    furthest: dict[str, tuple[int, int]] = {}
    steps = len(list(run.data.glob("*/index.json")))
    for event in read(run.journal):
        kind = event["event"]
        if kind in ("epoch", "checkpoint"):
            reached = (event["reached"], event.get("step", 0))
            if reached > furthest.get(event["trial"], (0, 0)):
                furthest[event["trial"]] = reached
                steps += 1
        elif kind == "finished" or (kind == "ended" and event["outcome"] != "interrupted"):
            steps += 1
    return steps
