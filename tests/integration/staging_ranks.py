"""What a rank of a packed environment shows: where everything that it runs came from."""

import json
import os
import sys
from pathlib import Path


def rank_main(spec):
    """Write down modules, paths and mapped files of this rank, its zygote and its agent."""
    zygote = os.getppid()
    agent = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
    values = {
        "modules": [result for module in sys.modules.values() if (result := _file(module))],
        "path": sys.path,
        "host": os.environ["SLURMD_NODENAME"],
        "mapped": {"rank": _mapped("self"), "zygote": _mapped(zygote), "agent": _mapped(agent)},
    }
    (Path(spec["folder"]) / f"shown.{os.environ['RANK']}").write_text(json.dumps(values))
    return 0


def _file(module):
    return str(getattr(module, "__file__", None) or "")


def _mapped(pid):
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    fields = [line.split(maxsplit=5) for line in lines]
    return sorted({field[5] for field in fields if len(field) == 6 and field[5].startswith("/")})


def open_main(spec):
    """Open a store as a training does, and show which files of it are mapped."""
    from hydragnn_hpo.data.store_access import open_store

    graphs = open_store(Path(spec["store"]), access=spec.get("access", "auto"))
    arrays = [path for path in _mapped("self") if path.endswith(".npy")]
    values = {"graphs": graphs.num_graphs, "mapped": arrays}
    (Path(spec["folder"]) / "opened").write_text(json.dumps(values))
    return 0
