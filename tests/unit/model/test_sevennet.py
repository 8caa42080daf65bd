"""SevenNet-0 against values of its package (``sevennet_reference.py``), and its couplings."""

import copy
import json
import math
import warnings

import msgspec
import numpy as np
import pytest
import torch
from sevennet_reference import EXPECTED, FOLDER, STEM, load_package, run_package
from trunk_structures import columns_without_edges as columns
from trunk_structures import crystals_of_all_systems, example

from hydragnn_hpo.model.tensor_product import coupling_coefficients, spherical_harmonics
from hydragnn_hpo.model.trunks import find_trunk, sevennet
from hydragnn_hpo.model.trunks.sevennet import couple_degrees, list_paths

ROWS = json.loads(EXPECTED.read_text(encoding="ascii"))
LARGEST = 14.0
"""Largest feature of all examples; fp32 has seven digits of it."""


def features(atoms, trunk=None):
    return (trunk or find_trunk("sevennet")).features(columns(atoms), [0])


@pytest.fixture(scope="module")
def fp64_trunk():
    """The trunk with its weights in fp64, for comparisons of formulas."""
    trunk = find_trunk("sevennet")
    return msgspec.structs.replace(trunk, network=copy.deepcopy(trunk.network).double())


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_features_and_energies_are_those_of_the_package(row, fp64_trunk):
    atoms = example(row)
    numbers = torch.as_tensor(atoms.numbers)
    for trunk, tolerance in ((fp64_trunk, 1e-5), (find_trunk("sevennet"), 1e-6 * LARGEST)):
        found = features(atoms, trunk)
        assert found.shape == (len(atoms), trunk.layers, trunk.width) == (len(atoms), 6, 128)
        np.testing.assert_allclose(found[0], row["features"], rtol=0, atol=tolerance)
        energy = trunk.network.site_energies(torch.from_numpy(found), numbers).mean().item()
        assert energy == pytest.approx(row["energy"], abs=3e-6)


def test_features_do_not_depend_on_the_kernels(monkeypatch, fp64_trunk):
    atoms = example(ROWS[6])
    found = features(atoms, fp64_trunk)
    monkeypatch.setattr(sevennet, "choose_kernels", lambda *setting: "eager")
    assert np.abs(features(atoms, fp64_trunk) - found).max() < 1e-10


@pytest.mark.parametrize("path", list_paths(2, 2))
def test_couplings_rotate_with_their_factors(path):
    """By the matrices that turn harmonics, D Y(v) = Y(R v); odd sums of degrees included."""
    random = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=random, dtype=torch.float64))[0]
    rotation = rotation * torch.linalg.det(rotation)
    points = torch.nn.functional.normalize(
        torch.randn(40, 3, generator=random, dtype=torch.float64), dim=1
    )
    before, after = (spherical_harmonics(each, 2) for each in (points, points @ rotation.T))
    turns = []
    for ell in path:
        rows = slice(ell**2, (ell + 1) ** 2)
        turns.append(torch.linalg.lstsq(before[:, rows], after[:, rows]).solution)
    coupling = couple_degrees(path)
    turned = torch.einsum("abc,ai,bj,ck->ijk", coupling, *turns)
    assert (turned - coupling).abs().max() < 1e-12
    assert torch.allclose(coupling.square().sum(dim=(0, 1)), torch.ones(2 * path[2] + 1).double())


def test_couplings_of_even_degrees_are_those_of_harmonics():
    even = [path for path in list_paths(2, 2) if sum(path) % 2 == 0]
    assert len(even) == 11
    for path in even:
        harmonic = torch.from_numpy(coupling_coefficients(*path)).permute(1, 2, 0)
        assert torch.allclose(couple_degrees(path).abs(), harmonic.abs(), atol=1e-12)


def test_vectors_couple_to_their_cross_product():
    left, right = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    found = torch.einsum("abc,a,b->c", couple_degrees((1, 1, 1)), left, right)
    cross = torch.linalg.cross(left, right) / math.sqrt(2)
    assert torch.allclose(found, cross) or torch.allclose(found, -cross)


def test_paths_are_those_of_the_paper():
    """Three from scalars alone, fifteen among degrees up to 2, one to scalars from each degree."""
    assert list_paths(0, 2) == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]
    assert len(list_paths(2, 2)) == 15
    assert list_paths(2, 0) == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]


def test_the_card_says_where_weights_come_from():
    trunk = find_trunk("sevennet")
    assert (trunk.name, trunk.version, trunk.licence) == ("sevennet", "0 (11 July 2024)", "MIT")
    assert (trunk.layers, trunk.width, trunk.cutoff) == (6, 128, 5.0)
    assert len(trunk.elements) == 89  # MPtrj
    assert "Park" in trunk.citation
    assert "MPtrj" in trunk.trained_on
    licence = (FOLDER / f"{STEM}.LICENSE.txt").read_text(encoding="ascii")
    assert "MIT License" in licence
    assert "Yutack Park" in licence


@pytest.mark.data
def test_real_crystals_have_the_features_of_the_package(fp64_trunk):
    """Both run in fp64; our weights are products with constants, rounded to fp32."""
    pytest.importorskip("sevenn", reason="no sevenn: pip install --no-deps sevenn==0.13.0 e3nn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = load_package()
        for atoms in crystals_of_all_systems(50):
            expected, energy = run_package(package, atoms)
            found = torch.from_numpy(features(atoms, fp64_trunk))
            assert (found - expected).abs().max() < 1e-6 * expected.abs().max()
            numbers = torch.as_tensor(atoms.numbers)
            energies = fp64_trunk.network.site_energies(found, numbers)
            assert energies.mean().item() == pytest.approx(energy, abs=1e-6)
            assert np.abs(features(atoms) - expected.numpy()).max() < 2e-6 * expected.abs().max()
