"""The how-to guides work as they stand, as the tutorials do."""

import pytest
from tutorials import PageRunner


@pytest.mark.release
@pytest.mark.parametrize(
    "name", ["crystals", "few_labels", "forces_and_md", "units_and_splits", "smiles", "clusters"]
)
def test_a_guide_works_as_it_stands(page_runner: PageRunner, name: str) -> None:
    if name == "smiles":
        pytest.importorskip("rdkit", reason="RDKit is not installed: extra [chem].")
    assert page_runner.follow(name) == []
