"""The fabric's interfaces, and whether the library that drives it can be loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.host.network import address_of, interfaces

_LOAD = (
    "import ctypes, sys\n"
    "try:\n"
    "    ctypes.CDLL(sys.argv[1])\n"
    "except OSError as error:\n"
    "    sys.exit(str(error))\n"
)


def look_at_network(order: Order) -> dict[str, Any]:
    """Give all interfaces with their address, and whether those of the fabric are up."""
    return {
        "known": interfaces(),
        "fabric": {
            name: {"address": address_of(name), "up": is_up(name)} for name in order.interfaces
        },
    }


def is_up(interface: str, folder: Path = Path("/sys/class/net")) -> bool:
    """Say whether an interface can carry something; what does not tell is taken to be."""
    try:
        return (folder / interface / "operstate").read_text().strip() in ("up", "unknown")
    except OSError:
        return False


def look_at_libraries(order: Order) -> dict[str, Any]:
    """Load libraries in turn until one can be, each in a process of its own: it may crash."""
    tried: dict[str, str] = {}
    for name in order.libraries:
        argv = [sys.executable, "-I", "-c", _LOAD, name]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return {"loaded": name, "tried": tried}
        said = done.stderr.strip().splitlines()
        tried[name] = said[-1] if said else f"ended with code {done.returncode}"
    return {"loaded": "", "tried": tried}
