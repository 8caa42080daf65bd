"""What software a controller runs with: noted when it opens a campaign."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from hydragnn_hpo import __version__

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "adios2", "vesin", "deephyper", "optuna")
"""What may change a number, or the next proposal."""


def read_software_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages, without importing them."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def controller_versions() -> dict[str, str]:
    """Return what the journal says of the controller's software and system."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"hydragnn-hpo": __version__, **read_software_versions(), "system": system}
