"""Section on failures: reasons, last lines of logs, and the commands that retry."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.outcome import read_tail
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import cost_unit
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Code, Section, Table, Text, make_table

MEANINGS = {
    "diverged": "the loss was no longer a number; the search learns to avoid it",
    "out_of_memory": "did not fit, neither alone on its device nor on more ranks",
    "bad_config": "its values make no model; it never started",
    "bug": "an error of the code, or it was lost too often",
    "host_lost": "its host, or a rank, was lost",
    "crashed": "its program crashed; a second time without progress is a bug",
    "files_away": "its files were out of reach",
    "stale": "a rank did not respond for too long",
    "walltime": "the allocation ended",
    "resized": "it continued with another number of ranks",
    "paused": "a person, or the end of its controller",
    "disk_full": "the disk was full",
}
"""Explanation of each reason."""

EXAMPLES = 3
"""Maximum number of trials per reason whose log is shown."""

LISTED = 200
"""Maximum number of trials in the table."""

LINES, WIDTH = 8, 400
"""Last lines of a log that are shown, and maximum characters of a line."""

Item = TypeVar("Item")


def make_section(facts: Facts) -> Section:
    """List failures, interruptions and lost hosts."""
    failed = [trial for trial in facts.trials.values() if trial.trial.status == "failed"]
    by_reason = group_by_reason((str(trial.trial.reason or "unknown"), trial) for trial in failed)
    ends = [end for end in facts.history.slots.ends if end.outcome == "interrupted"]
    interrupted = group_by_reason((str(end.reason), end.trial) for end in ends)
    hosts = _lost_hosts(facts)
    blocks: list[Block] = []
    if failed:
        blocks += [_reason_table(by_reason), *_examples(facts.run, by_reason), _trial_table(failed)]
    elif interrupted or hosts:
        blocks.append(Text("No trial failed."))
    else:
        blocks.append(Text("No trial failed, none was interrupted, and no host was lost."))
    if interrupted:
        blocks.append(_interruption_table(interrupted))
    if hosts:
        columns = {"host": "host", "became": "state", "why": "why"}
        blocks.append(make_table("hosts", columns, hosts))
    lead = "Which trials failed or were interrupted and why, and how to try them again."
    title = f"Machine: failures ({len(failed)})" if failed else "Machine: failures"
    return Section("failures", title, lead, tuple(blocks), folded=True)


def group_by_reason(pairs: Iterable[tuple[str, Item]]) -> dict[str, list[Item]]:
    """Group items by their reason.

    Returns:
        Items by reason, the most frequent reason first.
    """
    groups: defaultdict[str, list[Item]] = defaultdict(list)
    for reason, item in pairs:
        groups[reason].append(item)
    return dict(sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _reason_table(by_reason: dict[str, list[TrialHistory]]) -> Table:
    seconds = {
        reason: sum(trial.trial.slot_seconds for trial in trials)
        for reason, trials in by_reason.items()
    }
    unit, size = cost_unit(sum(seconds.values()))
    columns = {
        "reason": "reason",
        "trials": "failed trials",
        "time": ("slot time", f"slot {unit}"),
        "meaning": "meaning",
    }
    rows = [
        (reason, len(trials), seconds[reason] / size, MEANINGS.get(reason, ""))
        for reason, trials in by_reason.items()
    ]
    return make_table("reasons", columns, rows)


def _examples(run: RunDir, by_reason: dict[str, list[TrialHistory]]) -> list[Block]:
    return [
        Code(
            f"{read_last_lines(run, trial)}\n\n$ {retry_command(run.path, trial.name)}",
            f"{trial.name}: {reason}",
            folded=True,
        )
        for reason, trials in by_reason.items()
        for trial in trials[:EXAMPLES]
    ]


def retry_command(run: Path, trial: str) -> str:
    """Return the command that queues a failed trial again."""
    return shlex.join(["hydragnn-hpo", "retry", str(run), trial])


def read_last_lines(run: RunDir, trial: TrialHistory) -> str:
    """Return the last lines of a trial's last log, or of its message; empty without both."""
    log = run.trial(trial.name).attempt(trial.trial.attempt) / "log"
    message = (trial.trial.message or "").strip().splitlines()
    lines = read_tail(log, LINES) or message[-LINES:]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines)


def _trial_table(failed: Sequence[TrialHistory]) -> Table:
    rows = []
    for trial in failed[:LISTED]:
        lines = (trial.trial.message or "").strip().splitlines()
        last = lines[-1][:160] if lines else ""
        rows.append((trial.name, trial.trial.reason, trial.trial.attempt, last))
    columns = {
        "trial": "trial",
        "reason": "reason",
        "attempts": "attempts",
        "message": "last line of its message",
    }
    note = f"The first {LISTED} failed trials; all of them: hydragnn-hpo leaderboard."
    return make_table("trials", columns, rows, note if len(failed) > LISTED else "")


def _interruption_table(interrupted: dict[str, list[str]]) -> Table:
    columns = {
        "reason": "reason",
        "times": "interruptions",
        "trials": "trials",
        "meaning": "meaning",
    }
    rows = [
        (reason, len(names), len(Counter(names)), MEANINGS.get(reason, ""))
        for reason, names in interrupted.items()
    ]
    note = "Interrupted attempts went on from their last checkpoint, unless their trial failed."
    return make_table("interruptions", columns, rows, note)


def _lost_hosts(facts: Facts) -> list[tuple[str, str, str]]:
    """Return host, fate (lost, lost and back, in quarantine) and reason."""
    fates: dict[str, tuple[str, str]] = {}
    for event in facts.events:
        if event["event"] == "host_lost":
            fates[event["host"]] = "lost", event["reason"]
        elif event["event"] == "host_joined" and event["host"] in fates:
            fates[event["host"]] = "lost, came back", fates[event["host"]][1]
    for host, reason in facts.state.hosts.quarantined.items():
        fates[host] = "in quarantine", reason
    return [(host, became, why) for host, (became, why) in fates.items()]
