"""A batch script, made from an order and a machine's profile; purely.

Nothing that comes from outside reaches a shell unquoted: words of the script go through
``shlex.quote``, and directives, which no shell reads, are checked to be one plain line.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.config import ProfileConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.submit.order import Order
from hydragnn_hpo.resources import resource_path

_PLACE = re.compile(r"^\{\{(?P<block>[a-z]+)\}\}\n|\{\{(?P<word>[a-z]+)\}\}", re.MULTILINE)
_HEADS = {"slurm": "launch/batch/slurm.sh", "pbs": "launch/batch/pbs.sh"}
_BODY = "launch/batch/job.sh"

_QUEUE = {"slurm": "--partition=", "pbs": "-q "}
"""How a queue is named where the profile does not show it."""


@dataclass(frozen=True)
class Content:
    """What a script does."""

    program: tuple[str, ...]
    """How hydragnn-hpo is called: arguments before the verb."""

    run: str
    """Run directory, absolute."""

    script: str
    """File name of the script, in ``RUN/jobs``."""

    folder: str
    """Folder from which the campaign was submitted: its relative paths begin there."""

    command: tuple[str, ...]
    """The verb that runs the campaign, and its arguments."""

    environment: Mapping[str, str]
    """What is carried over from whoever submits."""


def batch_script(order: Order, profile: ProfileConfig, content: Content) -> str:
    """Give the whole script of a batch job.

    Raises:
        ConfigError: a directive of the profile is not one plain line.
    """
    scheduler = profile.batch.scheduler
    words = {
        "name": directive(f"hpo-{order.name}"),
        "hosts": str(order.hosts),
        "time": order.time,
        "seconds": str(order.seconds),
        "drain": str(profile.batch.drain_seconds),
        "log": "%A_%a.out" if order.allocations > 1 else "%j.out",
        "program": shlex.join(content.program),
        "run": shlex.quote(content.run),
        "script": shlex.quote(content.script),
        "folder": shlex.quote(content.folder),
        "command": shlex.join(content.command),
    }
    environment = {**profile.batch.environment, **content.environment}
    mark = {"slurm": "#SBATCH", "pbs": "#PBS"}[scheduler]
    blocks = {
        "options": [f"{mark} {directive(line)}" for line in options(order, profile)],
        "modules": [f"module load {shlex.quote(name)} || exit" for name in profile.batch.modules],
        "environment": [f"export {k}={shlex.quote(v)}" for k, v in environment.items()],
    }
    templates = (resource_path(_HEADS[scheduler]), resource_path(_BODY))
    text = fill("".join(path.read_text(encoding="utf-8") for path in templates), words, blocks)
    if wrong := [line for line in text.splitlines() if re.search("[\ud800-\udfff]", line)]:
        raise ConfigError(f"{wrong[0]!r} holds a path that is no UTF-8: choose or link another.")
    return text


def options(order: Order, profile: ProfileConfig) -> list[str]:
    """Give the directives that differ from order to order and from machine to machine."""
    scheduler, asked = profile.batch.scheduler, []
    if order.account is not None:
        asked.append(
            f"--account={order.account}" if scheduler == "slurm" else f"-A {order.account}"
        )
    queue = queue_option(order.queue, profile)
    if queue is not None:
        asked.append(queue)
    if order.allocations > 1:
        asked.append(f"--array=1-{order.allocations}")
    return [*asked, *profile.batch.directives]


def queue_option(asked: str | None, profile: ProfileConfig) -> str | None:
    """Name a queue as the machine wants it: as a partition, a QOS, or a queue of PBS."""
    usual = profile.batch.queue
    if asked is None:
        return usual
    before = re.match(r"--?[A-Za-z-]+[= ]", usual) if usual else None
    return (before[0] if before else _QUEUE[profile.batch.scheduler]) + asked


def directive(line: str) -> str:
    """Give back what is one plain line; it is read by the scheduler, not by a shell.

    Raises:
        ConfigError: it holds line ends or other characters that cannot be printed.
    """
    if not line or not line.isprintable() or not line.isascii():
        raise ConfigError(f"{line!r} cannot be a directive of a batch script: write one line.")
    return line


def fill(template: str, words: Mapping[str, str], blocks: Mapping[str, Sequence[str]]) -> str:
    """Fill a template in, in one pass: what is filled in is not looked at again.

    Args:
        template: with ``{{name}}`` for a word, or alone on its line for a block.
        words: by name; those that the template does not ask for are left out.
        blocks: lines by name; one without lines leaves none.
    """

    def value(match: re.Match[str]) -> str:
        if match["block"]:
            return "".join(f"{line}\n" for line in blocks[match["block"]])
        return words[match["word"]]

    return _PLACE.sub(value, template)
