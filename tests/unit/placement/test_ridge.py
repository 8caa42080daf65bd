"""The regression behind the prices: known laws, outliers, honest spread, speed."""

import math
import statistics

import numpy as np
import pytest

from hydragnn_hpo.placement.ridge import MOST_ROWS, STALE, Ridge

PRIORS = {"one": 2.0, "size": 1.0, "kind": 1.0}


def test_one_observation_by_hand():
    """A mean with prior N(0, 2^2), seen once with noise s: the posterior of the textbook."""
    ridge = Ridge({"one": 2.0}, noise=1.0)
    ridge.put("a", {"one": 1.0}, 3.0)
    found = ridge.predict({"one": 1.0})
    noise = ridge.noise
    assert found == pytest.approx(3.0 * 4.0 / (4.0 + noise**2), rel=0.1)
    spread = 1.0 / (1 / 4.0 + 1 / noise**2)
    assert ridge.sigma({"one": 1.0}) == pytest.approx(math.sqrt(noise**2 + spread), rel=0.1)


def law(random, count, noise):
    kinds = {"kind:a": 0.5, "kind:b": -0.5, "kind:c": 0.0}
    for _ in range(count):
        kind = random.choice(list(kinds))
        size = random.normal()
        value = 0.7 + 0.3 * size + kinds[kind]
        features = {"one": 1.0, "size": size, str(kind): 1.0}
        yield features, value, value + noise * random.standard_normal()


def test_a_known_law_is_found():
    random = np.random.default_rng(0)
    ridge = Ridge(PRIORS, noise=0.15)
    for key, (features, _, value) in enumerate(law(random, 200, 0.1)):
        ridge.put(key, features, value)
    errors = [ridge.predict(f) - true for f, true, _ in law(random, 100, 0.0)]
    assert statistics.pstdev(errors) < 0.03, "0.1 / sqrt(200 / 5 coefficients)"
    assert ridge.coefficient("size") == pytest.approx(0.3, abs=0.03)
    assert ridge.coefficient("kind:a") - ridge.coefficient("kind:b") == pytest.approx(1.0, abs=0.05)


def test_a_tenth_of_wild_observations_changes_little():
    random = np.random.default_rng(1)
    ridge = Ridge(PRIORS, noise=0.15)
    for key, (features, _, value) in enumerate(law(random, 200, 0.1)):
        ridge.put(key, features, value + 3.0 * (key % 10 == 0))
    errors = [ridge.predict(f) - true for f, true, _ in law(random, 100, 0.0)]
    assert statistics.median(map(abs, errors)) < 0.1, "without weights it is 0.3"


def test_the_spread_is_honest():
    """Two thirds of what comes lie within one standard deviation, after 6 and after 60."""
    for known in (6, 60):
        inside = []
        for seed in range(60):
            random = np.random.default_rng(seed)
            ridge = Ridge(PRIORS, noise=0.15)
            for key, (features, _, value) in enumerate(law(random, known, 0.15)):
                ridge.put(key, features, value)
            for features, _, value in law(random, 5, 0.15):
                inside.append(abs(ridge.predict(features) - value) < ridge.sigma(features))
        assert 0.58 < statistics.mean(inside) < 0.82


@pytest.mark.parametrize(("known", "within"), [(8, 0.1), (400, 0.03)])
def test_the_noise_is_found(known, within):
    """Whatever its first guess; five coefficients use up observations."""
    found = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        ridge = Ridge({"one": 9.0, "size": 9.0, "kind": 9.0}, noise=0.3)
        for key, (features, _, value) in enumerate(law(random, known, 0.3)):
            ridge.put(key, features, value)
        features, *_ = next(law(np.random.default_rng(seed), 1, 0.0))
        found.append(ridge.noise)
        assert ridge.sigma(features) > ridge.noise
    assert statistics.mean(found) == pytest.approx(0.3, rel=within)


def test_what_was_never_seen_is_less_certain():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(20):
        ridge.put(key, {"one": 1.0, "kind:a": 1.0}, 1.0)
    known, new = {"one": 1.0, "kind:a": 1.0}, {"one": 1.0, "kind:z": 1.0}
    assert ridge.sigma(known) < 0.3 < 1.0 < ridge.sigma(new)


def test_a_later_observation_of_the_same_replaces_the_first():
    ridge = Ridge(PRIORS, noise=0.1)
    ridge.put("a", {"one": 1.0}, 9.0)
    ridge.put("a", {"one": 1.0}, 1.0)
    assert ridge.rows() == [({"one": 1.0}, 1.0)]
    assert ridge.predict({"one": 1.0}) == pytest.approx(1.0, abs=0.02)


def test_predictions_of_one_version_are_the_same():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(100):
        ridge.put(key, {"one": 1.0}, 1.0)
    before, said = ridge.version, ridge.predict({"one": 1.0})
    ridge.put(100, {"one": 1.0}, 5.0)
    assert (ridge.version, ridge.predict({"one": 1.0})) == (before, said), "1 % is not worth a fit"
    for key in range(101, 104):
        ridge.put(key, {"one": 1.0}, 5.0)
    assert ridge.version > before
    assert ridge.predict({"one": 1.0}) != said


def test_observations_among_thousands_are_fitted_by_the_dozen():
    random = np.random.default_rng(2)
    ridge = Ridge(PRIORS, noise=0.15)
    rows = list(law(random, 2400, 0.1))
    for key, (features, _, value) in enumerate(rows[:2000]):
        ridge.put(key, features, value)
    before = ridge.version
    for key, (features, _, value) in enumerate(rows[2000:]):
        ridge.put(2000 + key, features, value)
        ridge.predict(features)
    assert 0 < ridge.version - before <= 400 / (2000 * STALE)


def test_the_oldest_are_forgotten():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(MOST_ROWS + 10):
        ridge.put(key, {"one": float(key)}, 1.0)
    rows = ridge.rows()
    assert len(rows) == MOST_ROWS
    assert rows[0][0]["one"] == 10.0
