"""Host lists as Slurm writes them: ``frontier[00012-00019,00100],login2``."""

import itertools
import re
from collections.abc import Iterable, Iterator

from hydragnn_hpo.errors import ConfigError

_MOST = 1_000_000
"""Hosts in one list: more is a slip of the pen, not a machine."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_LAST_NUMBER = re.compile(r"^(.*?)([0-9]+)([^0-9]*)$")


def split_names(text: str) -> list[str]:
    """Cut a list at its commas, but not at those inside brackets.

    Raises:
        ConfigError: the brackets do not match.
    """
    names, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _bad(text)
        if letter == "," and depth == 0:
            names.append(text[start:place])
            start = place + 1
    if depth:
        raise _bad(text)
    return [name for name in [*names, text[start:]] if name]


def expand(text: str) -> list[str]:
    """Give the hosts of a list, in its order.

    Raises:
        ConfigError: it is no host list, or names what can be no host.
    """
    hosts: list[str] = []
    for name in split_names(text.strip()):
        for host in map(checked, _expand_name(name)):
            hosts.append(host)
            if len(hosts) > _MOST:
                raise ConfigError(f"host list {text[:60]!r} names more than {_MOST} hosts.")
    return hosts


def checked(host: str) -> str:
    """Give the name of a host, which becomes part of commands, if it can be one.

    Raises:
        ConfigError: it begins like an option, or holds what no name of a host does.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{host[:80]!r} is no name of a host: letters, digits, . _ and - are.")
    return host


def _expand_name(name: str) -> Iterator[str]:
    """Put every number of every bracket into one name; the last bracket runs fastest."""
    pieces = re.split(r"\[([^\[\]]*)\]", name)  # text and contents of brackets in turn
    choices = [list(_numbers(p, name)) if odd % 2 else [p] for odd, p in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(content: str, name: str) -> Iterator[str]:
    """Give the numbers of one bracket, with the leading zeros that its first one has."""
    for part in content.split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if found is None:
            raise _bad(name)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) <= _MOST:
            raise _bad(name)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _bad(text: str) -> ConfigError:
    return ConfigError(f"{text[:80]!r} is no host list: write it as in node[01-04,07],login1.")


def compress(hosts: Iterable[str]) -> str:
    """Write hosts as a short list that ``expand`` gives back in the same order."""
    groups: list[tuple[str, str, list[list[str]]]] = []
    for host in hosts:
        found = _LAST_NUMBER.match(host)
        if found is None:
            groups.append((host, "", []))
            continue
        before, digits, after = found.groups()
        if not groups or not groups[-1][2] or groups[-1][:2] != (before, after):
            groups.append((before, after, []))
        runs = groups[-1][2]
        if runs and _follows(runs[-1], digits):
            runs[-1][1:] = [digits]
        else:
            runs.append([digits])
    return ",".join(_write(*group) for group in groups)


def _follows(run: list[str], digits: str) -> bool:
    """Say whether a number continues a run, written as the run's first number asks."""
    return digits == str(int(run[-1]) + 1).zfill(len(run[0]))


def _write(before: str, after: str, runs: list[list[str]]) -> str:
    if not runs:
        return before
    if len(runs) == len(runs[0]) == 1:
        return f"{before}{runs[0][0]}{after}"
    return f"{before}[{','.join('-'.join(run) for run in runs)}]{after}"
