"""Make the pictures of the tutorials and how-to guides: do what the pages say, keep their figures.

    python docs/site/pictures.py                     # all of them: about ten minutes
    python docs/site/pictures.py crystals own_data   # those of some pages

Look at each picture before you commit it; none is larger than 200 kB.
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from tutorials import PageRunner  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"

FIGURES = {
    "first_campaign": {"first_campaign.png": "runs/first/report/parity.png"},
    "own_data": {
        "own_data_check.png": "alloys.png",
        "own_data.png": "runs/alloys/report/parity.png",
    },
    "own_conv": {"own_conv.png": "runs/mine/report/parity.png"},
    "crystals": {"crystals.png": "runs/crystals/report/parity.png"},
    "forces_and_md": {"forces_and_md.png": "runs/potential/report/parity.png"},
    "clusters": {"clusters.png": "plan.png"},
    "smiles": {"smiles.png": "runs/logp/report/parity.png"},
}
"""By page: the picture, and the file that the page's commands leave."""


def main() -> None:
    """Follow the pages, each in a folder of its own."""
    for name in sys.argv[1:] or FIGURES:
        with tempfile.TemporaryDirectory() as folder:
            PageRunner(Path(folder)).follow(name)
            for picture, figure in FIGURES[name].items():
                shutil.copyfile(Path(folder, figure), PICTURES / picture)
                size = (PICTURES / picture).stat().st_size
                print(f"{picture}: {size / 1000:.0f} kB")
                if size > 200_000:
                    sys.exit(f"{picture} is larger than 200 kB: make it smaller.")


if __name__ == "__main__":
    main()
