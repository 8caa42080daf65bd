"""Errors of a spectrum and of classes on real structures, against the mean and the composition.

``python spectra_and_classes.py FOLDER SPECTRA`` trains two small campaigns in FOLDER, with card and
campaign files that can be read there. SPECTRA is the file that
``graph_datasets/make_xtb_spectra.py`` makes, and ``HYDRAGNN_HPO_DATA`` names the folder of the
magnetic crystals, whose gap says whether one is a metal. Some minutes on two cores.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CRYSTALS = "mp_magnetic/mp_mag_multihead_760.extxyz.gz"
EPOCHS = 40

DOS = """
[targets.dos]
level = "graph"
shape = "spectrum"
size = 49
unit = "1/eV"
min = 0.0
axis = {first = -20.0, last = 4.0, unit = "eV"}
"""
KIND = """
[targets.kind]
level = "graph"
shape = "class"
classes = ["metal", "insulator"]
"""


def write_crystals(source: Path, out: Path) -> None:
    """Copy the crystals with their kind in words: ``metal`` where the gap is 0."""
    text = gzip.decompress(source.read_bytes()).decode()

    def name_kind(match: re.Match[str]) -> str:
        return "kind=metal" if float(match[1]) == 0.0 else "kind=insulator"

    out.write_text(re.sub(r"(?<= )gap=(\S+)", name_kind, text))


def write_campaign(folder: Path, name: str, head: str, target: str) -> Path:
    """Write card and campaign of one target; return the path of the campaign."""
    card = f'name = "{name}"\n[[files]]\npath = "{name}.extxyz"\n{target}\n'
    card += '[graphs]\ncutoff = 5.0\n[split]\ngroup = "composition"\n'
    (folder / f"{name}.card.toml").write_text(card)
    lines = [
        f'name = "{name}_campaign"\nseed = 3\n[[data]]\ncard = "{name}.card.toml"',
        f"[trial.heads.{head}]\n[trial.training]\nema = 0.99\nglobal_batch = 16",
        '[space]\n"model.conv" = ["schnet", "painn"]\n"model.features" = [48]',
        '"model.layers" = [2, 3]\n"model.cutoff" = [4.0]',
        '"training.learning_rate" = { low = 3e-3, high = 1e-2, log = true }',
        f"[search]\ntrials = 2\ninitial = 2\nrungs = [{EPOCHS}]\nfinalists = 2",
        "[ensemble]\nlearning_curve = 0\n",
    ]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines))
    return path


def main(folder: Path, spectra: Path) -> None:
    """Make the data, run both campaigns, and print a row of each head."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(spectra) as source, (folder / "xtb_spectra.extxyz").open("wb") as out:
        shutil.copyfileobj(source, out)
    data = Path(os.environ["HYDRAGNN_HPO_DATA"])
    write_crystals(data / CRYSTALS, folder / "metals.extxyz")
    for name, head, target in (("xtb_spectra", "dos", DOS), ("metals", "kind", KIND)):
        campaign = write_campaign(folder, name, head, target)
        run = folder / f"{name}.run"
        command = [sys.executable, "-m", "hydragnn_hpo", "run", str(campaign), "--run", str(run)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        scores = json.loads((run / "report/ensemble.json").read_text())["heads"][head]
        simple = ("mean_baseline_mae", "elements_mae", "descriptor_mae")
        columns = ("test_rows", *simple, "test_mae", "coverage90")
        more = [key for key in ("accuracy", "auc", "ece") if key in scores]
        print(head, *(f"{key} {scores[key]:.4g}" for key in (*columns, *more)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
