"""Densities of neighbours by hand, what may not change them, and what regressions on them know."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.baselines import CompositionModel, fit_baseline
from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.local_descriptors import (
    ANGULAR_SHELLS,
    SHELLS,
    LocalModels,
    describe_atoms,
    element_channels,
    fit_local_models,
)
from hydragnn_hpo.ensemble.uncertainty_scores import HeadOnLabels
from hydragnn_hpo.ensemble.verdict import HeadEvidence, RowFacts, collect_evidence, judge

CUTOFF = 4.0
TARGETS = {
    "size": TargetConfig(level="graph", unit="1"),
    "bond": TargetConfig(level="node", unit="1", optional=True),
    "force": TargetConfig(level="node", shape="vector", unit="muB"),
}
FIRST = CUTOFF - (CUTOFF - 0.8) / SHELLS * (np.arange(SHELLS) + 0.5)
"""Centers of the radial functions in angstrom: from the cutoff down, in steps of .32."""


def graphs(structures: list[Atoms], targets: dict[str, TargetConfig] | None = None) -> Columns:
    rules = Rules(5.0, 0.1, targets or {})
    made = [graph_of(a, Place(Path("x"), k, f"{k}"), rules) for k, a in enumerate(structures)]
    return columns_of(made, targets or {}, {"cutoff": 5.0})


def slow_description(atoms: Atoms, elements: list[int]) -> np.ndarray:
    """Sum over neighbours and pairs of them, one by one; for molecules."""
    rows = []

    def radial(length: float, count: int) -> np.ndarray:
        width = (CUTOFF - 0.8) / count
        centers = CUTOFF - width * (np.arange(count) + 0.5)
        smooth = 0.5 * (1 + np.cos(np.pi * length / CUTOFF))
        return np.exp(-((length - centers) ** 2) / (2 * width**2)) * smooth

    for i in range(len(atoms)):
        near = [
            (atoms.numbers[j], atoms.positions[j] - atoms.positions[i])
            for j in range(len(atoms))
            if j != i and np.linalg.norm(atoms.positions[j] - atoms.positions[i]) < CUTOFF
        ]
        row = []
        for z in elements:
            total = np.zeros(SHELLS)
            for number, vector in near:
                total += (number == z) * radial(np.linalg.norm(vector), SHELLS)
            row.append(total)
        for power in (1, 2, 3):
            for first, z in enumerate(elements):
                for other in elements[first:]:
                    total = np.zeros(ANGULAR_SHELLS)
                    for a, v in near:
                        for b, w in near:
                            lengths = np.linalg.norm(v), np.linalg.norm(w)
                            cosine = v @ w / (lengths[0] * lengths[1])
                            shells = [radial(length, ANGULAR_SHELLS) for length in lengths]
                            total += (a == z) * (b == other) * shells[0] * shells[1] * cosine**power
                    row.append(total)
        rows.append(np.concatenate(row))
    return np.array(rows)


@pytest.mark.parametrize("name", ["CH3OH", "NH3", "C2H4"])
def test_densities_are_sums_over_neighbours_and_their_pairs(name: str) -> None:
    atoms = molecule(name)
    elements = sorted(set(atoms.numbers.tolist()))
    got = describe_atoms(graphs([atoms]), CUTOFF, element_channels(elements))
    np.testing.assert_allclose(got, slow_description(atoms, elements), atol=1e-12)


def test_rotation_order_batch_and_images_change_nothing() -> None:
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    atoms, order = molecule("CH3CONH2"), np.random.default_rng(1).permutation(9)
    turned = atoms[order]
    turned.positions = turned.positions @ rotation.T + 3.0
    salt = bulk("NaCl", "rocksalt", a=5.64)
    channels = element_channels([1, 6, 7, 8, 11, 17])
    together = describe_atoms(graphs([atoms, turned, salt, salt * (2, 1, 1)]), CUTOFF, channels)
    alone = describe_atoms(graphs([atoms]), CUTOFF, channels)
    np.testing.assert_allclose(together[:9], alone, atol=1e-12)
    np.testing.assert_allclose(together[9:18], alone[order], atol=1e-10)
    np.testing.assert_allclose(together[20:22], together[18:20], atol=1e-10)
    np.testing.assert_allclose(together[22:24], together[18:20], atol=1e-10)


def test_densities_end_smoothly_at_the_cutoff() -> None:
    steps = np.array([CUTOFF - 1e-4, CUTOFF + 1e-4])
    pairs = graphs([Atoms("H2", positions=[[0, 0, 0], [0, 0, d]]) for d in steps])
    values = describe_atoms(pairs, CUTOFF, element_channels([1]))
    assert np.abs(values[:2]).max() < 1e-8
    assert (values[2:] == 0).all()


def test_many_elements_share_channels() -> None:
    channels = element_channels(list(range(1, 31)))
    assert channels.shape == (119, 4)
    assert (channels[:, 0] == 1).all()
    np.testing.assert_allclose(channels[1:31, 1:].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(channels[1:31, 1:].std(axis=0), 1.0, atol=1e-12)
    assert channels[3, 1] == channels[10, 1] < channels[11, 1]  # periods of Li, Ne and Na


def dimers(count: int, seed: int, noise: float = 0.0) -> Columns:
    """Pairs of atoms, whose target is a function of their distance, plus noise."""
    random, structures = np.random.default_rng(seed), []
    for number in range(count):
        length = random.uniform(1.0, 3.0)
        kind = ("CO", "NO", "CN")[number % 3]
        atoms = Atoms(kind, positions=[[0, 0, 0], random.permutation([0, 0, length])])
        atoms.info["size"] = np.sin(2 * length) + (number % 3) + noise * random.normal()
        bond = np.array([length, -length]) + noise * random.normal(size=2)
        bond[0] = np.nan if number % 7 == 0 else bond[0]
        atoms.arrays |= {"bond": bond, "force": random.normal(size=(2, 3))}
        structures.append(atoms)
    return graphs(structures, TARGETS)


def fitted(train: Columns, val: Columns) -> tuple[LocalModels, dict[str, CompositionModel]]:
    fits = {name: fit_baseline(name, [train], [val]) for name in TARGETS}
    baselines = {name: fit for name, fit in fits.items() if fit is not None}
    stats = {
        name: {"level": target.level, "shape": target.shape} for name, target in TARGETS.items()
    }
    models = fit_local_models(stats, baselines, train=[train], val=[val], cutoff=CUTOFF)
    assert models is not None
    return models, baselines


@pytest.fixture(scope="module")
def known() -> tuple[LocalModels, dict[str, CompositionModel]]:
    return fitted(dimers(240, 0), dimers(60, 1))


def error(models: LocalModels, baselines: dict[str, CompositionModel], name: str) -> float:
    test = dimers(90, 2)
    mask, truth = test.masks[name], test.targets[name]
    return float(np.abs(models.predict(name, test, baselines[name]) - truth)[mask].mean())


def test_what_depends_on_a_distance_is_learned(known) -> None:
    models, baselines = known
    assert set(models.heads) == {"size", "bond"}
    for name in models.heads:
        test = dimers(90, 2)
        mask = test.masks[name]
        plain = np.abs(baselines[name].predict(test) - test.targets[name])[mask].mean()
        assert error(models, baselines, name) < 0.1 * plain


def test_noise_is_not_learned() -> None:
    train, val = dimers(120, 3), dimers(60, 4)
    for columns in (train, val):
        random = np.random.default_rng(columns.num_graphs)
        columns.targets["size"][:] = random.normal(size=columns.targets["size"].shape)
    models, baselines = fitted(train, val)
    test = dimers(90, 2)
    assert np.abs(models.predict("size", test, baselines["size"])).max() < 1.0


def test_a_batch_and_single_graphs_get_the_same(known) -> None:
    models, baselines = known
    test = dimers(12, 5)
    for name in models.heads:
        together = models.predict(name, test, baselines[name])
        alone = [models.predict(name, test.take(np.array([k])), baselines[name]) for k in range(12)]
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-12)


def test_an_unknown_element_leaves_the_prediction_of_the_elements(known) -> None:
    models, baselines = known
    gold = graphs([Atoms("Au2", positions=[[0, 0, 0], [0, 0, 2.5]])])
    bond = models.predict("bond", gold, baselines["bond"])
    np.testing.assert_array_equal(bond, baselines["bond"].predict(gold))
    assert np.isfinite(models.predict("size", gold, baselines["size"])).all()


def test_a_file_gives_the_same_predictions(known) -> None:
    models, baselines = known
    again, test = LocalModels.from_arrays(models.as_arrays()), dimers(9, 6)
    for name in models.heads:
        expected = models.predict(name, test, baselines[name])
        got = again.predict(name, test, baselines[name])
        np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize(("share", "level"), [(3.0, "warning"), (1.0, "warning"), (0.3, "good")])
def test_an_ensemble_is_held_against_the_regression(known, share: float, level: str) -> None:
    models, baselines = known
    test, random = dimers(200, 7), np.random.default_rng(0)
    truth = test.targets["size"]
    local = models.predict("size", test, baselines["size"])
    spread = share * np.abs(local - truth).mean() / np.sqrt(2 / np.pi)
    mean, ones = truth + spread * random.normal(size=truth.shape), np.ones_like(truth)
    predicted = HeadOnLabels(truth, mean, ones, 0.0 * ones, np.full(len(truth), "all"))
    calibration = Calibration(1.0, 0.0, {"0.9": 1.6}, spread99=1.0, rows=99, groups=99)
    others = {"mean": np.full_like(truth, truth.mean()), "descriptor": local}
    rows = RowFacts(np.arange(len(truth)), {}, others)
    evidence = collect_evidence(HeadEvidence("size", "1"), predicted, calibration, rows)
    (sentence,) = (said for said in judge([evidence]) if said["rule"] == "descriptor")
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
        lambda a: a.update({"mean/size": a["mean/size"] * np.nan}),
    ],
)
def test_arrays_that_do_not_fit_are_refused(known, spoil) -> None:
    arrays = known[0].as_arrays()
    spoil(arrays)
    with np.errstate(all="ignore"), pytest.raises((ValueError, KeyError)):
        LocalModels.from_arrays(arrays)
