"""The other tutorials: two files, so that two workers may follow them at the same time."""

from collections.abc import Iterator

import pytest
from tutorials import PageRunner
from virtual_slurm import missing, started

pytestmark = pytest.mark.release


def test_the_tutorial_of_convs_works_as_it_stands(page_runner: PageRunner) -> None:
    assert page_runner.follow("own_conv") == []


@pytest.fixture
def cluster(
    page_runner: PageRunner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[frozenset[str]]:
    """A Slurm for the reader, where there can be one."""
    if missing():
        yield frozenset()
        return
    with started(tmp_path_factory.mktemp("slurm2"), 2, cpus=64) as made:
        page_runner.environment["SLURM_CONF"] = made.environment["SLURM_CONF"]
        yield frozenset({"Slurm"})
    del page_runner.environment["SLURM_CONF"]


def test_the_tutorial_of_slurm_works_where_there_is_one(
    page_runner: PageRunner, cluster: frozenset[str]
) -> None:
    if left := page_runner.follow("slurm", cluster):
        pytest.skip(f"{len(left)} blocks need Slurm: {missing()}; the others work.")
