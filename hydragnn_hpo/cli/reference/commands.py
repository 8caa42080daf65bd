"""Every command with its arguments and options, as the command line declares them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer

from hydragnn_hpo.cli.reference.keys import NEEDED, sentence
from hydragnn_hpo.cli.reference.kinds import kind


@dataclass(frozen=True)
class Choice:
    """One argument or option."""

    written: str
    """As it is typed: ``--run``, ``--resume / --no-resume``, ``CAMPAIGN``."""
    kind: str
    default: str
    says: str
    option: bool


@dataclass(frozen=True)
class Verb:
    """One command."""

    name: str
    """With the names of its groups: ``dataset build``."""
    says: str
    choices: tuple[Choice, ...]

    @property
    def usage(self) -> str:
        """Give the line that calls it."""
        words = [choice.written for choice in self.choices if not choice.option]
        some = ["[OPTIONS]"] if any(choice.option for choice in self.choices) else []
        return " ".join(["hydragnn-hpo", self.name, *words, *some])


def verbs(app: typer.Typer) -> Iterator[Verb]:
    """Give all commands that are not hidden, in the order of ``--help``."""
    yield from _verbs(typer.main.get_command(app), ())


def _verbs(command: Any, names: Sequence[str]) -> Iterator[Verb]:
    """Go through groups; what typer builds has no public types."""
    if command.hidden:
        return
    inner = getattr(command, "commands", None)
    if inner is None:
        hints = get_type_hints(command.callback)
        choices = [_choice(p, hints) for p in command.params if not getattr(p, "hidden", False)]
        order = sorted(choices, key=lambda choice: choice.option)
        yield Verb(" ".join(names), sentence(command.help or ""), tuple(order))
        return
    for name, below in inner.items():
        yield from _verbs(below, [*names, name])


def _choice(parameter: Any, hints: dict[str, Any]) -> Choice:
    option = isinstance(parameter, typer.core.TyperOption)
    hint = hints.get(parameter.name, str)
    many = parameter.multiple or parameter.nargs == -1
    return Choice(
        written=_written(parameter, option, many),
        kind="yes or no" if hint is bool else _kind(hint, parameter),
        default=_default(parameter.default, parameter.required),
        says=sentence(parameter.help or ""),
        option=option,
    )


def _written(parameter: Any, option: bool, many: bool) -> str:
    if not option:
        word = str(parameter.metavar or parameter.name.upper())
        word = f"{word}..." if many else word
        return word if parameter.required else f"[{word}]"
    ways = [", ".join(parameter.opts), *filter(None, [", ".join(parameter.secondary_opts)])]
    return " / ".join(ways)


def _kind(hint: Any, parameter: Any) -> str:
    words = kind(hint).replace("list of ", "repeatable ")
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">=", parameter.min), ("<=", parameter.max))
        if bound is not None
    ]
    return " ".join([words, " and ".join(bounds)]).strip()


def _default(value: Any, required: bool) -> str:
    if required:
        return NEEDED
    if value is None or value is False or value in ((), []):
        return ""
    return "yes" if value is True else str(Path(value) if isinstance(value, Path) else value)
