"""Numbers of the elements against a printed periodic table, and embeddings that begin from them."""

import numpy as np
import pytest
import torch
from ase.data import atomic_numbers

from hydragnn_hpo.model.element_numbers import element_numbers, embed_elements

S, P, D, F = range(4)
TABLE = {
    "H": (1, 1, S, 1, 0.31),
    "He": (1, 18, S, 2, 0.28),
    "C": (2, 14, P, 4, 0.76),
    "Ne": (2, 18, P, 8, 0.58),
    "Mg": (3, 2, S, 2, 1.41),
    "Fe": (4, 8, D, 8, 1.32),
    "Zn": (4, 12, D, 12, 1.22),
    "Ga": (4, 13, P, 3, 1.22),
    "Gd": (6, 3, F, 10, 1.96),
    "Lu": (6, 3, D, 3, 1.87),
    "Hf": (6, 4, D, 4, 1.75),
    "Pb": (6, 14, P, 4, 1.46),
    "U": (7, 3, F, 6, 1.96),
}
"""Period, group, block, valence electrons, radius of Cordero et al. (2008), table 2."""


@pytest.mark.parametrize("symbol", TABLE)
def test_numbers_are_those_of_the_periodic_table(symbol):
    assert tuple(element_numbers()[atomic_numbers[symbol]]) == pytest.approx(TABLE[symbol])


def test_elements_that_are_alike_begin_alike():
    torch.manual_seed(0)
    weights = embed_elements(4096).weight.detach().numpy()
    assert weights[1:].var() == pytest.approx(1.0, rel=0.02)
    alike = np.corrcoef(weights)
    one = {name: atomic_numbers[name] for name in ("Sr", "Ba", "Cl", "Br")}
    assert alike[one["Sr"], one["Ba"]] > 0.4 > 0.1 > alike[one["Sr"], one["Br"]]
    assert alike[one["Cl"], one["Br"]] > 0.4 > 0.1 > alike[one["Cl"], one["Ba"]]
