"""The best of a stream, against sorting all of it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.ensemble.picking.shortlist import Candidate, Shortlist

NOTHING = Graph(
    "x",
    np.zeros(0, np.int16),
    np.zeros((0, 3)),
    np.zeros((3, 3)),
    np.zeros(3, bool),
    np.zeros((0, 2), np.int32),
    np.zeros((0, 3), np.int16),
    {},
    "x",
    None,
)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5, 4.0])), st.integers(1, 8))
def test_it_keeps_what_sorting_would(scores: list[float], size: int) -> None:
    shortlist = Shortlist(size)
    for number, score in enumerate(scores):
        if shortlist.wants(score):
            shortlist.add(Candidate(str(number), score, NOTHING, {}))
    found = [int(candidate.id) for candidate in shortlist.best()]
    assert found == sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:size]


def test_it_holds_no_more_than_its_size() -> None:
    shortlist = Shortlist(3)
    for number in range(1000):
        shortlist.add(Candidate(str(number), float(number % 7), NOTHING, {}))
    assert len(shortlist.best()) == 3
