"""Frames of runs and independent structures; displacements and runs counted by hand."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn_hpo.data.properties import collect_properties
from hydragnn_hpo.data.trajectories import FoundRuns, Frames, find_runs, measure_steps, number_runs

INF = float("inf")


def moved(atoms, *away):
    """Return copies of a structure whose last atom is moved along x."""
    made = []
    for one in away:
        copy = atoms.copy()
        copy.positions[-1, 0] += one
        made.append(copy)
    return made


def test_steps_are_the_largest_displacement_of_an_atom():
    water = molecule("H2O")
    copper = bulk("Cu", cubic=True)
    structures = [*moved(water, 0.0, 0.3, 0.5), copper, *moved(copper, -0.2)]
    steps = measure_steps(Frames.of(structures))
    assert steps == pytest.approx([INF, 0.3, 0.2, INF, 0.2])
    assert measure_steps(Frames.of(structures), lag=2)[2] == pytest.approx(0.5)


def test_steps_go_to_the_nearest_image_and_other_cells_are_other_structures():
    copper = bulk("Cu", cubic=True)
    length = copper.cell[0, 0]
    far = moved(copper, length + 0.1)[0]
    strained = copper.copy()
    slab = copper.copy()
    strained.set_cell(1.06 * copper.cell)
    slab.pbc = (True, True, False)
    steps = measure_steps(Frames.of([copper, far, copper, strained, copper, slab]))
    assert steps == pytest.approx([INF, 0.1, 0.1, INF, INF, INF])


def test_other_elements_at_the_same_places_are_another_structure():
    gold = bulk("Cu", cubic=True)
    gold.numbers[0] = 79
    assert measure_steps(Frames.of([bulk("Cu", cubic=True), gold])).tolist() == [INF, INF]


def relaxations(count=6, frames=8, step=0.05, **info):
    """Relaxations of one molecule from starts far from each other, frame by frame."""
    random = np.random.default_rng(4)
    made = []
    for run in range(count):
        atoms = molecule("C6H6")
        way = random.normal(size=(12, 3))
        atoms.positions += random.normal(0.0, 1.0, (12, 3))
        for frame in range(frames):
            copy = atoms.copy()
            copy.positions += frame * step * way / np.linalg.norm(way, axis=1).max()
            copy.info |= {"energy": float(random.normal()), **{k: f(run) for k, f in info.items()}}
            made.append(copy)
    return made


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_runs_do_not_depend_on_the_windows(size):
    structures = relaxations()
    parts = [structures[k : k + size] for k in range(0, len(structures), size)]
    runs = number_runs(Frames.of(part) for part in parts)
    assert runs.tolist() == np.repeat(np.arange(6), 8).tolist()


def found(structures):
    return find_runs(structures, collect_properties(structures))


def test_frames_that_drift_are_runs():
    assert found(relaxations()) == FoundRuns("trajectory", 6, ())


def test_a_key_that_repeats_names_the_runs():
    names = {"jid": lambda run: f"run-{run}", "run_id": lambda run: run // 2}
    assert found(relaxations(**names)) == FoundRuns("run_id", 3, ("jid", "run_id"))
    # A name that says nothing is believed where it changes with the runs of near copies.
    near = relaxations(step=0.001, label=lambda run: f"r{run}")
    assert found(near) == FoundRuns("label", 6, ("label",))


def test_what_repeats_and_names_no_run():
    random = np.random.default_rng(1)
    structures = []
    for number in range(40):
        atoms = molecule(["H2O", "NH3", "CH4", "CH3OH"][number % 4])
        atoms.rattle(0.4, rng=random)
        # Of several compositions, or of a class.
        atoms.info |= {"name": "wet" if number % 3 else "dry", "y": float(random.normal())}
        structures.append(atoms)
    assert found(structures) is None
    for atoms in structures:
        atoms.info["name"] = str(atoms.symbols)
    assert found(structures) is None, "names of compositions"
    for run, atoms in enumerate(near := relaxations(step=0.001)):
        atoms.info["y"] = float(run // 8 % 5)  # a property that is the same along each run
    assert found(near) == FoundRuns("trajectory", 6, ())


def test_random_displacements_of_one_structure_are_no_run():
    random = np.random.default_rng(2)
    structures = []
    for _ in range(40):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.05, rng=random)
        atoms.info |= {"energy": float(random.normal()), "phase": "ab"[int(random.integers(2))]}
        structures.append(atoms)
    assert found(structures) is None


def test_small_and_single_structures_are_none():
    lone = [Atoms("Cu", info={"y": float(number)}) for number in range(3)]
    assert found(lone[:1]) is None
    assert found([molecule("H2O"), molecule("NH3")]) is None
