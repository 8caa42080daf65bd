"""What belongs to the environment that we run in: each file, and where it goes in an archive."""

import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hydragnn_hpo
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.staging.unpack import BASE, ENV

OURS = "hydragnn-hpo"
SHIPPED = ("graph_datasets", "workflows", "launch")
"""Folders beside the package in a checkout, below ``_shipped`` in what is installed."""

_CACHES = {
    *("__pycache__", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
}
_INTERPRETER = re.compile(r"bin/python[0-9.]*")
_SYSTEM = "/usr"
"""An interpreter from here is on every host."""

_NOT_OF_BASE = {"idlelib", "test", "turtledemo"}
"""Parts of the standard library that no training needs; ``config-*``, a static library, too."""


@dataclass(frozen=True)
class Entry:
    """A file, or a link, of an archive."""

    name: str
    source: Path
    link: str = ""
    """Where a link leads, from where it lies; empty for a file."""


@dataclass(frozen=True)
class Interpreter:
    """The environment that we run in."""

    prefix: Path
    base: Path
    executable: Path
    """The real program, without links."""
    system_site: bool
    """Whether packages of the interpreter's own are seen as well."""

    @property
    def shared_with_hosts(self) -> bool:
        """Whether each host has this interpreter for itself."""
        return str(self.base) == _SYSTEM

    @property
    def library(self) -> str:
        """Give the folder of modules below the prefix, such as ``lib/python3.11``."""
        return f"lib/python{sys.version_info.major}.{sys.version_info.minor}"


def running() -> Interpreter:
    """Give the environment that we run in.

    Raises:
        ConfigError: it cannot be moved by us.
    """
    prefix, base = Path(sys.prefix), Path(sys.base_prefix)
    for folder in (prefix, base):
        if (folder / "conda-meta").is_dir():
            raise ConfigError(
                f"{folder}: belongs to conda, whose files name their place: use conda-pack to "
                "move it, or make a venv of a Python that is not conda's (--pack none: few hosts)."
            )
    if prefix == base:
        raise ConfigError(f"{prefix}: is no virtual environment: install hydragnn-hpo into one.")
    said = (prefix / "pyvenv.cfg").read_text().replace(" ", "").lower()
    site = "include-system-site-packages=true" in said
    return Interpreter(prefix, base, Path(os.path.realpath(sys.executable)), site)


def entries(found: Interpreter) -> list[Entry]:
    """Give all files of an environment, by their names in the archive.

    Raises:
        ConfigError: something in it leads to a place that other hosts may not have.
    """
    refuse_editable()
    listed = {entry.name: entry for entry in _environment(found)}
    if not found.shared_with_hosts:
        listed |= {entry.name: entry for entry in _base(found)}
    root = Path(hydragnn_hpo.__file__).parents[1]
    if not root.is_relative_to(found.prefix):
        listed |= {entry.name: entry for entry in _checkout(root, f"{ENV}/{found.library}")}
    return [listed[name] for name in sorted(listed)]


def _environment(found: Interpreter) -> Iterator[Entry]:
    """Give what is in a virtual environment, but for what is made anew where it is unpacked."""
    dropped = {Path("pyvenv.cfg"), *_editable_files()}
    for entry in walk(found.prefix, ENV):
        inside = Path(entry.name).relative_to(ENV)
        if inside not in dropped and not _INTERPRETER.fullmatch(str(inside)):
            yield entry


def _base(found: Interpreter) -> Iterator[Entry]:
    """Give an interpreter: program, standard library, headers (compilers of kernels want them)."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield Entry(f"{BASE}/bin/{name}", found.executable)
    for library in sorted(found.base.glob("lib/libpython*.so*")):
        yield Entry(f"{BASE}/lib/{library.name}", Path(os.path.realpath(library)))
    yield from walk(found.base / "include" / name, f"{BASE}/include/{name}")
    skipped = _NOT_OF_BASE | (set() if found.system_site else {"site-packages"})
    for entry in walk(found.base / found.library, f"{BASE}/{found.library}"):
        part = Path(entry.name).parts[3]
        if part not in skipped and not part.startswith("config-"):
            yield entry


def _checkout(root: Path, library: str) -> Iterator[Entry]:
    """Give our own package as a wheel would install it."""
    packages = f"{library}/site-packages/hydragnn_hpo"
    yield from walk(root / "hydragnn_hpo", packages)
    for folder in SHIPPED:
        yield from walk(root / folder, f"{packages}/_shipped/{folder}")


def walk(folder: Path, name: str) -> Iterator[Entry]:
    """Give the files and links below a folder, without caches.

    Raises:
        ConfigError: a link leads out of the folder, and to no file that could be copied.
    """
    if not folder.is_dir():
        return
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(part for part in folders if part not in _CACHES)
        links = [part for part in folders if os.path.islink(os.path.join(where, part))]
        inside = os.path.relpath(where, folder)
        for part in sorted([*files, *links]):
            if not part.endswith((".pyc", ".pyo")):
                path = os.path.join(where, part)
                yield _entry(path, os.path.normpath(f"{name}/{inside}/{part}"), str(folder))


def _entry(path: str, name: str, top: str) -> Entry:
    if not os.path.islink(path):
        return Entry(name, Path(path))
    leads = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    real, real_top = os.path.realpath(path), os.path.realpath(top)
    if leads.startswith(f"{top}/") and real.startswith(f"{real_top}/"):
        return Entry(name, Path(path), os.path.relpath(leads, os.path.dirname(path)))
    if os.path.isfile(real):
        return Entry(name, Path(real))
    raise ConfigError(f"{path}: leads to {real}, which is not packed; put the folder itself there.")


def refuse_editable() -> None:
    """See that every installed package lies in the environment itself; ours may not.

    Raises:
        ConfigError: one is a link to somebody's checkout.
    """
    for found in importlib.metadata.distributions():
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        name = found.metadata["Name"]
        if name != OURS and origin.get("dir_info", {}).get("editable"):
            raise ConfigError(
                f"{name} is installed as a link to {origin['url']}: install it without -e, so "
                "that it is in the environment."
            )


def _editable_files() -> set[Path]:
    """Give the files by which an installed link leads to our checkout."""
    try:
        ours = importlib.metadata.distribution(OURS)
    except importlib.metadata.PackageNotFoundError:
        return set()
    links = [
        Path(str(ours.locate_file(file))) for file in ours.files or () if file.suffix == ".pth"
    ]
    prefix = Path(sysconfig.get_path("data"))
    return {link.relative_to(prefix) for link in links if link.is_relative_to(prefix)}


def packages() -> dict[str, str]:
    """Give the versions of what is installed."""
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(found, key=str.lower)}
