"""Read and extend the file of excluded hosts: host names, each with a reason."""

from collections.abc import Mapping
from pathlib import Path

from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import write_text
from hydragnn_hpo.launching.slurm_allocation import check_host_name, expand_hosts
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.sanitize import sanitize_line

_MOST = 400
"""Most characters of a finding's text, as output of hosts may be long."""

_HEAD = "# Excluded hosts, one per line, with the reason.\n# Remove a line to use its host again.\n"


def clean(text: str) -> str:
    """Return text in one line of at most 400 letters, control characters spelt out."""
    line = sanitize_line(text)
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."


def read_excluded(path: Path) -> dict[str, str]:
    """Read an exclusion list; a line may hold a host list such as ``node[01-04]``.

    Returns:
        Host -> reason, empty where none is given.

    Raises:
        ConfigError: the file is missing, or a line names no host.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); correct its permissions."
        ) from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        names, _, reason = line.partition("#")
        if not names.strip():
            continue
        for host in _hosts(names, f"{path}, line {number}"):
            reasons[host] = clean(reason.strip())
    return reasons


def _hosts(names: str, where: str) -> list[str]:
    try:
        return expand_hosts(names)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_run_excluded(run_dir: Path) -> dict[str, str]:
    """Read the excluded hosts of a run.

    Returns:
        Host -> reason; empty if the run has no list.

    Raises:
        ConfigError: the list cannot be read, or a line names no host.
    """
    path = RunDir(run_dir).excluded
    return read_excluded(path) if path.exists() else {}


def add_excluded(path: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Add hosts to an exclusion list; hosts that it holds already keep their reason.

    Returns:
        Host -> reason, for all hosts of the list.

    Raises:
        ConfigError: a name is no host name, or the existing list cannot be read.
        StorageError: the list cannot be written.
    """
    known = read_excluded(path) if path.exists() else {}
    if not more:
        return known
    for host in more:
        check_host_name(host)
    all_hosts = {**more, **known}
    lines = (f"{host}  # {clean(why)}".rstrip(" #") for host, why in sorted(all_hosts.items()))
    if not path.parent.is_dir():
        raise StorageError(f"{path}: there is no folder {path.parent}; make it first.")
    write_text(path, _HEAD + "".join(f"{line}\n" for line in lines))
    return all_hosts
