"""What ``init`` found, for people."""

from typing import TYPE_CHECKING

from hydragnn_hpo.cli.tables import console
from hydragnn_hpo.data.look.card import counted
from hydragnn_hpo.data.look.files import plain
from hydragnn_hpo.data.look.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hydragnn_hpo.cli.beginning import Made

_GUESSED = {"guessed": " (guessed)", "unknown": " (not known)"}

_LATE = 1.5
"""Times the wished time from which a campaign is said to take too long."""


def show(made: "Made", *, dry_run: bool) -> None:
    """Say what was found, what is proposed, what to look at, and what comes next."""
    out = console()
    for line in (_found(made), _shape(made)):
        _say(out, line)
    out.print(_targets(made))
    for name, why in made.seen.judged.left_out:
        _say(out, f"left out: {plain(name)[:60]} {why}")
    for warning in made.seen.warnings:
        _say(out, f"WARNING: {warning}", style="yellow")
    for line in _units(made):
        _say(out, line, style="yellow")
    for line in _search(made):
        _say(out, line)
    if dry_run:
        _say(out, f"would write {made.card} and {made.campaign}")
        return
    _say(out, f"wrote {made.card} (what the data are) and {made.campaign} (what is searched)")
    if any(target.unit.name == UNKNOWN for target in made.seen.judged.targets):
        return
    _say(out, "next:", style="bold")
    _say(out, f"  hydragnn-hpo run {_quoted(str(made.campaign))}")


def _say(out: "Console", text: str, style: str | None = None) -> None:
    """Print text that may come from a file: no markup in it is obeyed."""
    out.print(plain(text).replace('\\"', '"'), style=style, markup=False, highlight=False)


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _found(made: "Made") -> str:
    seen, sample = made.seen, made.seen.sample
    first = str(seen.files[0].path)
    more = f" and {len(seen.files) - 1} more" if len(seen.files) > 1 else ""
    read = len(sample.structures) + sample.bad
    about = "" if sample.exact else "about "
    looked = "all read" if read == sample.total else f"{read:,} of them read"
    return f"{first}{more}: {about}{sample.total:,} structures ({looked})"


def _shape(made: "Made") -> str:
    around = made.seen.surroundings
    few, middle, most = around.sizes
    named = " ".join(around.elements[:24]) + (" ..." if len(around.elements) > 24 else "")
    return (
        f"{few} to {most} atoms (median {middle}), {around.periodic}, "
        f"{counted(len(around.elements), 'element')}: {named}; "
        f"{around.degree:.0f} neighbours within {around.cutoff:g} angstrom"
    )


def _targets(made: "Made") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("target", "of", "unit", "predicted", "values", "why"):
        table.add_column(name, overflow="fold")
    for target in made.seen.judged.targets:
        head = "yes" if target.name in made.heads else "no"
        unit = target.unit.name + _GUESSED.get(target.unit.sure, "")
        kind = f"{'structure' if target.level == 'graph' else 'atom'}"
        kind += "" if target.shape == "scalar" else f", {target.shape}"
        cells = (target.name, kind, unit, head, target.spread, "; ".join(target.why))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _units(made: "Made") -> list[str]:
    """Say loudly which units were guessed, and how to correct them."""
    targets = made.seen.judged.targets
    guessed = [t for t in targets if t.unit.sure == "guessed"]
    asked = [t for t in targets if t.unit.name == UNKNOWN]
    bare = [t.name for t in targets if t.unit.sure == "unknown" and t.unit.name != UNKNOWN]
    said = []
    if guessed:
        listed = ", ".join(f"{t.name} in {t.unit.name}" for t in guessed)
        said.append(
            f"UNITS GUESSED: {listed}. If one is wrong, correct {made.card.name}, or remove both "
            f"files and give --unit '{plain(guessed[0].key)}=UNIT'."
        )
    if bare:
        said.append(f"No unit is known for {', '.join(bare)}: numbers stay as in the file.")
    if asked:
        listed = ", ".join(t.name for t in asked)
        said.append(
            f"STOP: the unit of {listed} is not known, and what comes out would be wrong by it. "
            f'Write it in {made.card} in place of "?", then: hydragnn-hpo run {made.campaign}'
        )
    return said


def _search(made: "Made") -> list[str]:
    scope = made.scope
    few, many = scope.layers
    convs = ", ".join(scope.convs or ())
    said = [
        f"search: {scope.trials} trials of {convs}; {min(scope.features)} to {max(scope.features)} "
        f"features, {few} to {many} layers; {scope.rungs[0]} epochs, the best {scope.rungs[1]}; "
        f"an ensemble of {scope.members}",
        *scope.why,
    ]
    if made.seconds > 60.0 * made.minutes * _LATE:
        said.append(
            f"WARNING: the smallest sensible search takes longer than {made.minutes:g} minutes "
            "here: start from part of the data, or use a larger machine."
        )
    return said
