"""What regressions on the surroundings of atoms know of each kind of target, and how they turn."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import atomic_masses
from ase.neighborlist import neighbor_list
from safetensors.numpy import load, save
from unit.ensemble.test_neighbor_densities import CUTOFF, graphs, list_neighbors, radial

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.baselines import CompositionModel, fit_baseline
from hydragnn_hpo.ensemble.local_descriptors import (
    ElementModel,
    LocalModels,
    find_start,
    fit_local_models,
)
from hydragnn_hpo.ensemble.neighbor_densities import SHELLS
from hydragnn_hpo.ensemble_build.verdict import judge
from hydragnn_hpo.ensemble_build.verdict_evidence import HeadEvidence, RowFacts, collect_evidence
from hydragnn_hpo.uncertainty.calibrate import Calibration
from hydragnn_hpo.uncertainty.class_probabilities import as_probabilities, log_losses
from hydragnn_hpo.uncertainty.uncertainty_scores import HeadOnLabels

TARGETS = {
    "size": TargetConfig(level="graph", unit="1"),
    "bond": TargetConfig(level="node", unit="1", optional=True),
    "waves": TargetConfig(level="graph", shape="spectrum", size=4, unit="1"),
    "site": TargetConfig(level="node", shape="spectrum", size=5, unit="1"),
    "far": TargetConfig(level="graph", shape="class", classes=("no", "yes")),
    "end": TargetConfig(level="node", shape="class", classes=("0", "1", "2"), optional=True),
    "force": TargetConfig(level="node", shape="vector", unit="muB"),
}


def dimers(count: int, seed: int, noise: float = 0.0) -> Columns:
    """Pairs of atoms, whose target is a function of their distance, plus noise."""
    random = np.random.default_rng(seed)
    structures = []
    for number in range(count):
        length = random.uniform(1.0, 3.0)
        kind = ("CO", "NO", "CN")[number % 3]
        atoms = Atoms(kind, positions=[[0, 0, 0], random.permutation([0, 0, length])])
        atoms.info["size"] = np.sin(2 * length) + (number % 3) + noise * random.normal()
        bond = np.array([length, -length]) + noise * random.normal(size=2)
        bond[0] = np.nan if number % 7 == 0 else bond[0]
        atoms.arrays |= {"bond": bond, "force": random.normal(size=(2, 3))}
        atoms.info["waves"] = np.sin(length * np.arange(1, 5)) + noise * random.normal(size=4)
        atoms.arrays["site"] = np.outer([length, -1.0], [1.0, 2.0, -1.0, 0.5, 3.0])
        atoms.info["far"] = "yes" if length > 2.0 else "no"
        atoms.arrays["end"] = np.array([2.0 if number % 5 else np.nan, length > 1.5])
        structures.append(atoms)
    return graphs(structures, TARGETS)


def describe(targets: dict[str, TargetConfig]) -> dict[str, dict]:
    """What a store says of targets, as far as regressions read it."""
    keys = ("level", "shape", "origin", "charge", "derived_from", "energy", "extensive")
    return {name: {key: getattr(target, key) for key in keys} for name, target in targets.items()}


Known = tuple[LocalModels, dict[str, CompositionModel]]


def fitted(train: Columns, val: Columns, targets: dict[str, TargetConfig] = TARGETS) -> Known:
    known = describe(targets)
    fits = {name: fit_baseline(name, known[name], [train], [val]) for name in targets}
    baselines = {name: fit for name, fit in fits.items() if fit is not None}
    models = fit_local_models(known, baselines, train=[train], val=[val], cutoff=CUTOFF)
    assert models is not None
    return models, baselines


@pytest.fixture(scope="module")
def known() -> Known:
    return fitted(dimers(150, 0), dimers(45, 1))


@pytest.mark.parametrize("name", ["size", "bond", "waves", "site"])
def test_numbers_that_depend_on_a_distance_are_learned(known: Known, name: str) -> None:
    (models, baselines) = known
    test = dimers(90, 2)
    mask, truth = test.masks[name], test.targets[name]
    plain = np.abs(baselines[name].predict(test) - truth)[mask].mean(axis=0)
    own = np.abs(models.predict(name, test, baselines.get(name)) - truth)[mask].mean(axis=0)
    assert (own < 0.1 * plain).all(), "each value of a spectrum"


@pytest.mark.parametrize("name", ["far", "end"])
def test_classes_that_depend_on_a_distance_are_learned(known: Known, name: str) -> None:
    (models, baselines) = known
    test = dimers(90, 2)
    mask, truth = test.masks[name], test.targets[name]
    probability = models.predict(name, test, baselines.get(name))
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    plain = log_losses(as_probabilities(baselines[name].predict(test)), truth)[mask].mean()
    assert log_losses(probability, truth)[mask].mean() < 0.3 * plain


class Labels:
    """Predicts the labels themselves."""

    def predict(self, columns: Columns) -> np.ndarray:
        return columns.targets["size"]


class Noise:
    """Predicts numbers that have nothing to do with the labels."""

    def predict(self, columns: Columns) -> np.ndarray:
        random = np.random.default_rng(columns.num_graphs)
        return 5.0 * random.normal(size=(columns.num_graphs, 1))


@pytest.mark.parametrize(("start", "form"), [(Labels(), "value"), (Noise(), "plain")])
def test_a_regression_begins_from_elements_only_where_that_helps(
    start: ElementModel, form: str
) -> None:
    target = describe({"size": TARGETS["size"]})
    models = fit_local_models(
        target, {"size": start}, train=[dimers(60, 0)], val=[dimers(30, 1)], cutoff=CUTOFF
    )
    assert models is not None
    assert [part.form for part in models.heads["size"]] == [form]
    test = dimers(31, 2)
    error = np.abs(models.predict("size", test, start) - test.targets["size"]).mean()
    assert error < 0.3


def test_heads_have_the_parts_of_their_shape(known: Known) -> None:
    forms = {name: [(part.form, part.pool) for part in known[0].heads[name]] for name in TARGETS}
    assert forms == {
        "size": [("plain", "mean")],
        "bond": [("value", "none")],
        "waves": [("value", "mean")],
        "site": [("value", "none")],
        "far": [("class", "mean")],
        "end": [("class", "none")],
        "force": [("vector", "none")],
    }


def cells(count: int, seed: int) -> Columns:
    """Shaken cells of four atoms: their energy is -7 for each, and a sum over their pairs."""
    random = np.random.default_rng(seed)
    structures = []
    for _ in range(count):
        atoms = bulk("Cu", a=random.uniform(3.5, 3.9), cubic=True)
        atoms.rattle(0.1, rng=random)
        distances = neighbor_list("d", atoms, CUTOFF)
        atoms.info["energy"] = -7.0 * len(atoms) + float(np.square(1.0 - distances / CUTOFF).sum())
        structures.append(atoms)
    return graphs(structures, ENERGY)


ENERGY = {"energy": TargetConfig(level="graph", unit="eV", energy="total", optional=True)}


def test_an_energy_is_a_sum_over_atoms() -> None:
    """A supercell has a multiple, and two crystals apart would have the sum."""
    models, baselines = fitted(cells(60, 0), cells(20, 1), ENERGY)
    one = bulk("Cu", a=3.7, cubic=True)
    one.rattle(0.05, seed=3)
    test = graphs([one, one * (2, 1, 1), one * (2, 2, 2)], ENERGY)
    cell, double, large = models.predict("energy", test, baselines["energy"]).ravel()
    assert [double, large] == pytest.approx([2 * cell, 8 * cell], rel=1e-9)
    other = cells(20, 2)
    errors = models.predict("energy", other, baselines["energy"]) - other.targets["energy"]
    assert np.abs(errors).mean() < 0.2 * other.targets["energy"].std()


def test_noise_is_not_learned() -> None:
    train = dimers(120, 3)
    val = dimers(60, 4)
    for columns in (train, val):
        random = np.random.default_rng(columns.num_graphs)
        columns.targets["size"][:] = random.normal(size=columns.targets["size"].shape)
    targets = {name: TARGETS[name] for name in ("size", "force")}
    models, baselines = fitted(train, val, targets)
    test = dimers(90, 2)
    assert np.abs(models.predict("size", test, baselines["size"])).max() < 1.0
    assert np.abs(models.predict("force", test, None)).mean() < 0.25


def test_a_batch_and_single_graphs_get_the_same(known) -> None:
    models, baselines = known
    test = dimers(12, 5)
    for name in models.heads:
        together = models.predict(name, test, baselines.get(name))
        alone = [
            models.predict(name, test.take(np.array([k])), baselines.get(name)) for k in range(12)
        ]
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-12)


def test_an_unknown_element_leaves_the_prediction_of_the_elements(known) -> None:
    models, baselines = known
    gold = graphs([Atoms("Au2", positions=[[0, 0, 0], [0, 0, 2.5]])])
    bond = models.predict("bond", gold, baselines["bond"])
    np.testing.assert_array_equal(bond, baselines["bond"].predict(gold))
    assert not models.predict("force", gold, None).any()
    for name in ("size", "waves", "far", "end"):
        assert np.isfinite(models.predict(name, gold, baselines[name])).all()


def test_a_file_gives_the_same_predictions(known) -> None:
    models, baselines = known
    again = LocalModels.from_arrays(load(save(models.as_arrays())))
    test = dimers(9, 6)
    for name in models.heads:
        expected = models.predict(name, test, baselines.get(name))
        got = again.predict(name, test, baselines.get(name))
        np.testing.assert_allclose(got, expected, atol=1e-4)


TURNING = {
    "force": TargetConfig(level="node", shape="vector", unit="muB"),
    "born": TargetConfig(level="node", shape="tensor", unit="e"),
    "dipole": TargetConfig(
        level="graph", shape="vector", unit="e*angstrom", origin="mass", charge="charge"
    ),
    "alpha": TargetConfig(level="graph", shape="tensor", unit="angstrom^3", origin="geometry"),
}


def ions(count: int, seed: int, noise: float = 0.0) -> Columns:
    """Shaken molecules whose labels are sums over pairs, and charges times positions."""
    random = np.random.default_rng(seed)
    structures = []
    for number in range(count):
        atoms = molecule(("CH3OH", "CH3CHO", "HCOOH", "C2H6")[number % 4])
        atoms.rattle(0.1, rng=random)
        atoms.rotate(random.uniform(0, 360), random.normal(size=3))
        force = np.zeros((len(atoms), 3))
        born = np.zeros((len(atoms), 3, 3))
        for i, own in enumerate(atoms.numbers):
            for z, vector in list_neighbors(atoms, i):
                unit = vector / np.linalg.norm(vector)
                shells = radial(float(np.linalg.norm(vector)), SHELLS)
                force[i] += (0.3 * own - 0.1 * z) * shells[4] * unit
                born[i] += (0.1 * own * z) * shells[7] * (np.outer(unit, unit) - np.eye(3) / 3)
        free = 0.1 * atoms.numbers - 0.5
        charge = float(number % 3 - 1)
        charges = free - free.mean() + charge / len(atoms)
        heavy = atomic_masses[atoms.numbers] @ atoms.positions / atomic_masses[atoms.numbers].sum()
        dipole = charges @ (atoms.positions - heavy) + 0.2 * force.sum(axis=0)
        arms = atoms.positions - atoms.positions.mean(axis=0)
        products = np.einsum("n,nx,ny->xy", 0.02 * atoms.numbers, arms, arms)
        products -= np.trace(products) * np.eye(3) / 3
        alpha = born.sum(axis=0) + products + 0.7 * len(atoms) * np.eye(3)
        born += 0.2 * atoms.numbers[:, None, None] * np.eye(3)
        atoms.arrays |= {"force": force, "born": born.reshape(-1, 9)}
        atoms.info |= {"dipole": dipole, "alpha": alpha.reshape(-1), "charge": charge}
        structures.append(atoms)
    columns = graphs(structures, TURNING)
    columns.attributes["charge"] = np.array([one.info["charge"] for one in structures])
    for name in TURNING:
        columns.targets[name][:] += noise * random.normal(size=columns.targets[name].shape)
    return columns


def start_of(name: str, baselines: dict[str, CompositionModel]) -> ElementModel | None:
    return find_start(baselines.get(name), TURNING[name].origin, TURNING[name].charge)


def test_sums_over_pairs_and_charges_times_positions_are_known_exactly() -> None:
    models, baselines = fitted(ions(120, 0), ions(40, 1), TURNING)
    test = ions(40, 2)
    for name, target in TURNING.items():
        truth = test.targets[name]
        varying = (
            truth - np.eye(3).reshape(-1) * truth.mean() if target.shape == "tensor" else truth
        )
        predicted = models.predict(name, test, start_of(name, baselines))
        assert np.abs(predicted - truth).mean() < 2e-3 * np.abs(varying).mean(), name
    assert np.abs(test.targets["dipole"]).mean() > 0.1


def test_predictions_turn_with_the_structure() -> None:
    models, baselines = fitted(ions(60, 0, 0.1), ions(20, 1, 0.1), TURNING)
    test = ions(8, 3)
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
    turned = replace(test, positions=test.positions @ turn.T + 2.0)
    for name, target in TURNING.items():
        before, after = (models.predict(name, c, start_of(name, baselines)) for c in (test, turned))
        if target.shape == "vector":
            expected = before @ turn.T
        else:
            expected = (turn @ before.reshape(-1, 3, 3) @ turn.T).reshape(-1, 9)
        np.testing.assert_allclose(after, expected, atol=1e-9)
        assert np.abs(before).max() > 0.05


def test_stress_is_a_sum_over_pairs_by_the_volume() -> None:
    targets = {
        "stress": TargetConfig(
            level="graph", shape="tensor", unit="eV/angstrom^3", derived_from="energy"
        )
    }

    def salts(count: int, seed: int) -> Columns:
        random = np.random.default_rng(seed)
        structures = []
        for _ in range(count):
            atoms = bulk("NaCl", "rocksalt", a=random.uniform(5.0, 6.0)) * (1, 1, 2)
            atoms.set_cell(atoms.cell @ (np.eye(3) + 0.1 * random.normal(size=(3, 3))), True)
            structures.append(atoms)
        columns = graphs(structures)
        graph = np.repeat(np.arange(count), np.diff(columns.edge_offset))
        ends = columns.edges + columns.node_offset[:-1][graph][:, None]
        shift = np.einsum("ek,ekx->ex", columns.edge_shift, columns.cell[graph])
        vectors = columns.positions[ends[:, 1]] + shift - columns.positions[ends[:, 0]]
        virial = np.zeros((count, 3, 3))
        for g, vector in zip(graph, vectors, strict=True):
            length = float(np.linalg.norm(vector))
            if length < CUTOFF:
                shell = radial(length, SHELLS)[1]
                virial[g] += shell * np.outer(vector, vector) / length**2
        volume = np.abs(np.linalg.det(columns.cell))
        columns.targets["stress"] = virial.reshape(-1, 9) / volume[:, None]
        columns.masks["stress"] = np.ones(count, dtype=bool)
        columns.levels["stress"] = "graph"
        return columns

    models, baselines = fitted(salts(60, 0), salts(20, 1), targets)
    test = salts(20, 2)
    truth = test.targets["stress"]
    predicted = models.predict("stress", test, baselines["stress"])
    trace = np.eye(3).reshape(-1) / 3
    shear = truth - 3 * np.outer(truth @ trace, trace)
    own = predicted - 3 * np.outer(predicted @ trace, trace)
    assert np.abs(own - shear).mean() < 2e-3 * np.abs(shear).mean()
    pressure = np.abs((predicted - truth) @ trace).mean()
    assert pressure < 0.1 * np.abs(truth @ trace - (truth @ trace).mean()).mean()


@pytest.mark.parametrize(("share", "level"), [(3.0, "warning"), (1.0, "warning"), (0.3, "good")])
def test_an_ensemble_is_held_against_the_regression(known, share: float, level: str) -> None:
    models, baselines = known
    test = dimers(200, 7)
    random = np.random.default_rng(0)
    truth = test.targets["size"]
    local = models.predict("size", test, baselines["size"])
    spread = share * np.abs(local - truth).mean() / np.sqrt(2 / np.pi)
    mean = truth + spread * random.normal(size=truth.shape)
    ones = np.ones_like(truth)
    predicted = HeadOnLabels(truth, mean, ones, 0.0 * ones, np.full(len(truth), "all"), ones)
    calibration = Calibration(1.0, 0.0, {"0.9": 1.6}, spread99=1.0, rows=99, groups=99)
    others = {"mean": np.full_like(truth, truth.mean()), "descriptor": local}
    rows = RowFacts(np.arange(len(truth)), {}, others)
    evidence = collect_evidence(HeadEvidence("size", "1"), predicted, calibration, rows)
    (sentence,) = (row for row in judge([evidence]) if row["rule"] == "descriptor")
    assert sentence["level"] == level


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.pop("phases"),
        lambda a: a.update(cutoff=np.array([99.0])),
        lambda a: a.update(cutoff=np.array([np.nan])),
        lambda a: a.update(cutoff=np.array([3.0, 3.0])),
        lambda a: a.update(elements=a["elements"][::-1]),
        lambda a: a.update(elements=np.array([0, 6, 7])),
        lambda a: a.update(elements=a["elements"][:2]),
        lambda a: a.update(mean=a["mean"][:-1]),
        lambda a: a.update(axes=np.full_like(a["axes"], np.inf)),
        lambda a: a.update({"none/bond": a["none/bond"][:, :-1]}),
        lambda a: a.update({"none/bond": a["none/bond"][0]}),
        lambda a: a.update({"most/bond": a.pop("none/bond")}),
        lambda a: a.update({"mean.plain/size": a["mean.plain/size"] * np.nan}),
        lambda a: a.update({"mean.class/far": a["mean.class/far"][:, :-1]}),
        lambda a: a.update({"none.vector/force": a["none.vector/force"][:, :-1]}),
        lambda a: a.update({"none.unit/force": a.pop("none.vector/force")}),
        lambda a: a.update({"none.spinor/force": a.pop("none.vector/force")}),
    ],
)
def test_arrays_that_do_not_fit_are_refused(known, spoil) -> None:
    arrays = known[0].as_arrays()
    spoil(arrays)
    with np.errstate(all="ignore"), pytest.raises((ValueError, KeyError)):
        LocalModels.from_arrays(arrays)
