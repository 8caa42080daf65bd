"""The tutorials work as they stand: files are written, commands run, outputs compared."""

import pytest
from tutorials import PageRunner


@pytest.mark.release
@pytest.mark.parametrize("name", ["first_campaign", "own_data", "ensemble_in_ase"])
def test_a_tutorial_works_as_it_stands(page_runner: PageRunner, name: str) -> None:
    assert page_runner.follow(name) == []
