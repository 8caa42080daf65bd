"""Energy conservation of a small potential: 2,000 steps at constant energy.

Trains ``workflows/acetylacetone.toml`` (``--run``: or takes a finished run), lets the molecule
move at 300 K through the ensemble's calculator, and fits a line to the total energy per atom.
Beside it: the same in fp32, half the step (the fluctuation must fall fourfold), neighbours
searched at each step, and a hydrogen that is pulled off until the observer stops. Needs
HYDRAGNN_HPO_DATA. The full run also writes ``results/nve.png``.
"""

import gzip
import io
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from record import dry_run, finish, lacks_data, make_parser, run_campaign
from unlike_members import MEMBERS, unlike_members

from hydragnn_hpo.ensemble import EnsembleCalculator, SpreadExceeded, StopAtSpread

ROOT = Path(__file__).parents[2]
QUICK = {
    "trials = 8": "trials = 2",
    "initial = 6": "initial = 2",
    "rungs = [12, 60]": "rungs = [1, 2]",
    "finalists = 4": "finalists = 2",
    "members = 4": "members = 2",
    "high = 48, step = 16": "high = 33, step = 1",
}
STEP = 0.5
"""Femtoseconds; the fastest vibration takes about 9."""
KELVIN = 300.0


def campaign(run: Path, quick: bool) -> Path:
    """Write the campaign beside its run."""
    text = (ROOT / "workflows" / "acetylacetone.toml").read_text()
    for old, new in QUICK.items() if quick else ():
        assert old in text, f"the campaign no longer holds '{old}'"
        text = text.replace(old, new)
    path = run.parent / "acetylacetone.toml"
    path.write_text(text)
    return path


def train(run: Path, quick: bool) -> float:
    """Run the campaign; give its minutes."""
    path = campaign(run, quick)
    started = time.monotonic()
    run_campaign(path, run)
    return (time.monotonic() - started) / 60


def start(file: Path) -> Atoms:
    """Return the first training structure with velocities at 300 K, not moving as a whole."""
    atoms = ase.io.read(io.StringIO(gzip.decompress(file.read_bytes()).decode()), 0, "extxyz")
    assert isinstance(atoms, Atoms)
    atoms.calc = None
    masses = atoms.get_masses()[:, None]
    rng = np.random.default_rng(0)
    momenta = rng.normal(size=(len(atoms), 3)) * np.sqrt(masses * units.kB * KELVIN)
    atoms.set_momenta(momenta - masses * momenta.sum(axis=0) / masses.sum())
    return atoms


def move(atoms: Atoms, calculator: EnsembleCalculator, steps: int, step: float) -> np.ndarray:
    """Move a copy at constant energy; give its total energies, meV/atom, [steps + 1]."""
    moving = atoms.copy()
    moving.calc = calculator
    results = []
    dynamics = VelocityVerlet(moving, timestep=step * units.fs)
    dynamics.attach(lambda: results.append(moving.get_total_energy()))
    dynamics.run(steps)
    return 1e3 * np.array(results) / len(moving)


def line(energies: np.ndarray, step: float) -> tuple[float, float]:
    """Fit a line: give its slope in meV/atom/ps and the rms distance from it in meV/atom."""
    picoseconds = np.arange(len(energies)) * step * 1e-3
    slope, height = np.polyfit(picoseconds, energies, 1)
    rest = energies - slope * picoseconds - height
    return float(slope), float(np.sqrt(np.mean(rest**2)))


def skin_ratio(atoms: Atoms, ensemble: Path, repeats: int) -> tuple[float, float]:
    """Give CPU time of a step with a fresh list over one with a kept list, and steps per CPU-s."""
    kept = EnsembleCalculator(ensemble)
    fresh = EnsembleCalculator(ensemble, skin=0.0)
    ratios, rates = [], []
    for _ in range(repeats):
        spent = []
        for calculator in (kept, fresh):
            begun = time.process_time()
            move(atoms, calculator, 20, STEP)
            spent.append(time.process_time() - begun)
        ratios.append(spent[1] / spent[0])
        rates.append(20 / spent[0])
    return statistics.median(ratios), statistics.median(rates)


