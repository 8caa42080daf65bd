import numpy as np

from hydragnn_hpo.report.importance.swarm import WIDTH, heights_of


def test_points_alone_stay_on_the_line():
    assert heights_of(np.array([0.0, 1.0, 2.0])).tolist() == [0.0, 0.0, 0.0]
    assert heights_of(np.array([])).tolist() == []
    assert heights_of(np.full(3, 0.5)).tolist() == [0.0, 0.0, 0.0]


def test_points_at_one_place_stand_apart_and_within_their_line():
    heights = heights_of(np.array([0.0] * 50 + [1.0]))
    assert len(set(heights[:50])) == 50
    assert np.abs(heights).max() <= WIDTH
    assert heights.sum() == np.float64(0.0) or abs(heights.sum()) < 1e-9
