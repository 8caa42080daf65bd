"""Render the script of a batch job from a request and a machine's profile, as pure functions.

No outside value reaches a shell unquoted: words of the script go through ``shlex.quote``, and
directives, which no shell reads, must be one plain line.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.config import ProfileConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.batch_jobs import BatchRequest
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.resources import resource_path

_PLACEHOLDER = re.compile(r"^\{\{(?P<block>[a-z]+)\}\}\n|\{\{(?P<word>[a-z]+)\}\}", re.MULTILINE)
_PREFIX = {"slurm": "#SBATCH", "pbs": "#PBS"}
_ACCOUNT = {"slurm": "--account=", "pbs": "-A "}
_QUEUE = {"slurm": "--partition=", "pbs": "-q "}
"""Option that selects a queue where the profile has no queue option of its own."""


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
    scheduler = profile.batch.scheduler
    options = [_check_directive(option) for option in _options(request, profile)]
    environment = {**profile.batch.environment, **content.environment}
    mark = f"#SBATCH --comment=hydragnn-hpo:{run_tag(Path(content.run))}"
    marked = any(option.startswith("--comment") for option in options)
    blocks = {
        "mark": [] if marked else ["# By this the run finds a job without a number.", mark],
        "options": [f"{_PREFIX[scheduler]} {option}" for option in options],
        "modules": [f"module load {shlex.quote(name)} || exit" for name in profile.batch.modules],
        "environment": [f"export {k}={shlex.quote(v)}" for k, v in environment.items()],
    }
    parts = (resource_path(f"launch/batch/{name}.sh") for name in (scheduler, "job"))
    template = "".join(part.read_text(encoding="utf-8") for part in parts)
    text = _fill_template(template, _words(request, profile, content), blocks)
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
        "log": "%A_%a.out" if request.allocations > 1 else "%j.out",
        "program": shlex.join(content.program),
        "run": shlex.quote(content.run),
        "script": shlex.quote(content.script),
        "folder": shlex.quote(content.folder),
        "command": shlex.join(content.command),
        "locale": shlex.quote(content.locale),
    }


def _options(request: BatchRequest, profile: ProfileConfig) -> list[str]:
    """Return the directives that depend on the request and the machine."""
    account = [_ACCOUNT[profile.batch.scheduler] + request.account] if request.account else []
    queue = _queue_option(request.queue, profile)
    array = [f"--array=1-{request.allocations}"] if request.allocations > 1 else []
    options = [*account, *([queue] if queue is not None else []), *array]
    return [*options, *_memory_option(profile), *profile.batch.directives]


def _memory_option(profile: ProfileConfig) -> list[str]:
    """Return the directive for memory: whole hosts may come with the site's default of it only."""
    batch = profile.batch
    if batch.scheduler != "slurm" or not batch.memory:
        return []
    own = any(re.match(r"--mem(-per-[a-z]+)?([= ]|$)", line) for line in batch.directives)
    return [] if own else [f"--mem={batch.memory}"]


def _queue_option(queue: str | None, profile: ProfileConfig) -> str | None:
    """Return the directive for a queue as the machine names it: partition, QOS or PBS queue."""
    default = profile.batch.queue
    if queue is None:
        return default
    option = re.match(r"--?[A-Za-z-]+[= ]", default) if default else None
    return (option[0] if option else _QUEUE[profile.batch.scheduler]) + queue


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
