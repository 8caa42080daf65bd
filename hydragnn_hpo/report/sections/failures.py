"""What failed, why, with the last lines of its log, and how to try it again."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, TrialFacts
from hydragnn_hpo.report.page.blocks import Block, Code, Column, Section, Table, Text
from hydragnn_hpo.report.sections.axes import spent_unit

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


def section(facts: Facts) -> Section | None:
    """List failures, interruptions and hosts that were lost."""
    failed = [trial for trial in facts.trials.values() if trial.trial.status == "failed"]
    hosts = _hosts(facts)
    interrupted = interruptions_of(facts)
    lead = "Which trials failed or were interrupted and why, and how to try them again."
    if not failed and not interrupted and not hosts:
        said = Text("No trial failed, none was interrupted, and no host was lost.")
        return Section("failures", "Failures", lead, (said,))
    blocks: list[Block] = []
    if failed:
        blocks += [_reasons(failed), *_examples(facts.run, failed), _table(failed)]
    else:
        blocks.append(Text("No trial failed."))
    if interrupted:
        blocks.append(_interruptions(interrupted))
    if hosts:
        blocks.append(_host_table(hosts))
    return Section("failures", "Failures", lead, tuple(blocks))


def by_reason(failed: Sequence[TrialFacts]) -> dict[str, list[TrialFacts]]:
    """Sort failed trials by their reason, the most frequent first."""
    found: defaultdict[str, list[TrialFacts]] = defaultdict(list)
    for trial in failed:
        found[trial.trial.reason or "unknown"].append(trial)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def interruptions_of(facts: Facts) -> dict[str, list[str]]:
    """Give the trials that were interrupted, once for each time, by reason."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for event in facts.events:
        if event["event"] == "ended" and event["outcome"] == "interrupted":
            found[str(event.get("reason"))].append(event["trial"])
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _reasons(failed: Sequence[TrialFacts]) -> Table:
    unit, size = spent_unit(sum(trial.trial.slot_seconds for trial in failed))
    rows = [
        (
            reason,
            len(trials),
            sum(trial.trial.slot_seconds for trial in trials) / size,
            MEANINGS.get(reason, ""),
        )
        for reason, trials in by_reason(failed).items()
    ]
    columns = (
        Column("reason", "reason"),
        Column("trials", "failed trials"),
        Column("time", "slot time", f"slot {unit}"),
        Column("meaning", "meaning"),
    )
    return Table("reasons", columns, tuple(rows))


def _examples(run: RunDir, failed: Sequence[TrialFacts]) -> list[Block]:
    blocks: list[Block] = []
    for reason, trials in by_reason(failed).items():
        for trial in trials[:EXAMPLES]:
            said = last_words(run, trial)
            again = retry_command(run.path, trial.name)
            blocks.append(Code(f"{said}\n\n$ {again}", f"{trial.name}: {reason}", folded=True))
    return blocks


def retry_command(run: Path, trial: str) -> str:
    """Give the command that queues a failed trial again."""
    return shlex.join(["hydragnn-hpo", "retry", str(run), trial])


def last_words(run: RunDir, trial: TrialFacts) -> str:
    """Give the last lines of the log of a trial's last attempt; its message without one."""
    log = run.trial(trial.name).attempt(trial.trial.attempt) / "log"
    lines = tail_of(log)
    message = (trial.trial.message or "it left no message").strip()
    if not lines:
        return _cut(message.splitlines()[-LINES:])
    return _cut(lines)


def tail_of(log: Path) -> list[str]:
    """Read the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.strip().splitlines()[-LINES:]


def _cut(lines: Sequence[str]) -> str:
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines)


def _table(failed: Sequence[TrialFacts]) -> Table:
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
    """Give hosts with what became of them and why: lost, also for a while, or in quarantine."""
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
