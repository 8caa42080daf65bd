"""Lay out findings of doctor and acceptance: a table, a line, plain data."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.cli.words import count
from hydragnn_hpo.launching import ORDER, Finding, State, worst

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


MOST_LETTERS = 34
"""Letters of a host list; the rest is counted."""


MOST_NAMED = 16
"""Hosts of which the larger part is named, too."""


COLOURS: dict[State, str] = {
    "ok": "green",
    "slow": "yellow",
    "wrong": "bold red",
    "unknown": "cyan",
}


@dataclass(frozen=True)
class FindingRow:
    """All findings of one check in one state."""

    check: str
    state: State
    where: str
    found: str
    expected: str
    cure: str


def rows_of(findings: Sequence[Finding]) -> list[FindingRow]:
    """Group findings: a row for each check and state, checks as they came."""
    groups: dict[str, dict[State, list[Finding]]] = {}
    for finding in findings:
        groups.setdefault(finding.check, {}).setdefault(finding.state, []).append(finding)
    total = len({host for finding in findings for host in finding.hosts})
    return [_row(by[state], total) for by in groups.values() for state in ORDER if state in by]


def _row(alike: Sequence[Finding], total: int) -> FindingRow:
    first = alike[0]
    cures = dict.fromkeys(finding.cure for finding in alike if finding.cure)
    return FindingRow(
        check=first.check,
        state=first.state,
        where=where_of(alike, total),
        found=_span(alike),
        expected=_most_common([finding.expected for finding in alike]),
        cure=" ".join(list(cures)[:2]),
    )


def where_of(alike: Sequence[Finding], total: int) -> str:
    """Name the hosts of some findings: pairs, a host list, a count, or ``here``."""
    pairs = [f"{f.hosts[0]} - {f.hosts[1]}" for f in alike if len(f.hosts) == 2]
    if pairs:
        named = ", ".join(pairs)
        return named if len(named) <= MOST_LETTERS else count(len(pairs), "pair")
    hosts = {host for finding in alike for host in finding.hosts}
    if not hosts:
        return "here"
    if len(hosts) == total > 1:
        return f"all {total:,}"
    if 2 * len(hosts) > total > MOST_NAMED:
        return f"{len(hosts):,} of {total:,}"
    from hydragnn_hpo.launching import by_number, compress

    named = compress(by_number(sorted(hosts)))
    return _shortened(named, count(len(hosts), "host"))


def _shortened(names: str, counted: str) -> str:
    if len(names) <= MOST_LETTERS:
        return names
    return f"{counted}: {names[: MOST_LETTERS - len(counted) - 5].rstrip(',- ')}..."


def _span(alike: Sequence[Finding]) -> str:
    """Return what was found: one value, from the least to the largest, or the most common."""
    said = [finding.found for finding in alike]
    if len(set(said)) == 1:
        return said[0]
    numbered = [finding for finding in alike if finding.figure is not None]
    if len(numbered) == len(alike):
        ends = [end(numbered, key=lambda f: f.figure or 0.0) for end in (min, max)]
        return f"{ends[0].found} to {ends[1].found}"
    return _most_common(said)


def _most_common(said: Sequence[str]) -> str:
    kinds = Counter(said).most_common()
    more = len(kinds) - 1
    first = kinds[0][0]
    return f"{first} (and {more} other{'s' if more > 1 else ''})" if more else first


def findings_table(findings: Sequence[Finding], title: str) -> "Table":
    """Lay out findings; what comes from hosts is text, never markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in ("check", "state", "where"):
        table.add_column(name, no_wrap=True)
    table.add_column("found", overflow="fold")
    last = ""
    for row in rows_of(findings):
        shown = "" if row.check == last else row.check
        last = row.check
        state = Text(row.state, COLOURS[row.state])
        table.add_row(Text(shown), state, Text(row.where), _describe(row))
    return table


def _describe(row: FindingRow) -> "Text":
    """Return what was found and expected, and below it the cure."""
    from rich.text import Text

    said = Text(row.found)
    if row.expected and row.state != "ok":
        said.append(f" (expected: {row.expected})", "dim")
    if row.cure:
        said.append(f"\n-> {row.cure}", "italic" if row.state == "ok" else COLOURS[row.state])
    return said


def findings_headline(findings: Sequence[Finding], machine: str, hosts: int) -> str:
    """Return one line: what was examined, and its state."""
    bad = {host for finding in findings if finding.bad for host in finding.hosts}
    said = {
        "ok": "all is well",
        "unknown": "nothing is wrong with what could be seen",
        "slow": "something is slow",
        "wrong": "something is wrong",
    }[worst(findings)]
    on = f" on {count(len(bad), 'host')} of {hosts:,}" if bad and hosts > 1 else ""
    return f"{count(hosts, 'host')} as '{machine}': {said}{on}"


def findings_plain(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as plain data for JSON."""
    return {
        "state": worst(findings),
        "findings": [finding.to_plain() for finding in findings],
    }
