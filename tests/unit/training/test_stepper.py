"""What is drawn in a step depends on seed, step and share of the graphs alone."""

import torch

from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.stepper import reseed


def drawn(seed=3, step=7, rank=0, world=4, tensor=1):
    reseed(seed, step, Ranks(rank, world, torch.device("cpu"), tensor=tensor))
    return tuple(torch.rand(4).tolist())


def test_the_same_step_draws_the_same_whatever_was_drawn_before():
    first = drawn()
    torch.rand(100)
    assert drawn() == first


def test_seeds_steps_and_shares_draw_differently():
    cases = [drawn(), drawn(seed=4), drawn(step=8), drawn(rank=1), drawn(seed=37, step=0)]
    assert len(set(cases)) == len(cases)


def test_ranks_that_see_the_same_graphs_draw_the_same():
    assert drawn(rank=2, tensor=2) == drawn(rank=3, tensor=2) == drawn(rank=1, tensor=1)
    assert drawn(rank=2, tensor=2) != drawn(rank=1, tensor=2)
