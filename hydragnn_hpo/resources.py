"""Find the cards, campaigns and machine profiles that ship with the package."""

from pathlib import Path

from hydragnn_hpo.errors import ConfigError, unknown

_PACKAGE = Path(__file__).parent
_FOLDERS = ("graph_datasets", "workflows", "launch")


def resource_path(name: str) -> Path:
    """Return the path of a shipped file, in a wheel or in a checkout.

    Args:
        name: relative path such as ``graph_datasets/g2_xtb.toml``.
    """
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent):
        path = root / name
        if path.exists():
            return path
    raise ConfigError(f"{name}: is not part of this installation; reinstall hydragnn-hpo.")


def find_shipped(path: Path) -> Path | None:
    """Return the shipped file that a path such as ``workflows/small_organics.zip`` names.

    None where the user has a file of this path, or where nothing of this name ships.
    """
    if path.exists() or path.parts[:1] != ("workflows",):
        return None
    try:
        return resource_path(str(path))
    except ConfigError:
        return None


def find_resource(argument: str, folder: str) -> Path:
    """Resolve a user's argument: a path as it stands, else the name of a shipped file.

    Args:
        argument: a path, or a bare name such as ``g2_xtb``.
        folder: the shipped folder to look in, e.g. ``graph_datasets``.
    """
    path = Path(argument)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{argument}: is a device or a pipe; give a file.")
    if path.is_file() or (path.exists() and path.suffix):
        return path
    if path.parts and path.parts[0] in _FOLDERS:
        return resource_path(argument)
    if path.suffix or len(path.parts) > 1:
        problem = "is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"{argument}: {problem}; name a file.")
    known = sorted(entry.stem for entry in resource_path(folder).glob("*.toml"))
    if argument not in known:
        sentence = unknown(f"name in {folder}", argument, known)
        raise ConfigError(f"'{argument}' is neither a file nor a shipped name: {sentence}")
    return resource_path(f"{folder}/{argument}.toml")
