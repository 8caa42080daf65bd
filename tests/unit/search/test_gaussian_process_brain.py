"""The process against dense algebra and integrals, and what a brain learns from its rungs."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from hydragnn_hpo.config.search_config import ParameterConfig
from hydragnn_hpo.search.brain import make_brain
from hydragnn_hpo.search.brains.gaussian_process_brain import (
    BEST,
    MOST_RESULTS,
    RUNG_VARIANCE,
    WORST,
    Encoder,
    Hyperparameters,
    Observations,
    RungProcess,
    _thin_out,
    fit_hyperparameters,
    log_likelihood,
    scale_scores,
)
from hydragnn_hpo.search.objective import TrialScore

SPACE = {
    "model.conv": ParameterConfig(choices=("schnet", "egnn")),
    "training.learning_rate": ParameterConfig(low=1e-4, high=1e-2, log=True),
    "model.options.filters": ParameterConfig(low=16, high=64, when={"model.conv": "schnet"}),
}
HYPERPARAMETERS = Hyperparameters(np.array([0.7, 1.9]), kept=0.6, trial=0.2, noise=0.1)


@pytest.fixture
def data():
    """Eight results of five trials at three rungs."""
    generator = np.random.default_rng(3)
    trials = np.array([0, 1, 2, 3, 4, 0, 1, 0])
    places = generator.random((5, 2))
    return Observations(
        places=np.arange(8),
        rows=places[trials],
        rungs=np.array([0.0, 0, 0, 0, 0, 1, 1, 2]),
        trials=trials,
        scores=generator.normal(size=8),
    )


def similarity(one, two):
    """Write out the Matern kernel for one pair."""
    r = math.sqrt(5.0 * sum(w * (a - b) ** 2 for w, a, b in zip([0.7, 1.9], one, two, strict=True)))
    return (1 + r + r * r / 3) * math.exp(-r)


def covariance(data):
    size = len(data.scores)
    full = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            full[i, j] = similarity(data.rows[i], data.rows[j])
            full[i, j] *= 0.6 ** abs(data.rungs[i] - data.rungs[j])
            full[i, j] += 0.2 * (data.trials[i] == data.trials[j])
            full[i, j] += RUNG_VARIANCE * (data.rungs[i] == data.rungs[j]) + 0.1 * (i == j)
    return full


def test_predictions_are_those_of_dense_algebra(data):
    process = RungProcess(data, HYPERPARAMETERS)
    inverse = np.linalg.inv(covariance(data))
    rows = np.array([[0.2, 0.9], [0.5, 0.5]])
    cross = np.array(
        [
            [similarity(x, row) * 0.6 ** (2 - r) for row in rows]
            for x, r in zip(data.rows, data.rungs, strict=True)
        ]
    )
    amplitude = data.scores @ inverse @ data.scores / len(data.scores)
    means, spreads = process.predict(rows)
    assert means == pytest.approx(cross.T @ inverse @ data.scores)
    expected = amplitude * (1.0 - np.diag(cross.T @ inverse @ cross))
    assert spreads == pytest.approx(np.sqrt(expected))
    best = min(process.predict(data.rows)[0])
    for gain, mean, spread in zip(process.expected_improvement(rows), means, spreads, strict=True):
        density = norm(mean, spread).pdf
        whole, _ = quad(lambda y, d=density: (best - y) * d(y), best - 9 * spread, best)
        assert gain == pytest.approx(whole, rel=1e-5)


def test_the_likelihood_is_that_of_a_normal_distribution(data):
    full = covariance(data)
    amplitude = data.scores @ np.linalg.inv(full) @ data.scores / 8
    expected = multivariate_normal(np.zeros(8), amplitude * full).logpdf(data.scores)
    constant = -4.0 * (1.0 + math.log(2.0 * math.pi))
    assert log_likelihood(data, HYPERPARAMETERS) == pytest.approx(expected - constant)


def test_a_pending_proposal_moves_no_prediction_and_narrows_its_neighbourhood(data):
    process = RungProcess(data, HYPERPARAMETERS)
    rows = np.array([[0.21, 0.9], [0.6, 0.1]])
    before, wide = process.predict(rows)
    process.add_expected(np.array([0.2, 0.9]))
    after, narrow = process.predict(rows)
    assert after == pytest.approx(before)
    assert narrow[0] / wide[0] < 0.9 < 0.95 < narrow[1] / wide[1] <= 1.0


def test_length_scales_follow_what_matters():
    generator = np.random.default_rng(0)
    rows = generator.random((60, 2))
    data = Observations(
        places=np.arange(60),
        rows=rows,
        rungs=np.zeros(60),
        trials=np.arange(60),
        scores=np.sin(6.0 * rows[:, 0]),
    )
    axes = fit_hyperparameters(data, np.array([0, 1])).axes
    assert axes[0] > 20.0 * axes[1]


def test_labels_are_one_apart_and_inactive_ranges_at_their_middle():
    encoder = Encoder(SPACE)
    assert encoder.groups.tolist() == [1, 1, 2, 0]
    one = encoder.encode({"model.conv": "schnet", "training.learning_rate": 1e-3})
    two = encoder.encode({"model.conv": "egnn", "training.learning_rate": 1e-3})
    assert np.sum((one - two) ** 2) == pytest.approx(1.0)
    assert one[2] == pytest.approx(0.5)
    assert two[3] == 0.5


def test_scores_are_scaled_by_the_first_rung():
    errors = [math.exp(y) for y in (0.0, 1.0, 2.0, 3.0, 4.0)]
    results = [TrialScore({}, error) for error in errors] + [
        TrialScore({}, math.exp(-2.0), 1),
        TrialScore({}, None),
        TrialScore({}, math.exp(50.0)),
    ]
    # of six first results, logarithms 0 1 2 3 4 50: the median is 2.5, the 16th percentile 0.8
    expected = [-2.5, -1.5, -0.5, 0.5, 1.5, -4.5, 47.5, 47.5]
    expected = [min(value / 1.7, WORST) for value in expected]
    assert scale_scores(results) == pytest.approx(expected)


def test_goals_are_learned_by_their_fronts():
    points = [(3.0, 3.0), (1.0, 2.0), (2.0, 1.0), (4.0, 4.0)]
    scores = scale_scores([TrialScore({}, point) for point in points])
    assert max(scores[1], scores[2]) < scores[0] < scores[3]


def test_of_many_results_the_best_and_some_others_are_seen():
    scores = np.random.default_rng(1).random(2000)
    places = _thin_out(scores)
    assert len(places) == MOST_RESULTS
    assert set(np.argsort(scores)[:BEST]) <= set(places)
    assert scores[places].max() == scores.max()
    assert list(places) == sorted(places)


def test_what_leads_early_and_not_at_the_end_is_left():
    """At the short rung schnet is better by 0.2, at the long one worse by 0.4."""
    space = {
        "model.conv": ParameterConfig(choices=("schnet", "egnn")),
        "training.learning_rate": ParameterConfig(low=1e-4, high=1e-2, log=True),
    }

    def score(values, rung):
        place = abs(math.log10(values["training.learning_rate"]) + 3.0)
        late = (0.0, -0.4)[rung] if values["model.conv"] == "egnn" else -0.2
        return TrialScore(values, math.exp(0.3 * place + late - rung), rung)

    def count_schnet(rungs):
        brain = make_brain("gp", space, seed=5, initial=8)
        for place, values in enumerate(brain.ask(8)):
            brain.tell(score(values, 0))
            if place < 6 and rungs == 2:
                brain.tell(score(values, 1))
        return sum(values["model.conv"] == "schnet" for values in brain.ask(8))

    assert count_schnet(rungs=1) >= 6
    assert count_schnet(rungs=2) <= 2


def live_with_prior(prior, best, count):
    """Return the rates that are proposed one by one; the best one has the lowest error."""
    rate = ParameterConfig(low=1e-4, high=1e-2, log=True, prior=prior)
    space = {"training.learning_rate": rate, "model.cutoff": ParameterConfig(low=3.0, high=6.0)}
    brain = make_brain("gp", space, seed=2, initial=6)
    proposed = []
    for _ in range(count):
        (values,) = brain.ask(1)
        proposed.append(math.log10(values["training.learning_rate"]))
        error = abs(proposed[-1] - math.log10(best)) + 0.1 * abs(values["model.cutoff"] - 4.0)
        brain.tell(TrialScore(values, 0.1 + error))
    return np.array(proposed)


def test_a_prior_is_where_the_search_begins_and_not_where_it_stays():
    believed = live_with_prior(3e-4, best=5e-3, count=30)
    # of a normal distribution with a standard deviation of 0.15 x 2 decades around -3.5
    assert np.abs(believed[:6] + 3.52).max() < 0.9
    assert np.median(believed[:6]) == pytest.approx(-3.52, abs=0.2)
    assert np.median(np.abs(believed[-6:] - math.log10(5e-3))) < 0.2
    indifferent = live_with_prior(None, best=5e-3, count=6)
    assert np.ptp(indifferent) > np.ptp(believed[:6])


def test_half_of_the_first_proposals_have_a_choice_that_is_believed_in():
    convs = ParameterConfig(choices=("schnet", "egnn", "painn", "gat"), prior="painn")
    space = {"model.conv": convs, "model.cutoff": ParameterConfig(low=3.0, high=6.0)}
    first = make_brain("gp", space, seed=2, initial=8).ask(8)
    assert sum(values["model.conv"] == "painn" for values in first) in (4, 5)
