"""Render the script of a batch job from a request and a machine's profile, as pure functions.

No outside value reaches a shell unquoted: words of the script go through ``shlex.quote``, and
directives, which no shell reads, must be one plain line.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.config import ProfileConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.batch_jobs import BatchRequest
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.schedulers import Scheduler
from hydragnn_hpo.launching.transports import find_scheduler
from hydragnn_hpo.resources import resource_path

BODY = "launch/batch/job.sh"
"""The part of a script that is the same for all schedulers."""

_PLACEHOLDER = re.compile(r"^\{\{(?P<block>[a-z]+)\}\}\n|\{\{(?P<word>[a-z]+)\}\}", re.MULTILINE)


@dataclass(frozen=True)
class ScriptContent:
    """The commands and paths of a batch script."""

    program: tuple[str, ...]
    """Command line of hydragnn-hpo up to the subcommand."""
    run: str
    """Run directory, absolute."""
    script: str
    """File name of the script, in ``RUN/jobs``."""
    folder: str
    """Folder from which the campaign was submitted; its relative paths start there."""
    command: tuple[str, ...]
    """The subcommand that runs the campaign, and its arguments."""
    environment: Mapping[str, str]
    """Variables of the submitting shell to export."""
    locale: str = ""
    """LC_ALL of the submitting shell."""


def render_batch_script(
    request: BatchRequest, profile: ProfileConfig, content: ScriptContent
) -> str:
    """Return the whole script of a batch job.

    Args:
        request: the jobs that the user requests.
        profile: profile of the machine.
        content: commands and paths of the script.

    Raises:
        ConfigError: a directive is not one plain line, or a path is not UTF-8.
    """
    scheduler = find_scheduler(profile.batch.scheduler)
    options = [_check_directive(option) for option in _options(scheduler, request, profile)]
    environment = {**profile.batch.environment, **content.environment}
    blocks = {
        "mark": scheduler.mark_lines(run_tag(Path(content.run)), options),
        "options": [f"{scheduler.prefix} {option}" for option in options],
        "job": scheduler.job_lines,
        "modules": [f"module load {shlex.quote(name)} || exit" for name in profile.batch.modules],
        "environment": [f"export {k}={shlex.quote(v)}" for k, v in environment.items()],
    }
    template = scheduler.read_head() + resource_path(BODY).read_text(encoding="utf-8")
    words = _words(request, profile, content) | scheduler.own_words(request)
    text = _fill_template(template, words | {"number": scheduler.job_number}, blocks)
    if wrong := [line for line in text.splitlines() if re.search("[\ud800-\udfff]", line)]:
        raise ConfigError(f"{wrong[0]!r} holds a path that is no UTF-8: choose or link another.")
    return text


def _words(request: BatchRequest, profile: ProfileConfig, content: ScriptContent) -> dict[str, str]:
    """Return the words of a script that are filled in, quoted where a shell reads them."""
    return {
        "name": _check_directive(f"hpo-{request.name}"),
        "hosts": str(request.hosts),
        "time": request.time,
        "seconds": str(request.seconds),
        "jobs": str(request.jobs),
        "drain": str(profile.batch.drain_seconds),
        "program": shlex.join(content.program),
        "run": shlex.quote(content.run),
        "script": shlex.quote(content.script),
        "folder": shlex.quote(content.folder),
        "command": shlex.join(content.command),
        "locale": shlex.quote(content.locale),
    }


def _options(scheduler: Scheduler, request: BatchRequest, profile: ProfileConfig) -> Iterator[str]:
    """Yield the directives that depend on the request and the machine."""
    if request.account:
        yield scheduler.account_option + request.account
    default = profile.batch.queue
    if request.queue is not None:  # as the machine names it: partition, QOS or PBS queue
        option = re.match(r"--?[A-Za-z-]+[= ]", default) if default else None
        yield (option[0] if option else scheduler.queue_option) + request.queue
    elif default is not None:
        yield default
    yield from scheduler.own_options(request, profile)
    yield from profile.batch.directives


def _check_directive(line: str) -> str:
    """Return a directive unchanged if it is one plain line: the scheduler reads it, no shell."""
    if not line or not line.isprintable() or not line.isascii():
        raise ConfigError(f"{line!r} cannot be a directive of a batch script: write one line.")
    return line


def _fill_template(
    template: str, words: Mapping[str, str], blocks: Mapping[str, Sequence[str]]
) -> str:
    """Fill a template in one pass, so that inserted text is not filled in itself."""

    def value(match: re.Match[str]) -> str:
        if match["block"]:
            return "".join(f"{line}\n" for line in blocks[match["block"]])
        return words[match["word"]]

    return _PLACEHOLDER.sub(value, template)