def pull(atoms: Atoms, calculator: EnsembleCalculator, limit: float) -> float:
    """Pull the last atom off until the observer stops; give how far it came, angstrom, up to 2."""
    pulled = atoms.copy()
    pulled.calc = calculator
    bonds = np.linalg.norm(pulled.positions[:-1] - pulled.positions[-1], axis=1)
    away = pulled.positions[-1] - pulled.positions[bonds.argmin()]
    watch = StopAtSpread(pulled, limit=limit)
    for count in range(200):
        try:
            watch()
        except SpreadExceeded:
            return 0.01 * count
        pulled.positions[-1] += 0.01 * away / np.linalg.norm(away)
    return 2.0


def draw(curves: dict[str, tuple[np.ndarray, float]], out: Path) -> None:
    """Draw total energy against time."""
    from hydragnn_hpo.report.style import COLOURS, make_figure, set_title, tidy_axis, write_png

    figure = make_figure(6.4, 3.2)
    axis = figure.subplots()
    for colour, (name, (energies, step)) in zip(COLOURS, curves.items(), strict=False):
        times = np.arange(len(energies)) * step * 1e-3
        axis.plot(times, energies - energies[0], color=colour, linewidth=0.8, label=name)
    axis.set_xlabel("time, ps", fontsize=9)
    axis.set_ylabel("total energy, meV/atom", fontsize=9)
    axis.legend(fontsize=8, frameon=False)
    set_title(axis, "Acetylacetone at constant energy")
    tidy_axis(axis)
    write_png(figure, out)


def smoke(folder: Path, data: Path) -> dict[str, float]:
    """Let a molecule of carbon, hydrogen and oxygen move by two nets that know nothing."""
    dry_run(campaign(folder / "run", True))
    unlike_members(folder, [start(data)] * 40, MEMBERS[1:4:2])
    return measure(folder / "run", data, steps=8, quick=True)


def measure(run: Path, data: Path, *, steps: int, quick: bool) -> dict[str, float]:
    """Let the molecule move in every way."""
    ensemble = run / "ensemble.zip"
    atoms = start(data)
    calculator = EnsembleCalculator(ensemble)
    whole = move(atoms, calculator, steps, STEP)
    drift, swing = line(whole, STEP)
    short = steps // 4
    half = move(atoms, calculator, 2 * short, STEP / 2)
    _, coarse = line(whole[: short + 1], STEP)
    _, fine = line(half, STEP / 2)
    single = move(atoms, EnsembleCalculator(ensemble, precision="fp32"), steps, STEP)
    ratio, rate = skin_ratio(atoms, ensemble, 1 if quick else 9)
    spread = float(calculator.get_property("forces_max_std", atoms))
    if not quick:
        curves = {f"{STEP} fs, fp64": (whole, STEP), f"{STEP / 2} fs, fp64": (half, STEP / 2)}
        draw(
            curves | {f"{STEP} fs, fp32": (single, STEP)}, Path(__file__).parent / "results/nve.png"
        )
    return {
        "steps": steps,
        "picoseconds": steps * STEP * 1e-3,
        "drift_mev_atom_ps": abs(drift),
        "fluctuation_mev_atom": swing,
        "fluctuation_ratio_half_step": coarse / fine,
        "drift_fp32_mev_atom_ps": abs(line(single, STEP)[0]),
        "fresh_list_over_skin": ratio,
        "steps_per_cpu_second": rate,
        "spread_at_start_ev_angstrom": spread,
        "pulled_off_until_angstrom": pull(atoms, calculator, 3.0 * spread),
    }


def main() -> None:
    """Train, move, record."""
    parser = make_parser(__doc__, "a cut of at most 50 s, not recorded")
    parser.add_argument("--run", type=Path, help="a finished run, or where to keep the run")
    options = parser.parse_args()
    if options.smoke and lacks_data(__file__):
        return
    torch.set_num_threads(1)
    file = Path(os.environ["HYDRAGNN_HPO_DATA"]) / "acac" / "train_300K.xyz.gz"
    with tempfile.TemporaryDirectory() as scratch:
        if options.smoke:
            finish(__file__, smoke(Path(scratch), file), keep=False)
            return
        run = options.run or Path(scratch) / "run"
        figures = dict[str, float]()
        if not (run / "ensemble.zip").exists():
            figures["minutes_of_training"] = train(run, options.quick)
        summary = json.loads((run / "summary.json").read_text())["ensemble"]["heads"]
        figures |= {f"{name}_test_mae": head["test_mae"] for name, head in summary.items()}
        figures |= measure(run, file, steps=120 if options.quick else 2000, quick=options.quick)
    figures = {name: float(f"{value:.4g}") for name, value in figures.items()}
    finish(__file__, figures, keep=not options.quick)


if __name__ == "__main__":
    main()
