"""What is sent while gradients are computed, and what is waited for."""

import time

import pytest
import torch

from hydragnn_hpo.training.ranks.communication import Overheard, sending


@pytest.mark.parametrize(
    ("pieces", "total", "exposed"),
    [
        ([], 0.0, 0.0),
        ([(0.0, 3.0)], 3.0, 3.0),  # one piece sets out with the last gradient
        ([(0.0, 2.0), (5.0, 6.0)], 3.0, 1.0),  # the first is hidden
        ([(0.0, 4.0), (3.0, 6.0)], 6.0, 3.0),  # one second counts once
        ([(0.0, 9.0), (1.0, 2.0)], 9.0, 8.0),  # the first arrives last
    ],
)
def test_time_on_the_way_counts_once(pieces, total, exposed):
    assert sending(pieces) == (total, exposed)
    assert sending(pieces[::-1]) == (total, exposed)


class Bucket:
    def __init__(self, values):
        self.values = values

    def buffer(self):
        return self.values


class Slow:
    """An all-reduce over two ranks of which the other has 4 everywhere, done when it is told."""

    def __init__(self, values):
        self.values, self.future = values, torch.futures.Future()

    def get_future(self):
        return self.future

    def end(self):
        self.future.set_result([self.values.add_(2.0)])


def test_the_average_arrives_and_the_time_is_noted(monkeypatch):
    sent = []

    def reduced(values, async_op):
        assert async_op
        sent.append(Slow(values))
        return sent[-1]

    monkeypatch.setattr("torch.distributed.all_reduce", reduced)
    heard = Overheard(torch.device("cpu"))
    first, last = (heard.average(2, Bucket(torch.tensor([6.0, 8.0]))) for _ in range(2))
    time.sleep(0.02)
    for work in sent:
        work.end()
    assert first.wait().tolist() == last.wait().tolist() == [5.0, 6.0]
    total, exposed = heard.take()
    assert 0.02 <= exposed <= total
    assert heard.take() == (0.0, 0.0)
