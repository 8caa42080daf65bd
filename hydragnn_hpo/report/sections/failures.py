"""Section on failures: reasons, last lines of logs, and the commands that retry."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.campaign import TrialHistory
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import cost_unit
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Code, Column, Section, Table, Text

MEANINGS = {
    "diverged": "the loss was no number any more; the brain learns to avoid it",
    "out_of_memory": "did not fit, neither alone on its device nor on more ranks",
    "bad_config": "its values make no model; it never started",
    "bug": "an error of the code, or it was lost too often",
    "host_lost": "its host, or a rank, was lost",
    "stale": "a rank gave no sign of life for too long",
    "walltime": "the allocation ended",
    "resized": "it was asked to go on with another number of ranks",
    "paused": "a person, or the end of its controller",
    "disk_full": "the disk was full",
}
"""Reasons, in words."""

EXAMPLES = 3
"""Trials of each reason whose log is shown."""

LISTED = 200
"""Trials in the table."""

LINES, TAIL_BYTES, WIDTH = 8, 16_384, 400
"""Of a log: last lines that are shown, bytes that are read for them, characters of a line."""


def make_section(facts: Facts) -> Section | None:
    """List failures, interruptions and hosts that were lost."""
    failed = [trial for trial in facts.trials.values() if trial.trial.status == "failed"]
    hosts = _hosts(facts)
    interrupted = collect_interruptions(facts)
    lead = "Which trials failed or were interrupted and why, and how to try them again."
    if not failed and not interrupted and not hosts:
        nothing = Text("No trial failed, none was interrupted, and no host was lost.")
        return Section("failures", "Failures", lead, (nothing,))
    blocks: list[Block] = []
    if failed:
        blocks += [_reasons(failed), *_examples(facts.run, failed), _make_table(failed)]
    else:
        blocks.append(Text("No trial failed."))
    if interrupted:
        blocks.append(_interruptions(interrupted))
    if hosts:
        blocks.append(_host_table(hosts))
    return Section("failures", "Failures", lead, tuple(blocks))


def group_by_reason(failed: Sequence[TrialHistory]) -> dict[str, list[TrialHistory]]:
    """Group failed trials by their reason.

    Returns:
        Trials by reason, the most frequent reason first.
    """
    found: defaultdict[str, list[TrialHistory]] = defaultdict(list)
    for trial in failed:
        found[trial.trial.reason or "unknown"].append(trial)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def collect_interruptions(facts: Facts) -> dict[str, list[str]]:
    """Group interrupted trials by the reason of their interruptions.

    Returns:
        Names of trials by reason, once for each interruption; the most frequent reason first.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for event in facts.events:
        if event["event"] == "ended" and event["outcome"] == "interrupted":
            found[str(event.get("reason"))].append(event["trial"])
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _reasons(failed: Sequence[TrialHistory]) -> Table:
    unit, size = cost_unit(sum(trial.trial.slot_seconds for trial in failed))
    rows = [
        (
            reason,
            len(trials),
            sum(trial.trial.slot_seconds for trial in trials) / size,
            MEANINGS.get(reason, ""),
        )
        for reason, trials in group_by_reason(failed).items()
    ]
    columns = (
        Column("reason", "reason"),
        Column("trials", "failed trials"),
        Column("time", "slot time", f"slot {unit}"),
        Column("meaning", "meaning"),
    )
    return Table("reasons", columns, tuple(rows))


def _examples(run: RunDir, failed: Sequence[TrialHistory]) -> list[Block]:
    blocks: list[Block] = []
    for reason, trials in group_by_reason(failed).items():
        for trial in trials[:EXAMPLES]:
            lines = read_last_lines(run, trial)
            again = retry_command(run.path, trial.name)
            blocks.append(Code(f"{lines}\n\n$ {again}", f"{trial.name}: {reason}", folded=True))
    return blocks


def retry_command(run: Path, trial: str) -> str:
    """Return the command that queues a failed trial again."""
    return shlex.join(["hydragnn-hpo", "retry", str(run), trial])


def read_last_lines(run: RunDir, trial: TrialHistory) -> str:
    """Return the last lines of the log of a trial's last attempt; without a log its message."""
    log = run.trial(trial.name).attempt(trial.trial.attempt) / "log"
    lines = read_tail(log)
    message = (trial.trial.message or "it left no message").strip()
    if not lines:
        return _shorten(message.splitlines()[-LINES:])
    return _shorten(lines)


def read_tail(log: Path) -> list[str]:
    """Read the last lines of a log; nothing if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.strip().splitlines()[-LINES:]


def _shorten(lines: Sequence[str]) -> str:
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines)


def _make_table(failed: Sequence[TrialHistory]) -> Table:
    rows = []
    for trial in failed[:LISTED]:
        lines = (trial.trial.message or "").strip().splitlines()
        last = lines[-1][:160] if lines else ""
        rows.append((trial.name, trial.trial.reason, trial.trial.attempt, last))
    columns = (
        Column("trial", "trial"),
        Column("reason", "reason"),
        Column("attempts", "attempts"),
        Column("message", "last line of its message"),
    )
    more = len(failed) - LISTED
    note = (
        f"The first {LISTED} failed trials; all of them: hydragnn-hpo leaderboard."
        if more > 0
        else ""
    )
    return Table("trials", columns, tuple(rows), note)


def _interruptions(found: Mapping[str, Sequence[str]]) -> Table:
    rows = [
        (reason, len(names), len(Counter(names)), MEANINGS.get(reason, ""))
        for reason, names in found.items()
    ]
    columns = (
        Column("reason", "reason"),
        Column("times", "interruptions"),
        Column("trials", "trials"),
        Column("meaning", "meaning"),
    )
    note = "Interrupted attempts went on from their last checkpoint, unless their trial failed."
    return Table("interruptions", columns, tuple(rows), note)


def _hosts(facts: Facts) -> list[tuple[str, str, str]]:
    """Return host, fate (lost, lost and back, in quarantine) and reason."""
    found: dict[str, tuple[str, str]] = {}
    for event in facts.events:
        if event["event"] == "host_lost":
            found[event["host"]] = "lost", event["reason"]
        elif event["event"] == "host_joined" and event["host"] in found:
            found[event["host"]] = "lost, came back", found[event["host"]][1]
    for host, reason in facts.state.hosts.quarantined.items():
        found[host] = "in quarantine", reason
    return [(host, became, why) for host, (became, why) in found.items()]


def _host_table(hosts: Sequence[tuple[str, str, str]]) -> Table:
    columns = (Column("host", "host"), Column("became", "what became of it"), Column("why", "why"))
    return Table("hosts", columns, tuple(hosts))
